// SPDX-License-Identifier: Apache-2.0
//! Two ends, a relay between them, and what happens to them.

use posthaste_testkit::{Rng, Timeline};

use super::forger::Forger;
use super::link::Link;
use super::oracle::Oracle;
use crate::header::{Block, Header, later};
use crate::machine::{Direction, Pair, Phase, Step, TS_SLACK};
use crate::tcp::{MSS, Packet, Tcp};

const END_OF_TIME: u64 = 400_000;

/// What a hand-over that was not thought through does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Defect {
    SocketsEndFlows,
    UnboundedSack,
    FrozenSocket,
    NoClamp,
    EarlyClose,
    BlockAtCut,
    FinOfDead,
    CutAtPureAck,
    OldAckNumber,
    AckBehindFin,
    OneReset,
    ForgedNumbers,
    GuessedReset,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    End(usize),
    Node(usize),
    Relay(usize),
}

/// What the application of an end does.
#[derive(Debug)]
struct Application {
    total: u32,
    written: u32,
    chunk: u32,
    /// Milliseconds between two writes.
    pause: u64,
    next_write: u64,
    /// Bytes read in a millisecond.
    read_rate: u32,
    /// Closes only after the other end did.
    is_second: bool,
    abort_at: u64,
    closed: bool,
    /// The other end had closed before.
    was_second: bool,
}

#[derive(Debug)]
pub(super) struct World {
    rng: Rng,
    now: u64,
    pub(super) pair: Pair,
    defect: Option<Defect>,
    ends: [Tcp; 2],
    relays: [Tcp; 2],
    up: [Link; 2],
    down: [Link; 2],
    oracles: [Oracle; 2],
    applications: [Application; 2],
    /// A packet and where it arrives; nothing for a timer.
    queue: Timeline<u64, Option<(Place, Packet)>>,
    start_at: u64,
    forger: Forger,
    die_at: u64,
    alive: bool,
    pub(super) cut_at: Option<u64>,
    close_at: Option<u64>,
    aborted: bool,
    sweep_at: u64,
    died_at: Option<u64>,
    /// The highest sequence numbers that the ends used.
    highest: [u32; 2],
    failure: Option<String>,
}

impl Application {
    fn new(rng: &mut Rng) -> Self {
        let total = [0, rng.below(1500), rng.below(9000), 3000 + rng.below(9000)][rng.below(4)];
        Self {
            total,
            written: 0,
            chunk: if rng.once_in(2) {
                9000
            } else {
                90 + rng.below(900)
            },
            pause: 1 + rng.below(60),
            next_write: rng.below(50),
            read_rate: if rng.once_in(4) {
                50 + rng.below(400)
            } else {
                u32::MAX
            },
            is_second: rng.once_in(2),
            abort_at: u64::MAX,
            closed: false,
            was_second: false,
        }
    }
}

impl World {
    pub(super) fn new(seed: u64, defect: Option<Defect>) -> Self {
        let mut rng = Rng::new(seed.wrapping_mul(0x2545_f491_4f6c_dd1d));
        let mut number = || rng.below(u32::MAX);
        let (first, far) = ([number(), number()], [number(), number()]);
        let clocks = [number(), number(), number(), number()];
        let window = 1600 * (1 + rng.below(4));
        let mut shift = || [0, 2, 4][rng.below(3)];
        let (end_shift, relay_shift): ([u8; 2], [u8; 2]) = ([shift(), shift()], [shift(), shift()]);
        let end = |e: usize| {
            let shifts = (end_shift[e], relay_shift[e]);
            Tcp::new(first[e], far[1 - e], window, clocks[e], shifts)
        };
        let relay = |e: usize| {
            let shifts = (relay_shift[e], end_shift[e]);
            Tcp::new(far[1 - e], first[e], window, clocks[2 + e], shifts)
        };
        let direction = |e: usize| {
            let delta = far[e].wrapping_sub(first[e]);
            Direction::new(first[e], delta, window, (end_shift[e], relay_shift[e]))
        };
        let mut applications = [Application::new(&mut rng), Application::new(&mut rng)];
        if applications[0].is_second {
            applications[1].is_second = false;
        }
        let start_at = rng.below(400);
        if rng.once_in(6) {
            applications[rng.below(2)].abort_at = start_at + rng.below(400);
        }
        let die_at = if rng.once_in(8) {
            start_at + rng.below(500)
        } else {
            u64::MAX
        };
        let mut link = || Link::new(&mut rng);
        Self {
            up: [link(), link()],
            down: [link(), link()],
            rng,
            now: 0,
            pair: Pair::new([direction(0), direction(1)]),
            defect,
            ends: [end(0), end(1)],
            relays: [relay(0), relay(1)],
            oracles: [0, 1].map(|e| Oracle::new(first[e], window, relay_shift[e])),
            applications,
            queue: Timeline::default(),
            start_at,
            forger: Forger::new(seed, start_at),
            die_at,
            alive: true,
            cut_at: None,
            close_at: None,
            aborted: false,
            sweep_at: u64::MAX,
            died_at: None,
            highest: first,
            failure: None,
        }
    }

