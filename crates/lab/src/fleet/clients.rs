// SPDX-License-Identifier: Apache-2.0
//! The nodes of a fleet: each follows the controller with the product's own code, and takes its
//! measurements from the synthetic world. One thread plays all, in its namespace.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use posthaste_control::follower::{Action, Event, Follower};
use posthaste_control::identity::PublicKey;
use posthaste_control::message::{Hello, Link, LinkState, NodeNumber, PlanVersion, VERSION};
use posthaste_control::tls;
use rustls::ClientConfig;

use super::stream::{Bytes, Stream};
use super::topology::Topology;
use crate::controller::identity;
use crate::poll::Poll;

/// Interval of the check for timers, in all nodes.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// A played node.
#[derive(Debug)]
pub(super) struct Player {
    pub(super) follower: Follower,
    tls: Arc<ClientConfig>,
    stream: Option<Stream>,
    /// The stream is open, and the follower was informed.
    is_open: bool,
    /// It is silent, and does not return.
    is_dead: bool,
    /// By other node, whether it has measured it.
    measured: Vec<bool>,
    /// Plans that it followed, and when it got its rows of them.
    plans: Vec<(PlanVersion, Instant)>,
    /// When it was first accepted.
    pub(super) joined: Option<Instant>,
    /// Errors of streams that ended unexpectedly.
    pub(super) losses: Vec<String>,
}

/// All nodes.
#[derive(Debug)]
pub(super) struct Clients {
    poll: Poll,
    ready: Vec<usize>,
    address: SocketAddr,
    pub(super) topology: Topology,
    players: Vec<Player>,
    began: Instant,
    looked: Instant,
    pub(super) bytes: Bytes,
}

/// The number of a node, by its index.
pub(super) fn number(place: usize) -> NodeNumber {
    place as NodeNumber + 1
}

/// The index of a node, by its number.
pub(super) fn place(number: NodeNumber) -> usize {
    usize::try_from(number - 1).unwrap_or(usize::MAX)
}

impl Clients {
    /// Nodes that have not joined yet.
    pub(super) fn new(
        topology: Topology,
        controller: PublicKey,
        address: SocketAddr,
        seed: u64,
    ) -> Result<Self> {
        let began = Instant::now();
        let nodes = topology.nodes();
        let player = |place| Player::new(place, nodes, controller, seed);
        Ok(Self {
            poll: Poll::new()?,
            ready: Vec::new(),
            address,
            players: (0..nodes).map(player).collect(),
            topology,
            began,
            looked: began,
            bytes: Bytes::default(),
        })
    }

    /// The nodes that are not dead.
    pub(super) fn living(&self) -> impl Iterator<Item = &Player> {
        self.players.iter().filter(|player| !player.is_dead)
    }

    /// Whether something holds for all of them.
    pub(super) fn all(&self, holds: impl FnMut(&Player) -> bool) -> bool {
        self.living().all(holds)
    }

    /// Plays until a condition holds for all live nodes.
    pub(super) fn run_until(
        &mut self,
        what: &str,
        patience: Duration,
        mut is_so: impl FnMut(&Player) -> bool,
    ) -> Result<()> {
        let deadline = Instant::now() + patience;
        loop {
            let missing = self.living().filter(|player| !is_so(player)).count();
            if missing == 0 {
                return Ok(());
            }
            let late = Instant::now() >= deadline;
            ensure!(!late, "not {what} after {patience:?}: {missing} nodes");
            self.turn()?;
        }
    }

    /// Plays for `time`.
    pub(super) fn run_for(&mut self, time: Duration) -> Result<()> {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.turn()?;
        }
        Ok(())
    }

    /// Waits for network events for a moment, and runs the nodes' actions.
    fn turn(&mut self) -> Result<()> {
        let wait = (self.looked + LOOK_AGAIN).saturating_duration_since(Instant::now());
        let mut ready = std::mem::take(&mut self.ready);
        self.poll.wait(Some(wait), &mut ready)?;
        for &place in &ready {
            self.players[place].receive(self.began, &mut self.bytes);
            self.pump(place)?;
        }
        self.ready = ready;
        if self.looked.elapsed() >= LOOK_AGAIN {
            self.looked = Instant::now();
            // Timers are polled for all at once: a thousand timers of the kernel would cost more.
            (0..self.players.len()).try_for_each(|place| self.pump(place))?;
        }
        Ok(())
    }

    /// Runs the actions of a node.
    fn pump(&mut self, place: usize) -> Result<()> {
        let player = &mut self.players[place];
        while let Some(order) = player.poll_action(self.began) {
            match order {
                Action::Dial => {
                    let stream = Stream::dial(self.address, Arc::clone(&player.tls));
                    let stream = player.kept(stream, self.began);
                    let Some(stream) = stream else { continue };
                    self.poll.add(stream.socket(), place)?;
                    player.stream = Some(stream);
                    // The first TLS message is due now, and no event announces that.
                    player.receive(self.began, &mut self.bytes);
                }
                Action::Send(message) => {
                    let sent = player.stream.as_mut();
                    let sent = sent.map_or(Ok(()), |one| one.send(&message, &mut self.bytes));
                    player.kept(sent, self.began);
                }
                Action::Close(why) => player.lose(why),
                Action::Renew => player.measure(place, &self.topology),
                // Measurements change only by calls of this type; nothing is stored.
                Action::Measure | Action::Save | Action::SetTime(_) => {}
            }
        }
        player.note_events();
        Ok(())
    }

    /// Changes the state of a link, and reports it at both ends.
    pub(super) fn change(&mut self, one: usize, other: usize, state: LinkState) -> Result<()> {
        for (place, to) in [(one, other), (other, one)] {
            let to = number(to);
            self.players[place].follower.on_link(Link { to, state });
            self.pump(place)?;
        }
        Ok(())
    }

    /// Changes the length of a link to the world's, and reports it at both ends.
    pub(super) fn stretch(&mut self, one: usize, other: usize, factor: f64) -> Result<()> {
        self.topology.stretch(one, other, factor);
        self.change(one, other, up(self.topology.rtt_us(one, other)))
    }

    /// A node dies silently, and all others detect it at once.
    pub(super) fn kill(&mut self, dead: usize) -> Result<()> {
        let player = &mut self.players[dead];
        // Silent, without a FIN: the controller must detect it by the reports of others.
        player.is_dead = true;
        player.stream = None;
        for place in (0..self.players.len()).filter(|place| *place != dead) {
            let link = Link {
                to: number(dead),
                state: LinkState::Dead,
            };
            self.players[place].follower.on_link(link);
            self.pump(place)?;
        }
        Ok(())
    }
}

