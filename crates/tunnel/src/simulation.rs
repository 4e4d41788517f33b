// SPDX-License-Identifier: Apache-2.0
//! Two endpoints and the network between them, which delays and loses datagrams. Time is virtual.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use posthaste_testkit::{Rng, Timeline, simulate};

use super::*;

mod floods;
mod flows;
mod leaving;
mod rebinding;
mod repairs;

const DIALER: u64 = 1;
const ACCEPTOR: u64 = 2;
/// A turn of the event loop of each end.
const TURN: Duration = Duration::from_millis(1);

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn address(end: usize) -> SocketAddr {
    format!("192.0.2.{}:4480", end + 1).parse().unwrap()
}

/// Credentials as the dialer and as the acceptor have them.
fn credentials() -> [Credentials; 2] {
    let (one, other) = ([1; 32], [2; 32]);
    let name = "node-1-key-0.posthaste.invalid".to_owned();
    let of = |peer, mine, theirs| Credentials {
        peer,
        key_id: 0,
        addresses: vec![address(if peer == DIALER { 0 } else { 1 }).ip()],
        name: name.clone(),
        mine,
        theirs,
    };
    [of(ACCEPTOR, one, other), of(DIALER, other, one)]
}

/// Both ends: 0 dials, 1 accepts.
struct Network {
    ends: [Endpoint; 2],
    wire: Timeline<Duration, (usize, Vec<u8>)>,
    now: Duration,
    delay: Duration,
    /// Where the dialer's datagrams come from.
    dialer: SocketAddr,
    /// Whether a datagram to an end is lost, by its number.
    loses: Box<dyn FnMut(usize, u64) -> bool>,
    /// The longest datagram that passes.
    width: usize,
    /// How late a datagram is.
    late: Box<dyn FnMut() -> Duration>,
    sent: u64,
    /// The dialer's connection.
    dialed: u64,
    events: [Vec<Event>; 2],
}

impl Network {
    fn new(loses: impl FnMut(usize, u64) -> bool + 'static) -> Self {
        let [dialer, acceptor] = credentials();
        Self::with(loses, &dialer, &acceptor)
    }

    fn with(
        loses: impl FnMut(usize, u64) -> bool + 'static,
        dialer: &Credentials,
        acceptor: &Credentials,
    ) -> Self {
        let now = ms(1000);
        let mut ends = [(); 2].map(|()| Endpoint::new(ms(0), (&[7; 32], 0), Arc::default(), now));
        ends[1].accept_from(std::slice::from_ref(acceptor)).unwrap();
        let dialed = ends[0].dial(address(1), dialer, 0, now).unwrap();
        Self {
            ends,
            wire: Timeline::default(),
            now,
            delay: ms(10),
            dialer: address(0),
            loses: Box::new(loses),
            width: usize::MAX,
            late: Box::new(|| Duration::ZERO),
            sent: 0,
            dialed,
            events: [Vec::new(), Vec::new()],
        }
    }

    /// Without loss so far, with a stream of the dialer, which has sent a request: at both ends.
    fn with_stream() -> (Self, Stream, Stream) {
        let mut network = Self::new(|_, _| false);
        network.run_until("up", Self::is_up);
        let stream = network.ends[0].open(network.dialed, 5).unwrap();
        network.ends[0].write(stream, b"request").unwrap();
        network.run_until("opened", |network| network.opened().is_some());
        let accepted = network.opened().unwrap();
        (network, stream, accepted)
    }

    /// One turn of both event loops.
    fn turn(&mut self) {
        self.now += TURN;
        while self.wire.first().is_some_and(|at| at <= self.now) {
            let (_, (to, datagram)) = self.wire.pop().unwrap();
            let mut answer = Vec::new();
            let from = if to == 1 { self.dialer } else { address(1) };
            let path = (from, None, 0);
            let (_, transmit) =
                self.ends[to].on_datagram(path, None, &datagram, &mut answer, self.now);
            if let Some(transmit) = transmit {
                self.put(1 - to, &answer[..transmit.size]);
            }
        }
        for end in [0, 1] {
            self.ends[end].on_time(self.now);
            let mut buffer = Vec::new();
            while let Some((_, transmit)) = self.ends[end].poll_transmit(10, &mut buffer, self.now)
            {
                let bytes = &buffer[..transmit.size];
                if end == 1 && transmit.destination != self.dialer {
                    continue;
                }
                for datagram in bytes.chunks(transmit.segment_size.unwrap_or(bytes.len())) {
                    self.put(1 - end, datagram);
                }
            }
            while let Some(event) = self.ends[end].poll_event() {
                self.events[end].push(event);
            }
        }
    }

