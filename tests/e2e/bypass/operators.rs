// SPDX-License-Identifier: Apache-2.0
//! What operators do to a node in the middle of a hand-over: no flow loses a byte by it.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::*;
use crate::packet_path::lifetime::run_program;

/// A hand-over needs about a second on this path: at its beginning, in both phases, and after it.
const MOMENTS: [u64; 4] = [0, 120, 300, 1500];

/// Has something happen at each moment of a hand-over. Then the transfer goes on, and ends in order.
fn while_leaving(links: [Link; 2], act: impl Fn(&Network, &Node)) {
    for moment in MOMENTS {
        let network = network(links.clone());
        let node = start_relaying_in(network.node(0), CONFIG);
        let listener = listen(network.server(), PORT);
        let transfer = leaving(&network, &node, &listener, moment);
        act(&network, &node);
        thread::sleep(Duration::from_secs(1));
        transfer.expect_progress(moment);
        transfer.finish();
        // A successor is no child of the test.
        if let Ok(status) = node.status() {
            let pid = status["pid"].as_i64().expect("a number");
            let pid = Pid::from_raw(pid.try_into().expect("a process id"));
            kill(pid, Signal::SIGTERM).expect("it runs");
        }
    }
}

fn new_rules(rules: &str) {
    while_leaving(path(0.0), |_, node| {
        node.write_config(rules).expect("a file");
        node.admin("reload").expect("valid rules");
    });
}

/// The next rules let no relay leave.
#[test]
fn rules_change() {
    new_rules("[defaults]\nbypass = \"off\"\n");
}

/// The next rules take no flow at all.
#[test]
fn rules_take_no_flow() {
    new_rules("[[rule]]\nname = \"none\"\naction = \"forward\"\n");
}

/// A successor takes the place: the relay that leaves goes on in the former process.
#[test]
fn node_is_upgraded() {
    while_leaving(path(0.0), |network, node| {
        let words = format!("upgrade --socket {}", node.socket().display());
        run_program(network.node(0), &words);
    });
}

/// New flows are forwarded, and those that have begun have their time.
#[test]
fn node_drains() {
    while_leaving(path(0.0), |_, node| {
        node.process().signal(Signal::SIGTERM).unwrap();
    });
}

/// From then on no full segment passes a link, by its number: the ends learn that by ICMP.
fn narrowed(link: usize) {
    while_leaving(path(0.0), |network, _| {
        let hosts = [network.client(), network.node(0), network.server()];
        for (host, interface) in [(hosts[link], "s0"), (hosts[link + 1], "c0")] {
            host.ip(&format!("link set {interface} mtu 1300"))
                .expect("an interface");
        }
    });
}

#[test]
fn path_to_client_gets_a_smaller_mtu() {
    narrowed(0);
}

#[test]
fn path_to_server_gets_a_smaller_mtu() {
    narrowed(1);
}

/// The relay has left, so that the ends alone learn the path MTU. The numbers in the ICMP errors are
/// tested with the programs: one kernel numbers both connections alike, so wrong ones may fit here.
#[test]
fn handed_over_flow_learns_a_smaller_mtu() {
    for family in Family::ALL {
        let network = line();
        let node = start_relaying_in(network.node(0), CONFIG);
        let listener = listen(network.server(), PORT);
        let transfer = hand_over(&node, &|| open_limited(&network, family, &listener), &|| ());
        for (host, interface) in [(network.node(0), "s0"), (network.server(), "c0")] {
            host.ip(&format!("link set {interface} mtu 1300")).unwrap();
        }
        thread::sleep(Duration::from_secs(2));
        transfer.expect_progress(0);
        transfer.finish();
    }
}
