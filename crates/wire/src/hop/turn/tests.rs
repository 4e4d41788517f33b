// SPDX-License-Identifier: Apache-2.0

use std::net::IpAddr;

use super::super::Icmp;
use super::*;
use crate::auth::Key;
use crate::convert::TcpRequest;
use crate::draw::Draw;
use crate::header::NodeId;
use posthaste_testkit::{Rng, simulate};

fn session(me: u64, peer: u64) -> Session {
    Session {
        me: NodeId::new(me).unwrap(),
        peer: NodeId::new(peer).unwrap(),
        key_id: 4,
        key: Key::new([6; 32]),
    }
}

fn ends() -> (Dialer, Acceptor) {
    (Dialer::new(session(1, 2)), Acceptor::new(session(2, 1)))
}

fn connect() -> Connect {
    Connect::new(Rng::new(3).header())
}

fn open(dialer: &mut Dialer, validated: bool) -> Vec<u8> {
    let mut connect = connect();
    connect.validated = validated;
    dialer.open(&connect, 1_000, Nonce([1; 16])).unwrap()
}

fn whole<T>(value: T, consumed: usize) -> Result<Progress<T>, HopError> {
    Ok(Progress::Done { value, consumed })
}

#[test]
fn flow_opened_and_answered() {
    simulate(200, |mut rng| {
        let (mut dialer, mut acceptor) = ends();
        let mut connect = Connect::new(rng.header());
        connect.options.extend(TcpRequest::new(34, rng.bytes(8)));
        connect.validated = rng.below(2) == 0;
        let nonce = Nonce(rng.array());
        let mut stream = dialer.open(&connect, rng.next(), nonce).unwrap();
        let length = stream.len();
        stream.extend_from_slice(b"\x05\0\0\0first bytes");
        let validated = connect.validated;
        let message = FromDialer::Open(connect);
        assert_eq!(acceptor.feed(&stream), whole(message, length));
        let next = acceptor.feed(&stream[length..]);
        if validated {
            assert_eq!(next, Err(HopError::Flowing));
        } else {
            assert_eq!(next, whole(FromDialer::Validated, 4));
            assert_eq!(acceptor.feed(b"first"), Err(HopError::Flowing));
        }
        let reply = Acceptor::reply(Reply::Connected);
        let received = FromAcceptor::Reply(Reply::Connected);
        assert_eq!(dialer.feed(&reply), whole(received, 24));
        assert_eq!(dialer.feed(b"bytes"), Err(HopError::Flowing));
    });
}

#[test]
fn idle_hop_pinged() {
    let (mut dialer, mut acceptor) = ends();
    let requested = acceptor.feed(&ping(0x0102_0304));
    assert_eq!(requested, whole(FromDialer::Ping(0x0102_0304), 8));
    let answered = dialer.feed(&pong(0x0102_0304));
    assert_eq!(answered, whole(FromAcceptor::Pong(0x0102_0304), 8));
    // A pong may be under way when the flow is opened.
    open(&mut dialer, true);
    assert_eq!(dialer.feed(&pong(5)), whole(FromAcceptor::Pong(5), 8));
    assert!(dialer.feed(&Acceptor::reply(Reply::Refused)).is_ok());
}

// promise: B11
#[test]
fn a_hop_carries_one_flow() {
    let (mut dialer, mut acceptor) = ends();
    let first = open(&mut dialer, false);
    assert!(acceptor.feed(&first).is_ok());
    let second = dialer.open(&connect(), 1, Nonce([2; 16]));
    assert_eq!(second, Err(OpenError::Used));
    assert_eq!(acceptor.feed(&first), Err(HopError::OutOfTurn(frame::OPEN)));
}

// promise: B11
#[test]
fn out_of_turn_refused() {
    let (mut dialer, mut acceptor) = ends();
    let reply = Acceptor::reply(Reply::Connected);
    for (bytes, kind) in [(&reply[..], 4), (&ping(1), 1), (&VALIDATED, 5)] {
        assert_eq!(dialer.feed(bytes), Err(HopError::OutOfTurn(kind)));
    }
    for (bytes, kind) in [(&reply[..], 4), (&pong(1), 2), (&VALIDATED, 5)] {
        assert_eq!(acceptor.feed(bytes), Err(HopError::OutOfTurn(kind)));
    }
    assert!(acceptor.feed(&open(&mut dialer, false)).is_ok());
    assert_eq!(acceptor.feed(&ping(1)), Err(HopError::OutOfTurn(1)));
}

// promise: B11
#[test]
fn chain_header_authenticated() {
    let (mut dialer, _) = ends();
    let opening = open(&mut dialer, false);
    let mut other = session(2, 1);
    other.key = Key::new([5; 32]);
    let wrong = Err(HopError::AuthTag(AuthError::Wrong));
    assert_eq!(Acceptor::new(other).feed(&opening), wrong);
    assert_eq!(Acceptor::new(session(3, 1)).feed(&opening), wrong);
    let plain = Request::connect(connect().header).encode(None).unwrap();
    let length = u8::try_from(plain.len()).unwrap();
    let unauthenticated = [&[frame::OPEN, 0, 0, length], &plain[..]].concat();
    let missing = Err(HopError::AuthTag(AuthError::Missing));
    assert_eq!(ends().1.feed(&unauthenticated), missing);
}

