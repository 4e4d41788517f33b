// SPDX-License-Identifier: Apache-2.0
//! Whole chains under many random schedules: a client, three nodes and a server, each flow of a
//! node driven by an [`Opening`].
//!
//! The network is virtual, and so is the clock. It delays, loses (a loss is a delay, since hosts
//! retransmit), repeats and reorders SYNs and SYN-ACKs; links fall silent and come back, so that what
//! has arrived is acknowledged late; nodes die, hang, drain, or lose a peer by a reload; warm hops are gone; SYN options are ignored or rejected; clients are spoofed, reset or
//! close early; servers refuse or are silent. The world checks after every event, and at the end:
//!
//! - every flow ends with one outcome, and none stays open past its deadlines;
//! - no server completes a handshake for a client that is not validated;
//! - every byte of the client reaches one server connection, once and in order; none is lost where
//!   both ends saw the end of the stream;
//! - every half-open entry is released once, and every flow that counted is uncounted;
//! - where nothing goes wrong, the client gets its answer, and nearly always where links only fall
//!   silent for less than a second.

mod messages;
mod network;
mod node;
mod upstream;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::mem::Discriminant;
use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use crate::accept_mode::AcceptMode;
use crate::chain::{NextHop, Path};
use crate::flow::Flow;
use crate::intercept::HalfOpen;
use crate::outcome::Outcome;
use posthaste_testkit::{Rng, Timeline, schedules, simulate};

use super::{Action, Arrival, Opening};
use network::{Conn, Host, Message};
use node::{NodeFlow, Stage};

/// Schedules of a test run; `POSTHASTE_SCHEDULES` sets another number.
const SCHEDULES: u64 = 6_000;
const CONNECT: Duration = Duration::from_secs(6);
const EXPIRY: Duration = Duration::from_secs(4);
/// When the client's SYN arrives.
const BEGIN_MS: u64 = 100_000;
/// Interval of the checks for deadlines.
const TICK_MS: u64 = 250;
/// A relay without a byte ends after this time.
const IDLE_MS: u64 = 30_000;
/// By now every flow has ended: each of three nodes may try three next hops.
const END_MS: u64 = 300_000;
const NODES: usize = 3;
/// The variants of [`Action`].
const ACTION_KINDS: usize = 35;

/// What a server does with a SYN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Server {
    Answers,
    Refuses,
    /// A router answers with an ICMP error.
    IsUnreachable,
    IsSilent,
    /// Is behind a neighbour that does not answer: no SYN leaves the last node.
    IsBeyond,
}

/// The state of a node's host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Health {
    Fine,
    /// It sends nothing and acknowledges nothing.
    IsDead,
    /// Its kernel accepts connections and acknowledges bytes; its process does nothing.
    Hangs,
    /// Its process is gone: its connections are reset.
    HasQuit,
    /// It refuses flows, for want of room.
    Drains,
}

#[derive(Debug)]
enum Event {
    Syn(usize),
    SynAck {
        conn: usize,
        number: u32,
    },
    /// The acknowledgement of a request.
    Acked(usize),
    Opened(usize),
    Rejected(usize),
    Arrive {
        conn: usize,
        up: bool,
        message: Message,
    },
    ClientAccepted(usize),
    Look(usize),
    Progress(usize),
    RestraintOver(usize),
    Fault(usize, Health),
    Reload(usize),
    ClientResets,
    Tick,
}

/// What is drawn once for a schedule.
#[derive(Debug)]
struct Plan {
    mode: AcceptMode,
    is_genuine: bool,
    server: Server,
    /// Whether some SYN-ACKs arrive at a device that is not attached.
    is_unwatched: bool,
    /// Whether nothing goes wrong but the silences of links.
    is_calm: bool,
    /// When the link to each node is silent, in both directions.
    silences: [Vec<Range<u64>>; NODES],
    has_options: bool,
    /// Peers that ignore the option of a SYN, or reject it.
    options_ignored: bool,
    options_rejected: bool,
    is_trial: bool,
    /// Whether the client ends its stream behind the request.
    closes_early: bool,
    request: u32,
    response: u32,
}

