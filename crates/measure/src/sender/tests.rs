// SPDX-License-Identifier: Apache-2.0
//! A sender and a reflector on the loopback address, and attacks by a third party.

use posthaste_wire::auth::Key;

use super::*;
use crate::reflector::{Reflector, Seen};
use posthaste_config::Config;
use posthaste_config::invariants::HOST;

const NOW: Duration = Duration::from_secs(1_000);

/// Node `me`, and a peer with number `peer` and a reflector.
fn settings(me: u64, peer: u64, reflector: SocketAddr, extra: &str) -> Settings {
    let text = format!(
        "version = 1\n[node]\nid = {me}\n[transparent]\nsocket_mark = 1\n[measure]\n{extra}\n\
         [[peer]]\nname = \"p\"\nid = {peer}\naddress = \"{reflector}\"\nreflector = \"{reflector}\"\n\
         key = \"{}\"\n",
        "07".repeat(32)
    );
    let config = Config::parse("node.toml".as_ref(), &text, &HOST).unwrap();
    let mut settings = Settings::of(&config);
    settings.mark = 0;
    settings
}

/// Two nodes: number 1 measures, number 2 answers.
struct Pair {
    sender: Sender,
    mine: Settings,
    reflector: Reflector,
    theirs: Settings,
    at: SocketAddr,
}

impl Pair {
    fn new(local: &str, extra: &str) -> Self {
        let socket = Udp::bind(local.parse().unwrap(), 0, false).unwrap();
        let at = socket.address();
        let mine = settings(1, 2, at, "");
        let mut sender = Sender::default();
        sender.prepare(&mine).unwrap();
        Self {
            sender,
            mine,
            reflector: Reflector::new(vec![(at, socket)], Clock::default()),
            theirs: settings(2, 1, at, extra),
            at,
        }
    }

    fn send(&mut self, probe: (u8, u32)) {
        let target = self.mine.targets[0].clone();
        self.sender.send(&self.mine, &target, probe, NOW).unwrap();
    }

    /// The reflector's handling of the next packets.
    fn reflect(&mut self, count: usize) -> Vec<Option<Refusal>> {
        let mut seen = Vec::new();
        while seen.len() < count {
            self.reflector.serve(&self.theirs, NOW, |one| {
                seen.push(match one {
                    Seen::Answered => None,
                    Seen::Refused(_, refusal, _) => Some(refusal),
                    Seen::NoPeer(_) => Some(Refusal::AuthTag),
                });
            });
        }
        seen
    }

    fn collect(&mut self, count: usize) -> Vec<Event> {
        let mut events = Vec::new();
        while events.len() < count {
            self.sender
                .collect(&self.mine, NOW + Duration::from_secs(1), &mut events);
        }
        events
    }
}

fn unauthorized() -> (Udp, SocketAddr) {
    let socket = Udp::bind("127.0.0.1:0".parse().unwrap(), 0, false).unwrap();
    let address = socket.address();
    (socket, address)
}

fn peer() -> NodeId {
    NodeId::new(2).unwrap()
}

fn now_authenticated(sequence: u32, key: &Key) -> [u8; stamp::AUTHENTICATED_BYTES] {
    probe_at(sequence, clock::own()).auth(key)
}

fn probe_at(sequence: u32, at: Duration) -> Probe {
    Probe {
        sequence,
        sent: Timestamp::from_unix(at),
        error: ErrorEstimate::OURS,
        session: stamp::session(NodeId::new(1).unwrap()),
    }
}

// promise: L1
#[test]
fn probes_are_answered_and_timed() {
    for local in ["127.0.0.1:0", "[::1]:0"] {
        let mut pair = Pair::new(local, "");
        for probe in [(0, 0), (3, 0), (0, 1)] {
            pair.send(probe);
            assert_eq!(pair.reflect(1), [None]);
            let events = pair.collect(1);
            let [Event::Answer(from, of, rtt_us)] = events[..] else {
                panic!("{events:?}");
            };
            assert_eq!((from, of), (peer(), probe));
            // One machine, but possibly a slow one.
            assert!(rtt_us.is_none_or(|rtt_us| rtt_us < 1_000_000), "{rtt_us:?}");
        }
    }
}

