// SPDX-License-Identifier: Apache-2.0

use super::*;
use crate::auth::{AuthTag, Nonce};
use crate::convert::{BYTES_MAX, TooLong};
use crate::draw::Draw;
use crate::segments::SegmentList;
use posthaste_testkit::{Rng, simulate};

/// What a client of another make puts into its SYN for 10.33.3.3:80.
const CONNECT: [u8; 24] = [
    1, 6, 0x22, 0x63, 10, 5, 0, 80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 33, 3, 3,
];

fn me() -> NodeId {
    NodeId::new(7).unwrap()
}

fn auth<'a>(key: &'a Key, rng: &mut Rng) -> AuthTag<'a> {
    AuthTag {
        key,
        key_id: 5,
        receiver: me(),
        now_ms: rng.next(),
        nonce: Nonce(rng.array()),
    }
}

fn option(rng: &mut Rng) -> Option<TcpRequest> {
    let length = rng.below(39);
    TcpRequest::new(rng.byte(), rng.bytes(length))
}

fn request(rng: &mut Rng) -> Request {
    let mut connect = Connect::new(rng.header());
    connect.options = (0..rng.below(4)).filter_map(|_| option(rng)).collect();
    connect.validated = rng.below(2) == 0;
    Request {
        wants_extensions: rng.below(2) == 0,
        connect: Some(connect),
        cookie: rng.perhaps(|rng| {
            let words = rng.below(5);
            rng.bytes(words * 4)
        }),
    }
}

fn read(bytes: &[u8]) -> Head {
    match Head::parse(bytes) {
        Ok(Progress::Done { value, consumed }) => {
            assert_eq!(consumed, bytes.len());
            value
        }
        other => panic!("{other:?}"),
    }
}

/// A message of these TLVs.
fn message(tlvs: &[&[u8]]) -> Vec<u8> {
    let mut bytes = vec![1, 0, 0x22, 0x63];
    bytes.extend(tlvs.concat());
    bytes[1] = u8::try_from(bytes.len() / 4).unwrap();
    bytes
}

// promise: B4
#[test]
fn requests_are_read() {
    simulate(3_000, |mut rng| {
        let request = request(&mut rng);
        let bytes = request.encode(None).unwrap();
        assert_eq!(read(&bytes).request, request);
        let key = Key::new(rng.array());
        let auth = auth(&key, &mut rng);
        let head = read(&request.encode(Some(&auth)).unwrap());
        assert_eq!(head.request, request);
        let authentic = head.verify(&key, me()).unwrap();
        assert_eq!(authentic.timestamp_ms, auth.now_ms);
        assert_eq!(authentic.nonce, auth.nonce);
    });
}

// promise: B4
#[test]
fn foreign_request_read() {
    let head = read(&CONNECT);
    let header = head.request.connect.as_ref().unwrap().header;
    assert_eq!(header.destination.to_string(), "10.33.3.3:80");
    assert_eq!(
        (header.source, header.segments, header.guard),
        (None, SegmentList::EMPTY, None)
    );
    assert_eq!(head.request.encode(None).unwrap(), CONNECT);
    assert_eq!(
        head.verify(&Key::new([0; 32]), me()),
        Err(AuthError::Missing)
    );
}

// promise: B2
#[test]
fn trailing_bytes_left() {
    simulate(300, |mut rng| {
        let key = Key::new(rng.array());
        let request = request(&mut rng);
        let head = request.encode(Some(&auth(&key, &mut rng))).unwrap();
        let stream = [&head[..], b"and the client's data"].concat();
        let (mut reader, mut at) = (HeadReader::default(), 0);
        loop {
            let end = (at + 1 + rng.below(40)).min(stream.len());
            match reader.feed(&stream[at..end]).unwrap() {
                Progress::NeedMore(missing) => {
                    assert!(end + missing <= head.len());
                    at = end;
                }
                Progress::Done { value, consumed } => {
                    assert_eq!(at + consumed, head.len());
                    assert_eq!(value.request, request);
                    break;
                }
            }
        }
    });
}

// promise: B7
#[test]
fn auth_tag_covers_every_bit() {
    simulate(10, |mut rng| {
        let key = Key::new(rng.array());
        let bytes = request(&mut rng)
            .encode(Some(&auth(&key, &mut rng)))
            .unwrap();
        let head = read(&bytes);
        let other = NodeId::new(8).unwrap();
        assert_eq!(head.verify(&key, other), Err(AuthError::Wrong));
        let wrong = head.verify(&Key::new(rng.array()), me());
        assert_eq!(wrong, Err(AuthError::Wrong));
        for bit in 0..bytes.len() * 8 {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            if let Ok(Progress::Done { value, .. }) = Head::parse(&bytes) {
                assert!(value.verify(&key, me()).is_err(), "bit {bit}");
            }
        }
    });
}

