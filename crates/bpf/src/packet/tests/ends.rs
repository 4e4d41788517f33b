// SPDX-License-Identifier: Apache-2.0
//! How flows end, in whatever order the CPUs carry their segments.

use super::shapes::Shape;
use super::*;

/// `PACKET_FIN_CLIENT | PACKET_FIN_SERVER`
const FINS: u32 = 3;
const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;
/// `PACKET_HELD`
const HELD: u32 = 3;
/// `TC_ACT_SHOT`
const DROP: u32 = 2;
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
        [entry.client_isn, entry.node_isn] = [up, down].map(|first| first.wrapping_sub(1));
        (entry.up.next, entry.up.edge, entry.up.acked) = (up, up, up);
        (entry.down.next, entry.down.edge, entry.down.acked) = (down, down, down);
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

    /// One end resets the flow, by a number so far behind the other's acknowledgement.
    fn reset(&self, programs: &Programs, from: usize, ahead: u32) {
        let flow = programs.flow(&self.key);
        let acked = [flow.up.acked, flow.down.acked][from];
        let mut sent = self.by[from].clone();
        sent.seq = acked.wrapping_sub(self.delta[from]).wrapping_add(ahead);
        (sent.flags, sent.payload) = (RST, vec![]);
        assert_eq!(programs.run(from, &sent.frame()).0, NEXT);
    }

    /// Removes the flow.
    fn close(&self, programs: &Programs) {
        let flows = &programs.maps[map::PACKET_FLOWS];
        flows.delete(bytes(&self.key)).unwrap();
    }

    fn has_closed(&self, programs: &Programs) -> bool {
        let flow = programs.flow(&self.key);
        flow.ended == FINS && (flow.down.acked, flow.up.acked) == (flow.down.fin, flow.up.fin)
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
        talk.close(&programs);
    }
}