#[test]
fn unreachable_reported_at_once() {
    let mut pair = Pair::new("127.0.0.1:0", "");
    pair.reflector = Reflector::new(Vec::new(), Clock::default());
    pair.send((2, 9));
    assert_eq!(pair.collect(1), [Event::Refused(peer(), (2, 9))]);
}

// promise: L10
#[test]
fn reflector_answers_peers_only() {
    let mut pair = Pair::new("127.0.0.1:0", "");
    let (socket, _) = unauthorized();
    let key = pair.mine.targets[0].key.clone().unwrap();
    let other = stamp::key(&Key::new([9; 32]));
    let old = clock::own() - Duration::from_secs(31);
    let new = clock::own() + Duration::from_secs(60);
    let unknown = Probe {
        session: 77,
        ..probe_at(0, clock::own())
    };
    let mut changed = now_authenticated(0, &key);
    changed[50] ^= 1;
    let packets: [(&[u8], Refusal); 9] = [
        (b"noise", Refusal::Malformed),
        (&[0; 44], Refusal::Malformed),
        (&[0xff; 500], Refusal::Malformed),
        (&probe_at(0, clock::own()).encode(), Refusal::Unauthorized),
        (&now_authenticated(0, &other), Refusal::AuthTag),
        (&unknown.auth(&key), Refusal::AuthTag),
        (&changed, Refusal::AuthTag),
        (&probe_at(0, old).auth(&key), Refusal::Stale),
        (&probe_at(0, new).auth(&key), Refusal::Stale),
    ];
    for (packet, refusal) in packets {
        socket.send(packet, pair.at, None).unwrap();
        assert_eq!(pair.reflect(1), [Some(refusal)]);
    }
    assert_eq!(socket.receive().unwrap_err(), Errno::EAGAIN, "no answer");
    socket
        .send(&now_authenticated(0, &key), pair.at, None)
        .unwrap();
    assert_eq!(pair.reflect(1), [None], "of a peer from elsewhere");
}

#[test]
fn named_sources_need_no_tag() {
    let mut pair = Pair::new("127.0.0.1:0", "open_to = [\"127.0.0.0/8\"]");
    let (socket, _) = unauthorized();
    let probe = probe_at(5, Duration::ZERO);
    socket.send(&probe.encode(), pair.at, None).unwrap();
    assert_eq!(pair.reflect(1), [None]);
    let arrived = loop {
        if let Ok(arrived) = socket.receive() {
            break arrived;
        }
    };
    assert_eq!(arrived.bytes().len(), stamp::OPEN_BYTES, "no longer");
    let reflection = Reflection::parse(arrived.bytes()).unwrap().packet;
    assert_eq!((reflection.probe, reflection.ttl), (probe, 64));
    assert!(
        reflection
            .sent
            .since(reflection.received, reflection.error.format)
            .is_some()
    );
}

// promise: L11
#[test]
fn flood_not_answered() {
    let mut pair = Pair::new("127.0.0.1:0", "");
    let (socket, _) = unauthorized();
    let key = pair.mine.targets[0].key.clone().unwrap();
    let mut answered = 0;
    for sequence in 0..500 {
        let packet = now_authenticated(sequence, &key);
        socket.send(&packet, pair.at, None).unwrap();
        answered += usize::from(pair.reflect(1) == [None]);
    }
    assert_eq!(answered, 200, "the burst, as no time passes");
}

/// Two reflectors that answer each other would never stop.
// promise: L11
#[test]
fn reflector_port_not_answered() {
    let mut pair = Pair::new("127.0.0.1:0", "open_to = [\"127.0.0.0/8\"]");
    let mut again = pair.at;
    again.set_ip("127.0.0.2".parse().unwrap());
    let socket = Udp::bind(again, 0, false).unwrap();
    socket
        .send(&probe_at(0, clock::own()).encode(), pair.at, None)
        .unwrap();
    assert_eq!(pair.reflect(1), [Some(Refusal::Port)]);
}

