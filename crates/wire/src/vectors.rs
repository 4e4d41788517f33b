// SPDX-License-Identifier: Apache-2.0
//! The examples of `docs/protocol.md`, read from there: each is what we write,
//! and is read as what its text describes.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use crate::Progress;
use crate::auth::{AuthTag, Key, Nonce};
use crate::convert::{Answer, Connect, ConvertError, Head, Request, TcpRequest};
use crate::header::{ChainHeader, Endpoint, LoopGuard, NodeId};
use crate::hop::{self, Acceptor, Dialer, FromAcceptor, FromDialer, Icmp, Reply, Session};
use crate::segments::SegmentList;
use crate::stamp::{self, ErrorEstimate, Probe, Reflection, Timestamp};
use crate::{proxy_v2, syn_option};

const DOCUMENT: &str = include_str!("../../../docs/protocol.md");
const NOW_MS: u64 = 1_700_000_000_000;
const KEY_ID: u32 = 7;

/// What the code makes of an example: the bytes that it writes for the example's
/// text, and whether it reads the example so.
struct Example {
    written: Vec<u8>,
    is_read: bool,
}

/// The examples of the document by name. A line is bytes in hexadecimal, and a
/// remark after a `#`.
fn documented() -> BTreeMap<&'static str, Vec<u8>> {
    let mut examples = BTreeMap::new();
    for block in DOCUMENT.split("```vector ").skip(1) {
        let (name, rest) = block.split_once('\n').unwrap();
        let (lines, _) = rest.split_once("```").unwrap();
        let bytes = lines.lines().flat_map(|line| {
            let bytes = line.split('#').next().unwrap_or_default();
            bytes.split_whitespace()
        });
        let bytes = bytes.map(|byte| u8::from_str_radix(byte, 16).unwrap());
        let before = examples.insert(name, bytes.collect());
        assert!(before.is_none(), "{name} is there twice");
    }
    examples
}

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn endpoint(text: &str) -> Endpoint {
    Endpoint::new(address(text)).unwrap()
}

fn node(id: u64) -> NodeId {
    NodeId::new(id).unwrap()
}

fn key() -> Key {
    Key::new(std::array::from_fn(|at| u8::try_from(at).unwrap()))
}

fn nonce(first: u8) -> Nonce {
    Nonce(std::array::from_fn(|at| first + u8::try_from(at).unwrap()))
}

fn header(destination: &str, source: &str, hop_limit: u8) -> ChainHeader {
    ChainHeader {
        destination: endpoint(destination),
        source: Some(endpoint(source)),
        segments: SegmentList::of([node(3), node(258)]).unwrap(),
        guard: Some(LoopGuard {
            origin: node(1),
            hop_limit,
        }),
    }
}

fn ipv4() -> ChainHeader {
    header("198.51.100.7:443", "192.0.2.33:51234", 15)
}

fn done<T, E>(progress: Result<Progress<T>, E>, bytes: &[u8]) -> Option<T> {
    match progress {
        Ok(Progress::Done { value, consumed }) if consumed == bytes.len() => Some(value),
        _ => None,
    }
}

fn option(example: &[u8], segments: SegmentList) -> Example {
    let header = ChainHeader {
        segments,
        guard: None,
        ..ipv4()
    };
    let mut written = Vec::new();
    syn_option::encode(&header, &mut written).unwrap();
    let is_read = syn_option::find(example) == Ok(Some(header));
    Example { written, is_read }
}

fn request(example: &[u8], request: &Request) -> Example {
    let read = done(Head::parse(example), example);
    Example {
        written: request.encode(None).unwrap(),
        is_read: read.is_some_and(|head| head.request == *request && head.claim.is_none()),
    }
}

fn authenticated(example: &[u8]) -> Example {
    let request = Request::connect(ipv4());
    let auth = AuthTag {
        key: &key(),
        key_id: KEY_ID,
        receiver: node(2),
        now_ms: NOW_MS,
        nonce: nonce(0x40),
    };
    let read = done(Head::parse(example), example).filter(|head| head.request == request);
    Example {
        written: request.encode(Some(&auth)).unwrap(),
        is_read: read.is_some_and(|head| head.verify(&key(), node(2)).is_ok()),
    }
}

fn answer(example: &[u8], answer: &Answer) -> Example {
    Example {
        written: answer.encode().unwrap(),
        is_read: done(Answer::parse(example), example).as_ref() == Some(answer),
    }
}

fn failure(example: &[u8], error: ConvertError) -> Example {
    answer(example, &Answer::failure(error))
}