struct World {
    rng: Rng,
    plan: Plan,
    now_ms: u64,
    events: Timeline<u64, Event>,
    conns: Vec<Conn>,
    flows: Vec<NodeFlow>,
    health: [Health; NODES],
    /// Peers that a reload has removed, by node.
    reloaded: [bool; NODES],
    /// Half-open entries by node and tuple.
    half_opens: BTreeMap<(usize, Flow), u32>,
    counted: i32,
    /// Whether the client has completed its handshake at the first node.
    is_validated: bool,
    /// Server connections that have got each byte of the client.
    executed: BTreeMap<u32, u32>,
    received: u32,
    has_ended: bool,
    /// The kinds of actions that were carried out.
    actions: Kinds,
}

type Kinds = HashSet<Discriminant<Action>>;

impl World {
    fn new(mut rng: Rng) -> Self {
        let modes: Vec<_> = AcceptMode::all().collect();
        let is_calm = rng.once_in(4);
        let servers = [
            Server::Answers,
            Server::Answers,
            Server::Answers,
            Server::Refuses,
            Server::IsUnreachable,
            Server::IsSilent,
            Server::IsBeyond,
        ];
        let mode = rng.pick(&modes);
        let plan = Plan {
            mode,
            is_genuine: is_calm || !mode.connects_at_syn() || !rng.once_in(5),
            server: if is_calm {
                Server::Answers
            } else {
                rng.pick(&servers)
            },
            is_unwatched: !is_calm && rng.once_in(12),
            is_calm,
            silences: silences(&mut rng),
            has_options: rng.once_in(3),
            options_ignored: rng.once_in(2),
            options_rejected: !is_calm && rng.once_in(3),
            is_trial: !is_calm && mode.holds_syn() && rng.once_in(6),
            closes_early: rng.once_in(3),
            request: 1 + rng.below(4),
            response: rng.below(4),
        };
        Self {
            rng,
            plan,
            now_ms: BEGIN_MS,
            events: Timeline::default(),
            conns: Vec::new(),
            flows: Vec::new(),
            health: [Health::Fine; NODES],
            reloaded: [false; NODES],
            half_opens: BTreeMap::new(),
            counted: 0,
            is_validated: false,
            executed: BTreeMap::new(),
            received: 0,
            has_ended: false,
            actions: Kinds::new(),
        }
    }

    fn now(&self) -> Duration {
        Duration::from_millis(self.now_ms)
    }

    fn after(&mut self, delay_ms: u64, event: Event) {
        self.events.add(self.now_ms + delay_ms, event);
    }

    /// A time for a packet: one way, with a loss now and then.
    fn delay(&mut self) -> u64 {
        let way = 1 + self.rng.below(60);
        if !self.plan.is_calm && self.rng.once_in(12) {
            way + self.rng.pick(&[200, 1000, 3000])
        } else {
            way
        }
    }

    fn run(mut self) -> (End, Kinds) {
        self.begin();
        self.schedule_faults();
        self.after(TICK_MS, Event::Tick);
        while let Some((at, event)) = self.events.pop() {
            self.now_ms = at;
            self.on_event(event);
        }
        self.check_end()
    }

    /// The client's SYN reaches the first node, or in late mode its handshake is complete.
    fn begin(&mut self) {
        let (mode, client) = (self.plan.mode, self.client_flow());
        let next = self.candidates();
        let mut opening = Opening::new(mode, Arrival::Plain, CONNECT, EXPIRY, self.now());
        opening.is_trial = self.plan.is_trial;
        let id = self.add_flow(0, mode, opening);
        self.flows[id].next = next;
        let conn = self.add_conn(Host::Client, Host::Node(0), Some(id));
        self.flows[id].down = Some(conn);
        if mode.connects_at_syn() {
            self.reserve(0, client);
            self.count(id);
            let entry = (client, HalfOpen::default());
            self.flows[id].opening().half_open = Some(entry);
            self.flows[id].holds_syn = true;
            if mode.answers_before_server() {
                self.answer_client(id);
            }
        } else {
            self.accept_client(id);
        }
        self.carry(id, Action::Begin.into());
    }

