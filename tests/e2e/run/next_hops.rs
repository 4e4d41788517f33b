// SPDX-License-Identifier: Apache-2.0
//! By which nodes: chains, keys, several commands at once, and everybody else.

use std::io::Write;
use std::net::IpAddr;

use posthaste_lab::network::{Family, Network};
use posthaste_lab::process::Process;
use posthaste_lab::scratch::Scratch;

use super::{
    Mirror, curl, is_address_of, line_of, listener_address, printed, start_explicit, stderr,
    through,
};
use crate::support::{
    SOON, accept, binary, counter, dial, firewall, listen, plain, remove_firewall, until,
    until_ended,
};

const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

/// The configuration of a host about a node.
fn peer(network: &Network, node: usize, family: Family) -> String {
    let address = listener_address(network, node, family);
    format!(
        "[[peer]]\nname = \"node-{node}\"\nid = {}\naddress = \"{address}\"\nkey = \"{KEY}\"\n\
         pool_max = 0\n",
        node + 1
    )
}

// promise: P5
#[test]
fn chain_of_three() {
    let network = line_of(3);
    let mirror = Mirror::start(network.server());
    for hops in Family::ALL {
        let chain = |names: &str| format!("[[chain]]\nname = \"line\"\nnodes = [{names}]\n");
        let names = "\"node-1\", 3";
        let route = "[[route]]\nchains = [\"line\"]\ndirect = false\n";
        let first = peer(&network, 1, hops) + &chain(names) + route;
        let second = peer(&network, 0, hops) + &peer(&network, 2, hops);
        let third = peer(&network, 1, hops);
        let nodes = [first, second, third];
        let nodes = nodes.iter().enumerate();
        let nodes: Vec<_> = nodes
            .map(|(node, more)| start_explicit(&network, node, more))
            .collect();
        for (count, family) in (1..).zip(Family::ALL) {
            let via = listener_address(&network, 0, hops);
            let server = network.server_address(family);
            let mut command = through(&network, via, &[], curl(&mirror.url(server)));
            let message = printed(&mut command);
            let (seen, sees) = message.trim().split_once('\n').unwrap();
            assert_eq!(sees, server.to_string());
            assert!(
                is_address_of(network.node(2), seen.parse().unwrap()),
                "{seen}"
            );
            for node in &nodes {
                until_ended(node, "finished", count);
            }
            assert_eq!(counter(&nodes[0], "hops_cold"), count);
            assert_eq!(counter(&nodes[1], "hops_cold"), count);
        }
    }
}

