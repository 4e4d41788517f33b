// SPDX-License-Identifier: Apache-2.0
//! What holds for every message, whatever is in it. For the tests and for
//! fuzzing; not part of the product.
//!
//! Every function here panics when something does not hold.

use std::fmt::Debug;

use crate::Progress;
use crate::convert::{Answer, BYTES_MAX, Head};
use crate::gather::Gather;
use crate::hop;
use crate::stamp::{Format, Probe, Reflection, Timestamp};
use crate::syn_option;

/// The options of a SYN.
pub fn check_syn_option(options: &[u8]) {
    let Ok(Some(header)) = syn_option::find(options) else {
        return;
    };
    let mut ours = Vec::new();
    syn_option::encode(&header, &mut ours).expect("it came from an option");
    assert_eq!(syn_option::find(&ours), Ok(Some(header)));
    // But for the kind, of which there are two, it is there as it would be sent.
    let there = options.windows(ours.len());
    assert!(there.into_iter().any(|part| part[1..] == ours[1..]));
}

/// The first bytes that a converter receives.
pub fn check_head(bytes: &[u8]) {
    check_progress(bytes, BYTES_MAX, Head::parse);
    match Head::parse(bytes) {
        Ok(Progress::NeedMore(_)) => {}
        Ok(Progress::Done { value, .. }) => {
            let again = value.request.encode(None).expect("no longer than it was");
            let again = done(Head::parse(&again).expect("a request"));
            assert_eq!(again.request, value.request);
            assert_eq!(again.claim, None);
        }
        Err(refusal) => {
            let Some(error) = refusal.answer else { return };
            let answer = Answer::failure(error.clone());
            let bytes = answer.encode().expect("an answer can be sent");
            let read = done(Answer::parse(&bytes).expect("an answer"));
            assert_eq!(read.error.map(|read| read.code()), Some(error.code()));
        }
    }
}

/// The first bytes that a client of a converter receives.
pub fn check_answer(bytes: &[u8]) {
    check_progress(bytes, BYTES_MAX, Answer::parse);
    if let Ok(Progress::Done { value, .. }) = Answer::parse(bytes) {
        let again = value.encode().expect("no longer than it was");
        assert_eq!(done(Answer::parse(&again).expect("an answer")), value);
    }
}

/// What either end of a hop receives, in the handshake and after it.
pub fn check_hop(bytes: &[u8]) {
    hop::check(bytes);
}

/// What a reflector or a sender of STAMP receives.
pub fn check_stamp(bytes: &[u8]) {
    if let Ok(read) = Probe::parse(bytes) {
        let again = read.packet.encode();
        assert_eq!(
            Probe::parse(&again).map(|read| read.packet),
            Ok(read.packet)
        );
        check_time(read.packet.sent);
    }
    if let Ok(read) = Reflection::parse(bytes) {
        let again = read.packet.encode();
        let again = Reflection::parse(&again).map(|read| read.packet);
        assert_eq!(again, Ok(read.packet));
        let Reflection { sent, received, .. } = read.packet;
        for format in [Format::Ntp, Format::Ptp] {
            let (stay, back) = (sent.since(received, format), received.since(sent, format));
            // One was first, or they are the same. Half an era apart, NTP leaves it open.
            match (stay, back) {
                (Some(stay), Some(back)) => assert!(stay.is_zero() && back.is_zero()),
                (None, None) => assert_eq!(format, Format::Ntp),
                _ => {}
            }
        }
    }
}

/// A time that can be read is written as it was.
fn check_time(sent: Timestamp) {
    let time = sent.to_unix(Format::Ntp);
    assert_eq!(Timestamp::from_unix(time).to_unix(Format::Ntp), time);
}

fn done<T>(progress: Progress<T>) -> T {
    match progress {
        Progress::Done { value, .. } => value,
        Progress::NeedMore(missing) => panic!("{missing} bytes are missing"),
    }
}