    pub(super) fn is_direct(&self) -> bool {
        self.pair.phase == Phase::Direct
    }

    pub(super) fn is_dead(&self) -> bool {
        self.pair.phase == Phase::Dead
    }

    /// Runs the schedule and returns the first thing that went wrong.
    pub(super) fn run(&mut self) -> Option<String> {
        self.wake(0);
        let mut last = END_OF_TIME;
        while let Some((at, arrival)) = self.queue.pop() {
            if at >= last || self.failure.is_some() {
                break;
            }
            self.now = at;
            if let Some((place, packet)) = arrival {
                self.deliver(place, &packet);
            }
            self.act();
            self.flush();
            let next = self.next_wake();
            if self.queue.first().is_none_or(|at| at > next) {
                self.wake(next);
            }
            if self.is_over() {
                last = last.min(self.now + 1500);
            }
        }
        self.failure.take().or_else(|| self.judge())
    }

    fn wake(&mut self, at: u64) {
        if at < END_OF_TIME {
            self.queue.add(at.max(self.now), None);
        }
    }

    fn next_wake(&self) -> u64 {
        let machines = self.ends.iter().chain(&self.relays);
        let timers = machines.filter(|tcp| tcp.open).filter_map(Tcp::deadline);
        let writes = (0..2)
            .filter(|&e| self.ends[e].open)
            .map(|e| self.applications[e].next_write);
        let aborts = self.applications.iter().map(|a| a.abort_at);
        let rest = [
            self.start_at,
            self.forger.at(),
            self.drain_limit(),
            self.die_at,
            self.sweep_at,
            self.close_at.unwrap_or(u64::MAX),
        ];
        let all = timers.chain(writes).chain(aborts).chain(rest);
        all.filter(|&at| at > self.now).min().unwrap_or(u64::MAX)
    }

    fn drain_limit(&self) -> u64 {
        let is_waiting = self.pair.phase == Phase::Overlap && self.alive;
        if is_waiting {
            u64::from(self.pair.deadline)
        } else {
            u64::MAX
        }
    }

    fn is_over(&self) -> bool {
        let is_done = |tcp: &Tcp| !tcp.open || tcp.is_acknowledged() && tcp.has_eof();
        self.ends.iter().all(is_done)
    }

    fn deliver(&mut self, place: Place, packet: &Packet) {
        match place {
            Place::End(e) => self.ends[e].receive(self.now, packet),
            Place::Relay(e) => self.relays[e].receive(self.now, packet),
            Place::Node(e) => self.redirect(e, packet),
        }
    }

