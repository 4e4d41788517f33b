// SPDX-License-Identifier: Apache-2.0
//! A node on a host with a wrong clock, without a controller that sends it the time.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpListener;
use std::thread;
use std::time::Duration;

use posthaste_lab::link::Link;
use posthaste_lab::network::{Family, Network};
use posthaste_lab::node::Node;
use posthaste_lab::process::wait_until;

use super::Plan;
use crate::clock::WrongClock;
use crate::support::{
    PORT, Pair, SOON, accept, binary, counter, dial, listen, network, start_relaying_in, target,
    until, until_counter, until_ended,
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
/// learns of refusals separately, and keeps this number of warm hops to the second.
fn start(network: &Network, plan: &Plan<'_>, pool_min: usize, clock: &WrongClock) -> [Node; 2] {
    let second = start_relaying_in(network.node(1), &plan.config(network, 1));
    let config = plan.config(network, 0);
    let config = config.replacen("[node]\n", "[node]\nworkers = 1\n", 1);
    let config = config.replacen("id = 2\n", &format!("id = 2\npool_min = {pool_min}\n"), 1);
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
        let [first, second] = start(&network, &plan, 0, &clock);
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

/// The client of the first flow was answered before the next node refused it: it is reset, or gets
/// what it should, and nothing else. The next ones go directly.
// promise: K14
#[test]
fn wrong_clock_early_whole() {
    let network = far_apart();
    for (ahead_ms, hops) in [(-3_600_000, Family::V4), (90_000, Family::V6)] {
        let plan = Plan {
            direct: true,
            hops,
            ..Plan::of(2)
        };
        let clock = WrongClock::new(ahead_ms);
        let [first, second] = start(&network, &plan, 0, &clock);
        let listener = listen(network.server(), PORT);
        let requested = Family::ALL.repeat(FLOWS);
        let answered = requested
            .iter()
            .filter(|family| is_answered(&network, **family, &listener));
        assert!(answered.count() + REFUSED_MAX >= requested.len());
        until_counter(&first, "relays", 0);
        assert_eq!(counter(&second, "relays_opened"), 0);
        check_refused(&first);
        until_logged(&second, "request denied", "clock", ahead_ms);
    }
}

/// Sends a request to the server. The client must receive the whole answer, or a reset.
fn is_answered(network: &Network, family: Family, listener: &TcpListener) -> bool {
    let to = target(network, family, listener);
    let mut client = dial(network.client(), to).expect("the node answers its client at once");
    client.write_all(b"a question").expect("bytes leave");
    let answered = thread::scope(|scope| {
        scope.spawn(|| answer_once(listener));
        let mut answer = [0; 9];
        let answered = client.read_exact(&mut answer);
        if answered.is_err() {
            // No client connects, so the server must not wait.
            drop(dial(network.server(), to));
        }
        answered.map(|()| answer)
    });
    match answered {
        Ok(answer) => assert_eq!(&answer, b"an answer"),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
            return false;
        }
    }
    true
}

/// Answers the question of the next client, if it has one.
fn answer_once(listener: &TcpListener) {
    let (mut stream, _) = accept(listener);
    let mut question = [0; 10];
    if stream.read_exact(&mut question).is_ok() {
        assert_eq!(&question, b"a question");
        stream.write_all(b"an answer").expect("bytes leave");
    }
}

/// After a refused flow, the worker sent the others no request for a minute.
fn check_refused(first: &Node) {
    let refused = counter(first, "hops_refused_for_clock");
    assert!((1..=REFUSED_MAX as u64).contains(&refused), "{refused}");
}

/// The ends of a warm hop authenticate each other by challenges, without a clock.
// promise: K14
#[test]
fn wrong_clock_warm_hops() {
    let network = far_apart();
    for (ahead_ms, hops) in [(90_000, Family::V4), (-3_600_000, Family::V6)] {
        let plan = Plan {
            warm: true,
            hops,
            ..Plan::of(2)
        };
        let clock = WrongClock::new(ahead_ms);
        let [first, second] = start(&network, &plan, 2, &clock);
        let waiting = || {
            let chains = first.admin_json("chains").expect("the node answers");
            chains["peers"][0]["waiting"].as_u64().unwrap_or(0)
        };
        let listener = listen(network.server(), PORT);
        for (count, family) in (1..).zip(Family::ALL) {
            until("hops wait", || waiting() >= 2);
            let mut pair = Pair::open(&network, family, &listener);
            pair.check();
            pair.close_client_first();
            until_ended(&second, "finished", count);
        }
        assert_eq!(counter(&first, "hops_warm"), 2);
        assert_eq!(counter(&first, "hops_refused_for_clock"), 0);
    }
}

/// The first flow finds no hop that waits, and is refused. One is opened for those that follow.
// promise: K14
#[test]
fn warm_hops_after_refusal() {
    let network = far_apart();
    let plan = Plan {
        accept: "strict",
        warm: true,
        direct: true,
        hops: Family::V6,
        ..Plan::of(2)
    };
    let clock = WrongClock::new(90_000);
    let [first, second] = start(&network, &plan, 0, &clock);
    let listener = listen(network.server(), PORT);
    for family in Family::ALL {
        let before = counter(&second, "relays_opened");
        until("a flow over a hop that waited", || {
            let mut pair = Pair::open(&network, family, &listener);
            pair.check();
            pair.close_client_first();
            counter(&second, "relays_opened") > before
        });
    }
    check_refused(&first);
}
