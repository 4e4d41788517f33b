// SPDX-License-Identifier: Apache-2.0
//! Connections of the packet path with random options, segments and offloads against a plain
//! reference: frames into both cables of the host, frames out of them.
//!
//! `POSTHASTE_SEED` sets the first seed, `POSTHASTE_SCHEDULES` how many destinations there are. Each
//! has a few connections, and the node learns from the first.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use posthaste_bpf::Settings;
use posthaste_lab::network::Family;
use posthaste_lab::process::wait_until;
use posthaste_testkit::{Rng, schedules, seeds};

use crate::host::{Host, SETTINGS, client_at, interface, on_host_with};
use crate::packets::packets;
use crate::segment::{ACK, FIN, Segment};
use crate::wire::SOON;

mod blind;
mod made;
mod options;
mod plain;
mod ports;
mod random;
mod reference;

use options::{Offer, Opt, meaning, read};
use ports::{Offload, Ports};
use reference::{Flow, Known, URG, forwarded};

/// As in the programs.
const HOPS_MIN: u8 = 32;
/// The node repeats a SYN after a second: what takes longer is not compared.
const SLOW: Duration = Duration::from_millis(900);
/// Flows of the packet path stay for some time.
const FLOWS: u32 = 1 << 16;

/// The machine was too slow for a comparison.
#[derive(Debug)]
struct Slow;

/// The host, its cables' other ends, and the random numbers of a destination.
struct Test<'a> {
    ports: &'a Ports,
    rng: Rng,
    server: SocketAddr,
    family: Family,
    known: Known,
    /// Whether the server broke a promise, or granted too little for one, after which it gets none.
    is_bad: bool,
    since: Instant,
}

fn ready(host: &mut Host<'_>) -> Ports {
    let one = sched_getaffinity(Pid::from_raw(0)).unwrap();
    let first = (0..CpuSet::count()).find(|cpu| one.is_set(*cpu).unwrap());
    let mut cpu = CpuSet::new();
    cpu.set(first.unwrap()).unwrap();
    sched_setaffinity(Pid::from_raw(0), &cpu).unwrap();
    let lines = [
        "link set out0 address 02:00:00:00:00:01",
        // The kernel forgets its neighbours with its address.
        "neighbour replace 10.0.1.2 lladdr 02:00:00:00:00:02 dev out0",
        "neighbour replace fd00:0:0:1::2 lladdr 02:00:00:00:00:02 dev out0",
        "neighbour add 10.0.0.2 lladdr 02:00:00:00:00:02 dev in0",
        "neighbour add fd00::2 lladdr 02:00:00:00:00:02 dev in0",
        "link set in0 mtu 9000",
        "link set in1 mtu 9000",
        "link set out0 mtu 9000",
        "link set out1 mtu 9000",
    ];
    host.namespace.ip_batch(&lines.map(str::to_owned)).unwrap();
    host.obey(&[packets()]);
    let [client, server] = ["in1", "out1"].map(|name| interface(host.namespace, name));
    let ports = Ports {
        client: ports::Port::new(client),
        server: ports::Port::new(server),
        errors: std::cell::RefCell::default(),
    };
    // The thread that shows that the node lives starts with the programs.
    let mut test = Test::new(&ports, 0);
    let ready = wait_until("a flow that learns", SOON, || {
        test.server.set_port(test.server.port() + 1);
        let syn = Segment::syn(client_at(test.family, 999), test.server);
        ports.client.send(&syn, Offload::None);
        ports.collect();
        host.stat("packet_learning") > 0
    });
    ready.unwrap();
    ports
}