/// Segments that were lost on their way leave one acknowledgement of the whole upload, behind which nothing comes.
#[test]
fn last_acknowledgement_shows_an_upload() {
    let programs = Programs::load();
    let talk = Talk::open(&programs, &mut Rng::new(14));
    talk.send(&programs, 1, [0, 0], 0);
    talk.send(&programs, 0, [0, 1], 0);
    talk.send(&programs, 0, [1, 1], FIN);
    assert_eq!(programs.flow(&talk.key).is_sender, 0);
    talk.send(&programs, 1, [0, PIECE + 2], FIN);
    assert_eq!(programs.flow(&talk.key).is_sender, 1);
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

/// Who does not see the flow guesses no acknowledgement: its data count nothing, at no interface, and would raise what
/// a forged reset may have.
// promise: PK4
#[test]
fn blind_data_do_not_count() {
    let programs = Programs::load();
    let mut rng = Rng::new(14);
    for case in 0..CASES / 40 {
        let talk = Talk::open(&programs, &mut rng);
        let from = rng.below(2_usize);
        talk.send(&programs, 1 - from, [0, 0], 0);
        let before = programs.flow(&talk.key);
        let mut forged = talk.by[from].clone();
        forged.seq = forged.seq.wrapping_add(rng.below(1_u32 << 16));
        let away = rng.pick(&[2, 1 << 10, 1 << 31, SPAN.wrapping_neg() - 1]);
        let first = talk.by[1 - from].seq.wrapping_add(talk.delta[1 - from]);
        forged.ack = first.wrapping_add(away);
        forged.flags = if rng.once_in(3) { 0 } else { ACK };
        programs.run(from, &forged.frame());
        let after = types::packet_flow {
            last_ns: before.last_ns,
            ..programs.flow(&talk.key)
        };
        assert_eq!(bytes(&after), bytes(&before), "{case}: {forged:?}");
        talk.close(&programs);
    }
}

/// Only the next number of an end resets the flow: others in flight make the node look whether its ends live, and so
/// does what comes after a reset.
// promise: PK4
#[test]
fn resets_count_by_their_number() {
    let programs = Programs::load();
    let mut rng = Rng::new(15);
    for _ in 0..CASES / 40 {
        let talk = Talk::open(&programs, &mut rng);
        let from = rng.below(2_usize);
        let ended = || programs.flow(&talk.key).ended;
        talk.send(&programs, 1 - from, [0, 0], 0);
        talk.send(&programs, from, [0, 1], 0);
        talk.reset(&programs, from, rng.pick(&[2, PIECE, 1 << 31]));
        assert_eq!(ended(), 0, "not in flight");
        for piece in 1..4 {
            talk.send(&programs, from, [piece, 1], 0);
        }
        talk.reset(&programs, from, 1 + rng.below(3 * PIECE));
        assert_eq!(ended(), PROBED, "in flight");
        talk.send(&programs, from, [4, 1], 0);
        assert_eq!(ended(), 0, "it lives");
        talk.reset(&programs, from, rng.pick(&[0, 4 * PIECE + 1]));
        assert_eq!(ended(), RESET);
        talk.send(&programs, rng.below(2_usize), [4, 1], 0);
        assert_eq!(ended(), PROBED, "it may have been on its way");
        talk.close(&programs);
    }
}

/// The end of a segment that comes in parts is not known: the node looks whether the ends live.
#[test]
fn ends_in_parts_are_doubted() {
    let programs = Programs::load();
    let mut rng = Rng::new(16);
    let talk = Talk::open(&programs, &mut rng);
    talk.send(&programs, 1, [0, 0], 0);
    let mut last = talk.by[0].clone();
    last.ack = talk.by[1].seq.wrapping_add(talk.delta[1]);
    (last.flags, last.payload) = (FIN | ACK, vec![7; 1400]);
    programs.run_whole(false, &Shape::First(600, false).frame(&last));
    assert_eq!(programs.flow(&talk.key).ended, PROBED);
}

/// A SYN-ACK for another SYN, which anybody may have forged with that, ends no flow: its client is probed. Only
/// after the reset of a client that has begun anew it passes.
// promise: PK4
#[test]
fn other_connections_are_proved_by_the_client() {
    let programs = Programs::load();
    let mut rng = Rng::new(17);
    for _ in 0..CASES / 200 {
        let talk = Talk::open(&programs, &mut rng);
        talk.send(&programs, 1, [0, 0], 0);
        talk.send(&programs, 0, [0, 1], 0);
        talk.send(&programs, 1, [0, 1], 0);
        let mut anew = talk.by[0].clone();
        anew.seq = number(&mut rng) | 1 << 20;
        (anew.flags, anew.payload) = (SYN, vec![]);
        assert_eq!(programs.run(0, &anew.frame()), (NEXT, anew.frame()));
        let mut answer = talk.by[1].clone();
        // Not as the node's own.
        answer.seq = programs.flow(&talk.key).node_isn.wrapping_add(1 << 30);
        answer.ack = anew.seq.wrapping_add(1);
        (answer.flags, answer.payload) = (SYN | ACK, vec![]);
        answer.options = vec![2, 4, 5, 180];
        let (verdict, probe) = programs.run(1, &answer.frame());
        assert_eq!(verdict, NEXT);
        let flow = programs.flow(&talk.key);
        assert_eq!((flow.state, flow.ended), (OPEN, PROBED));
        let mut expected = talk.by[1].clone();
        expected.seq = flow.down.acked.wrapping_sub(1);
        expected.ack = flow.up.acked.wrapping_sub(flow.client_seq_delta);
        (expected.flags, expected.payload) = (ACK, vec![]);
        let at = expected.frame().len() - 16;
        assert_eq!(probe[at..at + 9], expected.frame()[at..at + 9], "numbers");
        // A client that has begun anew knows no connection with this number.
        let mut reset = talk.by[0].clone();
        reset.seq = expected.ack;
        (reset.flags, reset.payload) = (RST, vec![]);
        programs.run(0, &reset.frame());
        assert_eq!(programs.run(1, &answer.frame()), (NEXT, answer.frame()));
        let flows = &programs.maps[map::PACKET_FLOWS];
        assert!(flows.is_empty().unwrap());
    }
}

/// A client whose first data come in parts, which the node can neither hold nor forward yet, is not answered for a
/// while, nor its neighbours: but only if the parts have its numbers.
#[test]
fn parts_before_the_answer_take_the_client_off_the_path() {
    let programs = Programs::load();
    let mut rng = Rng::new(18);
    let talk = Talk::open(&programs, &mut rng);
    let flow = types::packet_flow {
        state: HELD,
        seq_delta: 0,
        client_seq_delta: 0,
        was_relayed: 0,
        ..programs.flow(&talk.key)
    };
    let flows = &programs.maps[map::PACKET_FLOWS];
    flows.update(bytes(&talk.key), bytes(&flow)).unwrap();
    let prefixes = &programs.maps[map::PACKET_PREFIXES];
    let is_off = || {
        let mut until = vec![];
        prefixes
            .each(|_, record| {
                // `parts_until_ns`
                until.push(record[16..].iter().any(|&byte| byte > 0));
                true
            })
            .unwrap();
        until.contains(&true)
    };
    let mut first = talk.by[0].clone();
    (first.seq, first.ack) = (
        flow.client_isn.wrapping_add(1),
        flow.node_isn.wrapping_add(1),
    );
    (first.flags, first.payload) = (ACK, vec![7; 1400]);
    for forged in [1, 1 << 20] {
        let mut forged_part = first.clone();
        forged_part.ack = first.ack.wrapping_add(forged);
        programs.run_whole(false, &Shape::First(600, false).frame(&forged_part));
        assert!(!is_off());
    }
    let (verdict, _) = programs.run_whole(false, &Shape::First(600, false).frame(&first));
    assert_eq!(verdict, DROP);
    assert!(is_off());
}
