// SPDX-License-Identifier: Apache-2.0
//! A node of the simulation: carries out the actions of its flows, as the worker does.

use std::time::Duration;

use posthaste_wire::header::NodeId;
use posthaste_wire::hop::{Icmp, Reply};
use posthaste_wire::segments::Segment;

use crate::accept_mode::AcceptMode;
use crate::chain::{NextHop, Path};
use crate::frame::Frame;
use crate::intercept::HalfOpen;
use crate::opening::silence::{self, Seen, WORKING_AFTER, first_look};
use crate::opening::{Action, Actions, Arrival, Blame, Hops, Joined, Opening, Sent, Try, reply_of};
use crate::outcome::Outcome;

use super::network::{Host, Message};
use super::{CONNECT, EXPIRY, Event, Health, IDLE_MS, Server, World, flow};

/// What the server of a trial may take.
const PATIENCE: Duration = Duration::from_millis(300);
/// When a restrained socket gives up.
const RESTRAINED_MS: u64 = 2500;

pub(super) fn id(node: usize) -> NodeId {
    NodeId::new(node as u64 + 1).expect("from 1 on")
}

/// The next hops of a request.
fn hops_of(path: Path) -> Hops {
    let next = match path.rest.split_first() {
        Some((Segment::Node(peer), rest)) => NextHop::Hop(Path { peer, rest }),
        _ => NextHop::Direct,
    };
    Hops::new(vec![next], None)
}

#[derive(Debug)]
pub(super) enum Stage {
    Opening(Box<Opening>),
    Joined,
    Ended(Outcome),
}

#[derive(Debug)]
pub(super) struct NodeFlow {
    node: usize,
    mode: AcceptMode,
    arrival: Arrival,
    pub(super) stage: Stage,
    /// The policy's next hops.
    pub(super) next: Vec<NextHop>,
    pub(super) down: Option<usize>,
    up: Option<usize>,
    pub(super) holds_syn: bool,
    owes_reply: bool,
    via: Option<Path>,
    request: Option<Message>,
    expects_reply: bool,
    works: bool,
    waits_since: Option<Duration>,
    /// The bytes that it has sent to a next node without a reply, and the hops that are left.
    fallback: Option<(Hops, Vec<u32>)>,
    /// The bytes to send again.
    kept: Option<Vec<u32>>,
    failed: Option<Reply>,
    fins: [bool; 2],
    has_lost_client: bool,
    active_ms: u64,
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

    fn is_opening(&self) -> bool {
        matches!(self.stage, Stage::Opening(_))
    }

    fn forget_hop(&mut self) {
        (self.up, self.via, self.request) = (None, None, None);
        (self.expects_reply, self.works) = (false, false);
        (self.waits_since, self.failed) = (None, None);
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

    fn drive(&mut self, id: usize, event: impl FnOnce(&mut Opening, Duration) -> Actions) {
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
            | Action::Unanswered
            | Action::Failed(..)
            | Action::TrialWorked
            | Action::TrialFailed(_)
            | Action::TrialUndelivered => {}
        }
    }

    fn begin_upstream(&mut self, id: usize) {
        let hops = Hops::new(self.flows[id].next.clone(), None);
        self.drive(id, |opening, now| {
            let patience = if opening.is_trial {
                PATIENCE
            } else {
                Duration::MAX
            };
            opening.on_begin(hops, patience, now)
        });
    }

    fn try_next(&mut self, flow: usize) {
        let down = id(self.rng.below(2 * super::NODES));
        let now = self.now();
        let is_up = |next: &NextHop| !matches!(next, NextHop::Hop(path) if path.peer == down);
        match self.flows[flow].opening().next_hop(is_up, now) {
            None => self.drive(flow, |opening, _| opening.on_exhausted()),
            Some(order) => match order.hop {
                NextHop::Direct => self.open_direct(flow),
                NextHop::Hop(via) => self.open_hop(flow, via, order),
            },
        }
    }