    /// The packet path of P.
    fn redirect(&mut self, e: usize, packet: &Packet) {
        let header = &packet.header;
        let is_overlap = self.pair.phase == Phase::Overlap;
        if packet.is_forged {
            self.spoil(e, header);
        } else {
            self.highest[e] = later(self.highest[e], header.end());
        }
        if self.defect == Some(Defect::SocketsEndFlows) && is_overlap && header.rst {
            self.relays[e].open = false;
            self.relays[e].was_reset = true;
            self.relays[1 - e].abort(self.now);
            return;
        }
        let mut verdict = self.pair.from_end(e, header);
        if let Some(copy) = verdict.relay.as_mut() {
            if self.defect == Some(Defect::UnboundedSack) {
                copy.sack = header.sack;
            }
            let late = if is_overlap { self.rng.below(2) } else { 0 };
            self.enqueue(
                self.now + late,
                Place::Relay(e),
                Packet {
                    header: *copy,
                    ..*packet
                },
            );
        }
        if let Some(mut direct) = verdict.forward {
            if self.defect == Some(Defect::BlockAtCut) && is_overlap {
                direct.sack = self.true_blocks(e, &header.sack);
            }
            let is_ours = self.aborted || self.died_at.is_some() || packet.is_forged;
            if direct.rst && !is_ours {
                self.fail("reset forwarded".into());
            }
            self.send_to_end(
                1 - e,
                Packet {
                    header: direct,
                    ..*packet
                },
            );
        }
        if let Some(header) = verdict.reply {
            self.send_to_end(e, made(header, false));
        }
    }

    /// What a forged segment does to a packet path that believes it.
    fn spoil(&mut self, e: usize, header: &Header) {
        if self.defect == Some(Defect::ForgedNumbers) {
            let directions = &mut self.pair.directions;
            directions[e].seen = later(directions[e].seen, header.end());
            let ack = header.ack.wrapping_sub(directions[1 - e].delta);
            directions[1 - e].end_ack = later(directions[1 - e].end_ack, ack);
        }
        self.pair.reset |= self.defect == Some(Defect::GuessedReset) && header.rst;
    }

    /// The blocks above the cut, as end `1 - e` numbers them, including one that begins there.
    fn true_blocks(&self, e: usize, sack: &[Block; 3]) -> [Block; 3] {
        let acked = &self.pair.directions[1 - e];
        sack.map(|(start, end)| {
            let own = (
                start.wrapping_sub(acked.delta),
                end.wrapping_sub(acked.delta),
            );
            let is_below = own.0.wrapping_sub(acked.cut) >= 1 << 31;
            if is_below || start == end {
                Block::default()
            } else {
                own
            }
        })
    }

    fn fail(&mut self, line: String) {
        let at = self.now;
        self.failure
            .get_or_insert_with(|| format!("{line} at {at} ms"));
    }

    fn enqueue(&mut self, at: u64, place: Place, packet: Packet) {
        self.queue.add(at, Some((place, packet)));
    }

    fn send_to_end(&mut self, e: usize, packet: Packet) {
        if !self.aborted
            && let Err(line) = self.oracles[e].check(&packet.header, self.ends[e].nxt)
        {
            self.fail(format!("end {e}: {line}"));
        }
        let arrivals = self.down[e].arrivals(self.now, &mut self.rng);
        for at in arrivals.into_iter().flatten() {
            self.enqueue(at, Place::End(e), packet);
        }
    }

    fn flush(&mut self) {
        for e in 0..2 {
            self.ends[e].poll(self.now);
            for packet in std::mem::take(&mut self.ends[e].out) {
                let arrivals = self.up[e].arrivals(self.now, &mut self.rng);
                for at in arrivals.into_iter().flatten() {
                    self.enqueue(at, Place::Node(e), packet);
                }
            }
            self.relays[e].poll(self.now);
            for packet in std::mem::take(&mut self.relays[e].out) {
                self.relay_sends(e, packet);
            }
        }
    }

    fn relay_sends(&mut self, e: usize, packet: Packet) {
        let header = packet.header;
        let is_late = matches!(self.pair.phase, Phase::Overlap | Phase::Direct);
        let resets = matches!(
            self.defect,
            Some(Defect::SocketsEndFlows | Defect::EarlyClose)
        );
        let sent = if is_late && header.rst && resets {
            self.fail("reset by a socket".into());
            Some(header)
        } else if self.defect == Some(Defect::FinOfDead) && header.fin {
            let bare = Header {
                fin: false,
                ..header
            };
            self.pair
                .from_relay(e, &bare)
                .map(|h| Header { fin: true, ..h })
        } else if self.defect == Some(Defect::OldAckNumber) {
            let (seq, ts_val) = (header.seq, header.ts_val);
            let sent = self.pair.from_relay(e, &header);
            sent.map(|h| Header { seq, ts_val, ..h })
        } else if self.defect == Some(Defect::AckBehindFin) {
            let data = self.pair.directions[1 - e];
            let last = data.seen.wrapping_add(data.delta);
            let sent = self.pair.from_relay(e, &header);
            // Only those that the rule numbers anew.
            sent.map(|h| match h.seq == header.seq {
                true => h,
                false => Header { seq: last, ..h },
            })
        } else {
            self.pair.from_relay(e, &header)
        };
        if let Some(header) = sent {
            self.send_to_end(e, Packet { header, ..packet });
        }
    }