    fn client_flow(&self) -> Flow {
        flow(1, 4000)
    }

    /// Next hops of the first node: some chains, and perhaps the direct one.
    fn candidates(&mut self) -> Vec<NextHop> {
        let chains = [
            Path::over([node::id(1), node::id(2)]).unwrap(),
            Path::over([node::id(2)]).unwrap(),
            Path::over([node::id(1)]).unwrap(),
        ];
        let count = self.rng.below(4);
        let chains = chains.into_iter().take(count).map(NextHop::Hop);
        let mut next: Vec<_> = chains.collect();
        if next.is_empty() || self.rng.once_in(2) {
            next.push(NextHop::Direct);
        }
        next
    }

    fn schedule_faults(&mut self) {
        if self.plan.is_calm {
            return;
        }
        let healths = [
            Health::IsDead,
            Health::Hangs,
            Health::HasQuit,
            Health::Drains,
            Health::Fine,
        ];
        for node in 0..NODES {
            if self.rng.once_in(3) {
                let at = self.rng.below(4000);
                // The first node's host takes the client's connection with it.
                let health = if node == 0 {
                    Health::Drains
                } else {
                    self.rng.pick(&healths)
                };
                self.after(at, Event::Fault(node, health));
            }
            if self.rng.once_in(10) {
                let at = self.rng.below(3000);
                self.after(at, Event::Reload(node));
            }
        }
        if self.rng.once_in(10) {
            let at = self.rng.below(2000);
            self.after(at, Event::ClientResets);
        }
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::Syn(conn) => self.on_syn(conn),
            Event::SynAck { conn, number } => self.on_syn_ack(conn, number),
            Event::Acked(conn) => self.conns[conn].acked = true,
            Event::Opened(conn) => self.on_opened(conn),
            Event::Rejected(conn) => self.on_rejected(conn),
            Event::Arrive { conn, up, message } => self.on_arrival(conn, up, message),
            Event::ClientAccepted(id) => self.accept_client(id),
            Event::Look(id) => self.look(id),
            Event::Progress(id) => self.send_progress(id),
            Event::RestraintOver(conn) => self.on_restraint_over(conn),
            Event::Fault(node, health) => self.on_fault(node, health),
            Event::Reload(node) => self.reloaded[node] = true,
            Event::ClientResets => {
                if self.is_validated {
                    self.send(0, true, Message::Reset);
                }
            }
            Event::Tick => self.tick(),
        }
        self.check();
    }

    fn tick(&mut self) {
        for id in 0..self.flows.len() {
            self.on_time(id);
        }
        // A late SYN may begin another flow.
        let is_over = self.events.first().is_none() && self.flows.iter().all(NodeFlow::has_ended);
        if !is_over {
            assert!(self.now_ms < BEGIN_MS + END_MS, "a flow never ends");
            self.after(TICK_MS, Event::Tick);
        }
    }

    /// The kernel of the first node answers the client's SYN.
    fn answer_client(&mut self, id: usize) {
        if self.plan.is_genuine {
            let delay = self.delay() + self.delay();
            self.after(delay, Event::ClientAccepted(id));
        }
    }

    fn accept_client(&mut self, id: usize) {
        if self.flows[id].has_ended() {
            return;
        }
        self.is_validated = true;
        self.conns[0].is_open = true;
        if self.plan.mode.connects_at_syn() {
            self.validate(id);
        }
        for number in 0..self.plan.request {
            self.send(0, true, Message::Byte(number));
        }
        if self.plan.closes_early {
            self.send(0, true, Message::Fin);
        }
    }

    fn reserve(&mut self, node: usize, flow: Flow) {
        *self.half_opens.entry((node, flow)).or_insert(0) += 1;
        assert_eq!(self.half_opens[&(node, flow)], 1, "reserved twice");
    }

    fn release(&mut self, node: usize, flow: Flow) {
        let released = self.half_opens.remove(&(node, flow));
        assert!(released.is_some(), "released, and not reserved");
    }

    fn check(&self) {
        let is_early = self
            .conns
            .iter()
            .any(|conn| conn.hosts[1] == Host::Server && conn.is_open && !self.is_validated);
        assert!(
            !is_early || self.plan.is_unwatched,
            "a server handshake for an unvalidated client"
        );
        assert!(
            self.executed.values().all(|times| *times <= 1),
            "a byte is executed twice: {:?}",
            self.executed
        );
    }

    fn check_end(self) -> (End, Kinds) {
        for flow in &self.flows {
            assert!(flow.has_ended(), "a flow stays open");
        }
        assert!(self.half_opens.is_empty(), "{:?}", self.half_opens);
        assert_eq!(self.counted, 0, "a flow still counts");
        let Stage::Ended(outcome) = self.flows[0].stage else {
            unreachable!("it has ended");
        };
        let executed = self.executed.len();
        if outcome == Outcome::Finished {
            assert_eq!(executed, self.plan.request as usize, "lost bytes");
            assert_eq!(self.received, self.plan.response, "lost answer");
        }
        let is_silent = self
            .plan
            .silences
            .iter()
            .any(|silences| !silences.is_empty());
        if self.plan.is_calm && !is_silent {
            assert_eq!(outcome, Outcome::Finished, "nothing went wrong");
        }
        let end = End {
            only_silences: self.plan.is_calm && is_silent,
            mode: self.plan.mode.name(),
            has_finished: outcome == Outcome::Finished,
            has_hops: self.flows.len() > 1,
        };
        (end, self.actions)
    }
}