    fn open_direct(&mut self, id: usize) {
        let node = self.flows[id].node;
        let keeps = self.flows[id].arrival == Arrival::Plain && self.plan.request.is_multiple_of(2);
        let port = 5000 + u16::try_from(self.conns.len()).expect("few");
        let tuple = if keeps {
            self.client_flow()
        } else {
            flow(10 + u8::try_from(node).expect("few"), port)
        };
        if self.flows[id].opening().needs_half_open(&tuple) {
            // The budget has no room.
            if self.rng.once_in(10) {
                if self.flows[id].opening().put_off() {
                    return;
                }
                if !self.plan.is_calm {
                    return self.drive(id, |opening, _| {
                        opening.on_failed(Outcome::Internal, None, Blame::Us)
                    });
                }
            }
            self.reserve(node, tuple);
            let entry = (tuple, HalfOpen::default());
            let upstream = &mut self.flows[id].opening().upstream_half_open;
            let former = upstream.replace(entry);
            if let Some((former, _)) = former {
                self.release(node, former);
            }
        }
        let conn = self.add_conn(Host::Node(node), Host::Server, Some(id));
        self.conns[conn].tuple = Some(tuple);
        self.flows[id].up = Some(conn);
        self.dial(conn);
    }

    fn open_hop(&mut self, flow: usize, via: Path, order: Try) {
        let node = self.flows[flow].node;
        if self.reloaded[node] {
            return self.drive(flow, |opening, _| opening.on_hop_unopened(None));
        }
        let peer = (0..super::NODES)
            .find(|node| id(*node) == via.peer)
            .expect("a node");
        let conn = self.add_conn(Host::Node(node), Host::Node(peer), Some(flow));
        self.conns[conn].path = Some(via);
        let validated = self.flows[flow].opening().is_validated();
        let request = Message::Request {
            path: via,
            validated,
        };
        let sent = if !order.cold && self.rng.once_in(2) {
            self.conns[conn].is_open = true;
            if !self.plan.is_calm && self.rng.once_in(4) {
                // The peer closed the hop, and the reset is under way.
                self.send(conn, false, Message::Reset);
            } else {
                self.send(conn, true, request);
            }
            Sent::Warm
        } else {
            self.conns[conn].has_option = self.plan.has_options && !order.without_syn_option;
            self.flows[flow].request = Some(request);
            self.dial(conn);
            if self.conns[conn].has_option {
                Sent::SynOption
            } else {
                Sent::Cold
            }
        };
        let of = &mut self.flows[flow];
        (of.up, of.via, of.expects_reply) = (Some(conn), Some(via), true);
        self.drive(flow, |opening, now| {
            opening.on_hop_opened(via, order, sent, now)
        });
    }

    /// The dialing flow of a connection, if it still uses it and is opening.
    fn dialer(&self, conn: usize) -> Option<usize> {
        let flow = self.conns[conn].flows[0]?;
        let is_used = self.flows[flow].up == Some(conn) && self.flows[flow].is_opening();
        (is_used && !self.conns[conn].is_closed).then_some(flow)
    }

    pub(super) fn on_opened(&mut self, conn: usize) {
        let Some(flow) = self.dialer(conn).filter(|_| !self.conns[conn].is_open) else {
            return;
        };
        self.conns[conn].is_open = true;
        if self.conns[conn].hosts[1] == Host::Server {
            return self.drive(flow, Opening::on_connected);
        }
        if let Some(request) = self.flows[flow].request.take() {
            self.send_up(flow, request);
        }
        self.drive(flow, |opening, _| opening.on_hop_accepted());
        self.pump(flow);
    }