/// The requests that have no authentication tag.
fn requests(name: &str) -> Option<Request> {
    let mut options = Connect::new(ChainHeader::to(endpoint("198.51.100.7:443")));
    options.options = vec![
        TcpRequest::new(34, vec![0xc0, 0xff, 0xee, 1, 2, 3])?,
        TcpRequest::new(30, Vec::new())?,
    ];
    Some(match name {
        "convert-connect" => Request::connect(ChainHeader::to(endpoint("[2001:db8::7]:443"))),
        "convert-chain" => {
            Request::connect(header("[2001:db8::7]:443", "[2001:db8:1::21]:51234", 16))
        }
        "convert-options" => Request {
            connect: Some(options),
            ..Request::default()
        },
        "convert-info" => Request {
            wants_extensions: true,
            cookie: Some(vec![0xca, 0xfe, 0xba, 0xbe]),
            ..Request::default()
        },
        _ => return None,
    })
}

fn errors(name: &str) -> Option<ConvertError> {
    Some(match name {
        "convert-version" => ConvertError::UnsupportedVersion(vec![1]),
        "convert-malformed" => ConvertError::MalformedMessage(vec![10, 1, 0, 80]),
        "convert-unsupported" => ConvertError::UnsupportedMessage(vec![99, 1, 0, 0]),
        "convert-missing-cookie" => ConvertError::MissingCookie(vec![0xca, 0xfe, 0xba, 0xbe]),
        "convert-not-authorized" => ConvertError::NotAuthorized,
        "convert-tcp-option" => ConvertError::UnsupportedTcpOption(vec![34, 30]),
        "convert-overloaded" => ConvertError::ResourceExceeded(10),
        "convert-failure" => ConvertError::NetworkFailure(0),
        "convert-reset" => ConvertError::ConnectionReset,
        "convert-unreachable" => ConvertError::DestinationUnreachable(1),
        _ => return None,
    })
}

fn convert(name: &str, example: &[u8]) -> Option<Example> {
    if let Some(requested) = requests(name) {
        return Some(request(example, &requested));
    }
    if let Some(error) = errors(name) {
        return Some(failure(example, error));
    }
    let mut answered = Answer::default();
    match name {
        "convert-authenticated" => return Some(authenticated(example)),
        "convert-connected" => {}
        "convert-extensions" => answered.extensions = Some(vec![4, 30, 34]),
        "convert-tcp-header" => answered.tcp_header = Some(vec![2, 4, 5, 0xb4, 4, 2, 1, 1]),
        _ => return None,
    }
    Some(answer(example, &answered))
}

/// A whole handshake, of which the messages are examples.
fn handshake() -> ([Vec<u8>; 3], Session, Session) {
    let mut dialing = hop::Dialing::new(key(), KEY_ID, node(1), node(2), nonce(0x40));
    let hello = dialing.hello().to_vec();
    let mut accepting = hop::Accepting::new(node(2), nonce(0x50));
    let challenged = accepting.feed(&hello, |_, _| Some(key()));
    let mut challenged = done(challenged, &hello).unwrap();
    let challenge = challenged.challenge().to_vec();
    let dialed = done(dialing.feed(&challenge), &challenge).unwrap();
    let accepted = done(challenged.feed(&dialed.response), &dialed.response).unwrap();
    let messages = [hello, challenge, dialed.response.to_vec()];
    (messages, dialed.session, accepted)
}

