// SPDX-License-Identifier: Apache-2.0
//! What holds for everything that either end of a hop receives. For
//! [`invariants`](crate::invariants).

use super::frame::{self, Frame};
use super::handshake::{CHALLENGE_BYTES, HELLO_BYTES, message};
use super::{Accepting, Acceptor, Dialer, Dialing, Reply, ReplyReader, Session};
use crate::Progress;
use crate::auth::{Key, Nonce};
use crate::convert::BYTES_MAX;
use crate::header::NodeId;
use crate::invariants::{check_head, check_progress};

const KEY: [u8; 32] = [7; 32];

fn node(id: u64) -> NodeId {
    NodeId::new(id).expect("not zero")
}

fn session() -> Session {
    Session {
        me: node(1),
        peer: node(2),
        key_id: 0,
        key: Key::new(KEY),
    }
}

pub(crate) fn check(bytes: &[u8]) {
    check_progress(bytes, HELLO_BYTES, message::<HELLO_BYTES>);
    check_progress(bytes, CHALLENGE_BYTES, message::<CHALLENGE_BYTES>);
    check_progress(bytes, frame::HEAD_BYTES + BYTES_MAX, Frame::parse);
    check_handshake(bytes);
    check_frames(bytes);
    if let Ok(Progress::Done { value, .. }) = Frame::parse(bytes) {
        check_frame(&value);
    }
}

fn check_frame(frame: &Frame) {
    match frame.kind {
        frame::OPEN => check_head(&frame.payload),
        frame::REPLY => {
            if let Some(reply) = Reply::from_bytes(&frame.payload) {
                assert_eq!(Reply::from_bytes(&reply.to_bytes()), Some(reply));
            }
        }
        _ => {}
    }
}

/// No input completes a handshake by chance.
fn check_handshake(bytes: &[u8]) {
    let mut accepting = Accepting::new(node(1), Nonce([1; 16]));
    let found = accepting.feed(bytes, |_, _| Some(Key::new(KEY)));
    if let Ok(Progress::Done {
        mut value,
        consumed,
    }) = found
    {
        assert_eq!(consumed, HELLO_BYTES);
        let accepted = value.feed(&bytes[consumed..]);
        assert!(!matches!(accepted, Ok(Progress::Done { .. })));
    }
    let mut dialing = Dialing::new(Key::new(KEY), 0, node(1), node(2), Nonce([2; 16]));
    let dialed = dialing.feed(bytes);
    assert!(!matches!(dialed, Ok(Progress::Done { .. })));
}

/// Frame after frame, neither end takes more than there is.
fn check_frames(bytes: &[u8]) {
    let (mut acceptor, mut dialer) = (Acceptor::new(session()), Dialer::new(session()));
    let mut rest = bytes;
    while let Ok(Progress::Done { consumed, .. }) = acceptor.feed(rest) {
        rest = &rest[consumed..];
    }
    let mut rest = bytes;
    while let Ok(Progress::Done { consumed, .. }) = dialer.feed(rest) {
        rest = &rest[consumed..];
    }
    if let Ok(Progress::Done { consumed, .. }) = ReplyReader::default().feed(bytes) {
        assert!(consumed <= bytes.len());
    }
}

/// One message of each kind.
#[cfg(test)]
pub(crate) fn samples(rng: &mut posthaste_testkit::Rng) -> Vec<Vec<u8>> {
    use super::Icmp;
    use crate::convert::Connect;
    use crate::draw::Draw;

    let nonce = Nonce(rng.array());
    // Not the key of the checks, which none of these may satisfy.
    let key = Key::new(rng.array());
    let dialing = Dialing::new(key.clone(), 3, node(2), node(1), nonce);
    let mut accepting = Accepting::new(node(1), Nonce(rng.array()));
    let challenged = accepting.feed(dialing.hello(), |_, _| Some(key));
    let Ok(Progress::Done { value, .. }) = challenged else {
        panic!("{challenged:?}");
    };
    let connect = Connect::new(rng.header());
    let open = Dialer::new(session()).open(&connect, 5, nonce);
    let icmp = Icmp {
        kind: 3,
        code: 1,
        offender: Some(rng.endpoint().address().ip()),
    };
    vec![
        dialing.hello().to_vec(),
        value.challenge().to_vec(),
        super::ping(9).to_vec(),
        open.expect("it fits"),
        Acceptor::reply(Reply::Unreachable(icmp)).to_vec(),
        super::VALIDATED.to_vec(),
        super::ACCEPTED.to_vec(),
        super::WORKING.to_vec(),
    ]
}
