// SPDX-License-Identifier: Apache-2.0

use super::*;
use posthaste_testkit::{Rng, simulate};

const KEY_ID: u32 = 9;

fn node(id: u64) -> NodeId {
    NodeId::new(id).unwrap()
}

fn ends(rng: &mut Rng, key: &Key) -> (Dialing, Accepting) {
    let nonces = [Nonce(rng.array()), Nonce(rng.array())];
    let dialing = Dialing::new(key.clone(), KEY_ID, node(1), node(2), nonces[0]);
    (dialing, Accepting::new(node(2), nonces[1]))
}

fn done<T, E: std::fmt::Debug>(progress: Result<Progress<T>, E>) -> T {
    match progress.unwrap() {
        Progress::Done { value, .. } => value,
        Progress::NeedMore(missing) => panic!("{missing} bytes are missing"),
    }
}

fn challenged(accepting: &mut Accepting, hello: &[u8], key: &Key) -> Challenged {
    done(accepting.feed(hello, |peer, key_id| {
        assert_eq!((peer, key_id), (node(1), KEY_ID));
        Some(key.clone())
    }))
}

// promise: B10
#[test]
fn same_session_both_ends() {
    simulate(50, |mut rng| {
        let key = Key::new(rng.array());
        let (mut dialing, mut accepting) = ends(&mut rng, &key);
        let mut challenged = challenged(&mut accepting, dialing.hello(), &key);
        let dialed = done(dialing.feed(challenged.challenge()));
        let accepted = done(challenged.feed(&dialed.response));
        assert_eq!(dialed.session.key, accepted.key);
        assert_ne!(dialed.session.key, key);
        assert_eq!((accepted.me, accepted.peer), (node(2), node(1)));
        assert_eq!((dialed.session.me, dialed.session.peer), (node(1), node(2)));
        assert_eq!((dialed.session.key_id, accepted.key_id), (KEY_ID, KEY_ID));
    });
}

#[test]
fn handshake_in_pieces() {
    let key = Key::new([3; 32]);
    let (mut dialing, mut accepting) = ends(&mut Rng::new(1), &key);
    let hello = *dialing.hello();
    for byte in &hello[..27] {
        let progress = accepting.feed(&[*byte], |_, _| panic!("not yet"));
        assert!(matches!(progress, Ok(Progress::NeedMore(_))));
    }
    let rest = [hello[27], 1, 2, 3];
    let Ok(Progress::Done { value, consumed: 1 }) = accepting.feed(&rest, |_, _| Some(key)) else {
        panic!("the hello was whole");
    };
    let mut challenged = value;
    let stream = [&challenged.challenge()[..], &[1, 2]].concat();
    assert_eq!(dialing.feed(&stream[..10]), Ok(Progress::NeedMore(30)));
    let Ok(Progress::Done {
        value,
        consumed: 30,
    }) = dialing.feed(&stream[10..])
    else {
        panic!("the challenge was whole");
    };
    let stream = [&value.response[..], &[1]].concat();
    let Ok(Progress::Done { consumed: 16, .. }) = challenged.feed(&stream) else {
        panic!("the response was whole");
    };
}

// promise: B10
#[test]
fn wrong_key_fails() {
    let (key, other) = (Key::new([3; 32]), Key::new([4; 32]));
    let (mut dialing, mut accepting) = ends(&mut Rng::new(1), &key);
    let mut challenged = challenged(&mut accepting, dialing.hello(), &other);
    let dialed = dialing.feed(challenged.challenge());
    assert_eq!(dialed, Err(HandshakeError::WrongCode));
    let response = [0; MAC_BYTES];
    assert_eq!(challenged.feed(&response), Err(HandshakeError::WrongCode));
    let (peer, key_id) = (node(1), KEY_ID);
    let unknown = accepting.feed(dialing.hello(), |_, _| None).unwrap_err();
    assert_eq!(unknown, HandshakeError::NoKey { peer, key_id });
}

// promise: B10
#[test]
fn every_bit_counts() {
    let key = Key::new([3; 32]);
    let (dialing, mut accepting) = ends(&mut Rng::new(1), &key);
    let hello = *dialing.hello();
    for bit in 0..HELLO_BYTES * 8 {
        let mut hello = hello;
        hello[bit / 8] ^= 1 << (bit % 8);
        let mut accepting = Accepting::new(node(2), Nonce([5; 16]));
        if let Ok(Progress::Done { value, .. }) = accepting.feed(&hello, |_, _| Some(key.clone())) {
            assert!(
                dialing.clone().feed(value.challenge()).is_err(),
                "bit {bit}"
            );
        }
    }
    let challenged = challenged(&mut accepting, &hello, &key);
    for bit in 0..CHALLENGE_BYTES * 8 {
        let mut challenge = *challenged.challenge();
        challenge[bit / 8] ^= 1 << (bit % 8);
        assert!(dialing.clone().feed(&challenge).is_err(), "bit {bit}");
    }
    let dialed = done(dialing.clone().feed(challenged.challenge()));
    for bit in 0..MAC_BYTES * 8 {
        let mut response = dialed.response;
        response[bit / 8] ^= 1 << (bit % 8);
        assert!(challenged.clone().feed(&response).is_err(), "bit {bit}");
    }
}

// promise: B10
#[test]
fn replay_fails() {
    let key = Key::new([3; 32]);
    let mut rng = Rng::new(1);
    let (mut dialing, mut accepting) = ends(&mut rng, &key);
    let first = challenged(&mut accepting, dialing.hello(), &key);
    let dialed = done(dialing.feed(first.challenge()));
    let (mut later, mut again) = ends(&mut rng, &key);
    let mut second = challenged(&mut again, dialing.hello(), &key);
    assert_eq!(
        second.feed(&dialed.response),
        Err(HandshakeError::WrongCode)
    );
    let replayed = later.feed(first.challenge());
    assert_eq!(replayed, Err(HandshakeError::WrongCode));
}

// promise: B10
#[test]
fn reflection_fails() {
    let key = Key::new([3; 32]);
    let (dialing, _) = ends(&mut Rng::new(1), &key);
    let mut myself = Accepting::new(node(1), Nonce([5; 16]));
    let reflected = myself.feed(dialing.hello(), |_, _| Some(key.clone()));
    assert_eq!(reflected.unwrap_err(), HandshakeError::Myself);
}

// promise: B10
#[test]
fn wrong_node_refused() {
    let key = Key::new([3; 32]);
    let (mut dialing, _) = ends(&mut Rng::new(1), &key);
    let mut third = Accepting::new(node(3), Nonce([5; 16]));
    let challenged = challenged(&mut third, dialing.hello(), &key);
    let peer = node(3);
    let dialed = dialing.feed(challenged.challenge());
    assert_eq!(dialed, Err(HandshakeError::WrongPeer { peer }));
}

#[test]
fn first_bytes_identify_foreign() {
    for (bytes, error) in [
        (&b"G"[..], HandshakeError::NotAHop),
        (b"PHOT", HandshakeError::NotAHop),
        (b"PHOP\x02", HandshakeError::Version(2)),
        (b"PHOP\x01\x01", HandshakeError::NotAHop),
        (
            b"PHOP\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
            HandshakeError::NoNode,
        ),
    ] {
        let mut accepting = Accepting::new(node(2), Nonce([5; 16]));
        let refused = accepting.feed(bytes, |_, _| None);
        assert_eq!(refused.unwrap_err(), error);
    }
}