/// A link that is up.
fn up(rtt_us: u32) -> LinkState {
    LinkState::Up {
        rtt_us,
        loss_ppm: None,
        rate: None,
    }
}

impl Player {
    fn new(place: usize, nodes: usize, controller: PublicKey, seed: u64) -> Self {
        let number = number(place);
        let identity = identity(number);
        let [.., high, low] = number.to_be_bytes();
        let hello = Hello {
            version: VERSION,
            number,
            software: "posthaste-lab".into(),
            exchange: identity.exchange_public(),
            listeners: vec![([10, 77, high, low], 4480).into()],
            reflectors: vec![([10, 77, high, low], 862).into()],
            holds: None,
        };
        Self {
            follower: Follower::new(hello, None, seed ^ number, Duration::ZERO),
            tls: Arc::new(tls::client(&identity, controller)),
            stream: None,
            is_open: false,
            is_dead: false,
            measured: vec![false; nodes],
            plans: Vec::new(),
            joined: None,
            losses: Vec::new(),
        }
    }

    /// When it first had rows of this plan or a newer one.
    pub(super) fn followed(&self, plan: PlanVersion) -> Option<Instant> {
        let found = self
            .plans
            .iter()
            .find(|(plan_version, _)| *plan_version >= plan);
        found.map(|(_, when)| *when)
    }

    /// Its plan.
    pub(super) fn holds(&self) -> Option<PlanVersion> {
        self.plans.last().map(|(plan_version, _)| *plan_version)
    }

    fn poll_action(&mut self, began: Instant) -> Option<Action> {
        let now = began.elapsed();
        (!self.is_dead).then(|| self.follower.poll_action(now))?
    }

    /// Handles the stream as far as possible.
    fn receive(&mut self, began: Instant, bytes: &mut Bytes) {
        let Some(stream) = &mut self.stream else {
            return;
        };
        let mut result = stream.advance(bytes);
        if stream.is_open() && !self.is_open {
            self.is_open = true;
            self.follower.on_open(began.elapsed());
        }
        // Messages before the end count.
        while self.is_open {
            match stream.next() {
                Ok(Some(message)) => self.follower.on_message(message, began.elapsed()),
                Ok(None) => break,
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        self.kept(result, began);
    }

    /// The value of a success; on an error the stream is lost.
    fn kept<T>(&mut self, result: Result<T>, began: Instant) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                self.follower.on_closed(began.elapsed());
                self.lose(format!("{error:#}"));
                None
            }
        }
    }

    fn lose(&mut self, why: String) {
        (self.stream, self.is_open) = (None, false);
        self.losses.push(why);
    }

    /// Measures reported nodes that it has not measured yet.
    fn measure(&mut self, place: usize, topology: &Topology) {
        let members = self.follower.members();
        let new: Vec<NodeNumber> = members
            .map(|(member, _)| member.number)
            // A member is reported again in later updates, and its link keeps its changes.
            .filter(|number| !self.measured[self::place(*number)])
            .collect();
        for to in new {
            let other = self::place(to);
            self.measured[other] = true;
            let state = up(topology.rtt_us(place, other));
            self.follower.on_link(Link { to, state });
        }
    }

    fn note_events(&mut self) {
        while let Some(event) = self.follower.next_event() {
            match event {
                Event::Joined => self.joined = self.joined.or_else(|| Some(Instant::now())),
                Event::Follows(plan_version) => self.plans.push((plan_version, Instant::now())),
                Event::Refused(refusal) => self.losses.push(format!("rows refused: {refusal}")),
                Event::Over(_)
                | Event::Again(_)
                | Event::Unwanted(_)
                | Event::GoAway(_)
                | Event::ClockWrong(_)
                | Event::ClockRight => {}
            }
        }
    }
}
