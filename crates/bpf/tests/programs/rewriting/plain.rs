// SPDX-License-Identifier: Apache-2.0
//! Connections without chance: what each test does is the only thing that is unusual.

use std::net::SocketAddr;

use super::options::{Meaning, Offer, Opt, meaning};
use super::ports::{Offload, Ports};
use super::reference::{Flow, Known};
use super::{FLOWS, Test, ready};
use crate::host::{Host, SETTINGS, client_at, on_host_with};
use crate::segment::{ACK, SYN, Segment};
use posthaste_bpf::Settings;

const PSH: u8 = 0x08;
/// The number and the timestamp with which servers begin.
const SERVER_ISN: u32 = 3_000_000_000;
const SERVER_TIME: u32 = 77;

/// Runs a test on a host of its own with a packet path, once for each family.
pub(super) fn on_ready_hosts(test: impl Fn(&mut Host<'_>, &mut Test<'_>) + Sync) {
    let settings = Settings {
        packet_flows: FLOWS,
        ..SETTINGS
    };
    for family in [0, 1] {
        on_host_with(settings, |host| {
            let ports = ready(host);
            test(host, &mut Test::new(&ports, family));
        });
    }
}

/// The SYN of a usual client.
pub(super) fn syn(from: SocketAddr, to: SocketAddr) -> Segment {
    let options = [
        Opt::Mss(1460),
        Opt::SackPermitted,
        Opt::Times(1000, 0),
        Opt::Shift(7),
    ];
    Segment {
        options: layout(&options),
        ..Segment::syn(from, to)
    }
}

/// The answer of a usual server.
pub(super) fn syn_ack(syn: &Segment) -> Segment {
    let options = [
        Opt::Mss(1400),
        Opt::SackPermitted,
        Opt::Times(SERVER_TIME, 1000),
        Opt::Shift(6),
    ];
    Segment {
        sequence: SERVER_ISN,
        acknowledgment: syn.sequence.wrapping_add(1),
        window: 60_000,
        options: layout(&options),
        ..Segment::new(syn.to, syn.from, SYN | ACK)
    }
}

pub(super) fn layout(options: &[Opt]) -> Vec<u8> {
    let mut octets: Vec<u8> = options.iter().flat_map(Opt::bytes).collect();
    octets.resize(octets.len().next_multiple_of(4), 1);
    octets
}

/// The segment with which a client completes a handshake.
pub(super) fn proof(answer: &Segment) -> Segment {
    Segment {
        sequence: answer.acknowledgment,
        acknowledgment: answer.sequence.wrapping_add(1),
        window: 500,
        options: layout(&[Opt::Times(1001, SERVER_TIME)]),
        ..Segment::new(answer.to, answer.from, ACK)
    }
}

impl Test<'_> {
    pub(super) fn client(&self, port: u16) -> SocketAddr {
        client_at(self.family, port)
    }

    /// Sends a SYN, which the server gets; the node's answer to it, if there is one.
    pub(super) fn connect_by(&self, syn: Segment) -> (Segment, Option<Segment>) {
        self.ports.client.send(&syn, Offload::None);
        let [mut to_client, to_server] = self.ports.collect();
        let forwarded = to_server.iter().filter(|segment| segment.flags == SYN);
        assert_eq!(forwarded.count(), 1, "{to_server:?}");
        (syn, to_client.pop())
    }

    /// The same from a port of the usual client.
    pub(super) fn request(&self, port: u16) -> (Segment, Option<Segment>) {
        self.connect_by(syn(self.client(port), self.server))
    }

    /// Completes a handshake by this answer of the server, which the node forwards.
    pub(super) fn complete(&self, answer: &Segment) {
        self.ports.server.send(answer, Offload::None);
        self.ports.client.send(&proof(answer), Offload::None);
        self.ports.discard();
    }

    /// Has the node learn what the server grants.
    pub(super) fn learn(&self) {
        let (syn, answer) = self.request(1);
        assert_eq!(answer, None, "nothing is known");
        self.complete(&syn_ack(&syn));
    }

    /// A flow that the node has answered.
    pub(super) fn answered(&self, client: SocketAddr) -> Flow {
        let (syn, answer) = self.connect_by(syn(client, self.server));
        answered(&syn, &answer.expect("the node knows the server"))
    }

    /// A flow whose client waits for its server, with its first segment.
    pub(super) fn held(&self, client: SocketAddr) -> (Flow, Segment) {
        let mut flow = self.answered(client);
        let proof = early(&flow, &[]);
        self.ports.client.send(&proof, Offload::None);
        flow.hold(&proof, 1);
        assert_eq!(seen(self.ports), [vec![], vec![]], "the proof");
        (flow, proof)
    }

    /// A flow that both ends have opened.
    pub(super) fn open(&self, client: SocketAddr) -> Flow {
        let (mut flow, _) = self.held(client);
        let answer = syn_ack(&flow.syn);
        self.ports.server.send(&answer, Offload::None);
        flow.accept(&answer);
        self.ports.discard();
        flow
    }
}

/// The flow of a SYN and its answer.
pub(super) fn answered(syn: &Segment, answer: &Segment) -> Flow {
    let offer = Offer::of(syn).unwrap();
    let mut known = Known::default();
    known.learn([true; 3], &syn_ack(syn), false);
    Flow::new(syn, offer, known.promise(&offer, 8900), answer)
}

/// The next segment of a client whose server has sent nothing.
pub(super) fn early(flow: &Flow, data: &[u8]) -> Segment {
    Segment {
        sequence: flow.next_held(),
        acknowledgment: flow.isn.wrapping_add(1),
        window: 500,
        options: layout(&[Opt::Times(1002, flow.time)]),
        data: data.to_vec(),
        ..Segment::new(flow.syn.from, flow.syn.to, ACK | PSH)
    }
}

/// What has left the host to clients and to servers, but for the SYNs that the node repeats.
pub(super) fn seen(ports: &Ports) -> [Vec<Segment>; 2] {
    let [to_client, mut to_server] = ports.collect();
    to_server.retain(|segment| segment.flags != SYN);
    [to_client, to_server]
}

/// The meaning of each.
pub(super) fn meanings(segments: &[Segment]) -> Vec<Meaning> {
    segments.iter().map(meaning).collect()
}
