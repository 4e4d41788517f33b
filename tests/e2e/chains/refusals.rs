// SPDX-License-Identifier: Apache-2.0
//! Servers that cannot be reached, at the end of a chain.

use std::net::SocketAddr;
use std::thread;

use posthaste_lab::network::Family;

use crate::accept_modes::refusals::{attempt_all, client_of, impatient, unreachable_targets};
use crate::asking::start_all;
use crate::support::{
    PORT, add_address, counter, dial, ended, errno, expect_accepted_and_reset, firewall, talkative,
    until_counter,
};

use super::{Plan, line_of};

/// Three nodes and a router behind them: a refusal, every ICMP error and what the last node's own
/// routes refuse reach the client as if there were no node.
#[test]
fn strict_refuses_as_the_network_itself_would() {
    for (hops, warm, carrier) in [
        (Family::V4, false, "convert"),
        (Family::V6, true, "convert"),
        (Family::V4, false, "option"),
    ] {
        let network = line_of(4);
        talkative(network.nodes());
        let cases = Family::ALL.map(|family| {
            let behind = &network.nodes()[2..];
            let mut targets = unreachable_targets(&network, behind, family);
            // The first node only forwards what its own routes refuse.
            targets.retain(|(name, _)| !name.starts_with("no route"));
            targets
        });
        let cases = cases.concat();
        for (case, (_, to)) in cases.iter().enumerate() {
            add_address(network.client(), client_of(case, *to).ip());
        }
        let direct = attempt_all(network.client(), &cases);
        let plan = Plan {
            accept: "strict",
            hops,
            warm,
            carrier,
            ..Plan::of(3)
        };
        let nodes = plan.start(&network);
        let relayed = attempt_all(network.client(), &cases);
        for (index, (name, to)) in cases.iter().enumerate() {
            assert!(direct[index].is_some(), "{name}: {to} can be reached");
            assert_eq!(relayed[index], direct[index], "{name}: {to}");
        }
        for node in &nodes {
            until_counter(node, "relays", 0);
            assert_eq!(counter(node, "half_open"), 0);
        }
        let heralded = cases.iter().filter(|(_, to)| to.is_ipv4()).count();
        let heralded = if carrier == "option" { heralded } else { 0 };
        assert_eq!(counter(&nodes[2], "heralds_opened"), heralded as u64);
        assert_eq!(counter(&nodes[0], "strict"), cases.len() as u64);
        assert_eq!(counter(&nodes[2], "relays_opened"), cases.len() as u64);
    }
}

#[test]
fn strict_is_as_silent_as_the_server() {
    let network = line_of(4);
    impatient(network.client());
    let silence = format!("tcp dport {PORT} drop");
    firewall(network.node(3), "silence", &[("forward", &silence)]);
    // The last node gives up first, and the first one.
    for (patience, carrier) in [
        (["30s", "300ms"], "convert"),
        (["500ms", "30s"], "convert"),
        (["30s", "300ms"], "option"),
        (["500ms", "30s"], "option"),
    ] {
        let plan = Plan {
            accept: "strict",
            carrier,
            ..Plan::of(3)
        };
        let configs = (0..3).map(|node| {
            let connect = patience[usize::from(node == 2)];
            let config = plan.config(&network, node);
            config + &format!("[defaults.timeouts]\nconnect = \"{connect}\"\n")
        });
        let nodes = start_all(&network, configs);
        thread::scope(|scope| {
            for family in Family::ALL {
                let to = SocketAddr::new(network.server_address(family), PORT);
                let client = network.client();
                scope.spawn(move || {
                    assert_eq!(errno(&dial(client, to)), Some(libc::ETIMEDOUT), "{to}");
                });
            }
        });
        for node in &nodes {
            until_counter(node, "relays", 0);
            assert_eq!(counter(node, "half_open"), 0);
        }
        assert!(ended(&nodes[0], "connect_timeout") >= 2, "{patience:?}");
        assert_eq!(counter(&nodes[0], "hops_failed"), 0, "{patience:?}");
    }
}

#[test]
fn early_resets_a_client_whose_server_refuses() {
    for (warm, carrier) in [(false, "convert"), (true, "convert"), (false, "option")] {
        let network = line_of(3);
        let plan = Plan {
            warm,
            carrier,
            extra: "suspect_for = \"0s\"\n",
            ..Plan::of(3)
        };
        let nodes = plan.start(&network);
        for family in Family::ALL {
            let to = SocketAddr::new(network.server_address(family), PORT);
            for _ in 0..3 {
                expect_accepted_and_reset(dial(network.client(), to));
            }
        }
        for node in &nodes {
            until_counter(node, "relays", 0);
            assert_eq!(
                ended(node, "upstream_refused"),
                6,
                "{carrier}, warm: {warm}"
            );
        }
        // The nodes are not to blame.
        assert_eq!(counter(&nodes[0], "hops_failed"), 0);
    }
}