impl<'a> Test<'a> {
    fn new(ports: &'a Ports, seed: u64) -> Self {
        let family = Family::ALL[usize::try_from(seed % 2).unwrap()];
        let [.., a, b] = seed.to_be_bytes();
        let ip = match family {
            Family::V4 => IpAddr::V4(Ipv4Addr::new(10, 9, a, b)),
            Family::V6 => IpAddr::V6(Ipv6Addr::from_segments([
                0xfd00,
                9,
                0,
                0,
                0,
                0,
                a.into(),
                b.into(),
            ])),
        };
        let mut rng = Rng::new(seed.wrapping_mul(0x2545_f491_4f6c_dd1d));
        let port = 1 + rng.below(60_000_u16);
        Self {
            ports,
            rng,
            server: SocketAddr::new(ip, port),
            family,
            known: Known::default(),
            is_bad: false,
            since: Instant::now(),
        }
    }

    /// The host sends exactly these, to the client and to the server.
    #[track_caller]
    fn expect(&self, expected: [&[Segment]; 2], what: &str) -> Result<(), Slow> {
        let found = self.ports.collect();
        if self.since.elapsed() > SLOW {
            return Err(Slow);
        }
        for (end, found, expected) in [
            ("client", &found[0], expected[0]),
            ("server", &found[1], expected[1]),
        ] {
            let [found, expected] =
                [found, expected].map(|all| all.iter().map(meaning).collect::<Vec<_>>());
            assert_eq!(found, expected, "to the {end}: {what}");
        }
        Ok(())
    }

    /// The same, with the options where they were.
    #[track_caller]
    fn expect_unchanged(&self, expected: [Vec<Segment>; 2]) -> Result<(), Slow> {
        let found = self.ports.collect();
        if self.since.elapsed() > SLOW {
            return Err(Slow);
        }
        assert_eq!(found, expected);
        Ok(())
    }

    fn connect(&mut self, port: u16) -> Result<(), Slow> {
        self.since = Instant::now();
        let syn = self.syn(port);
        let is_fit = syn.data.is_empty() && syn.hops >= HOPS_MIN;
        let offer = Offer::of(&syn).filter(|offer| offer.mss.is_some() && is_fit);
        if self.rng.once_in(20) {
            self.ports.client.send_corrupted(&syn);
            self.ports.discard();
        }
        let offload = self.offload();
        self.ports.client.send(&syn, offload);
        match offer {
            Some(offer) if !self.is_bad && self.known.covers(&offer) => self.carry(&syn, offer),
            Some(offer) if !self.is_bad => self.pass(&syn, Some(offer)),
            _ => self.pass(&syn, None),
        }
    }

    /// A handshake that the node leaves as it is, and perhaps learns from.
    fn pass(&mut self, syn: &Segment, learns: Option<Offer>) -> Result<(), Slow> {
        self.expect_unchanged([vec![], vec![forwarded(syn)]])?;
        let mut answer = self.syn_ack(syn);
        while !Known::is_usual(&answer) {
            answer = self.syn_ack(syn);
        }
        let offload = self.offload();
        self.ports.server.send(&answer, offload);
        self.expect_unchanged([vec![forwarded(&answer)], vec![]])?;
        let proof = Segment {
            sequence: answer.acknowledgment,
            acknowledgment: answer.sequence.wrapping_add(1),
            options: vec![],
            ..Segment::new(syn.from, syn.to, ACK)
        };
        self.ports.client.send(&proof, Offload::None);
        self.expect_unchanged([vec![], vec![forwarded(&proof)]])?;
        // Flows that learn are few at a time.
        let end = Segment {
            sequence: proof.acknowledgment,
            acknowledgment: proof.sequence,
            options: vec![],
            ..Segment::new(answer.from, answer.to, ACK | FIN)
        };
        self.ports.server.send(&end, Offload::None);
        self.expect_unchanged([vec![forwarded(&end)], vec![]])?;
        if let Some(offer) = learns {
            let offered = [offer.shift.is_some(), offer.sack, offer.times.is_some()];
            self.known.learn(offered, &answer, false);
            let grant = Offer::of(&answer).unwrap();
            self.is_bad =
                offer.sack && !grant.sack || offer.shift.is_some() && grant.shift.is_none();
        }
        Ok(())
    }

