// SPDX-License-Identifier: Apache-2.0
//! Parses the records of the event ring.

use posthaste_relay::frame::Frame;
use posthaste_relay::intercept::{Event, EventKind, HalfOpen};

use crate::layout;
use crate::objects::types;
use crate::observe::path;
use crate::rules::ACCEPT_HOLDS;

/// The event of a record, with the one copy of its frame that outlives the ring. `None` for a
/// record of another layout, which only another version writes.
pub(crate) fn parse(raw: &[u8]) -> Option<Event> {
    let (head, frame) = raw.split_at_checked(size_of::<types::event_head>())?;
    let head: types::event_head = layout::whole(head)?;
    let kind = match head.kind {
        0 => EventKind::Syn {
            held: head.accept & ACCEPT_HOLDS != 0,
        },
        1 => EventKind::SynAck,
        2 => EventKind::Reject,
        3 => EventKind::SynOption,
        4 => EventKind::Unauthorized,
        5 => EventKind::Join,
        _ => return None,
    };
    let frame = frame.get(..usize::from(head.frame_bytes))?;
    Some(Event {
        kind,
        flow: layout::flow(&head.flow),
        frame: Frame::captured(head.ifindex, head.l2_bytes, frame),
        half_open: HalfOpen {
            isn: head.isn,
            kept: head.kept != 0,
        },
        rule: head.rule.into(),
        generation: head.generation,
        trial: head.trial != 0,
        path: path(head.out_ifindex, head.mss),
    })
}

/// For fuzzing; not part of the product.
#[cfg(fuzzing)]
pub fn parse_event(raw: &[u8]) -> Option<Event> {
    parse(raw)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record as the program writes it: head, 128 bytes of frame, of which
    /// `frame_bytes` count.
    fn record(kind: u8, accept: u8, frame_bytes: u16) -> Vec<u8> {
        let head = types::event_head {
            flow: types::flow {
                client: layout::address([1; 16]),
                server: layout::address([2; 16]),
                client_port: 3_u16.to_be(),
                server_port: 4_u16.to_be(),
            },
            isn: 5,
            ifindex: 6,
            rule: 7,
            frame_bytes,
            generation: 8,
            kind,
            accept,
            kept: 1,
            l2_bytes: 14,
            ..Default::default()
        };
        let mut raw = layout::bytes(&head).to_vec();
        raw.extend((0..128).collect::<Vec<u8>>());
        raw
    }

    #[test]
    fn record_round_trip() {
        let event = parse(&record(0, 3, 60)).unwrap();
        assert_eq!(event.kind, EventKind::Syn { held: true });
        assert_eq!(event.flow.addresses(), ([1; 16], [2; 16]));
        let ports = (event.flow.client().port(), event.flow.server().port());
        assert_eq!(ports, (3, 4));
        assert_eq!((event.frame.ifindex, event.rule), (6, 7));
        let half_open = HalfOpen { isn: 5, kept: true };
        assert_eq!((event.generation, event.half_open), (8, half_open));
        assert_eq!(event.frame.as_bytes(), (0..60).collect::<Vec<u8>>());
        let kind = |kind, accept| parse(&record(kind, accept, 60)).map(|event| event.kind);
        assert_eq!(kind(0, 0), Some(EventKind::Syn { held: false }));
        assert_eq!(kind(1, 1), Some(EventKind::SynAck));
        assert_eq!(kind(2, 1), Some(EventKind::Reject));
        assert_eq!(kind(3, 0), Some(EventKind::SynOption));
        assert_eq!(kind(4, 0), Some(EventKind::Unauthorized));
        assert_eq!(kind(5, 0), Some(EventKind::Join));
        assert_eq!(kind(6, 0), None);
    }

    #[test]
    fn missing_link_layer_made_up() {
        let mut raw = record(0, 0, 60);
        raw[std::mem::offset_of!(types::event_head, l2_bytes)] = 0;
        let frame = parse(&raw).unwrap().frame;
        assert_eq!(frame.as_bytes()[14..], (0..60).collect::<Vec<u8>>());
    }

    #[test]
    fn truncated_record() {
        let whole = record(0, 0, 128);
        assert!(parse(&whole).is_some());
        for length in 0..whole.len() {
            assert!(parse(&whole[..length]).is_none(), "{length}");
        }
        assert!(parse(&record(0, 0, 129)).is_none());
    }

    #[test]
    fn mutated_record() {
        let sound = record(0, 0, 60);
        for at in 0..size_of::<types::event_head>() {
            for value in 0..=u8::MAX {
                let mut raw = sound.clone();
                raw[at] = value;
                if let Some(event) = parse(&raw) {
                    assert!(event.frame.as_bytes().len() <= 128 + 14);
                }
            }
        }
    }
}
