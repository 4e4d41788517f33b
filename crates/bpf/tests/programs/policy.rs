// SPDX-License-Identifier: Apache-2.0
//! The program against the policy that the workers have: both must find the same rule, or a
//! worker would carry a flow by another rule than the one that brought it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::Arc;

use posthaste_relay::accept_mode::AcceptMode;
use posthaste_relay::access::Access;
use posthaste_relay::flow::Flow;
use posthaste_relay::intercept::{EventKind, Intercept};
use posthaste_relay::policy::{
    Action, Bypass, HalfOpenLimits, Match, Policy, Prefix, Rule, SideOptions, SourceAddress,
    Timeouts,
};
use posthaste_testkit::{Rng, simulate};

use crate::host::Verdict::{Passed, Redirected, Swallowed};
use crate::host::{Host, on_host};
use crate::segment::Segment;

const POLICIES: u64 = 1500;
const FLOWS: u64 = 30;

// promise: R2
#[test]
fn program_and_policy_agree() {
    on_host(|host| {
        // What a policy may name has to be routable.
        for route in ["0.0.0.0/1", "128.0.0.0/1"] {
            host.namespace
                .ip(&format!("route add {route} via 10.0.1.2"))
                .unwrap();
        }
        host.namespace
            .ip("route add default via fd00:0:0:1::2")
            .unwrap();
        simulate(POLICIES, |mut rng| check(host, &mut rng));
    });
}

/// Draws a policy and holds many flows against it.
fn check(host: &mut Host<'_>, rng: &mut Rng) {
    let policy = policy(rng);
    host.obey(&policy.rules);
    for number in 0..FLOWS {
        let (client, server) = flow(rng);
        let expected = policy.classify(&Flow::new(client, server));
        let expected = expected.map(|index| (index, &policy.rules[index]));
        let frame = Segment::syn(client, server)
            .sequence(u32::try_from(number).unwrap())
            .frame();
        let verdict = host.receive(&frame);
        let events = host.events();
        let found = (
            verdict,
            events.first().map(|event| (event.kind, event.rule)),
        );
        assert_eq!(found, outcome(expected), "{client} {server} {policy:#?}");
        for event in events {
            host.worker_maps
                .release_half_open(&event.flow, event.half_open);
        }
    }
}

/// What the program shows of a rule. It does not show which one let a flow pass or be late.
fn outcome(rule: Option<(usize, &Rule)>) -> (crate::host::Verdict, Option<(EventKind, usize)>) {
    let Some((index, rule)) = rule else {
        return (Passed, None);
    };
    let held = rule.accept.holds_syn();
    match rule.action {
        Action::Forward => (Passed, None),
        Action::Reject => (Swallowed, Some((EventKind::Reject, index))),
        Action::Relay if !rule.accept.connects_at_syn() => (Redirected, None),
        Action::Relay => (
            if held { Swallowed } else { Redirected },
            Some((EventKind::Syn { held }, index)),
        ),
    }
}

/// A policy. It draws from the same few addresses as [`flow`], so that they meet often.
fn policy(rng: &mut Rng) -> Policy {
    let rules = (0..1 + rng.below(6))
        .map(|number| rule(rng, number))
        .collect();
    Policy {
        rules,
        half_open: HalfOpenLimits::default(),
        strict_after_failure: std::time::Duration::ZERO,
        relays_max: 1,
        chains: Arc::default(),
        access: Access::default(),
    }
}

fn rule(rng: &mut Rng, number: usize) -> Rule {
    use Action::{Forward, Reject, Relay};
    Rule {
        name: number.to_string(),
        matches: Match {
            destinations: rng.some(2, |rng| prefix(rng, 0)),
            sources: rng.some(2, |rng| prefix(rng, 1)),
            ports: rng.some(2, ports),
        },
        // Rarely what does not show its rule.
        action: rng.pick(&[Relay, Relay, Relay, Reject, Forward]),
        accept: rng.pick(&[
            AcceptMode::EARLY,
            AcceptMode::STRICT,
            AcceptMode::STRICT,
            AcceptMode::LATE,
        ]),
        observe: false,
        source_address: SourceAddress::Client,
        data_path: posthaste_relay::policy::DataPath::Socket,
        bypass: Bypass::Off,
        multipath: posthaste_relay::policy::Multipath::Off,
        upstream_multipath: false,
        proxy_protocol: false,
        transfer_bytes: None,
        downstream: SideOptions::default(),
        upstream: SideOptions::default(),
        timeouts: Timeouts::default(),
    }
}

fn ports(rng: &mut Rng) -> RangeInclusive<u16> {
    let (one, other) = (port(rng), port(rng));
    one.min(other)..=one.max(other)
}

fn port(rng: &mut Rng) -> u16 {
    rng.pick(&[0, 1, 79, 80, 81, 443, 8000, 65_535])
}

fn prefix(rng: &mut Rng, place: u8) -> Prefix {
    let ipv4 = rng.once_in(2);
    let ip = ip(rng, place, ipv4);
    let bits = match ip {
        IpAddr::V4(_) => rng.pick(&[0, 1, 8, 12, 16, 24, 31, 32]),
        IpAddr::V6(_) => rng.pick(&[0, 3, 16, 32, 64, 80, 95, 96, 97, 127, 128]),
    };
    Prefix::new(masked(ip, bits), bits).expect("nothing behind the prefix is set")
}

fn flow(rng: &mut Rng) -> (SocketAddr, SocketAddr) {
    let ipv4 = rng.below(2) == 0;
    let server = SocketAddr::new(ip(rng, 0, ipv4), port(rng));
    (SocketAddr::new(ip(rng, 1, ipv4), 40_000), server)
}

/// An address at one of two places, servers (0) and clients (1).
fn ip(rng: &mut Rng, place: u8, ipv4: bool) -> IpAddr {
    let (near, far) = (rng.pick(&[0, 1, 255]), rng.pick(&[0, 1, 16, 17, 255]));
    if ipv4 {
        let first = rng.pick(&[20, 172, 192]);
        return Ipv4Addr::new(first + place, far, 2, near).into();
    }
    let first = rng.pick(&[0x2001, 0x2001, 0x3fff, 0]);
    let words = [
        first,
        u16::from(place),
        0,
        0,
        0,
        1,
        u16::from(far),
        u16::from(near),
    ];
    Ipv6Addr::from(words).into()
}

fn masked(ip: IpAddr, bits: u8) -> IpAddr {
    match ip {
        IpAddr::V4(ip) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
            Ipv4Addr::from(u32::from(ip) & mask).into()
        }
        IpAddr::V6(ip) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
            Ipv6Addr::from(u128::from(ip) & mask).into()
        }
    }
}