    pub(super) fn on_rejected(&mut self, conn: usize) {
        let Some(flow) = self.dialer(conn).filter(|_| !self.conns[conn].is_open) else {
            return;
        };
        if self.conns[conn].hosts[1] == Host::Server {
            match self.plan.server {
                Server::IsUnreachable => self.fail(flow, Outcome::UpstreamUnreachable),
                _ => self.fail(flow, Outcome::UpstreamRefused),
            }
        } else {
            self.drive(flow, |opening, _| opening.on_hop_unaccepted(true));
        }
    }

    pub(super) fn on_syn_ack(&mut self, conn: usize, number: u32) {
        let Some(flow) = self.dialer(conn).filter(|_| !self.conns[conn].is_open) else {
            return;
        };
        let tuple = self.conns[conn].tuple.expect("a server's");
        let has_entry = self
            .half_opens
            .contains_key(&(self.flows[flow].node, tuple));
        if has_entry && !(self.plan.is_unwatched && self.rng.once_in(2)) {
            let frame = Frame::captured(number, 14, &[]);
            self.drive(flow, |opening, now| opening.on_syn_ack(frame, now));
        } else {
            self.on_opened(conn);
        }
    }

    fn let_in(&mut self, id: usize, frame: &Frame) {
        let conn = self.flows[id].up.expect("its server has answered");
        assert!(self.flows[id].opening().is_validated(), "let in too early");
        let tuple = self.conns[conn].tuple.expect("a server's");
        let node = self.flows[id].node;
        let has_entry = self.half_opens.contains_key(&(node, tuple));
        assert!(!has_entry, "it would be captured again");
        let let_in = &mut self.conns[conn].let_in;
        assert!(!let_in.contains(&frame.ifindex), "let in twice");
        let_in.push(frame.ifindex);
        self.after(0, Event::Opened(conn));
    }

    fn fail(&mut self, id: usize, outcome: Outcome) {
        self.close_upstream(id);
        let icmp = Icmp {
            kind: 3,
            code: 1,
            offender: Some([192, 0, 2, 254].into()),
        };
        let is_by_router = self.plan.server == Server::IsUnreachable;
        let error = is_by_router.then_some(icmp);
        self.drive(id, |opening, _| {
            opening.on_failed(outcome, error, Blame::Them)
        });
    }

    pub(super) fn on_restraint_over(&mut self, conn: usize) {
        let Some(flow) = self.dialer(conn).filter(|_| !self.conns[conn].is_open) else {
            return;
        };
        if self.flows[flow].opening().is_closed_by_restraint() {
            self.drive(flow, |opening, _| opening.withdraw());
        } else if !self.flows[flow].opening().is_validated() {
            self.fail(flow, Outcome::ConnectTimeout);
        }
    }

    fn close_upstream(&mut self, id: usize) {
        if let Some(conn) = self.flows[id].up {
            self.close(conn, true, true);
        }
        self.flows[id].forget_hop();
    }

    fn send_up(&mut self, id: usize, message: Message) {
        let conn = self.flows[id].up.expect("an upstream connection");
        assert!(self.conns[conn].is_open, "{message:?} without a handshake");
        self.send(conn, true, message);
    }

    fn send_down(&mut self, id: usize, message: Message) {
        let conn = self.flows[id].down.expect("a downstream connection");
        self.send(conn, false, message);
    }

    fn answer(&mut self, id: usize, reply: Reply) {
        let owed = std::mem::take(&mut self.flows[id].owes_reply);
        assert!(owed, "no requester waits for {reply:?}");
        self.send_down(id, Message::Reply(reply));
    }

