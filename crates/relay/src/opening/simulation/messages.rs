// SPDX-License-Identifier: Apache-2.0
//! What a simulated node receives and sends: requests, replies, and the bytes of flows.

use posthaste_wire::hop::Reply;
use posthaste_wire::segments::Segment;

use crate::accept_mode::AcceptMode;
use crate::chain::{NextHop, Path};
use crate::intercept::HalfOpen;
use crate::opening::silence::WORKING_AFTER;
use crate::opening::{Action, Arrival, Hops, Opening};
use crate::outcome::Outcome;

use super::network::Message;
use super::node::Stage;
use super::{CONNECT, EXPIRY, Event, Health, World, flow};

/// The next hops of a request.
fn hops_of(path: Path) -> Hops {
    let next = match path.rest.split_first() {
        Some((Segment::Node(peer), rest)) => NextHop::Hop(Path { peer, rest }),
        _ => NextHop::Direct,
    };
    Hops::new(vec![next], None)
}

impl World {
    pub(super) fn send_up(&mut self, id: usize, message: Message) {
        let conn = self.flows[id].up.expect("an upstream connection");
        assert!(self.conns[conn].is_open, "{message:?} without a handshake");
        self.send(conn, true, message);
    }

    pub(super) fn send_down(&mut self, id: usize, message: Message) {
        let conn = self.flows[id].down.expect("a downstream connection");
        self.send(conn, false, message);
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
                self.flows[id].is_closed = true;
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
}
