// SPDX-License-Identifier: Apache-2.0
//! A node on a host with a wrong clock, without a controller that sends it the time.

use std::time::Duration;

use posthaste_lab::link::Link;
use posthaste_lab::network::{Family, Network};
use posthaste_lab::node::Node;
use posthaste_lab::process::wait_until;

use super::Plan;
use crate::clock::WrongClock;
use crate::support::{
    PORT, Pair, SOON, binary, counter, listen, network, start_relaying_in, until, until_ended,
};

/// Flows of each family.
const FLOWS: usize = 6;
/// How many of all are refused, at the most: one, and another after each minute that the machine may have
/// stood still.
const REFUSED_MAX: usize = 3;

/// Client, two nodes that are some way apart, and the server.
fn far_apart() -> Network {
    let far = Link::delay(Duration::from_millis(20));
    network([Link::Veth, far, Link::Veth])
}

/// Two nodes, of which the first uses the wrong clock. It has one worker, because each worker
/// learns of refusals separately.
fn start(network: &Network, plan: &Plan<'_>, clock: &WrongClock) -> [Node; 2] {
    let second = start_relaying_in(network.node(1), &plan.config(network, 1));
    let config = plan.config(network, 0);
    let config = config.replacen("[node]\n", "[node]\nworkers = 1\n", 1);
    let first = Node::builder(network.node(0), binary())
        .relaying()
        .config(&config)
        .start_by(|name, command| clock.spawn(name, command))
        .expect("the node becomes ready");
    [first, second]
}

/// Waits until the node that refuses logs the reason: how far the other's clock is ahead.
fn until_logged(node: &Node, message: &str, reason: &str, ahead_ms: i64) {
    let mut log = Vec::new();
    let text = wait_until("a line of the log", SOON, || {
        log = node.log();
        let mut lines = log
            .iter()
            .filter(|line| line.contains(message) && line.contains(&format!("reason={reason} ")));
        lines.any(|line| {
            let (_, text) = line.rsplit_once("clock_ahead_ms=").unwrap_or_default();
            let text = text.parse::<i64>();
            // It was on its way for a while.
            text.is_ok_and(|text| (ahead_ms - 5_000..=ahead_ms + 5_000).contains(&text))
        })
    });
    assert!(text.is_ok(), "{log:#?}");
}

/// Requests count for 30 s, and clocks may differ by as much.
// promise: K14
#[test]
fn wrong_clock_strict_direct() {
    let network = far_apart();
    for (ahead_ms, hops) in [(90_000, Family::V4), (-3_600_000, Family::V6)] {
        let plan = Plan {
            accept: "strict",
            direct: true,
            hops,
            ..Plan::of(2)
        };
        let clock = WrongClock::new(ahead_ms);
        let [first, second] = start(&network, &plan, &clock);
        let listener = listen(network.server(), PORT);
        for (count, family) in (1..).zip(Family::ALL.repeat(FLOWS)) {
            let mut pair = Pair::open(&network, family, &listener);
            pair.check();
            pair.close_client_first();
            until_ended(&first, "finished", count);
        }
        assert_eq!(counter(&second, "relays_opened"), 0);
        check_refused(&first);
        until("it is shown", || {
            Pair::open(&network, hops, &listener).check();
            let chains = first.admin("chains").expect("the node answers");
            chains.contains("its clock and that of this node differ")
        });
        until_logged(&second, "request denied", "clock", ahead_ms);
        until_logged(&second, "measuring packet refused", "stale", ahead_ms);
        // By handshakes instead.
        until("the link is measured", || {
            let links = first.admin_json("links").expect("an answer");
            links["links"][0]["state"] == "up"
        });
    }
}

/// After a refused flow, the worker sent the others no request for a minute.
fn check_refused(first: &Node) {
    let refused = counter(first, "hops_refused_for_clock");
    assert!((1..=REFUSED_MAX as u64).contains(&refused), "{refused}");
}
