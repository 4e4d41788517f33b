// SPDX-License-Identifier: Apache-2.0
//! Segments that the node makes in the place of a client, beside those that the client would send.

use super::options::{Offer, Opt, meaning};
use super::plain::{answered, early, layout, meanings, on_ready_hosts, proof, seen, syn, syn_ack};
use super::ports::Offload;
use super::reference::{Flow, forwarded};
use crate::segment::{ACK, RST, Segment};

/// The client's reset of a flow that is not open at its server.
fn reset(flow: &Flow) -> Segment {
    Segment {
        flags: RST | ACK,
        window: 0,
        ..early(flow, &[])
    }
}

// promise: PK11
/// A client that has reset a flow may use its port at once, and its server, when it answers, is reset as by a
/// host without that connection.
#[test]
fn resets_end_flows_that_are_held() {
    on_ready_hosts(|_, test| {
        test.learn();
        let (mut flow, _) = test.held(test.client(2));
        let question = early(&flow, b"a question");
        test.ports.client.send(&question, Offload::None);
        flow.hold(&question, question.data.len());
        for wrong in [
            Segment {
                acknowledgment: flow.isn,
                ..reset(&flow)
            },
            Segment {
                flags: RST,
                sequence: flow.next_held().wrapping_add(1),
                ..reset(&flow)
            },
        ] {
            test.ports.client.send(&wrong, Offload::None);
        }
        test.ports.client.send(&reset(&flow), Offload::None);
        assert_eq!(seen(test.ports), [vec![], vec![]]);
        let answer = syn_ack(&flow.syn);
        test.ports.server.send(&answer, Offload::None);
        assert_eq!(seen(test.ports), [vec![], vec![flow.reset_of(&answer)]]);
        let again = syn(test.client(2), test.server).sequence(77);
        assert!(test.connect_by(again).1.is_some(), "the port is not free");
    });
}

// promise: PK11
/// A SYN-ACK that acknowledges another number is reset (RFC 9293 section 3.10.7.3), once the client has proved
/// itself, and the SYN is sent again.
#[test]
fn wrong_acknowledgements_are_reset() {
    on_ready_hosts(|_, test| {
        test.learn();
        let (mut flow, _) = test.held(test.client(2));
        let wrong = Segment {
            acknowledgment: flow.syn.sequence ^ 0x5a5a_5a5a,
            ..syn_ack(&flow.syn)
        };
        test.ports.server.send(&wrong, Offload::None);
        let [to_client, to_server] = test.ports.collect();
        assert_eq!(to_client, []);
        for made in [flow.reset_of(&wrong), flow.syn_again()] {
            let found = meanings(&to_server);
            assert!(found.contains(&meaning(&made)), "{made:?}: {found:?}");
        }
        let answer = syn_ack(&flow.syn);
        test.ports.server.send(&answer, Offload::None);
        flow.accept(&answer);
        let [_, released] = seen(test.ports);
        assert_eq!(meanings(&released), meanings(&flow.released()));
    });
}

// promise: PK11
/// The server answers a SYN that its client sent anew after it lost the connection. Anybody may have forged the two, so
/// the client is probed first, and resets the connection that it has lost.
#[test]
fn new_connections_replace_flows_that_are_held() {
    on_ready_hosts(|_, test| {
        test.learn();
        let (flow, _) = test.held(test.client(2));
        let anew = syn(flow.syn.from, flow.syn.to).sequence(77);
        assert_eq!(test.connect_by(anew.clone()).1, None);
        let answer = syn_ack(&anew);
        test.ports.server.send(&answer, Offload::None);
        let [to_client, to_server] = seen(test.ports);
        let [probe] = to_client.try_into().expect("a probe");
        let (sequence, acknowledgment) = (flow.isn, flow.syn.sequence.wrapping_add(1));
        assert_eq!((probe.flags, probe.sequence), (ACK, sequence));
        assert_eq!((probe.acknowledgment, probe.data), (acknowledgment, vec![]));
        assert_eq!(to_server, []);
        let reset = Segment {
            sequence: acknowledgment,
            acknowledgment: 0,
            flags: RST,
            options: vec![],
            ..reset(&flow)
        };
        test.ports.client.send(&reset, Offload::None);
        assert_eq!(seen(test.ports), [vec![], vec![]]);
        test.ports.server.send(&answer, Offload::None);
        assert_eq!(seen(test.ports), [vec![forwarded(&answer)], vec![]]);
        let proof = proof(&answer);
        test.ports.client.send(&proof, Offload::None);
        assert_eq!(seen(test.ports), [vec![], vec![forwarded(&proof)]]);
    });
}

// promise: PK11
/// A repeated answer of the server is a question to the client, whose timestamps go on from those that the
/// server has seen.
#[test]
fn clients_acknowledge_repeated_answers() {
    on_ready_hosts(|_, test| {
        test.learn();
        let flow = test.open(test.client(2));
        let (answer, question) = flow.question();
        assert!(question.options.len() > 9, "it has timestamps");
        test.ports.server.send(&answer, Offload::None);
        let [to_client, to_server] = seen(test.ports);
        assert_eq!(meanings(&to_client), meanings(&[question]));
        assert_eq!(to_server, []);
    });
}

// promise: PK11
/// On a network of long segments a client may send long ones, also before its server has answered.
#[test]
fn long_segments_are_promised_and_held() {
    on_ready_hosts(|_, test| {
        let (first, _) = test.request(1);
        let long = |syn: &Segment| Segment {
            options: layout(&[
                Opt::Mss(8900),
                Opt::SackPermitted,
                Opt::Times(77, 1000),
                Opt::Shift(6),
            ]),
            ..syn_ack(syn)
        };
        test.complete(&long(&first));
        let (syn, answer) = test.request(2);
        let answer = answer.expect("the node knows the server");
        let offer = Offer::of(&answer).unwrap();
        assert_eq!((offer.mss, answer.window), (Some(8900), 17_800));
        let mut flow = answered(&syn, &answer);
        for seed in [1, 2] {
            let data: Vec<u8> = (0..8888_u32).map(|at| (at * seed % 251) as u8).collect();
            let segment = early(&flow, &data);
            test.ports.client.send_corrupted(&segment);
            test.ports.client.send(&segment, Offload::None);
            flow.hold(&segment, data.len());
        }
        assert_eq!(seen(test.ports), [vec![], vec![]]);
        let answer = long(&syn);
        test.ports.server.send(&answer, Offload::None);
        flow.accept(&answer);
        let [_, released] = seen(test.ports);
        assert_eq!(meanings(&released), meanings(&flow.released()));
        assert_eq!(released.len(), 14);
    });
}