// promise: P5
#[test]
fn configured_peer_with_key() {
    let network = line_of(1);
    let mirror = Mirror::start(network.server());
    let client =
        "[[peer]]\nname = \"laptop\"\nid = 9\naddress = \"192.0.2.9:4480\"\npool_max = 0\n";
    let client = format!("{client}key = \"{KEY}\"\n");
    // It lists no client by address.
    let config = super::explicit(&network, 0, &client)
        .replace("clients = [\"10.0.0.0/8\", \"fd00::/8\"]\n", "");
    let _node = crate::support::start_in(network.node(0), &config);
    let files = Scratch::new().unwrap();
    for (pool, hop) in [("pool_max = 0", Family::V4), ("pool_max = 4", Family::V6)] {
        let text = format!("version = 1\n[node]\nid = 9\n{}", peer(&network, 0, hop));
        let file = files.path().join("node.toml");
        std::fs::write(&file, text.replace("pool_max = 0", pool)).unwrap();
        let url = mirror.url(network.server_address(Family::V6));
        for via in [&[][..], &["--via", "node-0"]] {
            let mut command = network.client().command(binary()).unwrap();
            command.args(["run", "-c"]).arg(&file).args(via);
            let message = printed(command.args(["--", "curl", "-sS", &url]));
            assert!(is_address_of(
                network.node(0),
                message.trim().parse().unwrap()
            ));
        }
    }
    let mut command = network.client().command(binary()).unwrap();
    command
        .args(["run", "-c"])
        .arg(files.path().join("node.toml"));
    let output = command
        .args(["--via", "rome", "--", "true"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(stderr(&output).contains("no peer has that name, there are node-0"));
}

/// Once its hops wait, no new connection to the node is let in.
// promise: P5
#[test]
fn configured_peer_warm_hops() {
    let network = line_of(1);
    let mirror = Mirror::start(network.server());
    let client = "[[peer]]\nname = \"laptop\"\nid = 9\naddress = \"192.0.2.9:4480\"\n";
    let client = format!("{client}key = \"{KEY}\"\npool_max = 0\n");
    let node = start_explicit(&network, 0, &client);
    let files = Scratch::new().unwrap();
    let go = files.path().join("go");
    for hop in Family::ALL {
        let peer = peer(&network, 0, hop).replace("pool_max = 0", "pool_min = 2");
        let text = format!("version = 1\n[node]\nid = 9\n{peer}");
        let file = files.path().join("node.toml");
        std::fs::write(&file, text).unwrap();
        let url = mirror.url(network.server_address(hop));
        // A connection during the handshakes of the hops is refused, and retries.
        let fetch = "curl -sS --max-time 10 --retry 5 --retry-all-errors --retry-delay 1";
        let script = format!(
            "while ! test -e {}; do sleep 0.01; done; {fetch} {url}",
            go.display()
        );
        let before = counter(&node, "explicit_connections");
        let mut command = network.client().command(binary()).unwrap();
        command.args(["run", "-c"]).arg(&file);
        command.args(["--", "sh", "-c", &script]);
        let mut command = Process::spawn("run", command).unwrap();
        until("hops", || {
            counter(&node, "explicit_connections") >= before + 2
        });
        let probes = format!("tcp dport {} tcp flags & (syn | ack) == syn drop", 4480);
        firewall(network.node(0), "closed", &[("input", &probes)]);
        std::fs::write(&go, "").unwrap();
        let ended = command.wait(SOON).unwrap();
        assert!(ended.success(), "{hop}: {}", command.stderr());
        let seen = command.stdout();
        assert!(is_address_of(network.node(0), seen.trim().parse().unwrap()));
        remove_firewall(network.node(0), "closed");
        std::fs::remove_file(&go).unwrap();
    }
}

// promise: P3, P4
#[test]
fn two_commands_two_nodes() {
    let network = line_of(2);
    let _nodes = [0, 1].map(|node| start_explicit(&network, node, ""));
    let mirror = Mirror::start(network.server());
    let files = Scratch::new().unwrap();
    let go = files.path().join("go");
    let url = mirror.url(network.server_address(Family::V4));
    let script = format!(
        "echo there; while ! test -e {}; do sleep 0.01; done; curl -sS {url}",
        go.display()
    );
    let mut commands = [0, 1].map(|node| {
        let via = listener_address(&network, node, Family::V4);
        let command = through(&network, via, &[], ["sh", "-c", &script]);
        Process::spawn("run", command).unwrap()
    });
    for command in &mut commands {
        command
            .wait_until("command", SOON, |process| {
                process.stdout().contains("there")
            })
            .unwrap();
    }
    // Another client, meanwhile.
    let listener = listen(network.server(), 81);
    for family in Family::ALL {
        let target = (network.server_address(family), 81).into();
        let stream = dial(network.client(), target).unwrap();
        let (_server, seen) = accept(&listener);
        assert_eq!(seen, plain(stream.local_addr().unwrap()));
    }
    std::fs::write(&go, "").unwrap();
    for (node, command) in commands.iter_mut().enumerate() {
        assert!(
            command.wait(SOON).unwrap().success(),
            "{}",
            command.stderr()
        );
        let message = command.stdout();
        let seen: IpAddr = message.lines().last().unwrap().parse().unwrap();
        assert!(is_address_of(network.node(node), seen), "{node}: {seen}");
    }
}

// promise: P4
#[test]
fn nested_runs() {
    let network = line_of(2);
    let nodes = [0, 1].map(|node| start_explicit(&network, node, ""));
    let mirror = Mirror::start(network.server());
    for (count, family) in (1..).zip(Family::ALL) {
        let [first, second] = [0, 1].map(|node| listener_address(&network, node, family));
        let url = mirror.url(network.server_address(family));
        let inner = [
            "run",
            "--via",
            &second.to_string(),
            "--",
            "curl",
            "-sS",
            &url,
        ];
        let own = binary();
        let words = [own.to_str().unwrap()].into_iter().chain(inner);
        let message = printed(&mut through(&network, first, &[], words));
        assert!(is_address_of(
            network.node(1),
            message.trim().parse().unwrap()
        ));
        for node in &nodes {
            until_ended(node, "finished", count);
        }
    }
}

// promise: P3
#[test]
fn no_room_goes_direct() {
    let network = line_of(1);
    let _node = start_explicit(&network, 0, "");
    let listener = listen(network.server(), 81);
    let via = listener_address(&network, 0, Family::V4);
    // Connections that stay open, one after the other, more than a run with so few descriptors
    // carries.
    let server = network.server_address(Family::V4);
    let script = format!(
        "for each in $(seq 100); do exec {{fd}}<>/dev/tcp/{server}/81; read -r -N1 -u $fd; done"
    );
    let mut command = network.client().command("prlimit").unwrap();
    command.args(["--nofile=160:160", "--"]).arg(binary());
    command.args([
        "run",
        "--via",
        &via.to_string(),
        "--",
        "bash",
        "-c",
        &script,
    ]);
    let mut run = Process::spawn("run", command).unwrap();
    let accepted = (0..100).map(|_| {
        let (mut stream, seen) = accept(&listener);
        stream.write_all(b"x").unwrap();
        (stream, seen)
    });
    let accepted: Vec<_> = accepted.collect();
    let client = network.client_address(Family::V4);
    let direct = accepted.iter().filter(|(_, seen)| seen.ip() == client);
    let direct = direct.count();
    assert!(direct > 0 && direct < 100, "{direct}");
    drop(accepted);
    assert!(run.wait(SOON).unwrap().success(), "{}", run.stderr());
}