    /// A flow that the node answers.
    fn carry(&mut self, syn: &Segment, offer: Offer) -> Result<(), Slow> {
        // A cable's MTU less the headers.
        let fits = match self.family {
            Family::V4 => 9000 - 40,
            Family::V6 => 9000 - 60,
        };
        let promise = self.known.promise(&offer, fits);
        let [to_client, to_server] = self.ports.collect();
        if self.since.elapsed() > SLOW {
            return Err(Slow);
        }
        let [answer] = &to_client[..] else {
            panic!("{syn:?} is answered by {to_client:?}, and forwarded as {to_server:?}")
        };
        let mut flow = Flow::new(syn, offer, promise, answer);
        assert_eq!(meaning(answer), meaning(&flow.to_client(syn)), "{syn:?}");
        let [passed] = &to_server[..] else {
            panic!("{syn:?} is forwarded as {to_server:?}")
        };
        assert_eq!(meaning(passed), meaning(&flow.to_server(syn)), "{syn:?}");
        if self.rng.once_in(4) {
            self.repeat(syn, &mut flow)?;
        }
        let answer = self.syn_ack(passed);
        if self.rng.once_in(8) {
            // It may have come damaged.
            self.ports.server.send_corrupted(&answer);
            self.ports.discard();
        }
        if self.rng.once_in(4) {
            self.answer_first(&mut flow, &answer)?;
        } else {
            self.answer_last(&mut flow, &answer)?;
            // The client has completed its handshake by then.
            self.known.learn(promise.offered(), &answer, true);
        }
        let grant = Offer::of(&answer).unwrap();
        self.is_bad = promise.sack && !grant.sack
            || promise.times && grant.times.is_none()
            || promise.shift.is_some() && grant.shift.is_none();
        self.exchange(&flow)
    }

    /// The client repeats its SYN.
    fn repeat(&mut self, syn: &Segment, flow: &mut Flow) -> Result<(), Slow> {
        let mut again = syn.clone();
        if let Some((value, echo)) = flow.offer.times {
            let times = (value.wrapping_add(1000), echo);
            let options = read(&syn.options).unwrap().into_iter();
            let options = options.map(|option| match option {
                Opt::Times(..) => Opt::Times(times.0, times.1),
                other => other,
            });
            again.options = self.layout(&options.collect::<Vec<_>>());
            if Offer::of(&again).map(|offer| offer.times) != Some(Some(times)) {
                // The random layout had no room for all.
                again.options.clone_from(&syn.options);
            } else {
                flow.note_time(Some(times));
            }
        }
        self.ports.client.send(&again, Offload::None);
        self.expect(
            [&[flow.to_client(&again)], &[flow.to_server(&again)]],
            "a repeated SYN",
        )
    }

    /// The server answers before the client is validated.
    fn answer_first(&mut self, flow: &mut Flow, answer: &Segment) -> Result<(), Slow> {
        self.ports.server.send(answer, Offload::None);
        self.expect([&[], &[]], "an answer before the client's proof")?;
        flow.accept(answer);
        let first = self.client_segment(flow, flow.syn.sequence.wrapping_add(1), 0);
        self.ports.client.send(&first, Offload::None);
        let first = flow.up(&first).expect("it is short");
        self.expect([&[], &[first]], "the proof")
    }

