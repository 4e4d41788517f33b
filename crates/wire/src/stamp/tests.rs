// SPDX-License-Identifier: Apache-2.0

use super::*;
use posthaste_testkit::{Rng, simulate};

fn probe(rng: &mut Rng) -> Probe {
    Probe {
        sequence: u32::from_be_bytes(rng.array()),
        sent: Timestamp(rng.next()),
        error: ErrorEstimate {
            synchronized: rng.below(2) == 0,
            format: if rng.below(2) == 0 {
                Format::Ntp
            } else {
                Format::Ptp
            },
            scale: rng.byte() & 63,
            multiplier: rng.byte().max(1),
        },
        session: u16::from_be_bytes(rng.array()),
    }
}

fn reflection(rng: &mut Rng) -> Reflection {
    let own = probe(rng);
    let received = Timestamp(rng.next());
    let mut of = probe(rng);
    of.session = own.session;
    Reflection {
        sequence: own.sequence,
        sent: own.sent,
        received,
        error: own.error,
        probe: of,
        ttl: rng.byte(),
    }
}

#[test]
fn packet_round_trip() {
    simulate(500, |mut rng| {
        let key = Key::new(rng.array());
        let other = Key::new(rng.array());
        let (probe, reflection) = (probe(&mut rng), reflection(&mut rng));
        assert_eq!(Probe::parse(&probe.encode()).unwrap().packet, probe);
        let open = reflection.encode();
        let open = Reflection::parse(&open).unwrap();
        assert_eq!((open.packet, open.is_authenticated()), (reflection, false));
        assert!(!open.is_of(&key), "it is not authenticated");
        let bytes = probe.auth(&key);
        let authenticated = Probe::parse(&bytes).unwrap();
        assert_eq!(authenticated.packet, probe);
        assert!(
            authenticated.is_authenticated()
                && authenticated.is_of(&key)
                && !authenticated.is_of(&other)
        );
        let bytes = reflection.auth(&key);
        let authenticated = Reflection::parse(&bytes).unwrap();
        assert_eq!(authenticated.packet, reflection);
        assert!(authenticated.is_of(&key) && !authenticated.is_of(&other));
    });
}

// promise: L10
#[test]
fn every_bit_counts() {
    simulate(3, |mut rng| {
        let key = Key::new(rng.array());
        for bytes in [probe(&mut rng).auth(&key), reflection(&mut rng).auth(&key)] {
            for bit in 0..bytes.len() * 8 {
                let mut other = bytes;
                other[bit / 8] ^= 1 << (bit % 8);
                let read = Probe::parse(&other);
                assert!(read.is_err() || !read.unwrap().is_of(&key), "bit {bit}");
            }
        }
    });
}

#[test]
fn probe_is_no_reflection() {
    simulate(50, |mut rng| {
        let key = Key::new(rng.array());
        let bytes = probe(&mut rng).auth(&key);
        let read = Reflection::parse(&bytes);
        assert!(read.is_err(), "the echo of the error estimate is zero");
        let bytes = probe(&mut rng).encode();
        assert!(Reflection::parse(&bytes).is_err());
    });
}

#[test]
fn other_lengths_are_refused() {
    let bytes = [1; 200];
    for length in (0..200).filter(|length| ![OPEN_BYTES, AUTHENTICATED_BYTES].contains(length)) {
        let error = StampError::Length(length);
        assert_eq!(Probe::parse(&bytes[..length]), Err(error));
        assert_eq!(Reflection::parse(&bytes[..length]), Err(error));
    }
    assert!(Probe::parse(&bytes[..OPEN_BYTES]).is_ok());
    assert_eq!(Probe::parse(&[0; OPEN_BYTES]), Err(StampError::Estimate));
}

#[test]
fn reserved_fields_ignored() {
    let mut rng = Rng::new(7);
    let probe = probe(&mut rng);
    let mut bytes = probe.encode();
    bytes[16..].fill(0xff);
    assert_eq!(Probe::parse(&bytes).unwrap().packet, probe);
}

#[test]
fn session_is_node_number() {
    let of = |id| session(NodeId::new(id).unwrap());
    assert_eq!((of(1), of(2), of(65_534)), (1, 2, 65_534));
}

#[test]
fn stamp_key_is_separate() {
    let shared = Key::new([7; 32]);
    assert_ne!(key(&shared), shared);
    assert_eq!(key(&shared), key(&Key::new([7; 32])));
}