// promise: L10
#[test]
fn sender_accepts_answer_once() {
    let mut pair = Pair::new("127.0.0.1:0", "");
    let key = pair.mine.targets[0].key.clone().unwrap();
    pair.send((1, 4));
    let (waiting, _) = pair.sender.sent.iter().next().unwrap();
    let probe = Probe {
        sent: *waiting,
        ..probe_at(4, Duration::ZERO)
    };
    let reflection = Reflection {
        sequence: 4,
        received: Timestamp::from_unix(NOW),
        sent: Timestamp::from_unix(NOW),
        error: ErrorEstimate::OURS,
        probe,
        ttl: 64,
    };
    let of = |change: fn(&mut Reflection)| {
        let mut other = reflection;
        change(&mut other);
        other
    };
    let to = pair.sender.sockets[0][1].address().port();
    let to = SocketAddr::new(pair.at.ip(), to);
    let other_port = pair.sender.sockets[0][0].address().port();
    let other_port = SocketAddr::new(pair.at.ip(), other_port);
    let wrong = stamp::key(&Key::new([9; 32]));
    let backwards = of(|one| one.sent.0 -= 1 << 32);
    let next = of(|one| one.probe.sequence = 5);
    let unsent = of(|one| one.probe.sent.0 += 1);
    let session = of(|one| one.probe.session = 9);
    let packets: [(&[u8], SocketAddr, Refusal); 7] = [
        (b"noise", to, Refusal::Malformed),
        (&reflection.encode(), to, Refusal::AuthTag),
        (&reflection.auth(&wrong), to, Refusal::AuthTag),
        (&next.auth(&key), to, Refusal::Unexpected),
        (&unsent.auth(&key), to, Refusal::Unexpected),
        (&session.auth(&key), to, Refusal::Unexpected),
        (&reflection.auth(&key), other_port, Refusal::Unexpected),
    ];
    let (socket, from) = unauthorized();
    socket.send(&reflection.auth(&key), to, None).unwrap();
    assert_eq!(pair.collect(1), [Event::Bad(from, Refusal::Unexpected)]);
    let at = pair.at;
    for (packet, to, refusal) in packets {
        pair.reflector
            .sockets()
            .next()
            .unwrap()
            .send(packet, to, None)
            .unwrap();
        assert_eq!(pair.collect(1), [Event::Bad(at, refusal)]);
    }
    let send = |pair: &Pair, packet: &[u8]| {
        let socket = pair.reflector.sockets().next().unwrap();
        socket.send(packet, to, None).unwrap();
    };
    send(&pair, &reflection.auth(&key));
    let events = pair.collect(1);
    assert!(
        matches!(events[..], [Event::Answer(_, (1, 4), _)]),
        "{events:?}"
    );
    send(&pair, &reflection.auth(&key));
    assert_eq!(pair.collect(1), [Event::Bad(at, Refusal::Unexpected)]);
    // The peer itself may send wrong times, too.
    pair.send((1, 4));
    let waiting = *pair.sender.sent.keys().next().unwrap();
    let mut lie = backwards;
    lie.probe.sent = waiting;
    send(&pair, &lie.auth(&key));
    assert_eq!(pair.collect(1), [Event::Bad(at, Refusal::Implausible)]);
}

#[test]
fn round_trip_without_processing() {
    let ms = Duration::from_millis;
    let sent = Sent {
        peer: peer(),
        port: 0,
        sequence: 0,
        to: "192.0.2.1:862".parse().unwrap(),
        left: ms(5_000),
        at: NOW,
    };
    let reflection = |stay: u64| Reflection {
        sequence: 0,
        received: Timestamp::from_unix(ms(90_000)),
        sent: Timestamp::from_unix(ms(90_000 + stay)),
        error: ErrorEstimate::OURS,
        probe: probe_at(0, ms(5_000)),
        ttl: 1,
    };
    let trip = |stay, came| round_trip(&sent, &reflection(stay), ms(came), NOW + ms(100));
    for (stay, whole) in [(4, 10), (6, 60)] {
        let rtt = trip(stay, 5_000 + whole).unwrap().unwrap();
        let left = ms(whole - stay);
        assert!(rtt.abs_diff(left) < Duration::from_micros(1), "{rtt:?}");
    }
    assert_eq!(trip(61, 5_060), Err(Refusal::Implausible));
    assert_eq!(trip(5, 5_040), Ok(None), "too busy to measure");
    assert_eq!(trip(20, 5_040), Ok(None), "half of it");
    assert_eq!(trip(10, 4_000), Ok(None), "the clock was set");
    assert_eq!(trip(10, 5_200), Ok(None), "the clock was set");
}
