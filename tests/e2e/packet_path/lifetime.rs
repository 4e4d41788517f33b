// SPDX-License-Identifier: Apache-2.0
//! Flows that outlive their node, and hosts that cannot carry them.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::*;
use crate::bypass::Transfer;
use crate::ends::carry;
use crate::support::{SOON, binary, start_in};

/// Where nodes pin the packet path.
const PINS: &str = "/sys/fs/bpf/posthaste";

/// The name of the directory for maps of the present layout.
fn layout() -> &'static str {
    let source = include_str!("../../../crates/bpf/src/packet/pins.rs");
    let quoted = source.split("const LAYOUT: &str = \"").nth(1);
    let name = quoted.and_then(|rest| rest.split('"').next());
    name.expect("the source names it")
}

/// The pins that a host has.
pub(crate) fn pins(host: &Namespace) -> Vec<PathBuf> {
    host.with_files(|| {
        let listed = fs::read_dir(PINS).into_iter().flatten();
        listed.map(|entry| entry.expect("a name").path()).collect()
    })
}

/// Runs the product's program, which succeeds, on a host.
pub(crate) fn run_program(host: &Namespace, words: &str) -> String {
    let mut command = host.command(binary()).expect("an open namespace");
    let output = command.args(words.split(' ')).output().expect("it runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words}: {stderr}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A node, and a connection of each family on the packet path.
fn testbed() -> (Network, TcpListener, Node, [Pair; 2]) {
    let network = line();
    let listener = listen(network.server(), PORT);
    let node = start_relaying_in(network.node(0), CONFIG);
    until_ready(&network, &node, &listener);
    let pairs = open(&network, &node, &listener);
    (network, listener, node, pairs)
}

pub(super) fn open(network: &Network, node: &Node, listener: &TcpListener) -> [Pair; 2] {
    let taken = redirect(node, "packet_taken");
    let mut pairs = Family::ALL.map(|family| Pair::open(network, family, listener));
    exchange(&mut pairs);
    assert_eq!(redirect(node, "packet_taken"), taken + 2);
    pairs
}

/// Little to the server, whose next clients are to be answered too.
pub(super) fn exchange(pairs: &mut [Pair]) {
    for pair in pairs {
        pair.check();
        carry(&mut pair.client, &mut pair.server, 3_000, 1);
        carry(&mut pair.server, &mut pair.client, 100_000, 2);
    }
}

fn logged(node: &Node, words: &str) -> bool {
    node.log().iter().any(|line| line.contains(words))
}

// promise: PK2
/// A node is killed under open flows. They go on without one, and under the next.
#[test]
fn flows_outlive_a_killed_node() {
    let (network, listener, mut node, mut pairs) = testbed();
    node.kill().expect("it runs");
    exchange(&mut pairs);
    // New connections are forwarded, or still answered by the programs.
    let mut during = Family::ALL.map(|family| Pair::open(&network, family, &listener));
    exchange(&mut during);
    let mut node = start_relaying_in(network.node(0), CONFIG);
    let words = "the packet path cannot be pinned";
    assert!(!logged(&node, words), "{:#?}", node.log());
    until("the next node takes flows", || {
        let pair = Pair::open(&network, Family::V4, &listener);
        pair.close_client_first();
        redirect(&node, "packet_taken") > 0
    });
    for mut pairs in [pairs, during, open(&network, &node, &listener)] {
        exchange(&mut pairs);
        let [one, other] = pairs;
        one.close_client_first();
        other.close_server_first();
    }
    node.stop(SOON).expect("it ends");
    until("the guard has removed the pins", || {
        pins(network.node(0)).is_empty()
    });
}

/// A node with another bound adopts the flow table of one that was killed as it is, and names both
/// sizes.
#[test]
fn table_of_another_size_is_adopted() {
    let (network, listener, mut node, mut pairs) = testbed();
    node.kill().expect("it runs");
    let config = format!("[packet]\nflows = 4096\n{CONFIG}");
    let mut node = start_relaying_in(network.node(0), &config);
    until("the node warns", || {
        logged(&node, "flows=65536 configured=4096")
    });
    exchange(&mut pairs);
    for pair in pairs {
        pair.close_client_first();
    }
    node.stop(SOON).expect("it ends");
    until("the guard has removed the pins", || {
        pins(network.node(0)).is_empty()
    });
    let node = start_relaying_in(network.node(0), &config);
    until_ready(&network, &node, &listener);
    assert!(!logged(&node, "configured=4096"), "{:#?}", node.log());
}

// promise: PK9
/// Without a next node the guard removes the pins when the last flow has ended.
#[test]
fn guard_looks_after_the_flows_of_a_killed_node() {
    let (network, _listener, mut node, mut pairs) = testbed();
    node.kill().expect("it runs");
    exchange(&mut pairs);
    assert_eq!(pins(network.node(0)).len(), 1);
    for pair in pairs {
        pair.close_client_first();
    }
    until("the guard has removed the pins", || {
        pins(network.node(0)).is_empty()
    });
}

// promise: PK9
/// A stopped node leaves open flows too.
#[test]
fn guard_looks_after_the_flows_of_a_stopped_node() {
    let (network, _listener, mut node, mut pairs) = testbed();
    node.stop(SOON).expect("it ends");
    exchange(&mut pairs);
    assert_eq!(pins(network.node(0)).len(), 1);
    for pair in pairs {
        pair.close_server_first();
    }
    until("the guard has removed the pins", || {
        pins(network.node(0)).is_empty()
    });
}

// promise: PK9
/// `teardown` resets the flows, those that wait and those that carry data, unless it is to keep them.
#[test]
fn teardown_resets_open_flows() {
    let leg = Link::delay(Duration::from_millis(20)).rate(100_000_000);
    let network = network([leg.clone(), leg]);
    let listener = listen(network.server(), PORT);
    let mut node = start_relaying_in(network.node(0), CONFIG);
    until_ready(&network, &node, &listener);
    let mut idle = open(&network, &node, &listener);
    let busy = open(&network, &node, &listener);
    node.kill().expect("it runs");
    run_program(network.node(0), "teardown --keep-flows");
    exchange(&mut idle);
    assert_eq!(pins(network.node(0)).len(), 1);
    let transfers = busy.map(|pair| Transfer::start(&pair));
    std::thread::sleep(Duration::from_millis(500));
    let done = run_program(network.node(0), "teardown");
    let reset = "reset 4 open flows of the packet path";
    assert!(done.contains(reset), "{done}");
    transfers.into_iter().for_each(Transfer::expect_broken);
    for mut pair in idle {
        expect_reset(&mut pair.client);
        expect_reset(&mut pair.server);
    }
    assert!(pins(network.node(0)).is_empty());
}

// promise: PK9
/// Connections that are opened while `teardown` works, right after the node's death, end or work; those
/// behind it are forwarded.
#[test]
fn connections_opened_during_teardown_do_not_hang() {
    let (network, listener, mut node, _pairs) = testbed();
    let host = network.node(0);
    node.kill().expect("it runs");
    let mut opened = Vec::new();
    std::thread::scope(|scope| {
        let work = scope.spawn(|| run_program(host, "teardown"));
        while !work.is_finished() {
            let dialed = dial(network.client(), target(&network, Family::V4, &listener));
            opened.extend(dialed.ok());
            std::thread::sleep(Duration::from_millis(10));
        }
    });
    listener.set_nonblocking(true).expect("an open socket");
    while listener.accept().is_ok() {}
    listener.set_nonblocking(false).expect("an open socket");
    for _ in 0..20 {
        let mut pair = Pair::open(&network, Family::V4, &listener);
        pair.check();
        pair.close_client_first();
    }
    // Those of which the server knows are closed by now.
    for mut client in opened {
        client.set_read_timeout(Some(SOON)).expect("an open socket");
        let read = client
            .write(b"x")
            .and_then(|_| uninterrupted(|| client.read(&mut [0])));
        let hangs = |error: &std::io::Error| error.kind() == std::io::ErrorKind::WouldBlock;
        assert!(!read.as_ref().is_err_and(hangs), "{read:?}");
    }
}

// promise: PK9
/// Flows whose ends have both sent a FIN while data is missing, and whose server has not answered.
#[test]
fn teardown_resets_unfinished_flows() {
    let network = line();
    let listener = listen(network.server(), PORT);
    let mut node = start_relaying_in(network.node(0), CONFIG);
    until_ready(&network, &node, &listener);
    let [mut finished, _] = open(&network, &node, &listener);
    let lost = "tcp sport 80 tcp flags & fin == 0 meta length > 200 drop";
    firewall(network.client(), "lost", &[("input", lost)]);
    finished
        .client
        .shutdown(Shutdown::Write)
        .expect("it is open");
    expect_end(&mut finished.server);
    finished.server.write_all(&[7; 1000]).expect("it is open");
    drop(finished.server);
    let silent = [("input", "tcp flags & syn == syn drop")];
    firewall(network.server(), "silent", &silent);
    let to = target(&network, Family::V4, &listener);
    let mut unanswered = dial(network.client(), to).expect("the node answers");
    node.kill().expect("it runs");
    run_program(network.node(0), "teardown");
    remove_firewall(network.client(), "lost");
    remove_firewall(network.server(), "silent");
    expect_reset(&mut finished.client);
    expect_reset(&mut unanswered);
}

// promise: PK2
/// A successor has the flows while they carry data.
#[test]
fn upgrade_loses_no_byte() {
    let (network, _listener, mut node, mut pairs) = testbed();
    let socket = node.socket();
    let words = format!("upgrade --socket {}", socket.display());
    std::thread::scope(|scope| {
        let host = network.node(0);
        let upgrading = scope.spawn(|| run_program(host, &words));
        while !upgrading.is_finished() {
            for pair in &mut pairs {
                carry(&mut pair.client, &mut pair.server, 100_000, 1);
                carry(&mut pair.server, &mut pair.client, 100_000, 2);
            }
        }
    });
    let successor = pid(&node);
    node.process_mut().wait(SOON).expect("the first node ends");
    exchange(&mut pairs);
    // One that has not received much.
    let service = listen(network.server(), PORT + 1);
    for family in Family::ALL {
        learn(&network, &node, family, &service);
    }
    let opened = open(&network, &node, &service);
    for pair in pairs.into_iter().chain(opened) {
        pair.close_client_first();
    }
    kill(successor, Signal::SIGTERM).expect("it runs");
    until("the successor ends", || kill(successor, None).is_err());
    until("the guard has removed the pins", || {
        pins(network.node(0)).is_empty()
    });
}

fn pid(node: &Node) -> Pid {
    let status = node.status().expect("the node answers");
    let pid = status["pid"].as_i64().expect("a number");
    Pid::from_raw(pid.try_into().expect("a process id"))
}

/// A node that drains leaves new connections to forwarding, and open ones go on.
#[test]
fn draining_node_takes_no_flows() {
    let network = line();
    let config = "[defaults]\ndata_path = \"packet\"\n[[rule]]\nname = \"sockets\"\nports = [81]\n\
        data_path = \"socket\"\n[[rule]]\nname = \"packets\"\n";
    let node = crate::support::start_relaying(&network, config);
    let [listener, relayed] = [PORT, 81].map(|port| listen(network.server(), port));
    until_ready(&network, &node, &listener);
    let mut pairs = open(&network, &node, &listener);
    // The node drains as long as this relay is open.
    let mut relay = Pair::open(&network, Family::V4, &relayed);
    relay.check();
    let pid = node.process().pid().cast_signed();
    kill(Pid::from_raw(pid), Signal::SIGTERM).expect("it runs");
    until("the drain", || {
        node.status().expect("the node answers")["state"] == "draining"
    });
    let taken = redirect(&node, "packet_taken");
    for family in Family::ALL {
        let mut forwarded = Pair::open(&network, family, &listener);
        forwarded.check();
        forwarded.close_client_first();
    }
    assert_eq!(redirect(&node, "packet_taken"), taken);
    exchange(&mut pairs);
    relay.close_client_first();
}

// promise: PK9
/// Without a BPF file system flows are carried, and the node warns what its end means for them.
#[test]
fn unpinned_flows_are_reported() {
    let network = line();
    let host = network.node(0);
    let unmounted = host.with_files(|| Command::new("umount").arg("/sys/fs/bpf").status());
    assert!(unmounted.expect("umount can be run").success());
    let listener = listen(network.server(), PORT);
    let node = start_relaying_in(host, CONFIG);
    until_ready(&network, &node, &listener);
    open(&network, &node, &listener);
    assert!(logged(&node, "the packet path cannot be pinned"));
    assert!(logged(&node, "no BPF file system is mounted"));
}

// promise: PK9, H8
/// Without one `data_path = "auto"` means sockets; `status` and `doctor` say so, and how to change it.
#[test]
fn missing_bpf_file_system_is_reported() {
    let network = line();
    let host = network.node(0);
    let shell = |line: &str| {
        let status = host.with_files(|| Command::new("sh").args(["-c", line]).status());
        assert!(status.expect("there is a shell").success(), "{line}");
    };
    shell("umount /sys/fs/bpf");
    let listener = listen(network.server(), PORT);
    let config = "[defaults]\nobserve = false\n";
    let mut node = start_in(host, config);
    let trouble =
        |node: &Node| node.status().expect("the node answers")["packet_path_trouble"].clone();
    until("the node has settled", || !trouble(&node).is_null());
    let text = node.admin("status").expect("the node answers");
    let words = "data_path = \"auto\" means sockets";
    assert!(text.contains(words), "{text}");
    let mut doctor = host.command(binary()).expect("an open namespace");
    let said = doctor.arg("doctor").output().expect("it runs").stdout;
    let said = String::from_utf8_lossy(&said);
    let fix = "mount -t bpf bpf /sys/fs/bpf";
    assert!(said.contains(words) && said.contains(fix), "{said}");
    let relays = counter(&node, "relays_opened");
    Pair::open(&network, Family::V4, &listener).close_client_first();
    assert_eq!(counter(&node, "relays_opened"), relays + 1);
    shell(fix);
    node.stop(SOON).expect("it ends");
    let node = start_in(host, config);
    until_ready(&network, &node, &listener);
    assert_eq!(trouble(&node), serde_json::Value::Null);
}

// promise: PK9
/// Where the programs cannot be loaded, flows are forwarded, and the node warns.
#[test]
fn flows_are_forwarded_without_the_packet_path() {
    let network = line();
    let host = network.node(0);
    let cookie = host.run_in(posthaste_relay::sys::netns_cookie);
    // A directory in the place of a map.
    let (cookie, layout) = (cookie.expect("a number"), layout());
    let map = format!("{PINS}/{cookie}/{layout}/packet_flows");
    let made = host.with_files(|| fs::create_dir_all(map));
    made.expect("a directory");
    let listener = listen(network.server(), PORT);
    let node = start_relaying_in(host, CONFIG);
    until("the node warns", || {
        logged(&node, "the packet path is not available")
    });
    for family in Family::ALL {
        let mut pair = Pair::open(&network, family, &listener);
        pair.check();
        pair.close_client_first();
        assert_eq!(counter(&node, "relays_opened"), 0, "{family}");
    }
}

// promise: PK9
/// A successor whose rules want no packets keeps what there is for open flows, and removes it when they have
/// ended.
#[test]
fn packet_path_goes_when_nothing_needs_it() {
    let (network, _listener, mut node, mut pairs) = testbed();
    node.write_config("[defaults]\ndata_path = \"socket\"\n")
        .expect("a file is written");
    run_program(
        network.node(0),
        &format!("upgrade --socket {}", node.socket().display()),
    );
    let successor = pid(&node);
    node.process_mut().wait(SOON).expect("the first node ends");
    exchange(&mut pairs);
    assert_eq!(pins(network.node(0)).len(), 1);
    for pair in pairs {
        pair.close_client_first();
    }
    until("the pins are gone", || pins(network.node(0)).is_empty());
    kill(successor, Signal::SIGTERM).expect("it runs");
    until("the successor ends", || kill(successor, None).is_err());
}