#[test]
fn largest_chain_header() {
    let opening = open(&mut ends().0, false);
    let mut long = [&opening[..], &[0; 4]].concat();
    long[3] += 4;
    assert_eq!(ends().1.feed(&long), Err(HopError::HeadLength));
    let mut short = opening;
    short[3] -= 4;
    assert_eq!(ends().1.feed(&short), Err(HopError::HeadLength));
}

#[test]
fn invalid_frame_head_refused() {
    let kind = |kind| Err(HopError::Frame(FrameError::Kind(kind)));
    let length = |kind, length| Err(HopError::Frame(FrameError::Length { kind, length }));
    let not_zero = |kind| Err(HopError::Frame(FrameError::NotZero { kind }));
    for (bytes, error) in [
        ([0, 0, 0, 0], kind(0)),
        ([8, 0, 0, 0], kind(8)),
        ([1, 0, 0, 5], length(1, 5)),
        ([3, 0, 0xff, 0xff], length(3, 0xffff)),
        ([3, 0, 0, 3], length(3, 3)),
        ([5, 0, 0, 1], length(5, 1)),
        ([3, 2, 0, 24], not_zero(3)),
        ([1, 1, 0, 4], not_zero(1)),
    ] {
        assert_eq!(ends().1.feed(&bytes), error);
    }
}

fn replies() -> Vec<Reply> {
    let addresses: [IpAddr; 2] = ["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()];
    let offenders = [None, Some(addresses[0]), Some(addresses[1])];
    let unreachable = |offender| {
        let (kind, code) = (3, 13);
        Reply::Unreachable(Icmp {
            kind,
            code,
            offender,
        })
    };
    let others = [
        Reply::Connected,
        Reply::Refused,
        Reply::TimedOut,
        Reply::Denied,
        Reply::UnknownSegment,
        Reply::TooManyHops,
        Reply::Overloaded,
        Reply::Failed,
        Reply::Clock,
    ];
    offenders
        .into_iter()
        .map(unreachable)
        .chain(others)
        .collect()
}

// promise: B12
#[test]
fn replies_round_trip() {
    for reply in replies() {
        let mut dialer = ends().0;
        open(&mut dialer, true);
        let received = dialer.feed(&Acceptor::reply(reply));
        assert_eq!(received, whole(FromAcceptor::Reply(reply), 24));
        assert_eq!(
            reply.as_convert_error().is_none(),
            reply == Reply::Connected
        );
    }
}

#[test]
fn empty_reply_refused() {
    for (at, byte) in [(4, 10), (5, 1), (6, 1), (7, 1), (8, 1), (23, 1)] {
        let mut dialer = ends().0;
        open(&mut dialer, true);
        let mut bytes = Acceptor::reply(Reply::Refused);
        bytes[at] = byte;
        assert_eq!(dialer.feed(&bytes), Err(HopError::Reply));
    }
}

#[test]
fn reply_after_late_pong() {
    let (mut dialer, _) = ends();
    // A part of the pong has come when the flow is opened.
    assert_eq!(dialer.feed(&pong(7)[..3]), Ok(Progress::NeedMore(1)));
    open(&mut dialer, true);
    let mut reader = dialer.into_reply_reader();
    let reply = Acceptor::reply(Reply::Overloaded);
    let stream = [&pong(7)[3..], &reply, b"bytes"].concat();
    assert_eq!(reader.feed(&stream), whole(Reply::Overloaded, 29));
    assert!(!reader.accepted());
    for stream in [&ping(1)[..], &VALIDATED, b"HTTP/1.1"] {
        assert!(ReplyReader::default().feed(stream).is_err(), "{stream:?}");
    }
}

#[test]
fn reply_reports_option() {
    let reply = Acceptor::reply(Reply::Connected);
    let stream = [&ACCEPTED[..], &reply, b"bytes"].concat();
    let mut reader = ReplyReader::default();
    assert_eq!(reader.feed(&stream[..5]), Ok(Progress::NeedMore(3)));
    assert_eq!(reader.feed(&stream[5..]), whole(Reply::Connected, 23));
    assert!(reader.accepted());
    // It is of a connection that was made for its flow, and no warm hop.
    let mut dialer = ends().0;
    open(&mut dialer, true);
    assert_eq!(dialer.feed(&ACCEPTED), Err(HopError::OutOfTurn(6)));
}

#[test]
fn working_before_reply() {
    let reply = Acceptor::reply(Reply::Connected);
    let stream = [&WORKING[..], &reply, b"bytes"].concat();
    let mut reader = ReplyReader::default();
    assert!(!reader.working());
    assert_eq!(reader.feed(&stream[..4]), Ok(Progress::NeedMore(4)));
    assert!(reader.working());
    assert_eq!(reader.feed(&stream[4..]), whole(Reply::Connected, 24));
}
