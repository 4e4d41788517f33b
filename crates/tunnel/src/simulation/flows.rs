// SPDX-License-Identifier: Apache-2.0
//! Flows over streams: every byte arrives, in order, or the stream visibly fails; each has one
//! outcome at both ends.

use std::cell::Cell;
use std::rc::Rc;

use posthaste_testkit::schedules;

use super::*;

/// How a flow ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Both ends have read all bytes and a FIN.
    Whole,
    Reset,
}

/// The byte at a place of either direction.
fn byte(at: usize) -> u8 {
    u8::try_from(at % 251).unwrap()
}

/// One end of a flow.
#[derive(Debug)]
pub(super) struct FlowEnd {
    stream: Stream,
    to_send: usize,
    sent: usize,
    is_finished: bool,
    pub(super) received: usize,
    outcome: Option<Outcome>,
}

impl FlowEnd {
    fn new(stream: Stream, to_send: usize) -> Self {
        Self {
            stream,
            to_send,
            sent: 0,
            is_finished: false,
            received: 0,
            outcome: None,
        }
    }

    /// Sends and receives what it can.
    fn go_on(&mut self, endpoint: &mut Endpoint) {
        if self.outcome.is_some() {
            return;
        }
        if let Err(error) = self.send(endpoint).and_then(|()| self.receive(endpoint))
            && error.kind() != io::ErrorKind::WouldBlock
        {
            self.end(endpoint, Outcome::Reset);
        }
    }

    fn send(&mut self, endpoint: &mut Endpoint) -> io::Result<()> {
        while self.sent < self.to_send {
            let bytes: Vec<u8> = (self.sent..self.to_send).take(5000).map(byte).collect();
            match endpoint.write(self.stream, &bytes) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        if !self.is_finished {
            self.is_finished = true;
            endpoint.finish(self.stream)?;
        }
        Ok(())
    }

    fn receive(&mut self, endpoint: &mut Endpoint) -> io::Result<()> {
        let mut buffer = [0; 3000];
        loop {
            let count = endpoint.read(self.stream, &mut buffer)?;
            for (at, got) in buffer[..count].iter().enumerate() {
                assert_eq!(*got, byte(self.received + at));
            }
            self.received += count;
            if count == 0 {
                if self.is_finished {
                    self.end(endpoint, Outcome::Whole);
                }
                return Ok(());
            }
        }
    }

    fn end(&mut self, endpoint: &mut Endpoint, outcome: Outcome) {
        assert_eq!(self.outcome.replace(outcome), None);
        if outcome == Outcome::Reset {
            endpoint.reset(self.stream, 7);
        }
        endpoint.close(self.stream, 7);
    }
}

/// Flows by tag; those of the acceptor answer with twice as many bytes.
#[derive(Default)]
pub(super) struct Flows {
    pub(super) ends: [HashMap<u64, FlowEnd>; 2],
    pub(super) seen: [usize; 2],
    next: u64,
}

impl Flows {
    pub(super) fn open(&mut self, network: &mut Network, bytes: usize) -> bool {
        self.next += 1;
        let connection = network.dialed;
        let Some(stream) = network.ends[0].open(connection, self.next) else {
            return false;
        };
        let mut flow = FlowEnd::new(stream, bytes);
        flow.go_on(&mut network.ends[0]);
        self.ends[0].insert(self.next, flow);
        true
    }

    /// Takes the events of both ends.
    pub(super) fn turn(&mut self, network: &mut Network) {
        network.turn();
        for end in [0, 1] {
            let events = network.events[end].split_off(self.seen[end]);
            for event in &events {
                let tag = match event {
                    Event::Opened { stream, .. } => {
                        self.next += 1;
                        network.ends[end].set_tag(*stream, self.next);
                        let bytes = 1 + usize::try_from(self.next * 7919 % 40_000).unwrap();
                        self.ends[end].insert(self.next, FlowEnd::new(*stream, bytes));
                        self.next
                    }
                    Event::Ready { tag, .. } => *tag,
                    _ => continue,
                };
                if let Some(flow) = self.ends[end].get_mut(&tag) {
                    flow.go_on(&mut network.ends[end]);
                }
            }
            network.events[end].truncate(self.seen[end]);
        }
    }

    fn are_over(&self) -> bool {
        let mut all = self.ends.iter().flat_map(HashMap::values);
        all.all(|flow| flow.outcome.is_some())
    }