/// Checks what every parser promises of its [`Progress`]: it takes no more
/// than its message, needs no more than its message, and neither what
/// follows nor the pieces it comes in make a difference.
pub(crate) fn check_progress<T, E>(
    bytes: &[u8],
    bytes_max: usize,
    parse: impl Fn(&[u8]) -> Result<Progress<T>, E>,
) where
    T: Debug + PartialEq,
    E: Debug + PartialEq,
{
    let whole = parse(bytes);
    match &whole {
        Ok(Progress::NeedMore(missing)) => {
            assert!((1..=bytes_max).contains(missing));
            assert!(bytes.len() + missing <= bytes_max);
        }
        Ok(Progress::Done { consumed, .. }) => {
            assert!((1..=bytes_max).contains(consumed));
            let message = &bytes[..*consumed];
            assert_eq!(parse(message), whole);
            assert_eq!(parse(&[message, &[0xff; 9]].concat()), whole);
            let short = parse(&message[..consumed - 1]);
            assert_eq!(short, Ok(Progress::NeedMore(1)));
        }
        Err(_) => {}
    }
    for piece in [1, 50] {
        assert_eq!(in_pieces(bytes, piece, &parse), whole, "{piece} at a time");
    }
}

/// What comes of `bytes` when they arrive `piece` at a time.
fn in_pieces<T, E>(
    bytes: &[u8],
    piece: usize,
    parse: impl Fn(&[u8]) -> Result<Progress<T>, E>,
) -> Result<Progress<T>, E> {
    let mut gather = Gather::default();
    let mut before = 0;
    let mut last = gather.feed(&[], &parse)?;
    for piece in bytes.chunks(piece) {
        last = gather.feed(piece, &parse)?;
        if let Progress::Done { consumed, .. } = &mut last {
            *consumed += before;
            break;
        }
        before += piece.len();
    }
    Ok(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::{AuthTag, Key, Nonce};
    use crate::convert::Request;
    use crate::draw::Draw;
    use crate::header::NodeId;
    use posthaste_testkit::{Rng, simulate};

    const CHECKS: [fn(&[u8]); 5] = [
        check_syn_option,
        check_head,
        check_answer,
        check_hop,
        check_stamp,
    ];

    // promise: B2
    #[test]
    fn they_hold_for_noise() {
        simulate(10_000, |mut rng| {
            let length = rng.below(70);
            let noise = rng.bytes(length);
            CHECKS.iter().for_each(|check| check(&noise));
        });
    }

    /// Packets of STAMP have no beginning of their own, but a length.
    #[test]
    fn noise_of_packet_length() {
        simulate(10_000, |mut rng| {
            let length = rng.pick(&[44, 112]);
            check_stamp(&rng.bytes(length));
        });
    }

    /// Noise with the beginning of a message, so that it gets further.
    // promise: B2
    #[test]
    fn random_message_prefixes() {
        simulate(8_000, |mut rng| {
            let length = rng.below(120);
            let mut bytes = rng.bytes(length + 8);
            let begin: &[u8] = match rng.below(5) {
                0 => &[1, 9, 0x22, 0x63, 10, 5],
                1 => &[1, 20, 0x22, 0x63, 10, 9],
                2 => &[1, 3, 0x22, 0x63, 0x1e, 2],
                3 => &[253, 16, 0x50, 0x48],
                _ => b"PHOP\x01\0\0\0",
            };
            bytes[..begin.len()].copy_from_slice(begin);
            CHECKS.iter().for_each(|check| check(&bytes));
        });
    }

    // promise: B2
    #[test]
    fn truncations_and_bit_changes() {
        simulate(2, |mut rng| {
            for message in messages(&mut rng) {
                for length in 0..message.len() {
                    CHECKS.iter().for_each(|check| check(&message[..length]));
                }
                for at in 0..message.len() {
                    for change in [1, 2, 4, 8, 16, 32, 64, 128, message[at], !message[at]] {
                        let mut other = message.clone();
                        other[at] ^= change;
                        CHECKS.iter().for_each(|check| check(&other));
                    }
                }
            }
        });
    }

    fn messages(rng: &mut Rng) -> Vec<Vec<u8>> {
        let key = Key::new(rng.array());
        let auth = AuthTag {
            key: &key,
            key_id: 1,
            receiver: NodeId::new(7).unwrap(),
            now_ms: 1_000,
            nonce: Nonce(rng.array()),
        };
        let mut request = Request::connect(rng.header());
        request.cookie = rng.perhaps(|rng| rng.bytes(8));
        let mut option = vec![2, 4, 5, 0xb4];
        let header = crate::header::ChainHeader::to(rng.endpoint_v4());
        syn_option::encode(&header, &mut option).unwrap();
        let answer = Answer {
            extensions: Some(vec![4, 30, 34]),
            tcp_header: Some(rng.bytes(12)),
            error: None,
        };
        let mut messages = vec![
            option,
            request.encode(None).unwrap(),
            request.encode(Some(&auth)).unwrap(),
            answer.encode().unwrap(),
        ];
        messages.extend(hop::samples(rng));
        messages
    }
}