    fn put(&mut self, to: usize, datagram: &[u8]) {
        self.sent += 1;
        if !(self.loses)(to, self.sent) && datagram.len() <= self.width {
            let at = self.now + self.delay + (self.late)();
            self.wire.add(at, (to, datagram.to_vec()));
        }
    }

    fn run_until(&mut self, what: &str, is_done: impl Fn(&Self) -> bool) {
        let until = self.now + Duration::from_secs(120);
        while !is_done(self) {
            assert!(self.now < until, "not {what}");
            self.turn();
        }
    }

    fn run_for(&mut self, time: Duration) {
        let until = self.now + time;
        self.run_until("later", |network| network.now >= until);
    }

    fn is_up(&self) -> bool {
        let is_up = |end: usize| {
            self.events[end]
                .iter()
                .any(|one| matches!(one, Event::Up { .. }))
        };
        is_up(0) && is_up(1)
    }

    /// The stream that the dialer has opened, at the acceptor.
    fn opened(&self) -> Option<Stream> {
        self.events[1].iter().find_map(|event| match event {
            Event::Opened { stream, .. } => Some(*stream),
            _ => None,
        })
    }

    fn is_lost(&self, end: usize) -> bool {
        self.events[end]
            .iter()
            .any(|one| matches!(one, Event::Lost { .. }))
    }
}

// promise: B17
#[test]
fn both_ends_are_authenticated() {
    let mut network = Network::new(|_, _| false);
    network.run_until("up", Network::is_up);
    let up = |end: usize| network.events[end].first().cloned();
    let connection = network.dialed;
    assert_eq!(
        up(0),
        Some(Event::Up {
            connection,
            peer: ACCEPTOR,
            key_id: 0
        })
    );
    assert!(matches!(up(1), Some(Event::Up { peer: DIALER, .. })));
    let Some(Event::Up {
        connection: accepted,
        ..
    }) = up(1)
    else {
        panic!("not up");
    };
    let secrets = [
        network.ends[0].secret(connection),
        network.ends[1].secret(accepted),
    ];
    assert!(secrets[0].is_some() && secrets[0] == secrets[1]);
}

// promise: B17
#[test]
fn unauthorized_keys_are_rejected() {
    let [dialer, acceptor] = credentials();
    let other = |mut one: Credentials, what: &str| {
        match what {
            "mine" => one.mine = [9; 32],
            "theirs" => one.theirs = [9; 32],
            _ => one.name = "node-3-key-0.posthaste.invalid".to_owned(),
        }
        one
    };
    for what in ["mine", "theirs", "name"] {
        let mut network = Network::with(|_, _| false, &other(dialer.clone(), what), &acceptor);
        network.run_until("lost", |network| network.is_lost(0));
        let lost = network.events[0].last();
        let rejected = matches!(
            lost,
            Some(Event::Lost {
                reason: LostReason::Rejected,
                ..
            })
        );
        assert!(rejected, "{what}: {lost:?}");
        let up = network.events[1].iter();
        assert_eq!(
            up.filter(|one| matches!(one, Event::Up { .. })).count(),
            0,
            "{what}"
        );
    }
}

