// SPDX-License-Identifier: Apache-2.0
//! Servers that cannot be reached, at the end of a chain.

use std::net::SocketAddr;
use std::thread;

use posthaste_lab::network::Family;

use crate::accept_modes::refusals::{attempt_all, client_of, impatient, unreachable_targets};
use crate::requests::start_all;
use crate::support::{
    PORT, add_address, counter, dial, ended, errno, expect_accepted_and_reset, firewall, talkative,
    until_counter,
};

use super::{Plan, line_of};

/// Three nodes and a router behind them: a refusal, every ICMP error and what the last node's own
/// routes refuse reach the client as if there were no node.
// promise: K2, K10
#[test]
fn strict_refuses_like_network() {
    for (hops, warm, encapsulation) in [
        (Family::V4, false, "stream"),
        (Family::V6, true, "stream"),
        (Family::V4, false, "syn-option"),
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
            encapsulation,
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
        assert_eq!(counter(&nodes[0], "strict"), cases.len() as u64);
        // A hop's socket that misses an ICMP error while it is in use repeats its SYN.
        assert!(counter(&nodes[2], "relays_opened") >= cases.len() as u64);
        let in_syn = counter(&nodes[2], "syn_options_opened");
        if encapsulation == "syn-option" {
            let v4 = cases.iter().filter(|(_, to)| to.is_ipv4()).count();
            assert!(in_syn >= v4 as u64, "{in_syn} of {v4}");
        } else {
            assert_eq!(in_syn, 0);
        }
    }
}

// promise: K2, K10
#[test]
fn strict_stays_silent() {
    let network = line_of(4);
    impatient(network.client());
    let silence = format!("tcp dport {PORT} drop");
    firewall(network.node(3), "silence", &[("forward", &silence)]);
    // The last node gives up first, and the first one.
    for (patience, encapsulation) in [
        (["30s", "300ms"], "stream"),
        (["500ms", "30s"], "stream"),
        (["30s", "300ms"], "syn-option"),
        (["500ms", "30s"], "syn-option"),
    ] {
        let plan = Plan {
            accept: "strict",
            encapsulation,
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

// promise: K2, K10
#[test]
fn early_resets_refused_client() {
    let network = line_of(3);
    let plan = Plan {
        encapsulation: "syn-option",
        extra: "strict_after_failure = \"0s\"\n",
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
        assert_eq!(ended(node, "upstream_refused"), 6);
    }
    // The nodes are not to blame.
    assert_eq!(counter(&nodes[0], "hops_failed"), 0);
}