/// When links are silent, and whether any is.
fn silences(rng: &mut Rng) -> [Vec<Range<u64>>; NODES] {
    if !rng.once_in(3) {
        return Default::default();
    }
    std::array::from_fn(|_| {
        let mut from = BEGIN_MS;
        let silences = (0..rng.below(4)).map(|_| {
            from += rng.below(1500);
            let silence = from..from + 100 + rng.below(800);
            from = silence.end;
            silence
        });
        silences.collect()
    })
}

fn flow(host: u8, port: u16) -> Flow {
    Flow::new(
        SocketAddr::from(([192, 0, 2, host], port)),
        SocketAddr::from(([198, 51, 100, 1], 80)),
    )
}

/// How the client's flow ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct End {
    mode: &'static str,
    has_finished: bool,
    /// Whether a second node had a part in it.
    has_hops: bool,
    /// Whether nothing went wrong but silences of links.
    only_silences: bool,
}

// promise: D1
#[test]
fn random_chains() {
    let (mut ends, mut actions) = (HashMap::new(), Kinds::new());
    let count = schedules(SCHEDULES);
    simulate(count, |rng| {
        let (end, kinds) = World::new(rng).run();
        *ends.entry(end).or_insert(0) += 1;
        actions.extend(kinds);
    });
    if count < SCHEDULES {
        return;
    }
    assert_eq!(actions.len(), ACTION_KINDS, "some were never carried out");
    for mode in AcceptMode::all() {
        for (has_finished, has_hops) in [(false, false), (false, true), (true, false), (true, true)]
        {
            let mode = mode.name();
            let is_such = |end: &&End| {
                (end.mode, end.has_finished, end.has_hops) == (mode, has_finished, has_hops)
            };
            let seen: u64 = sum(&ends, is_such);
            assert!(seen > count / 200, "{ends:?}");
        }
    }
    let silent = sum(&ends, |end| end.only_silences);
    let finished = sum(&ends, |end| end.only_silences && end.has_finished);
    assert!(finished * 100 > silent * 98, "{finished} of {silent}");
}

/// How many ends are such ones.
fn sum(ends: &HashMap<End, u64>, is_such: impl Fn(&&End) -> bool) -> u64 {
    let such = ends.iter().filter(|(end, _)| is_such(end));
    such.map(|(_, count)| count).sum()
}
