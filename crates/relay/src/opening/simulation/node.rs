// SPDX-License-Identifier: Apache-2.0
//! A node of the simulation: carries out the actions of its flows, as the worker does.

use std::time::Duration;

use posthaste_wire::header::NodeId;
use posthaste_wire::hop::Reply;

use crate::accept_mode::AcceptMode;
use crate::chain::{NextHop, Path};
use crate::opening::silence::{self, Seen, first_look};
use crate::opening::{Action, Actions, Arrival, Hops, Joined, Opening, reply_of};
use crate::outcome::Outcome;

use super::network::Message;
use super::{CONNECT, EXPIRY, Event, Health, IDLE_MS, Server, World};

/// When a restrained socket gives up.
const RESTRAINED_MS: u64 = 2500;

pub(super) fn id(node: usize) -> NodeId {
    NodeId::new(node as u64 + 1).expect("from 1 on")
}

#[derive(Debug)]
pub(super) enum Stage {
    Opening(Box<Opening>),
    Joined,
    Ended(Outcome),
}

#[derive(Debug)]
pub(super) struct NodeFlow {
    pub(super) node: usize,
    pub(super) mode: AcceptMode,
    pub(super) arrival: Arrival,
    pub(super) stage: Stage,
    /// The policy's next hops.
    pub(super) next: Vec<NextHop>,
    pub(super) down: Option<usize>,
    pub(super) up: Option<usize>,
    pub(super) holds_syn: bool,
    pub(super) owes_reply: bool,
    pub(super) via: Option<Path>,
    pub(super) request: Option<Message>,
    pub(super) expects_reply: bool,
    pub(super) works: bool,
    pub(super) waits_since: Option<Duration>,
    /// The bytes that it has sent to a next node without a reply, and the hops that are left.
    pub(super) fallback: Option<(Hops, Vec<u32>)>,
    /// The bytes to send again.
    pub(super) kept: Option<Vec<u32>>,
    pub(super) failed: Option<Reply>,
    /// The hop was open before, and the peer has closed it without a reply.
    pub(super) is_warm: bool,
    pub(super) is_closed: bool,
    pub(super) fins: [bool; 2],
    pub(super) has_lost_client: bool,
    pub(super) active_ms: u64,
}

impl NodeFlow {
    pub(super) fn has_ended(&self) -> bool {
        matches!(self.stage, Stage::Ended(_))
    }

    pub(super) fn opening(&mut self) -> &mut Opening {
        match &mut self.stage {
            Stage::Opening(opening) => opening,
            stage => panic!("not opening: {stage:?}"),
        }
    }

    pub(super) fn is_opening(&self) -> bool {
        matches!(self.stage, Stage::Opening(_))
    }

    pub(super) fn forget_hop(&mut self) {
        (self.up, self.via, self.request) = (None, None, None);
        (self.expects_reply, self.works) = (false, false);
        (self.waits_since, self.failed) = (None, None);
        (self.is_warm, self.is_closed) = (false, false);
    }
}

impl World {
    pub(super) fn add_flow(&mut self, node: usize, mode: AcceptMode, opening: Opening) -> usize {
        self.flows.push(NodeFlow {
            node,
            mode,
            arrival: opening.arrival,
            stage: Stage::Opening(Box::new(opening)),
            next: Vec::new(),
            down: None,
            up: None,
            holds_syn: false,
            owes_reply: false,
            via: None,
            request: None,
            expects_reply: false,
            works: false,
            waits_since: None,
            fallback: None,
            kept: None,
            failed: None,
            is_warm: false,
            is_closed: false,
            fins: [false; 2],
            has_lost_client: false,
            active_ms: self.now_ms,
        });
        self.flows.len() - 1
    }

    pub(super) fn count(&mut self, id: usize) {
        self.counted += 1;
        self.flows[id].opening().counted = Some([1; 8]);
    }

    pub(super) fn drive(
        &mut self,
        id: usize,
        event: impl FnOnce(&mut Opening, Duration) -> Actions,
    ) {
        let now = self.now();
        if let Stage::Opening(opening) = &mut self.flows[id].stage {
            let actions = event(opening, now);
            self.carry(id, actions);
        }
    }

    pub(super) fn carry(&mut self, id: usize, actions: Actions) {
        for action in actions {
            if self.flows[id].has_ended() {
                return;
            }
            self.act(id, action);
        }
    }