#[test]
fn auth_tag_without_reason() {
    let key = Key::new([1; 32]);
    let auth = auth(&key, &mut Rng::new(1));
    let request = read(&CONNECT).request;
    let head = read(&request.encode(Some(&auth)).unwrap());
    assert_eq!(head.claim.map(|claim| claim.key_id), Some(5));
    assert_eq!(head.request, request);
}

fn refused(bytes: &[u8]) -> Refusal {
    Head::parse(bytes).unwrap_err()
}

// promise: B4
#[test]
fn non_convert_reset() {
    for (bytes, problem) in [
        (&b"GET / HTTP/1.1\r\n"[..], Problem::NotConvert),
        (&[1, 6, 0x22, 0x64], Problem::NotConvert),
        (&[1, 0, 0x22, 0x63], Problem::NoLength),
    ] {
        let refusal = refused(bytes);
        assert_eq!((refusal.problem, refusal.answer), (problem, None));
    }
}

// promise: B4
#[test]
fn unsupported_version_answered() {
    let refusal = refused(&[2, 6, 0x22, 0x63]);
    assert_eq!(refusal.problem, Problem::Version(2));
    let answer = ConvertError::UnsupportedVersion(vec![1]);
    assert_eq!(refusal.answer, Some(answer));
}

// promise: B4
#[test]
fn offending_tlv_echoed() {
    let connect = &CONNECT[4..];
    let to = |ip: [u8; 4], port: u8| {
        let mut tlv = connect.to_vec();
        tlv[3] = port;
        tlv[16..].copy_from_slice(&ip);
        tlv
    };
    let with_options = |options: &[u8]| {
        let mut tlv = [connect, options].concat();
        tlv[1] = u8::try_from(tlv.len() / 4).unwrap();
        tlv
    };
    let destination = |error| Problem::Destination { at: 4, error };
    let chain = |what| Problem::Chain { at: 4, what };
    let options = |error| Problem::TcpOptions { at: 4, error };
    use EndpointError::{Broadcast, Loopback, Multicast, NoPort, Unspecified};
    for (tlv, problem) in [
        (to([127, 0, 0, 1], 80), destination(Loopback)),
        (to([224, 0, 0, 1], 80), destination(Multicast)),
        (to([255; 4], 80), destination(Broadcast)),
        (to([0; 4], 80), destination(Unspecified)),
        (to([10, 0, 0, 1], 0), destination(NoPort)),
        (connect[..16].to_vec(), Problem::NoTlv { at: 4 }),
        (vec![10, 0, 0, 80], Problem::NoTlv { at: 4 }),
        (vec![10, 3, 0, 80], Problem::NoTlv { at: 4 }),
        (vec![10, 1, 0, 80], Problem::NoTlv { at: 4 }),
        (vec![1, 2, 0, 0, 0, 0, 0, 0], Problem::InfoLength { at: 4 }),
        (
            vec![chain::KIND, 1, 1, 0],
            chain("a chain TLV of a wrong length"),
        ),
        (
            with_options(&[30, 1, 0, 0]),
            options(BrokenOption::TooShort { at: 0, length: 1 }),
        ),
        (
            with_options(&[30, 2, 34, 3]),
            options(BrokenOption::TooLong { at: 2, length: 3 }),
        ),
    ] {
        let refusal = refused(&message(&[&tlv]));
        assert_eq!(refusal.problem, problem);
        assert_eq!(refusal.answer, Some(ConvertError::MalformedMessage(tlv)));
    }
}

// promise: B4
#[test]
fn server_tlv_unsupported() {
    for kind in [0, 2, 20, 21, 30, 31, 192, 255] {
        let tlv = [kind, 1, 0, 0];
        let refusal = refused(&message(&[&CONNECT[4..], &tlv]));
        assert_eq!(refusal.problem, Problem::Unsupported { at: 24, kind });
        let answer = ConvertError::UnsupportedMessage(tlv.to_vec());
        assert_eq!(refusal.answer, Some(answer));
    }
}

