// SPDX-License-Identifier: Apache-2.0

use super::*;
use posthaste_testkit::{Rng, simulate};

fn words(rng: &mut Rng) -> Vec<u8> {
    let words = rng.below(10);
    rng.bytes(words * WORD)
}

fn kinds(rng: &mut Rng) -> Vec<u8> {
    let mut kinds = words(rng);
    kinds.retain(|kind| !UNANNOUNCED.contains(kind));
    kinds
}

fn error(rng: &mut Rng) -> ConvertError {
    match rng.below(11) {
        0 => ConvertError::UnsupportedVersion(vec![1, 2]),
        1 => ConvertError::MalformedMessage(words(rng)),
        2 => ConvertError::UnsupportedMessage(words(rng)),
        3 => ConvertError::MissingCookie(words(rng)),
        4 => ConvertError::NotAuthorized,
        5 => ConvertError::UnsupportedTcpOption(kinds(rng)),
        6 => ConvertError::ResourceExceeded(rng.byte()),
        7 => ConvertError::NetworkFailure(rng.byte()),
        8 => ConvertError::ConnectionReset,
        9 => ConvertError::DestinationUnreachable(rng.byte()),
        _ => ConvertError::Other {
            code: rng.pick(&[4, 34, 66, 98, 192, 255]),
            value: [words(rng), vec![9]].concat(),
        },
    }
}

fn read(bytes: &[u8]) -> Answer {
    match Answer::parse(bytes) {
        Ok(Progress::Done { value, consumed }) => {
            assert_eq!(consumed, bytes.len());
            value
        }
        other => panic!("{other:?}"),
    }
}

// promise: B5
#[test]
fn what_is_answered_is_read() {
    simulate(3_000, |mut rng| {
        let answer = Answer {
            extensions: rng.perhaps(kinds),
            tcp_header: rng.perhaps(words),
            error: rng.perhaps(error),
        };
        assert_eq!(read(&answer.encode().unwrap()), answer);
    });
}

/// The layouts of RFC 8803 §6.2.8, error by error.
// promise: B5
#[test]
fn rfc_error_bytes() {
    for (error, tlv) in [
        (
            ConvertError::UnsupportedVersion(vec![1]),
            &[30, 1, 0, 1][..],
        ),
        (
            ConvertError::MalformedMessage(vec![9; 4]),
            &[30, 2, 1, 0, 9, 9, 9, 9],
        ),
        (
            ConvertError::UnsupportedMessage(vec![0, 1, 0, 0]),
            &[30, 2, 2, 0, 0, 1, 0, 0],
        ),
        (
            ConvertError::MissingCookie(vec![7; 4]),
            &[30, 2, 3, 0, 7, 7, 7, 7],
        ),
        (ConvertError::NotAuthorized, &[30, 1, 32, 0]),
        (
            ConvertError::UnsupportedTcpOption(vec![8, 34]),
            &[30, 2, 33, 8, 34, 0, 0, 0],
        ),
        (ConvertError::ResourceExceeded(5), &[30, 1, 64, 5]),
        (ConvertError::NetworkFailure(0), &[30, 1, 65, 0]),
        (ConvertError::ConnectionReset, &[30, 1, 96, 0]),
        (ConvertError::DestinationUnreachable(3), &[30, 1, 97, 3]),
    ] {
        assert_eq!(tlv[2], error.code());
        let bytes = Answer::failure(error.clone()).encode().unwrap();
        assert_eq!(bytes[4..], *tlv, "{error:?}");
        assert_eq!(read(&bytes).error, Some(error));
    }
}

#[test]
fn empty_answer_is_connection() {
    let bytes = Answer::default().encode().unwrap();
    assert_eq!(bytes, [1, 1, 0x22, 0x63]);
    assert_eq!(read(&bytes), Answer::default());
}

#[test]
fn private_kinds_left_out() {
    let answer = Answer {
        extensions: Some(vec![0, 1, 2, 3, 4, 5, 8, 29, 30]),
        ..Answer::default()
    };
    let bytes = answer.encode().unwrap();
    assert_eq!(bytes[4..], [21, 2, 0, 0, 4, 8, 30, 0]);
    assert_eq!(read(&bytes).extensions, Some(vec![4, 8, 30]));
}

#[test]
fn echo_cut_to_fit() {
    let long = ConvertError::MalformedMessage(vec![9; BYTES_MAX]);
    let bytes = Answer::failure(long).encode().unwrap();
    assert_eq!(bytes.len(), BYTES_MAX);
    let echo = ConvertError::MalformedMessage(vec![9; BYTES_MAX - 8]);
    assert_eq!(read(&bytes).error, Some(echo));
}

#[test]
fn oversized_answer_not_sent() {
    let answer = Answer {
        tcp_header: Some(vec![1; BYTES_MAX]),
        ..Answer::default()
    };
    assert_eq!(answer.encode(), Err(TooLong));
}

// promise: B5
#[test]
fn invalid_answer_has_place() {
    use BadAnswer::{Malformed, NoLength, NotConvert, Twice, Unexpected, Version};
    for (bytes, bad) in [
        (&b"HTTP/1.1 200"[..], NotConvert),
        (&[1, 0, 0x22, 0x63], NoLength),
        (&[2, 1, 0x22, 0x63], Version(2)),
        (&[1, 2, 0x22, 0x63, 30, 0, 0, 0], Malformed { at: 4 }),
        (&[1, 2, 0x22, 0x63, 30, 2, 0, 0], Malformed { at: 4 }),
        (
            &[1, 2, 0x22, 0x63, 0, 1, 0, 0],
            Unexpected { at: 4, kind: 0 },
        ),
        (
            &[1, 2, 0x22, 0x63, 10, 1, 0, 0],
            Unexpected { at: 4, kind: 10 },
        ),
        (
            &[1, 3, 0x22, 0x63, 20, 1, 0, 0, 20, 1, 0, 0],
            Twice { at: 8, kind: 20 },
        ),
    ] {
        assert_eq!(Answer::parse(bytes), Err(bad), "{bytes:?}");
    }
}

#[test]
fn answer_in_pieces() {
    let bytes = Answer::failure(ConvertError::ConnectionReset)
        .encode()
        .unwrap();
    let mut reader = AnswerReader::default();
    assert_eq!(reader.feed(&bytes[..5]), Ok(Progress::NeedMore(3)));
    let rest = [&bytes[5..], b"more"].concat();
    let read = Progress::Done {
        value: Answer::failure(ConvertError::ConnectionReset),
        consumed: 3,
    };
    assert_eq!(reader.feed(&rest), Ok(read));
}