    fn act(&mut self) {
        for e in 0..2 {
            self.run_application(e);
        }
        if self.now >= self.die_at && self.alive {
            self.die();
        }
        if self.alive {
            self.run_relay();
        }
        if self.now >= self.sweep_at {
            self.sweep();
        }
        if let Some((e, header)) = self.forger.segment(self.now, &self.pair) {
            self.redirect(e, &made(header, true));
        }
    }

    fn run_application(&mut self, e: usize) {
        let (now, tcp) = (self.now, &mut self.ends[e]);
        let application = &mut self.applications[e];
        if !tcp.open {
            return;
        }
        if now >= application.abort_at {
            self.aborted = true;
            application.abort_at = u64::MAX;
            return tcp.abort(now);
        }
        if now >= application.next_write {
            application.next_write = now + application.pause;
            let bytes = application
                .chunk
                .min(application.total - application.written);
            application.written += bytes;
            tcp.write(bytes);
            tcp.consume(now, application.read_rate);
        } else if application.read_rate == u32::MAX {
            tcp.consume(now, u32::MAX);
        }
        let is_turn = !application.is_second || tcp.has_eof();
        if application.written == application.total && is_turn && !application.closed {
            application.closed = true;
            application.was_second = tcp.has_eof();
            tcp.close();
        }
        if application.was_second && tcp.is_acknowledged() {
            tcp.open = false;
        }
    }

    fn run_relay(&mut self) {
        for e in 0..2 {
            self.relay(e);
        }
        if self.now >= self.start_at {
            self.start_at = u64::MAX;
            let patience = 200 + self.rng.below(2500);
            self.pair
                .start(u32::try_from(self.now).expect("short") + patience);
        }
        match self.step() {
            Step::Relay => {}
            Step::ProbeEnds => self.give_up_overlap(),
            Step::GiveUp => self.clamp(u32::MAX),
            Step::Clamp => self.clamp(4 * MSS),
            Step::Drain => self.drain(),
            Step::CloseSilently => self.close_silently(),
        }
    }

    fn relay(&mut self, e: usize) {
        let room = (40 * MSS).saturating_sub(self.relays[1 - e].unsent());
        let bytes = self.relays[e].consume(self.now, room);
        self.relays[1 - e].write(bytes);
        if matches!(self.pair.phase, Phase::Overlap | Phase::Direct) {
            return;
        }
        if self.relays[e].was_reset {
            self.relays[1 - e].abort(self.now);
        } else if self.relays[e].has_eof() && self.relays[e].readable() == 0 {
            self.relays[1 - e].close();
        }
    }

    fn step(&mut self) -> Step {
        let now = u32::try_from(self.now).expect("short");
        let before = self.pair;
        if self.defect == Some(Defect::NoClamp) {
            for direction in &mut self.pair.directions {
                direction.promised = direction.edge;
            }
        }
        let step = self.pair.step(now);
        let is_new = before.phase == Phase::Clamping && step == Step::Drain;
        for (e, direction) in self.pair.directions.iter_mut().enumerate() {
            direction.promised = before.directions[e].promised;
            if self.defect == Some(Defect::CutAtPureAck) && is_new {
                direction.cut = self.highest[e];
            }
            if self.defect == Some(Defect::FrozenSocket) && is_new {
                direction.cut = direction.relay_ack;
            }
        }
        step
    }

    fn clamp(&mut self, bytes: u32) {
        for relay in &mut self.relays {
            relay.clamp = bytes;
        }
    }