// promise: B4
#[test]
fn duplicate_or_missing_tlv() {
    let info = [1, 1, 0, 0];
    let connect = &CONNECT[4..];
    let refusal = refused(&message(&[&info, connect, &info]));
    assert_eq!(refusal.problem, Problem::Twice { at: 28, kind: 1 });
    let refusal = refused(&message(&[connect, connect]));
    assert_eq!(refusal.problem, Problem::Twice { at: 24, kind: 10 });
    for nothing in [message(&[]), message(&[&[22, 1, 0, 0]])] {
        let refusal = refused(&nothing);
        assert_eq!(refusal.problem, Problem::NothingRequested);
        let answer = ConvertError::MalformedMessage(Vec::new());
        assert_eq!(refusal.answer, Some(answer));
    }
    assert!(read(&message(&[&info])).request.wants_extensions);
}

/// The chain TLV of a request with a source, a guard and a segment.
fn chain_tlv() -> Vec<u8> {
    let mut header = read(&CONNECT).request.connect.unwrap().header;
    header.source = Some(header.destination);
    header.segments = SegmentList::of([me()]).unwrap();
    header.guard = Some(crate::header::LoopGuard::new(me()));
    Request::connect(header).encode(None).unwrap()[24..].to_vec()
}

#[test]
fn chain_tlv_fields_checked() {
    let whole = chain_tlv();
    for (at, bytes, what) in [
        (2, &[2][..], "a chain TLV of an unknown version"),
        (3, &[11], "a chain TLV with unknown flags"),
        (6, &[0, 0, 0, 3], "a segment list with a gap"),
        (4, &[0xff, 0xff, 0, 3], "a look-up beside other segments"),
        (18, &[0; 2], "a loop guard without a node"),
        (3, &[1], "a loop guard that is not announced"),
        (21, &[1], "a chain TLV with something where zero should be"),
        (22, &[0, 0], "a source that no connection can have"),
        (3, &[2], "a source that is not announced"),
    ] {
        let mut tlv = whole.clone();
        tlv[at..at + bytes.len()].copy_from_slice(bytes);
        let refusal = refused(&message(&[&CONNECT[4..], &tlv]));
        assert_eq!(refusal.problem, Problem::Chain { at: 24, what });
    }
    let alone = refused(&message(&[&whole]));
    assert_eq!(alone.problem, Problem::NothingRequested);
}

#[test]
fn option_requests_filtered() {
    let options = [
        2, 4, 5, 0xb4, 3, 3, 7, 1, 5, 2, 34, 6, 1, 2, 3, 4, 30, 2, 0, 0,
    ];
    let mut tlv = [&CONNECT[4..], &options[..]].concat();
    tlv[1] = 10;
    let connect = read(&message(&[&tlv])).request.connect.unwrap();
    let kinds: Vec<_> = connect
        .options
        .iter()
        .map(|option| (option.kind(), option.value()))
        .collect();
    assert_eq!(kinds, [(34, &[1, 2, 3, 4][..]), (30, &[])]);
    assert_eq!(connect.unsupported(&[30, 34]), None);
    let error = ConvertError::UnsupportedTcpOption(vec![34]);
    assert_eq!(connect.unsupported(&[30]), Some(error));
}

// promise: B4
#[test]
fn authentication_is_not_promised() {
    let mut tlv = [&CONNECT[4..], &[29, 2, 0, 0][..]].concat();
    tlv[1] = 6;
    let refusal = refused(&message(&[&tlv]));
    assert_eq!(refusal.problem, Problem::Authentication { at: 4 });
    let answer = ConvertError::UnsupportedTcpOption(vec![29]);
    assert_eq!(refusal.answer, Some(answer));
}

#[test]
fn forbidden_options_not_made() {
    for kind in [0, 1, 2, 3, 5, 29] {
        assert_eq!(TcpRequest::new(kind, Vec::new()), None);
    }
    assert_eq!(TcpRequest::new(34, vec![0; 39]), None);
    let mut tlv = [&CONNECT[4..], &[34, 44], &[0; 42]].concat();
    tlv[1] = 16;
    let refusal = refused(&message(&[&tlv]));
    let problem = Problem::TcpOptionTooLong { at: 4, kind: 34 };
    assert_eq!(refusal.problem, problem);
}

#[test]
fn oversized_request_not_sent() {
    let mut request = read(&CONNECT).request;
    let room = BYTES_MAX - CONNECT.len() - 4;
    request.cookie = Some(vec![1; room]);
    assert_eq!(request.encode(None).unwrap().len(), BYTES_MAX);
    request.cookie = Some(vec![1; room + 1]);
    assert_eq!(request.encode(None), Err(TooLong));
}
