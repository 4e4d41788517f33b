// SPDX-License-Identifier: Apache-2.0
//! The upstream connections of a simulated node: dials servers and other nodes, and gets their
//! answers.

use std::time::Duration;

use posthaste_wire::hop::Icmp;

use crate::chain::{NextHop, Path};
use crate::frame::Frame;
use crate::intercept::HalfOpen;
use crate::opening::{Arrival, Blame, Hops, Opening, Sent, Trust, Try};
use crate::outcome::Outcome;

use super::network::{Host, Message};
use super::node::id;
use super::{Event, Server, World, flow};

/// What the server of a trial may take.
const PATIENCE: Duration = Duration::from_millis(300);

impl World {
    pub(super) fn begin_upstream(&mut self, id: usize) {
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

    pub(super) fn try_next(&mut self, flow: usize) {
        let down = id(self.rng.below(2 * super::NODES));
        let now = self.now();
        let doubted = id(self.rng.below(2 * super::NODES));
        let trust = |next: &NextHop| match next {
            NextHop::Hop(path) if path.peer == down => Trust::None,
            NextHop::Hop(path) if path.peer == doubted => Trust::Doubt,
            _ => Trust::Full,
        };
        match self.flows[flow].opening().next_hop(trust, now) {
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
                // The peer closed the hop, and its FIN or a reset is under way.
                let ends = [Message::Fin, Message::Reset];
                let end = ends[usize::from(self.rng.once_in(2))];
                self.send(conn, false, end);
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
            } else if self.rng.once_in(4) {
                Sent::Uplink
            } else {
                Sent::Cold
            }
        };
        let of = &mut self.flows[flow];
        (of.up, of.via, of.expects_reply) = (Some(conn), Some(via), true);
        of.is_warm = sent == Sent::Warm;
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

    pub(super) fn let_in(&mut self, id: usize, frame: &Frame) {
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

    pub(super) fn fail(&mut self, id: usize, outcome: Outcome) {
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

    pub(super) fn close_upstream(&mut self, id: usize) {
        if let Some(conn) = self.flows[id].up {
            self.close(conn, true, true);
        }
        self.flows[id].forget_hop();
    }
}