    /// The client is validated, and perhaps sends, before the server answers.
    fn answer_last(&mut self, flow: &mut Flow, answer: &Segment) -> Result<(), Slow> {
        let mut next = flow.syn.sequence.wrapping_add(1);
        let mut proof = self.client_segment(flow, next, 0);
        if self.rng.once_in(8) {
            // Not a proof: it passes as it is.
            proof.acknowledgment = flow.isn.wrapping_add(2);
            self.ports.client.send(&proof, Offload::None);
            self.expect([&[], &[forwarded(&proof)]], "not a proof")?;
        }
        proof.acknowledgment = flow.isn.wrapping_add(1);
        if self.rng.once_in(4) {
            self.meet_older(flow, &proof)?;
        } else {
            self.ports.client.send(&proof, Offload::None);
            flow.hold(&proof, 1);
        }
        if self.rng.once_in(4) {
            // Who sees neither end does not know what the client acknowledges.
            let mut blind = self.client_segment(flow, next, 0);
            blind.acknowledgment = flow.isn.wrapping_add(2 + self.rng.below(u32::MAX - 2));
            self.ports.client.send(&blind, Offload::None);
        }
        for _ in 0..self.rng.below(8_u32) * self.rng.below(4_u32) {
            next = self.send_early(flow, next);
        }
        self.expect([&[], &[]], "before the server's answer")?;
        flow.accept(answer);
        let offload = self.offload();
        self.ports.server.send(answer, offload);
        let mut released = flow.released();
        if !flow.is_stamped() {
            // Nobody reads the timestamps of a flow whose server granted none.
            released.iter_mut().for_each(strip_times);
        }
        let [to_client, mut to_server] = self.ports.collect();
        if self.since.elapsed() > SLOW {
            return Err(Slow);
        }
        if !flow.is_stamped() {
            to_server.iter_mut().for_each(strip_times);
        }
        assert_eq!(to_client, [], "{answer:?}");
        assert_eq!(self.ports.take_errors(), flow.too_long(), "{answer:?}");
        let [found, expected] =
            [to_server, released].map(|all| all.iter().map(meaning).collect::<Vec<_>>());
        for (found, expected) in found.iter().zip(&expected) {
            assert_eq!(found, expected, "{:?}, {answer:?}", flow.syn);
        }
        assert_eq!(found.len(), expected.len(), "{:?}", flow.syn);
        Ok(())
    }

    /// The server has an older connection, and shows it before or after the client's proof: it is reset
    /// only then, and the SYN sent again only once.
    fn meet_older(&mut self, flow: &mut Flow, proof: &Segment) -> Result<(), Slow> {
        let is_before = self.rng.once_in(2);
        let older = self.older_segment(flow);
        if is_before {
            self.ports.server.send(&older, Offload::None);
            self.expect([&[forwarded(&older)], &[]], "an older connection")?;
        }
        self.ports.client.send(proof, Offload::None);
        flow.hold(proof, 1);
        if !is_before {
            self.expect([&[], &[]], "a proof")?;
            self.ports.server.send(&older, Offload::None);
        }
        let renewed = [flow.reset_of(&older), flow.syn_again()];
        self.expect([&[], &renewed], "an older connection is reset")?;
        let older = self.older_segment(flow);
        self.ports.server.send(&older, Offload::Checksum);
        self.expect([&[], &[]], "what the server sent before")
    }

    /// The client sends data before the server's answer; returns its next number.
    fn send_early(&mut self, flow: &mut Flow, next: u32) -> u32 {
        // Also of what the cables carry, in both families.
        let most =
            usize::from(flow.promise.mss.min(8940)) - if flow.promise.times { 20 } else { 0 };
        let length = self.rng.part_of(most);
        let mut segment = self.client_segment(flow, next, length);
        let mut piece = length;
        if self.rng.once_in(8) {
            segment.sequence = next.wrapping_add(self.rng.below(3_u32)).wrapping_sub(1);
        }
        if self.rng.once_in(20) {
            self.ports.client.send_corrupted(&segment);
            return next;
        }
        let offload = match self.rng.below(4) {
            0 => {
                segment.data = self.rng.bytes(most * 3 + 1);
                piece = most;
                Offload::Cutting(u16::try_from(most).unwrap())
            }
            1 => Offload::Checksum,
            _ => Offload::None,
        };
        if self.rng.once_in(12) {
            segment.flags |= [FIN, URG][self.rng.below(2)];
        }
        self.ports.client.send(&segment, offload);
        flow.hold(&segment, piece);
        flow.next_held()
    }