    pub(super) fn count(&self, end: usize, outcome: Outcome) -> usize {
        let all = self.ends[end].values();
        all.filter(|flow| flow.outcome == Some(outcome)).count()
    }
}

pub(super) fn run(network: &mut Network, flows: &mut Flows, seconds: u64) {
    let until = network.now + Duration::from_secs(seconds);
    while !flows.are_over() {
        assert!(network.now < until, "flows hang");
        flows.turn(network);
    }
}

// promise: K20
#[test]
fn no_byte_is_lost() {
    simulate(8, |mut rng: Rng| {
        let loss = rng.below(20_u64);
        let mut coins = Rng::new(rng.next());
        let mut network = Network::new(move |_, _| coins.below(100_u64) < loss);
        network.run_until("up", Network::is_up);
        let mut flows = Flows::default();
        for _ in 0..40 {
            assert!(flows.open(&mut network, rng.below(100_000_usize)));
            for _ in 0..rng.below(20_u64) {
                flows.turn(&mut network);
            }
        }
        run(&mut network, &mut flows, 300);
        for end in [0, 1] {
            assert_eq!(flows.count(end, Outcome::Whole), 40, "{loss} % lost");
        }
        for flow in flows.ends[0].values() {
            assert!(flow.received > 0);
        }
    });
}

// promise: K20
#[test]
fn reset_reaches_the_other_end() {
    simulate(8, |mut rng: Rng| {
        let mut coins = Rng::new(rng.next());
        let mut network = Network::new(move |_, _| coins.below(10_u64) == 0);
        network.run_until("up", Network::is_up);
        let mut flows = Flows::default();
        for _ in 0..20 {
            assert!(flows.open(&mut network, 2_000_000));
        }
        while flows.ends[1].len() < 20 {
            flows.turn(&mut network);
        }
        let end = rng.below(2_usize);
        for flow in flows.ends[end].values_mut() {
            flow.end(&mut network.ends[end], Outcome::Reset);
        }
        run(&mut network, &mut flows, 60);
        assert_eq!(flows.count(1 - end, Outcome::Reset), 20);
    });
}

// promise: K21
#[test]
fn lost_connection_ends_its_flows() {
    let mut network = Network::new(|_, _| false);
    network.run_until("up", Network::is_up);
    let mut flows = Flows::default();
    for _ in 0..20 {
        assert!(flows.open(&mut network, 5_000_000));
    }
    while flows.ends[1].len() < 20 {
        flows.turn(&mut network);
    }
    network.loses = Box::new(|_, _| true);
    run(&mut network, &mut flows, 60);
    assert_eq!(flows.count(0, Outcome::Reset), 20);
    assert_eq!(flows.count(1, Outcome::Reset), 20);
}

// promise: K22
#[test]
fn streams_leave_nothing_behind() {
    let mut network = Network::new(|_, _| false);
    network.delay = ms(1);
    network.run_until("up", Network::is_up);
    let Some(Event::Up {
        connection: accepted,
        ..
    }) = network.events[1].first().cloned()
    else {
        panic!("not up");
    };
    let mut flows = Flows::default();
    let (mut opened, all) = (0, schedules(20_000));
    while opened < all {
        // More than may be open: those that find none are refused, and none is stuck.
        while opened < all && flows.open(&mut network, 10) {
            opened += 1;
        }
        flows.turn(&mut network);
        for end in [0, 1] {
            flows.ends[end].retain(|_, flow| flow.outcome.is_none());
        }
    }
    run(&mut network, &mut flows, 60);
    assert_eq!(network.ends[0].streams(network.dialed), 0);
    assert_eq!(network.ends[1].streams(accepted), 0);
}

/// All flows of a path together, whatever its round-trip time and losses; the other direction has no limit.
// promise: K25
#[test]
fn limited_rate_of_a_path() {
    for (delay, loss) in [(1, 0), (50, 0), (10, 5)] {
        let mut coins = Rng::new(1);
        let mut network = Network::new(move |_, _| coins.below(100_u64) < loss);
        network.delay = ms(delay);
        network.ends[0].set_rate_limits(&[(ACCEPTOR, 1_000_000)].into());
        network.run_until("up", Network::is_up);
        let (mut flows, start) = (Flows::default(), network.now);
        for _ in 0..2 {
            assert!(flows.open(&mut network, 2_000_000));
        }
        run(&mut network, &mut flows, 20);
        let lasted = network.now - start;
        let what = format!("{delay} ms, {loss} %: {lasted:?}");
        assert!((ms(3_950)..ms(4_800)).contains(&lasted), "{what}");
        network.ends[0].set_rate_limits(&HashMap::new());
        let start = network.now;
        assert!(flows.open(&mut network, 2_000_000), "{what}");
        run(&mut network, &mut flows, 20);
        assert!(network.now - start < ms(1_500), "{what} without a limit");
    }
}

/// Three of ten packets are late by less than an eighth of a round trip, as over bonded links, and
/// are not sent again.
// promise: K22
#[test]
fn late_packets_are_not_lost() {
    let sent = [0_u64, 8].map(|latest| {
        let (mut coins, sent) = (Rng::new(1), Rc::new(Cell::new(0)));
        let count = Rc::clone(&sent);
        let mut network = Network::new(move |to, _| {
            count.set(count.get() + to);
            false
        });
        network.delay = ms(50);
        network.ends[0].set_rate_limits(&[(ACCEPTOR, 12_500_000)].into());
        network.late = Box::new(move || {
            let is_late = coins.below(10_u64) < 3;
            ms(if is_late { coins.below(latest + 1) } else { 0 })
        });
        network.run_until("up", Network::is_up);
        let mut flows = Flows::default();
        assert!(flows.open(&mut network, 5_000_000));
        run(&mut network, &mut flows, 120);
        sent.get()
    });
    assert!(sent[1] < sent[0] * 103 / 100, "{sent:?}");
}

/// Each packet is late by up to 0.4 round trips: those that seem lost are few enough that the rate stays.
// promise: K22
#[test]
fn paths_that_reorder_stay_fast() {
    let mut coins = Rng::new(1);
    let mut network = Network::new(|_, _| false);
    network.delay = ms(20);
    network.ends[0].set_rate_limits(&[(ACCEPTOR, 12_500_000)].into());
    network.late = Box::new(move || ms(coins.below(9_u64) + coins.below(9_u64)));
    network.run_until("up", Network::is_up);
    let mut flows = Flows::default();
    let start = network.now;
    assert!(flows.open(&mut network, 10_000_000));
    while !flows.ends[1]
        .values()
        .any(|flow| flow.received == 10_000_000)
    {
        flows.turn(&mut network);
        let lasted = network.now - start;
        assert!(lasted < ms(2_000), "{lasted:?}");
    }
}

/// Connections with one peer take turns, and small flows and ACKs do not wait for large ones.
// promise: K25
#[test]
fn limited_connections_take_turns() {
    for rate in [125_000, 1_000_000, 10_000_000] {
        let mut network = Network::new(|_, _| false);
        network.ends[0].set_rate_limits(&[(ACCEPTOR, rate)].into());
        let [dialer, _] = credentials();
        let first = network.dialed;
        let now = network.now;
        let second = network.ends[0].dial(address(1), &dialer, 0, now).unwrap();
        let is_up = |one: &Event| matches!(one, Event::Up { .. });
        network.run_until("up", |network| {
            network.events[0].iter().filter(|one| is_up(one)).count() == 2
        });
        let mut flows = Flows::default();
        let bytes = usize::try_from(rate).unwrap() * 4;
        for connection in [first, second] {
            network.dialed = connection;
            assert!(flows.open(&mut network, bytes));
        }
        let until = network.now + ms(4_000);
        while network.now < until {
            flows.turn(&mut network);
        }
        let received: Vec<_> = flows.ends[1].values().map(|flow| flow.received).collect();
        let (least, most) = (
            *received.iter().min().unwrap(),
            *received.iter().max().unwrap(),
        );
        assert!(
            received.len() == 2 && most < least * 5 / 4,
            "{rate}: {received:?}"
        );
        assert!(
            (bytes * 85 / 100..bytes).contains(&(least + most)),
            "{received:?}"
        );
        let start = network.now;
        assert!(flows.open(&mut network, 100));
        let small = flows.next;
        while flows.ends[0][&small].received == 0 {
            flows.turn(&mut network);
            assert!(network.now < start + ms(400), "{rate}: a small flow waits");
        }
    }
}

/// Every second packet of a whole window is lost, which makes as many gaps as there can be.
// promise: K22
#[test]
fn gaps_never_end_the_connection() {
    let mut network = Network::new(|_, _| false);
    network.delay = ms(50);
    network.run_until("up", Network::is_up);
    let mut flows = Flows::default();
    assert!(flows.open(&mut network, 40_000_000));
    let until = network.now + ms(800);
    while network.now < until {
        flows.turn(&mut network);
    }
    network.loses = Box::new(|to, number| to == 1 && number % 2 == 0);
    let until = network.now + ms(400);
    while network.now < until {
        flows.turn(&mut network);
    }
    network.loses = Box::new(|_, _| false);
    run(&mut network, &mut flows, 120);
    assert_eq!(flows.count(1, Outcome::Whole), 1);
}

/// Streams whose receivers do not read fill the room for bytes, and leave that for messages.
#[test]
fn messages_have_room_of_their_own() {
    let mut network = Network::new(|_, _| false);
    network.run_until("up", Network::is_up);
    let (connection, end) = (network.dialed, &mut network.ends[0]);
    let bytes = vec![0; STREAM_WINDOW as usize];
    let full = (0..).find_map(|tag| {
        let stream = end.open(connection, tag).unwrap();
        end.write(stream, &bytes).err().map(|error| (stream, error))
    });
    let (stream, error) = full.unwrap();
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    assert_eq!(end.write_message(stream, b"reply").unwrap(), 5);
    let still = end.write(stream, &bytes).unwrap_err();
    assert_eq!(still.kind(), io::ErrorKind::WouldBlock);
}

/// Writes to a stream until there is no room, and reads nothing; returns how much there was.
fn fill(network: &mut Network, stream: Stream) -> usize {
    let mut filled = 0;
    loop {
        match network.ends[0].write(stream, &[0; 16 << 10]) {
            Ok(written) => filled += written,
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                return filled;
            }
        }
    }
}