// promise: K21
#[test]
fn silence_makes_a_connection_unusable_then_lost() {
    let mut network = Network::new(|_, _| false);
    network.run_until("up", Network::is_up);
    let (connection, start) = (network.dialed, network.now);
    network.loses = Box::new(|_, _| true);
    let stream = network.ends[0].open(connection, 5).unwrap();
    network.ends[0].write(stream, b"request").unwrap();
    assert!(network.ends[0].is_usable(connection, network.now));
    network.run_until("unusable", |network| {
        !network.ends[0].is_usable(connection, network.now)
    });
    assert!(network.now < start + ms(1000));
    network.run_until("lost", |network| network.is_lost(0));
    assert!(network.now < start + ms(15_000));
    let failed = Event::Ready {
        tag: 5,
        ready: Ready {
            readable: true,
            writable: true,
            failed: true,
        },
    };
    assert!(network.events[0].contains(&failed));
    let read = network.ends[0].read(stream, &mut [0; 8]).unwrap_err();
    assert_eq!(read.kind(), io::ErrorKind::ConnectionReset);
}

/// What one end sends is lost, and what it receives is not.
// promise: K21
#[test]
fn connection_of_one_direction_is_lost_in_time() {
    for blocked in [0, 1] {
        let (mut network, stream, accepted) = Network::with_stream();
        network.loses = Box::new(move |to, _| to != blocked);
        let start = network.now;
        // Both ends send all the time.
        while !(network.is_lost(0) && network.is_lost(1)) {
            for (end, stream) in [(0, stream), (1, accepted)] {
                let _ = network.ends[end].write(stream, b"more");
            }
            network.turn();
            let lasted = network.now - start;
            assert!(lasted < ms(15_000), "{blocked}: {lasted:?}");
        }
    }
}

// promise: K21
#[test]
fn short_outage_of_one_direction_ends_no_connection() {
    for (blocked, outage) in [0, 1]
        .into_iter()
        .flat_map(|end| [(end, 1_000), (end, 4_000)])
    {
        let (mut network, stream, accepted) = Network::with_stream();
        let start = network.now;
        network.loses = Box::new(move |to, _| to != blocked);
        while network.now < start + ms(20_000) {
            if network.now >= start + ms(outage) {
                network.loses = Box::new(|_, _| false);
            }
            for (end, stream) in [(0, stream), (1, accepted)] {
                let _ = network.ends[end].write(stream, b"more");
                let _ = network.ends[end].read(stream, &mut [0; 1_000]);
            }
            network.turn();
        }
        assert!(
            !network.is_lost(0) && !network.is_lost(1),
            "{blocked}: {outage} ms"
        );
    }
}

/// Short messages still pass, so only a stream with more shows that the path is too narrow.
// promise: K21
#[test]
fn connection_of_a_path_that_becomes_narrow_is_lost() {
    let (mut network, stream, accepted) = Network::with_stream();
    network.width = 1_100;
    for _ in 0..60 {
        network.ends[0].write(stream, &[7; 900]).unwrap();
        network.run_for(ms(500));
        while network.ends[1].read(accepted, &mut [0; 2_000]).is_ok() {}
    }
    assert!(!network.is_lost(0) && !network.is_lost(1));
    let start = network.now;
    network.ends[0].write(stream, &[7; 20_000]).unwrap();
    network.run_until("lost", |network| network.is_lost(0) && network.is_lost(1));
    assert!(network.now < start + ms(15_000));
}

/// The ends begin to repeat what is lost at different times, so one may be the first to reach the other
/// long before that one sends again.
// promise: K21
#[test]
fn outage_of_both_directions_ends_no_connection() {
    for (first, second) in (0..11).flat_map(|all| (0..all).map(move |part| (part, all - part))) {
        let (mut network, stream, accepted) = Network::with_stream();
        network.loses = Box::new(|_, _| true);
        for (end, stream, seconds) in [(0, stream, first), (1, accepted, second)] {
            network.ends[end].write(stream, b"in the outage").unwrap();
            network.run_for(Duration::from_secs(seconds));
        }
        network.loses = Box::new(|_, _| false);
        let until = network.now + Duration::from_secs(20);
        for (end, stream, bytes) in [(0, stream, 13), (1, accepted, 20)] {
            let mut arrived = 0;
            while arrived < bytes && network.now < until {
                network.turn();
                arrived += network.ends[end].read(stream, &mut [0; 64]).unwrap_or(0);
            }
            assert_eq!(arrived, bytes, "{first} and {second} s");
        }
        assert!(!network.is_lost(0) && !network.is_lost(1));
    }
}