    fn act(&mut self, id: usize, action: Action) {
        self.actions.insert(std::mem::discriminant(&action));
        match action {
            Action::Begin => self.begin_upstream(id),
            Action::Try => self.try_next(id),
            Action::Close => self.close_upstream(id),
            Action::LetIn(frame) => self.let_in(id, &frame),
            Action::Admit => {
                assert!(self.flows[id].holds_syn, "nothing is held");
                self.answer_client(id);
            }
            Action::Answer => self.answer(id, Reply::Connected),
            Action::SendValidated => self.send_up(id, Message::Validated),
            Action::Join => self.join(id),
            Action::Release => self.release_all(id),
            Action::ReleaseUpstream => {
                let upstream = self.flows[id].opening().upstream_half_open.take();
                if let Some((tuple, _)) = upstream {
                    self.release(self.flows[id].node, tuple);
                }
            }
            Action::Restrain => {
                if let Some(conn) = self.flows[id].up {
                    self.after(RESTRAINED_MS, Event::RestraintOver(conn));
                }
            }
            Action::GiveUp { unsent: true } => self.fail(id, Outcome::UpstreamUnreachable),
            Action::GiveUp { unsent: false } => self.fail(id, Outcome::ConnectTimeout),
            Action::ResetClient | Action::SendUnreachable(_) => {
                assert!(self.flows[id].holds_syn, "nothing to answer");
            }
            Action::PassOn | Action::PassLater => self.pass_on(id),
            Action::AwaitReply => {
                let now = self.now();
                self.flows[id].waits_since = Some(now);
                self.look_at(id, first_look(now));
            }
            Action::LookAt(due) => self.look_at(id, due),
            Action::Leave => self.leave(id),
            Action::Redial => self.redial(id),
            Action::Reroute { repeat, outcome } => {
                if !self.reroute(id, repeat) {
                    self.refuse(id, outcome);
                }
            }
            Action::Refuse(outcome, _) => self.refuse(id, outcome),
            Action::End(outcome) => self.end(id, outcome),
            Action::CheckTrial => {
                let answered = !self.rng.once_in(3);
                self.drive(id, |opening, now| opening.on_trial_checked(answered, now));
            }
            // They change records only.
            Action::ResetServer(_)
            | Action::KeepError(_)
            | Action::Report(_)
            | Action::HopFailed
            | Action::SynOptionIgnored(_)
            | Action::UplinkSilent
            | Action::Unanswered
            | Action::Failed(..)
            | Action::TrialWorked
            | Action::TrialFailed(_)
            | Action::TrialUndelivered => {}
        }
    }

    pub(super) fn answer(&mut self, id: usize, reply: Reply) {
        let owed = std::mem::take(&mut self.flows[id].owes_reply);
        assert!(owed, "no requester waits for {reply:?}");
        self.send_down(id, Message::Reply(reply));
    }

    pub(super) fn release_all(&mut self, id: usize) {
        let node = self.flows[id].node;
        let opening = self.flows[id].opening();
        let entries = [opening.half_open.take(), opening.upstream_half_open.take()];
        let counted = opening.counted.take();
        for (tuple, _) in entries.into_iter().flatten() {
            self.release(node, tuple);
        }
        self.counted -= i32::from(counted.is_some());
    }

    /// The client's SYN is forwarded: its entry is left to expire.
    fn pass_on(&mut self, id: usize) {
        let node = self.flows[id].node;
        if let Some((tuple, _)) = self.flows[id].opening().half_open.take() {
            self.release(node, tuple);
        }
    }

    pub(super) fn validate(&mut self, id: usize) {
        if self.flows[id].is_opening() {
            self.flows[id].opening().take_restraint();
            self.drive(id, |opening, _| opening.on_validated());
        }
    }

    pub(super) fn join(&mut self, id: usize) {
        let up = self.flows[id].up.expect("a server or a node");
        assert!(self.conns[up].is_open, "no upstream connection to join");
        let down = self.flows[id].down.expect("a client or a node");
        assert!(self.conns[down].is_open, "no client to join");
        let opening = self.flows[id].opening();
        assert!(opening.is_validated(), "joined unvalidated");
        assert!(opening.half_open.is_none(), "entry kept");
        let hops = std::mem::take(&mut opening.hops);
        let (kept, expects) = (self.flows[id].kept.take(), self.flows[id].expects_reply);
        if self.flows[id].owes_reply && !expects {
            self.answer(id, Reply::Connected);
        }
        self.flows[id].stage = Stage::Joined;
        self.flows[id].active_ms = self.now_ms;
        let kept = kept.unwrap_or_default();
        for number in kept.clone() {
            self.send_up(id, Message::Byte(number));
        }
        if self.flows[id].fins[0] {
            self.send_up(id, Message::Fin);
        }
        if expects && (hops.lead_on(true) || self.flows[id].is_warm) {
            self.flows[id].fallback = Some((hops, kept));
        }
        self.pump(id);
    }

    pub(super) fn conclude(&mut self, id: usize, outcome: Outcome) {
        let of = &self.flows[id];
        let Some(via) = of.via else {
            return self.end(id, outcome);
        };
        let joined = Joined {
            via,
            origin: of.arrival.origin(),
            is_awaited: of.expects_reply,
            failed: of.failed,
            is_undelivered: of.failed.is_some(),
            is_closed_hop: of.is_closed && of.is_warm,
            is_abandoned: of.has_lost_client,
        };
        self.carry(id, joined.on_end(outcome));
    }