/// Flows whose receivers do not read have some bytes each, and all together have a bound. Those of others
/// have their room, and who reads gets the rest.
// promise: D11
#[test]
fn unread_bytes_are_bounded() {
    const STREAMS: usize = 200;
    for loss in [0, 10] {
        let mut network = Network::new(move |_, number| loss > 0 && number % loss == 9);
        network.run_until("up", Network::is_up);
        network.run_for(ms(1000));
        let streams: Vec<_> = (0..STREAMS as u64)
            .map(|tag| network.ends[0].open(network.dialed, tag).unwrap())
            .collect();
        let mut filled = vec![0; STREAMS];
        for _ in 0..3000 {
            for (stream, filled) in streams.iter().zip(&mut filled) {
                *filled += fill(&mut network, *stream);
            }
            network.turn();
        }
        let all: usize = filled.iter().sum();
        assert!(
            filled.iter().all(|filled| *filled >= 64 << 10),
            "{filled:?}"
        );
        assert!(all <= (16 << 20) + STREAMS * (64 << 10), "{all}");
        // One of them is read: its writer continues, with each byte that was.
        let slow = streams[STREAMS - 1];
        let accepted = network.events[1].iter().find_map(|event| match event {
            Event::Opened { stream, .. } if stream.id == slow.id => Some(*stream),
            _ => None,
        });
        let (accepted, mut read) = (accepted.expect("it has arrived"), 0);
        let mut written = filled[STREAMS - 1];
        while read < 3_000_000 {
            network.turn();
            while let Ok(bytes) = network.ends[1].read(accepted, &mut [0; 16 << 10]) {
                read += bytes;
            }
            if network.events[0].drain(..).any(
                |event| matches!(event, Event::Ready { tag, ready } if tag == STREAMS as u64 - 1 && ready.writable),
            ) {
                written += fill(&mut network, slow);
            }
            assert!(written - read <= 2_400_000, "{written} {read}");
        }
    }
}

