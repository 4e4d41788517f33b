// SPDX-License-Identifier: Apache-2.0
//! How flows end, in whatever order the CPUs carry their segments.

use super::*;

/// `PACKET_FIN_CLIENT | PACKET_FIN_SERVER`
const FINS: u32 = 3;
const FIN: u8 = 1;
const ACK: u8 = 16;
/// What one CPU carries at a time: the kernel joins segments to such pieces.
const PIECE: u32 = 1 << 16;

/// Both directions of a flow, by the ends' own numbers.
struct Talk {
    key: types::packet_key,
    /// From the client, and from the server.
    by: [Segment; 2],
    /// What the flow adds to each one's numbers.
    delta: [u32; 2],
}

impl Talk {
    /// A flow whose ends have sent nothing yet, in a table.
    fn open(programs: &Programs, rng: &mut Rng) -> Self {
        let ipv6 = rng.once_in(2);
        let mut client = segment(rng, ipv6);
        client.options.clear();
        client.payload = vec![1];
        client.corrupted = false;
        let mut server = client.clone();
        (server.source, server.destination) = (client.destination.clone(), client.source.clone());
        server.ports.reverse();
        let (key, source_is_second) = client.key();
        let mut entry = flow(rng, source_is_second);
        entry.granted = WINDOW_SCALE;
        (entry.client_shift, entry.server_shift) = (7, 7);
        (client.seq, server.seq) = (number(rng), number(rng));
        let delta = [entry.client_seq_delta, entry.seq_delta];
        let [up, down] = [
            client.seq.wrapping_add(delta[0]),
            server.seq.wrapping_add(delta[1]),
        ];
        (entry.client_next, entry.client_edge, entry.server_ack) = (up, up, up);
        (entry.server_next, entry.server_edge, entry.client_ack) = (down, down, down);
        let flows = &programs.maps[map::PACKET_FLOWS];
        flows.update(bytes(&key), bytes(&entry)).unwrap();
        let by = [client, server];
        Self { key, by, delta }
    }

    /// One end sends so many pieces, acknowledges the other one's first bytes, and grants more.
    fn send(&self, programs: &Programs, from: usize, [piece, acked]: [u32; 2], flags: u8) {
        let mut sent = self.by[from].clone();
        sent.seq = sent.seq.wrapping_add(piece * PIECE);
        let other = 1 - from;
        let first = self.by[other].seq.wrapping_add(self.delta[other]);
        sent.ack = first.wrapping_add(acked);
        (sent.flags, sent.window) = (flags | ACK, u16::MAX);
        let mut frame = sent.frame();
        // As Ethernet pads it.
        frame.resize(frame.len().max(60), 0);
        assert_eq!(programs.run(from, &frame).0, NEXT);
    }

    fn has_closed(&self, programs: &Programs) -> bool {
        let flow = programs.flow(&self.key);
        flow.ended == FINS
            && (flow.client_ack, flow.server_ack) == (flow.server_fin, flow.client_fin)
    }
}

/// A burst is in the hands of several CPUs, which note it in any order: more than is allowed outside of a window.
#[test]
fn flows_end_whatever_the_order_of_their_segments() {
    let programs = Programs::load();
    let mut rng = Rng::new(12);
    for case in 0..CASES / 40 {
        let talk = Talk::open(&programs, &mut rng);
        let from = rng.below(2_usize);
        // Its receiver grants 8 MB.
        talk.send(&programs, 1 - from, [0, 0], 0);
        let pieces = 1 + rng.below(100_usize);
        for piece in rng.permutation(pieces) {
            let flags = if piece + 1 == pieces { FIN } else { 0 };
            talk.send(&programs, from, [piece.try_into().unwrap(), 1], flags);
        }
        let sent = PIECE * u32::try_from(pieces - 1).unwrap() + 2;
        talk.send(&programs, 1 - from, [0, sent], FIN);
        assert!(!talk.has_closed(&programs), "{case}: half of it");
        talk.send(&programs, from, [0, 2], 0);
        assert!(talk.has_closed(&programs), "{case}: {pieces} from {from}");
        let flows = &programs.maps[map::PACKET_FLOWS];
        flows.delete(bytes(&talk.key)).unwrap();
    }
}

/// Who guesses numbers within the window ends nothing: the FIN that is acknowledged is the one that counts.
#[test]
fn forged_ends_do_not_count() {
    let programs = Programs::load();
    let mut rng = Rng::new(13);
    let talk = Talk::open(&programs, &mut rng);
    talk.send(&programs, 1, [0, 0], 0);
    for piece in [0, 1, 2] {
        talk.send(&programs, 0, [piece, 1], 0);
    }
    for forged in [50, 2, 1] {
        talk.send(&programs, 0, [forged, 1], FIN);
    }
    talk.send(&programs, 1, [0, 2 * PIECE + 1], FIN);
    talk.send(&programs, 0, [2, 2], 0);
    assert!(!talk.has_closed(&programs), "by a forged one");
    talk.send(&programs, 0, [3, 2], FIN);
    talk.send(&programs, 1, [0, 3 * PIECE + 2], 0);
    assert!(talk.has_closed(&programs));
    talk.send(&programs, 0, [4, 2], FIN);
    assert!(talk.has_closed(&programs), "a forged one after its end");
}

/// Data without an acknowledgement come from no end: at another interface than the flow's they would raise what counts
/// as sent, and with it what a forged reset may have.
#[test]
fn blind_data_elsewhere_do_not_count() {
    /// `TC_ACT_SHOT`
    const DROP: u32 = 2;
    let programs = Programs::load();
    let mut rng = Rng::new(14);
    let talk = Talk::open(&programs, &mut rng);
    let flows = &programs.maps[map::PACKET_FLOWS];
    let before = types::packet_flow {
        ifindex: IFINDEX + 1,
        client_seq_delta: 0,
        was_relayed: 0,
        ..programs.flow(&talk.key)
    };
    flows.update(bytes(&talk.key), bytes(&before)).unwrap();
    let mut forged = talk.by[0].clone();
    forged.flags = 0;
    forged.seq = before.client_next.wrapping_add(1000);
    assert_eq!(programs.run(0, &forged.frame()).0, DROP);
    assert_eq!(programs.flow(&talk.key).client_next, before.client_next);
}