    /// Segments of an open flow.
    fn exchange(&mut self, flow: &Flow) -> Result<(), Slow> {
        for _ in 0..4 {
            let (length, sequence) = (self.rng.pick(&[0, 1, 700]), self.number());
            let mut segment = self.client_segment(flow, sequence, length);
            segment.acknowledgment = self.number();
            if flow.promise.sack && self.rng.once_in(2) {
                let edges = 2 * (1 + self.rng.below(3_usize));
                let mut options = read(&segment.options).unwrap();
                options.push(Opt::Blocks((0..edges).map(|_| self.number()).collect()));
                segment.options = self.layout(&options);
            }
            let offload = self.offload();
            self.ports.client.send(&segment, offload);
            let up: Vec<_> = flow.up(&segment).into_iter().collect();
            self.expect([&[], &up], "of the client")?;
            let errors = self.ports.take_errors();
            let expected = flow.is_too_long(&segment).then_some(segment.sequence);
            assert!(errors.into_iter().eq(expected), "{segment:?}");
            if self.rng.once_in(8) {
                let (answer, question) = flow.question();
                self.ports.server.send(&answer, Offload::None);
                self.expect([&[question], &[]], "a repeated answer")?;
            }
            let mut back = self.server_segment(flow);
            let mut offload = self.offload();
            if flow.adds_times() && self.rng.once_in(2) {
                // As the kernel joins what comes; the client gets each with timestamps.
                let most = self.rng.pick(&[500, 1400]);
                back.data = self.rng.bytes(usize::from(most) * 5 + 1);
                offload = Offload::Cutting(most);
            }
            self.ports.server.send(&back, offload);
            if flow.adds_times() {
                self.expect_stamped(flow, &back)?;
            } else {
                self.expect([&[flow.down(&back)], &[]], "of the server")?;
            }
        }
        Ok(())
    }
}

impl Test<'_> {
    /// The client gets a segment of the server with timestamps by the node's clock.
    fn expect_stamped(&self, flow: &Flow, back: &Segment) -> Result<(), Slow> {
        let [mut pieces, to_server] = self.ports.collect();
        if self.since.elapsed() > SLOW {
            return Err(Slow);
        }
        for piece in &mut pieces {
            let options = read(&piece.options).unwrap();
            let times = options.iter().find_map(|option| match option {
                Opt::Times(value, echo) => Some((value.wrapping_sub(flow.time), *echo)),
                _ => None,
            });
            let (elapsed, echo) = times.expect("timestamps");
            assert!(u128::from(elapsed) <= SLOW.as_millis(), "{elapsed} ms");
            assert!(flow.has_sent_time(echo), "{echo}: {flow:?}");
            assert!(flow.has_room_for(piece), "{piece:?}");
            strip_times(piece);
        }
        let whole = joined(&pieces);
        let expected = flow.down(back);
        assert_eq!(meaning(&whole), meaning(&expected), "{:?}", flow.syn);
        assert_eq!(to_server, []);
        Ok(())
    }
}

/// The segment that was cut into these pieces.
fn joined(pieces: &[Segment]) -> Segment {
    let (last, before) = pieces.split_last().expect("a segment");
    let mut whole = last.clone();
    for piece in before.iter().rev() {
        let next = piece
            .sequence
            .wrapping_add(u32::try_from(piece.data.len()).unwrap());
        assert_eq!(next, whole.sequence, "{pieces:?}");
        assert_eq!(piece.flags & FIN, 0, "{pieces:?}");
        whole.sequence = piece.sequence;
        whole.data = [&piece.data[..], &whole.data].concat();
    }
    whole
}

fn strip_times(segment: &mut Segment) {
    let options = read(&segment.options).unwrap().into_iter();
    let options = options.filter(|option| !matches!(option, Opt::Times(..)));
    segment.options = options.flat_map(|option| option.bytes()).collect();
}

#[test]
fn random_connections_are_as_by_the_reference() {
    let settings = Settings {
        packet_flows: FLOWS,
        ..SETTINGS
    };
    on_host_with(settings, |host| {
        let ports = ready(host);
        let before = host.stat("packet_opened");
        seeds(schedules(1000), |seed| {
            let mut test = Test::new(&ports, seed);
            for port in 1..=5 {
                if test.connect(port * 10_007).is_err() {
                    return ports.discard();
                }
            }
        });
        let opened = host.stat("packet_opened") - before;
        eprintln!("{opened} flows");
    });
}