/// What idle streams have not reported was read, and is not held against others.
// promise: D11
#[test]
fn idle_streams_take_no_room() {
    const STREAMS: usize = 200;
    let mut network = Network::new(|_, _| false);
    network.run_until("up", Network::is_up);
    network.run_for(ms(1000));
    let mut read = 0;
    for tag in 0..STREAMS as u64 {
        let stream = network.ends[0].open(network.dialed, tag).unwrap();
        assert_eq!(network.ends[0].write(stream, &[0; 20_000]).unwrap(), 20_000);
        let all = read + 20_000;
        while read < all {
            network.turn();
            let accepted = network.events[1].iter().find_map(|event| match event {
                Event::Opened {
                    stream: accepted, ..
                } if accepted.id == stream.id => Some(*accepted),
                _ => None,
            });
            let Some(accepted) = accepted else { continue };
            while let Ok(bytes) = network.ends[1].read(accepted, &mut [0; 16 << 10]) {
                read += bytes;
            }
        }
    }
    let busy = network.ends[0]
        .open(network.dialed, STREAMS as u64)
        .unwrap();
    let mut filled = 0;
    for _ in 0..100 {
        filled += fill(&mut network, busy);
        network.turn();
    }
    assert!(filled >= 512 << 10, "{filled}");
}