/// A window full of lost packets holds up no probe, and the time to the next does not grow with the outage.
// promise: K21
#[test]
fn flows_continue_soon_after_an_outage() {
    for (outage, bytes) in [
        (3_000, 7),
        (6_000, 2_000_000),
        (10_000, 7),
        (10_000, 2_000_000),
    ] {
        let (mut network, stream, accepted) = Network::with_stream();
        network.loses = Box::new(|_, _| true);
        let written = network.ends[0].write(stream, &vec![7; bytes]).unwrap();
        network.run_for(ms(outage));
        network.loses = Box::new(|_, _| false);
        let back = network.now;
        let mut arrived = 0;
        let bytes = written + b"request".len();
        while arrived < bytes {
            network.turn();
            let lasted = network.now - back;
            assert!(lasted < ms(4_000), "{outage} ms, {arrived} of {bytes}");
            arrived += network.ends[1]
                .read(accepted, &mut [0; 64_000])
                .unwrap_or(0);
        }
    }
}

/// Neither end has anything to send.
// promise: K21
#[test]
fn silence_ends_a_connection_with_a_quiet_flow() {
    let (mut network, ..) = Network::with_stream();
    network.run_for(ms(1_000));
    network.loses = Box::new(|_, _| true);
    let start = network.now;
    network.run_until("lost", |network| network.is_lost(0) && network.is_lost(1));
    let lasted = network.now - start;
    assert!(lasted > ms(12_000) && lasted < ms(15_500), "{lasted:?}");
}

// promise: K21
#[test]
fn silent_peer_is_reported_as_such() {
    let mut network = Network::new(|_, _| true);
    let start = network.now;
    network.run_until("lost", |network| network.is_lost(0));
    assert!(network.now < start + ms(5_000), "the next is dialed then");
    let lost = network.events[0].last();
    let is_silent = |one: &Event| {
        matches!(
            one,
            Event::Lost {
                reason: LostReason::TimedOut,
                was_up: false,
                ..
            }
        )
    };
    assert!(lost.is_some_and(is_silent), "{lost:?}");
}

// promise: K21
#[test]
fn successor_resets_the_connections_of_a_dead_endpoint() {
    let mut network = Network::new(|_, _| false);
    network.run_until("up", Network::is_up);
    let start = network.now;
    let mut successor = Endpoint::new(ms(0), (&[7; 32], 0), Arc::default(), network.now);
    let [_, acceptor] = credentials();
    successor.accept_from(&[acceptor]).unwrap();
    network.ends[1] = successor;
    let stream = network.ends[0].open(network.dialed, 5).unwrap();
    network.ends[0].write(stream, &[7; 2000]).unwrap();
    network.run_until("lost", |network| network.is_lost(0));
    assert!(network.now < start + ms(1000));
}

#[test]
fn idle_connection_stays_usable() {
    let mut network = Network::new(|_, _| false);
    network.run_until("up", Network::is_up);
    network.run_for(Duration::from_secs(60));
    assert!(network.ends[0].is_usable(network.dialed, network.now));
    assert!(!network.is_lost(0) && !network.is_lost(1));
}

/// Bytes that came with those that were read wait for an event: it has the stream's new tag.
#[test]
fn stream_with_another_tag_is_ready() {
    let mut network = Network::new(|_, _| false);
    network.run_until("up", Network::is_up);
    let stream = network.ends[0].open(network.dialed, 7).unwrap();
    network.ends[0].write(stream, b"first, second").unwrap();
    network.run_until("opened", |network| network.opened().is_some());
    let accepted = network.opened().unwrap();
    let mut buffer = [0; 5];
    let acceptor = &mut network.ends[1];
    assert_eq!(acceptor.read(accepted, &mut buffer).unwrap(), 5);
    while acceptor.poll_event().is_some() {}
    acceptor.set_tag(accepted, 9);
    let event = acceptor.poll_event();
    assert!(
        matches!(event, Some(Event::Ready { tag: 9, ready }) if ready.readable),
        "{event:?}"
    );
    assert_eq!(acceptor.read(accepted, &mut buffer).unwrap(), 5);
    assert_eq!(&buffer, b", sec");
}