    fn reroute(&mut self, id: usize, repeat: bool) -> bool {
        let fallback = self.flows[id]
            .fallback
            .take_if(|(hops, _)| hops.lead_on(repeat));
        let Some((hops, kept)) = fallback else {
            return false;
        };
        self.close_upstream(id);
        let (mode, arrival) = (self.flows[id].mode, self.flows[id].arrival);
        let opening = Opening::new(mode, arrival, CONNECT, EXPIRY, self.now()).again(hops);
        self.flows[id].stage = Stage::Opening(Box::new(opening));
        self.flows[id].kept = Some(kept);
        self.carry(id, Action::Try.into());
        true
    }

    fn redial(&mut self, id: usize) {
        let via = self.flows[id].via.expect("a hop that was closed");
        if let Some((hops, _)) = &mut self.flows[id].fallback {
            hops.retry_cold(NextHop::Hop(via), false);
        }
        if !self.reroute(id, false) {
            self.refuse(id, Outcome::HopFailed);
        }
    }

    fn leave(&mut self, id: usize) {
        if self.flows[id].is_opening() {
            self.drive(id, |opening, _| opening.on_hop_silent());
        } else if !self.reroute(id, false) {
            self.refuse(id, Outcome::HopFailed);
        }
    }

    fn refuse(&mut self, id: usize, outcome: Outcome) {
        if self.flows[id].owes_reply {
            let failed = self.flows[id].failed;
            self.answer(id, failed.unwrap_or_else(|| reply_of(outcome)));
            let down = self.flows[id].down.take().expect("a requester");
            self.close(down, false, false);
        }
        self.end(id, outcome);
    }

    pub(super) fn end(&mut self, id: usize, outcome: Outcome) {
        assert!(!self.flows[id].has_ended(), "it ends twice");
        if self.flows[id].is_opening() {
            self.release_all(id);
        }
        self.flows[id].stage = Stage::Ended(outcome);
        if outcome != Outcome::Finished {
            self.reset_both(id);
        }
    }

    fn reset_both(&mut self, id: usize) {
        if let Some(up) = self.flows[id].up.take() {
            self.close(up, true, true);
        }
        if let Some(down) = self.flows[id].down.take() {
            self.close(down, false, true);
        }
    }

    pub(super) fn look_at(&mut self, id: usize, due: Duration) {
        let delay = due.saturating_sub(self.now()).as_millis();
        self.after(u64::try_from(delay).expect("short"), Event::Look(id));
    }

    pub(super) fn look(&mut self, id: usize) {
        let now = self.now();
        if let Stage::Opening(opening) = &mut self.flows[id].stage
            && opening.is_hop_late(now)
        {
            return self.drive(id, |opening, _| opening.on_hop_late());
        }
        if let Some((via, since, seen)) = self.seen_of(id) {
            let actions = silence::on_look(via, since, now, seen);
            self.carry(id, actions);
        }
    }

    fn seen_of(&self, id: usize) -> Option<(Path, Duration, Seen)> {
        let of = &self.flows[id];
        let hops_left = match &of.stage {
            Stage::Opening(opening) => !opening.hops.is_empty(),
            Stage::Joined => of
                .fallback
                .as_ref()
                .is_some_and(|(hops, _)| hops.lead_on(false)),
            Stage::Ended(_) => return None,
        };
        let conn = &self.conns[of.up.filter(|_| of.expects_reply)?];
        let seen = Seen {
            acked: conn.acked,
            sent: conn.has_bytes,
            works: of.works,
            round: Some(Duration::from_millis(100)),
            movable: hops_left || of.arrival != Arrival::Plain,
            in_vain: None,
        };
        Some((of.via?, of.waits_since?, seen))
    }

    /// Checks the deadline of a flow.
    pub(super) fn on_time(&mut self, id: usize) {
        let now = self.now();
        match &mut self.flows[id].stage {
            Stage::Ended(_) => {}
            Stage::Joined => {
                if self.now_ms > self.flows[id].active_ms + IDLE_MS {
                    self.end(id, Outcome::IdleTimeout);
                }
            }
            Stage::Opening(opening) if opening.deadline() > now => {}
            Stage::Opening(opening) => {
                let is_direct = !opening.is_hopping() && self.flows[id].up.is_some();
                let unsent = is_direct && self.plan.server == Server::IsBeyond;
                self.drive(id, |opening, now| opening.on_time(unsent, now));
                if let Stage::Opening(opening) = &self.flows[id].stage {
                    // A SYN that has not left is restrained when it has.
                    assert!(unsent || opening.deadline() > now, "a deadline is over");
                }
            }
        }
    }

    pub(super) fn on_fault(&mut self, node: usize, health: Health) {
        self.health[node] = health;
        for id in 0..self.flows.len() {
            if self.flows[id].node != node || self.flows[id].has_ended() {
                continue;
            }
            match health {
                Health::Fine => {}
                Health::Drains => self.drive(id, |opening, _| opening.on_drain()),
                Health::HasQuit => self.end(id, Outcome::Killed),
                Health::IsDead | Health::Hangs => {
                    if self.flows[id].is_opening() {
                        self.release_all(id);
                    }
                    self.flows[id].stage = Stage::Ended(Outcome::Killed);
                }
            }
        }
    }
}
