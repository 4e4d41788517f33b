// SPDX-License-Identifier: Apache-2.0
//! Listeners with a fixed destination, for clients that connect to the node.

use posthaste_relay::control::Denial;
use posthaste_relay::outcome::Outcome;
use posthaste_relay::policy::{Action, Match, Rule};

use crate::host::{Family, Host, until};
use crate::node::{Setup, entrance, only, rule, start_all};
use crate::streams::{Pair, accept, dial, expect_reset};

// promise: Q17
#[test]
fn refusal_resets_client() {
    let host = Host::enter();
    let node = Setup::of(0).entrances().start(&host);
    for (count, ours) in (1..).zip(Family::ALL) {
        expect_reset(&mut dial(entrance(0, ours, Family::V6)));
        node.until_ended(Outcome::UpstreamRefused, count);
    }
    host.settle(&node);
}

// promise: Q17
#[test]
fn rules_of_listeners() {
    let host = Host::enter();
    let mut setup = Setup::of(0).entrance(Family::V4);
    setup.policy.rules.push(Rule {
        action: Action::Reject,
        matches: Match {
            sources: vec![only(Family::V6.client())],
            ..Match::default()
        },
        ..rule("no")
    });
    let (node, servers) = (setup.start(&host), host.listen());
    expect_reset(&mut dial(entrance(0, Family::V6, Family::V4)));
    node.until_denied(Denial::Rule, 1);
    let mut pair = Pair::open(entrance(0, Family::V4, Family::V4), &servers);
    pair.check_much();
    pair.close_client_first();
    assert_eq!(host.settle(&node), 1);
}

// promise: Q17
#[test]
fn fixed_over_chain() {
    let host = Host::enter();
    let first = Setup::of(0).peer(1, Family::V4).chain(&[1]).entrances();
    let nodes = start_all(&host, [first, Setup::of(1).peer(0, Family::V4)]);
    let servers = host.listen();
    for theirs in Family::ALL {
        for ours in Family::ALL {
            let mut pair = Pair::open(entrance(0, ours, theirs), &servers);
            pair.check_much();
            pair.close_client_first();
        }
    }
    for node in &nodes {
        node.until_ended(Outcome::Finished, 4);
        assert_eq!(host.settle(node), 4);
    }
}

// promise: Q17
#[test]
fn fixed_relays_bounded() {
    let host = Host::enter();
    let mut setup = Setup::of(0).entrance(Family::V4);
    setup.policy.relays_max = 8;
    let (node, servers) = (setup.start(&host), host.listen());
    let clients = (0..8).map(|_| dial(entrance(0, Family::V4, Family::V4)));
    let mut clients: Vec<_> = clients.collect();
    until("all have met the node", || {
        node.relays_opened() + node.denied(Denial::Overload) == 8
    });
    let served = node.relays_opened();
    assert!((1..8).contains(&served), "{served}");
    let at = usize::try_from(served).unwrap();
    clients.split_off(at).iter_mut().for_each(expect_reset);
    for client in clients {
        let server = accept(&servers);
        let mut pair = Pair { client, server };
        pair.check();
        pair.close_client_first();
    }
    node.until_ended(Outcome::Finished, served);
    host.settle(&node);
}