    fn drain(&mut self) {
        let since = *self.cut_at.get_or_insert(self.now);
        if since == self.now {
            for e in 0..2 {
                let far = self.relays[1 - e].ts(self.now);
                let delta = far.wrapping_sub(self.ends[e].ts(self.now));
                self.pair.directions[e].ts_delta = delta.wrapping_add(TS_SLACK);
            }
        }
    }

    fn give_up_overlap(&mut self) {
        if !self.aborted {
            self.fail("overlap does not end".into());
        }
        self.start_probing();
    }

    fn start_probing(&mut self) {
        if self.died_at.is_none() {
            self.died_at = Some(self.now);
            self.sweep_at = self.now;
            self.close_relays();
        }
    }

    fn close_silently(&mut self) {
        let grace = if self.defect == Some(Defect::EarlyClose) {
            0
        } else {
            10
        };
        let at = *self.close_at.get_or_insert(self.now + grace);
        if self.now >= at {
            self.close_relays();
        }
    }

    fn close_relays(&mut self) {
        for relay in &mut self.relays {
            relay.open = false;
        }
    }

    fn die(&mut self) {
        self.alive = false;
        match self.pair.phase {
            phase @ (Phase::Relaying | Phase::Clamping) => {
                self.aborted = true;
                for relay in &mut self.relays {
                    relay.abort(self.now);
                }
                if phase == Phase::Clamping && self.defect == Some(Defect::OneReset) {
                    self.died_at = Some(self.now);
                } else if phase == Phase::Clamping {
                    // The sockets' resets leave first.
                    self.died_at = Some(self.now);
                    self.sweep_at = self.now + 100;
                }
            }
            Phase::Overlap if self.defect == Some(Defect::FinOfDead) => {
                for relay in &mut self.relays {
                    relay.close();
                }
            }
            Phase::Overlap => {
                self.pair.process_ended();
                self.start_probing();
            }
            Phase::Direct | Phase::Dead => self.close_relays(),
        }
    }

    fn sweep(&mut self) {
        self.pair.process_ended();
        let since = self.now - self.died_at.unwrap_or(self.now);
        self.sweep_at = if since < 8000 {
            self.now + 250
        } else {
            u64::MAX
        };
        for e in 0..2 {
            let header = self.pair.probe(e);
            self.send_to_end(e, made(header, false));
        }
    }

    fn judge(&mut self) -> Option<String> {
        for e in 0..2 {
            let end = &self.ends[e];
            if end.has_eof() && end.received() < self.applications[1 - e].written {
                return Some(format!("end {e} truncated"));
            }
            let relay = &self.relays[e];
            if end.corrupt || relay.corrupt {
                return Some(format!("bytes of end {e} or its relay are corrupt"));
            }
            let refused = [end, relay].into_iter().find_map(refusal);
            if let (false, Some(line)) = (self.aborted, refused) {
                return Some(format!("end {e} or its relay: {line}"));
            }
            if let Some(line) = self.judge_end(e) {
                return Some(format!("end {e}: {line}"));
            }
        }
        let is_left = self.is_direct() && self.relays.iter().any(|relay| relay.open);
        is_left.then(|| "a socket is left".into())
    }

    fn judge_end(&self, e: usize) -> Option<&'static str> {
        let end = &self.ends[e];
        if self.died_at.is_some() {
            return (!self.is_over()).then_some("stuck after the process ended");
        }
        if self.aborted {
            return None;
        }
        if end.was_reset {
            return Some("reset that no application made");
        }
        let all = self.applications[1 - e].total;
        (end.received() != all || !end.has_eof()).then_some("not finished")
    }
}

fn made(header: Header, is_forged: bool) -> Packet {
    Packet {
        header,
        offset: 0,
        is_forged,
    }
}

/// What a machine refused that no legal peer sends.
fn refusal(tcp: &Tcp) -> Option<&'static str> {
    let counts = [
        (tcp.sack_discards, "SACK beyond snd_nxt"),
        (tcp.reneged, "reneging"),
        (tcp.paws_drops, "dropped by PAWS"),
        (tcp.beyond_window, "beyond the window"),
    ];
    counts.iter().find(|(count, _)| *count > 0).map(|c| c.1)
}
