// SPDX-License-Identifier: Apache-2.0
//! Hosts that do not see a flow, or are one client of many: what they cannot do to the others.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use posthaste_lab::process::wait_until;

use super::options::{Opt, meaning};
use super::plain::{answered, early, layout, meanings, on_ready_hosts, proof, seen, syn_ack};
use super::ports::Offload;
use super::reference::Flow;
use super::{SLOW, Test};
use crate::host::Host;
use crate::segment::{ACK, RST, SYN, Segment};
use crate::wire::SOON;
use posthaste_lab::network::Family;

/// Longer than a flow takes to move to another interface.
const MOVES: Duration = Duration::from_millis(500);
/// Segments that are held of one prefix, and of one flow.
const HELD_OF_PREFIX: u16 = 512;
const HELD_MAX: u16 = 16;

/// Sends a segment for as long as a flow needs to move.
fn insist(test: &Test<'_>, mut segment: impl FnMut() -> Segment) {
    let begun = Instant::now();
    while begun.elapsed() < MOVES {
        test.ports.server.send(&segment(), Offload::None);
        test.ports.discard();
    }
}

/// The client's next segment is translated.
#[track_caller]
fn assert_carried(test: &Test<'_>, flow: &Flow) {
    let segment = early(flow, b"a question");
    test.ports.client.send(&segment, Offload::None);
    let [_, passed] = seen(test.ports);
    assert_eq!(
        meanings(&passed),
        meanings(&[flow.up(&segment).expect("it is short")])
    );
}

// promise: PK4
/// Segments of a client at another interface do not move its flow unless they have its numbers, and this host
/// would answer there.
#[test]
fn flows_stay_where_their_clients_are() {
    on_ready_hosts(|_, test| {
        test.learn();
        let flow = test.open(test.client(2));
        let mut number = 0_u32;
        insist(test, || {
            number = number.wrapping_mul(0x2c9c_9e35).wrapping_add(0x0bad_cafe);
            Segment {
                sequence: number,
                acknowledgment: number.rotate_left(16),
                ..early(&flow, b"z")
            }
        });
        assert_carried(test, &flow);
        // As if one had guessed them.
        insist(test, || early(&flow, b"z"));
        assert_carried(test, &flow);
        let (isn, next) = (flow.isn, flow.next_held());
        insist(test, || Segment {
            acknowledgment: isn.wrapping_add(2),
            ..early(&flow, b"z")
        });
        insist(test, || Segment {
            sequence: next.wrapping_add(1 << 30),
            ..early(&flow, b"z")
        });
        assert_carried(test, &flow);
    });
}

/// A client at an address of its own, and what moves it to the server's side.
fn mover(test: &Test<'_>, host: &Host<'_>) -> (SocketAddr, String) {
    let (client, via) = match test.family {
        Family::V4 => ("10.0.0.3", "10.0.1.2"),
        Family::V6 => ("fd00::3", "fd00:0:0:1::2"),
    };
    let neighbour = format!("neighbour add {client} lladdr 02:00:00:00:00:02 dev in0");
    host.namespace.ip(&neighbour).unwrap();
    let ip = client.parse().unwrap();
    (
        SocketAddr::new(ip, 2),
        format!("route replace {client} via {via} dev out0"),
    )
}

// promise: PK4
/// A flow does not move while segments of it still come by its former interface, and moves to where its client
/// is now.
#[test]
fn flows_move_with_their_clients() {
    on_ready_hosts(|host, test| {
        test.learn();
        let (client, route) = mover(test, host);
        let mut flow = test.open(client);
        host.namespace.ip(&route).unwrap();
        let begun = Instant::now();
        while begun.elapsed() < MOVES {
            test.ports.server.send(&early(&flow, b"z"), Offload::None);
            test.ports.discard();
            assert_carried(test, &flow);
        }
        let segment = early(&flow, b"a question");
        let expected = meaning(&flow.up(&segment).expect("it is short"));
        let moved = wait_until("the client's segments", SOON, || {
            test.ports.server.send(&segment, Offload::None);
            let [_, passed] = seen(test.ports);
            meanings(&passed).contains(&expected)
        });
        moved.unwrap();
        flow.hold(&segment, segment.data.len());
        let answer = syn_ack(&flow.syn);
        let back = Segment {
            sequence: answer.sequence.wrapping_add(1),
            acknowledgment: flow.next_held(),
            options: vec![],
            ..Segment::new(answer.from, answer.to, ACK)
        };
        let expected = meaning(&flow.down(&back));
        let moved = wait_until("the server's segments", SOON, || {
            test.ports.server.send(&back, Offload::None);
            let [_, passed] = seen(test.ports);
            meanings(&passed).contains(&expected)
        });
        moved.unwrap();
    });
}

/// An answer that no server gives: it would stall all clients that were promised the same.
fn poison(syn: &Segment) -> Segment {
    let options = [Opt::Mss(1400), Opt::Shift(14)];
    Segment {
        options: layout(&options),
        ..syn_ack(syn)
    }
}