    fn release_all(&mut self, id: usize) {
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

    /// The SYN of a hop announces a flow.
    pub(super) fn on_announcement(&mut self, conn: usize, node: usize) {
        if self.plan.options_ignored {
            return;
        }
        let tuple = flow(
            100 + u8::try_from(node).expect("few"),
            u16::try_from(conn).expect("few"),
        );
        let former = self.conns[conn].announced;
        match former.filter(|former| self.flows[*former].is_opening()) {
            // The entry belongs to the later SYN.
            Some(former) => self.drive(former, |opening, _| opening.on_new_syn(&tuple)),
            None => self.reserve(node, tuple),
        }
        let path = self.conns[conn].path.expect("a hop's");
        let mode = AcceptMode::STRICT;
        let opening = Opening::new(mode, Arrival::SynOption, CONNECT, EXPIRY, self.now());
        let id = self.add_flow(node, mode, opening.with_hops(hops_of(path)));
        self.flows[id].opening().half_open = Some((tuple, HalfOpen::default()));
        self.count(id);
        self.conns[conn].announced = Some(id);
        self.carry(id, Action::Try.into());
    }

    /// The first message of a connection that has no flow.
    pub(super) fn on_first_message(&mut self, conn: usize, node: usize) {
        let message = self.conns[conn].inbox[0].pop_front();
        let announced = self.conns[conn].announced;
        let announced = announced.filter(|id| self.flows[*id].is_opening());
        let Some(Message::Request { path, validated }) = message else {
            if let Some(id) = announced {
                self.end(id, Outcome::ClientAbsent);
            }
            return;
        };
        if self.health[node] == Health::Drains {
            if let Some(id) = announced {
                self.end(id, Outcome::ClientAbsent);
            }
            self.send(conn, false, Message::Reply(Reply::Overloaded));
            return self.close(conn, false, false);
        }
        let mode = if validated {
            AcceptMode::LATE
        } else {
            AcceptMode::STRICT
        };
        let id = announced.unwrap_or_else(|| {
            let opening = Opening::new(mode, Arrival::Peer, CONNECT, EXPIRY, self.now());
            let id = self.add_flow(node, mode, opening.with_hops(hops_of(path)));
            if !validated {
                self.count(id);
            }
            id
        });
        self.conns[conn].flows[1] = Some(id);
        let of = &mut self.flows[id];
        (of.down, of.owes_reply, of.arrival) = (Some(conn), true, Arrival::Peer);
        let working = u64::try_from(WORKING_AFTER.as_millis()).expect("short");
        self.after(working, Event::Progress(id));
        if announced.is_none() {
            return self.carry(id, Action::Try.into());
        }
        if let Some((tuple, _)) = self.flows[id].opening().half_open.take() {
            self.release(node, tuple);
        }
        if validated {
            self.flows[id].mode = mode;
            self.flows[id].opening().take_restraint();
        }
        self.drive(id, |opening, now| {
            opening.on_request(Arrival::Peer, validated, hops_of(path), now)
        });
    }

    pub(super) fn send_progress(&mut self, id: usize) {
        if self.flows[id].owes_reply && !self.flows[id].has_ended() {
            self.send_down(id, Message::Working);
        }
    }

    fn join(&mut self, id: usize) {
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
        if expects && hops.lead_on(true) {
            self.flows[id].fallback = Some((hops, kept));
        }
        self.pump(id);
    }

    /// Reads what has arrived for a flow.
    pub(super) fn pump(&mut self, id: usize) {
        loop {
            self.flows[id].active_ms = self.now_ms;
            let read = match self.flows[id].stage {
                Stage::Opening(_) => self.read_opening(id),
                Stage::Joined => self.read_up(id) || self.read_down(id),
                Stage::Ended(_) => false,
            };
            if !read {
                return;
            }
        }
    }

    fn take_up(&mut self, id: usize) -> Option<Message> {
        self.conns[self.flows[id].up?].inbox[1].pop_front()
    }

    fn read_opening(&mut self, id: usize) -> bool {
        let awaits = self.flows[id].opening().awaits_acceptance();
        if self.flows[id].expects_reply
            && !awaits
            && let Some(message) = self.take_up(id)
        {
            let reply = match message {
                Message::Working => {
                    self.flows[id].works = true;
                    return true;
                }
                Message::Reply(reply) => Some(reply),
                Message::Fin | Message::Reset => None,
                message => panic!("{message:?} before the reply"),
            };
            if reply == Some(Reply::Connected) {
                self.flows[id].expects_reply = false;
            }
            self.drive(id, |opening, now| opening.on_reply(reply, now));
            return true;
        }
        let down = self.flows[id]
            .down
            .filter(|_| self.flows[id].arrival == Arrival::Peer);
        let Some(down) = down else {
            return false;
        };
        if self.conns[down].inbox[0].contains(&Message::Reset) {
            self.end(id, Outcome::ClientAbsent);
            return true;
        }
        if self.conns[down].inbox[0].front() == Some(&Message::Validated) {
            self.conns[down].inbox[0].pop_front();
            assert!(!self.flows[id].opening().is_validated(), "validated twice");
            self.validate(id);
            return true;
        }
        false
    }

    fn read_up(&mut self, id: usize) -> bool {
        let Some(message) = self.take_up(id) else {
            return false;
        };
        if self.flows[id].expects_reply {
            self.read_reply(id, message);
            return true;
        }
        match message {
            Message::Byte(_) => self.send_down(id, message),
            Message::Fin => self.pass_fin(id, 1),
            Message::Reset => self.conclude(id, Outcome::UpstreamReset),
            message => panic!("{message:?} behind the reply"),
        }
        true
    }

    fn read_reply(&mut self, id: usize, message: Message) {
        match message {
            Message::Working => self.flows[id].works = true,
            Message::Reply(Reply::Connected) => {
                self.flows[id].expects_reply = false;
                self.flows[id].fallback = None;
                if self.flows[id].owes_reply {
                    self.answer(id, Reply::Connected);
                }
            }
            Message::Reply(reply) => {
                self.flows[id].failed = Some(reply);
                self.conclude(id, Outcome::UpstreamReset);
            }
            Message::Fin => {
                self.flows[id].failed = Some(Reply::Failed);
                self.conclude(id, Outcome::UpstreamReset);
            }
            Message::Reset => self.conclude(id, Outcome::UpstreamReset),
            message => panic!("{message:?} before the reply"),
        }
    }

    fn read_down(&mut self, id: usize) -> bool {
        let down = self.flows[id].down.expect("joined");
        let Some(message) = self.conns[down].inbox[0].pop_front() else {
            return false;
        };
        match message {
            Message::Byte(number) => {
                if let Some((_, kept)) = &mut self.flows[id].fallback {
                    kept.push(number);
                }
                self.send_up(id, message);
            }
            Message::Fin => self.pass_fin(id, 0),
            Message::Reset => {
                self.flows[id].has_lost_client = true;
                self.conclude(id, Outcome::DownstreamReset);
            }
            message => panic!("{message:?} of a client"),
        }
        true
    }

    fn pass_fin(&mut self, id: usize, from: usize) {
        self.flows[id].fins[from] = true;
        if from == 0 {
            self.send_up(id, Message::Fin);
        } else {
            self.send_down(id, Message::Fin);
        }
        if self.flows[id].fins == [true, true] {
            self.end(id, Outcome::Finished);
        }
    }

    fn conclude(&mut self, id: usize, outcome: Outcome) {
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

    fn end(&mut self, id: usize, outcome: Outcome) {
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

    fn look_at(&mut self, id: usize, due: Duration) {
        let delay = due.saturating_sub(self.now()).as_millis();
        self.after(u64::try_from(delay).expect("short"), Event::Look(id));
    }

    pub(super) fn look(&mut self, id: usize) {
        let now = self.now();
        if let Stage::Opening(opening) = &mut self.flows[id].stage
            && opening.is_hop_late(now)
        {
            return self.drive(id, |opening, now| opening.on_reply(None, now));
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
            delivered: conn.delivered,
            works: of.works,
            round: Some(Duration::from_millis(100)),
            movable: hops_left || of.arrival != Arrival::Plain,
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