fn hop(name: &str, example: &[u8]) -> Option<Example> {
    let ([hello, challenge, response], dialer, acceptor) = handshake();
    let (mut dialer, mut acceptor) = (Dialer::new(dialer), Acceptor::new(acceptor));
    let mut connect = Connect::new(ipv4());
    connect.validated = false;
    let open = dialer.open(&connect, NOW_MS, nonce(0x40)).unwrap();
    let unreachable = Reply::Unreachable(Icmp {
        kind: 3,
        code: 13,
        offender: Some(address("203.0.113.1:1").ip()),
    });
    let mut received = |bytes: &[u8]| done(acceptor.feed(bytes), bytes);
    let mut sent_back = |bytes: &[u8]| done(dialer.feed(bytes), bytes);
    let arrived = |reply| Some(FromAcceptor::Reply(reply));
    // Reading what was written is part of the handshake above.
    let (written, is_read) = match name {
        "hop-hello" => (hello, true),
        "hop-challenge" => (challenge, true),
        "hop-response" => (response, true),
        "hop-ping" => (
            hop::ping(0xfeed).to_vec(),
            received(example) == Some(FromDialer::Ping(0xfeed)),
        ),
        "hop-pong" => (
            hop::pong(0xfeed).to_vec(),
            sent_back(example) == Some(FromAcceptor::Pong(0xfeed)),
        ),
        "hop-open" => (open, received(example) == Some(FromDialer::Open(connect))),
        "hop-proved" => {
            received(&open);
            (
                hop::VALIDATED.to_vec(),
                received(example) == Some(FromDialer::Validated),
            )
        }
        "hop-accepted" => {
            let mut reader = hop::ReplyReader::default();
            let waits = matches!(reader.feed(example), Ok(Progress::NeedMore(_)));
            (hop::ACCEPTED.to_vec(), waits && reader.accepted())
        }
        "hop-working" => {
            let mut reader = hop::ReplyReader::default();
            let waits = matches!(reader.feed(example), Ok(Progress::NeedMore(_)));
            (hop::WORKING.to_vec(), waits && reader.working())
        }
        "hop-connected" => (
            Acceptor::reply(Reply::Connected).to_vec(),
            sent_back(example) == arrived(Reply::Connected),
        ),
        "hop-unreachable" => (
            Acceptor::reply(unreachable).to_vec(),
            sent_back(example) == arrived(unreachable),
        ),
        _ => return None,
    };
    Some(Example { written, is_read })
}

/// We write this protocol and do not read it.
fn proxy(name: &str) -> Option<Example> {
    let (client, destination) = match name {
        "proxy-ipv4" => ("192.0.2.33:51234", "198.51.100.7:443"),
        "proxy-ipv6" => ("[2001:db8:1::21]:51234", "[2001:db8::7]:443"),
        _ => return None,
    };
    let mut written = Vec::new();
    proxy_v2::encode(address(client), address(destination), &mut written);
    Some(Example {
        written,
        is_read: true,
    })
}

/// A probe of node 1, and its reflection, which took 12 ms to arrive and was
/// sent after 50 us.
fn measurement() -> (Probe, Reflection) {
    let after = |micros| {
        let time = Duration::from_millis(NOW_MS) + Duration::from_micros(micros);
        Timestamp::from_unix(time)
    };
    let probe = Probe {
        sequence: 9,
        sent: after(0),
        error: ErrorEstimate::OURS,
        session: stamp::session(node(1)),
    };
    let reflection = Reflection {
        sequence: 9,
        sent: after(12_050),
        received: after(12_000),
        error: ErrorEstimate::OURS,
        probe,
        ttl: 57,
    };
    (probe, reflection)
}

fn measuring(name: &str, example: &[u8]) -> Option<Example> {
    let (probe, reflection) = measurement();
    let key = stamp::key(&key());
    let is_authenticated = name.ends_with("authenticated");
    let (written, is_read) = match name {
        "stamp-probe" | "stamp-probe-authenticated" => {
            let read = Probe::parse(example).ok()?;
            let open = probe.encode().to_vec();
            let authenticated = probe.auth(&key).to_vec();
            let written = if is_authenticated {
                authenticated
            } else {
                open
            };
            (
                written,
                read.packet == probe && read.is_of(&key) == is_authenticated,
            )
        }
        "stamp-reflection" | "stamp-reflection-authenticated" => {
            let read = Reflection::parse(example).ok()?;
            let open = reflection.encode().to_vec();
            let authenticated = reflection.auth(&key).to_vec();
            let written = if is_authenticated {
                authenticated
            } else {
                open
            };
            let is_same = read.packet == reflection;
            (written, is_same && read.is_of(&key) == is_authenticated)
        }
        _ => return None,
    };
    Some(Example { written, is_read })
}

fn example(name: &str, bytes: &[u8]) -> Option<Example> {
    match name {
        "syn-option" => Some(option(bytes, SegmentList::EMPTY)),
        "syn-option-segments" => Some(option(bytes, ipv4().segments)),
        name => convert(name, bytes)
            .or_else(|| hop(name, bytes))
            .or_else(|| proxy(name))
            .or_else(|| measuring(name, bytes)),
    }
}

// promise: B1
#[test]
fn documented_examples() {
    let examples = documented();
    assert_eq!(examples.len(), 37, "of the examples of the document");
    for (name, bytes) in examples {
        let ours = example(name, &bytes).unwrap_or_else(|| panic!("{name} is unknown"));
        assert_eq!(ours.written, bytes, "{name} is written");
        assert!(ours.is_read, "{name} is read");
    }
}