// promise: PK4
/// A client that answers its own SYNs shows nothing of the service.
#[test]
fn clients_answer_for_no_server() {
    on_ready_hosts(|_, test| {
        let (syn, _) = test.request(1);
        let forged = poison(&syn);
        test.ports.client.send(&forged, Offload::None);
        test.ports.client.send(&proof(&forged), Offload::None);
        test.ports.discard();
        assert_eq!(test.request(2).1, None, "it has learned from the client");
        // The server's own answer counts.
        test.complete(&syn_ack(&syn));
        let flow = test.answered(test.client(3));
        // Nor does it open or end a flow.
        for flags in [SYN | ACK, RST | ACK] {
            let forged = Segment {
                flags,
                ..poison(&flow.syn)
            };
            test.ports.client.send(&forged, Offload::None);
            assert_eq!(seen(test.ports), [vec![], vec![]]);
        }
        test.ports.client.send(&early(&flow, &[]), Offload::None);
        assert_eq!(seen(test.ports), [vec![], vec![]], "it is not open");
        assert!(test.request(4).1.is_some(), "the service counts as bad");
    });
}

// promise: PK4
/// The node learns what a server grants once the client has acknowledged that.
#[test]
fn handshakes_count_once_they_are_complete() {
    on_ready_hosts(|_, test| {
        let (syn, _) = test.request(1);
        let answer = syn_ack(&syn);
        test.ports.server.send(&answer, Offload::None);
        let proof = proof(&answer);
        for wrong in [
            Segment {
                acknowledgment: answer.sequence,
                ..proof.clone()
            },
            Segment {
                sequence: syn.sequence,
                ..proof.clone()
            },
            Segment {
                flags: RST | ACK,
                ..proof.clone()
            },
        ] {
            test.ports.client.send(&wrong, Offload::None);
        }
        test.ports.server.send(&proof, Offload::None);
        test.ports.discard();
        assert_eq!(test.request(2).1, None, "the handshake is not complete");
        test.ports.client.send(&proof, Offload::None);
        test.ports.discard();
        let (syn, answer) = test.request(3);
        let answer = answer.expect("the node knows the server");
        let flow = answered(&syn, &answer);
        assert_eq!(meaning(&answer), meaning(&flow.to_client(&syn)));
    });
}

// promise: PK4
/// What no usual server grants is promised to nobody.
#[test]
fn odd_answers_count_for_nothing() {
    for (mss, window) in [(36, 60_000), (1400, 0)] {
        on_ready_hosts(|_, test| {
            let (syn, _) = test.request(1);
            let answer = Segment {
                options: layout(&[Opt::Mss(mss)]),
                window,
                ..syn_ack(&syn)
            };
            test.complete(&answer);
            assert_eq!(test.request(2).1, None, "{mss}, {window}");
        });
    }
}

// promise: PK4
/// While data are held the server's view of its client comes from segments with the client's numbers.
#[test]
fn windows_come_from_the_client() {
    on_ready_hosts(|_, test| {
        test.learn();
        let (mut flow, proof) = test.held(test.client(2));
        for (sequence, acknowledgment) in [
            (proof.sequence, flow.isn),
            (proof.sequence, flow.isn.wrapping_add(1 << 20)),
            (proof.sequence.wrapping_add(1 << 24), proof.acknowledgment),
            (proof.sequence.wrapping_sub(1 << 10), proof.acknowledgment),
        ] {
            let blind = Segment {
                sequence,
                acknowledgment,
                window: 1,
                ..proof.clone()
            };
            test.ports.client.send(&blind, Offload::None);
        }
        assert_eq!(seen(test.ports), [vec![], vec![]]);
        let answer = syn_ack(&flow.syn);
        test.ports.server.send(&answer, Offload::None);
        flow.accept(&answer);
        let [_, released] = seen(test.ports);
        assert_eq!(meanings(&released), meanings(&flow.released()));
    });
}

// promise: PK4
/// One prefix has no more than a quarter of what is held. What has no room is as if it had not come.
#[test]
fn one_prefix_holds_a_quarter() {
    on_ready_hosts(|host, test| {
        test.learn();
        test.since = Instant::now();
        let before = host.stat("packet_held");
        let flows: Vec<Flow> = (0..HELD_OF_PREFIX / HELD_MAX)
            .map(|n| full(test, n))
            .collect();
        let (mut last, _) = test.held(test.client(1000));
        let question = early(&last, b"a question");
        test.ports.client.send(&question, Offload::None);
        test.ports.discard();
        let quota = host.stat("packet_held") - before;
        // A client of another prefix, at the same interface, that is as new.
        let family = match test.family {
            Family::V4 => Family::V6,
            Family::V6 => Family::V4,
        };
        let other = Test::new(test.ports, u64::from(family == Family::V6));
        other.learn();
        let (flow, _) = other.held(other.client(2));
        test.ports
            .client
            .send(&early(&flow, b"hello"), Offload::None);
        test.ports.discard();
        let of_others = host.stat("packet_held") - before - quota;
        let answer = syn_ack(&flows[0].syn);
        test.ports.server.send(&answer, Offload::None);
        test.ports.discard();
        // There is room again.
        test.ports.client.send(&question, Offload::None);
        last.hold(&question, question.data.len());
        test.ports.discard();
        let answer = syn_ack(&last.syn);
        test.ports.server.send(&answer, Offload::None);
        last.accept(&answer);
        let [_, released] = seen(test.ports);
        if test.since.elapsed() > SLOW {
            return;
        }
        assert_eq!([quota, of_others], [u64::from(HELD_OF_PREFIX), 1]);
        assert_eq!(meanings(&released), meanings(&last.released()));
    });
}

/// A flow that holds as much as one may.
fn full(test: &Test<'_>, number: u16) -> Flow {
    let (mut flow, _) = test.held(test.client(2000 + number));
    for _ in 0..HELD_MAX {
        let segment = early(&flow, b"x");
        test.ports.client.send(&segment, Offload::None);
        flow.hold(&segment, 1);
    }
    test.ports.discard();
    flow
}
