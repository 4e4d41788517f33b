// SPDX-License-Identifier: Apache-2.0
//! Opening the upstream side of a flow: by way of another node, or directly, and
//! by the next best way when one fails.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use posthaste_wire::auth::{AuthTag, Nonce};
use posthaste_wire::convert::{Connect, Request};
use posthaste_wire::header::{ChainHeader, Endpoint, LoopGuard};
use posthaste_wire::hop::{Reply, VALIDATED};
use posthaste_wire::segments::SegmentList;
use socket2::Socket;

use crate::chain::{NextHop, Path, Peer};
use crate::flow::Flow;
use crate::frame::Frame;
use crate::intercept::Intercept;
use crate::opening::OnMeeting;
use crate::outcome::Outcome;
use crate::relay::Ready;
use crate::side::Side;
use crate::sys::{self, IcmpError};

use super::Worker;
use super::admit::Blame;
use super::entry::{Pending, State};
use super::health::{Failure, Origin};
use super::hop;
use super::preface::{Expecting, ReadError, is_of_hop, outcome_of, read_message, send};
use super::silence::first_look;
use super::syn_option::note_syn_option;

/// How long the next node may take to accept a connection before another way is
/// tried, if there is one: no less than its first SYN and a repetition take.
const HOP_WITHIN: Duration = Duration::from_millis(1500);

/// The hop to the next node, while the flow is opening.
#[derive(Debug)]
pub(super) struct Hopping {
    via: Path,
    /// It was open before. If it turns out to be gone, the same way is taken by
    /// a cold one.
    warm: Option<NextHop>,
    /// Its SYN had an option. If the node does not accept, the same way is taken
    /// without.
    requested_in_syn: Option<NextHop>,
    /// The node did not accept a SYN with an option.
    refused: bool,
    /// The request, and how much of it is sent.
    request: Vec<u8>,
    sent: usize,
    /// The next node has accepted the connection.
    connected: bool,
    /// The request said that the client is not validated.
    owes_validation: bool,
    /// When the node has to have accepted.
    accept_by: Duration,
}

/// A hop that has been asked for a flow.
struct Opened {
    socket: OwnedFd,
    expecting: Expecting,
    /// What was asked, if some of it may not have been sent, and how much was.
    request: Vec<u8>,
    sent: usize,
    /// Its SYN had an option.
    requested_in_syn: bool,
}

impl Hopping {
    /// Whether it was opened for its flow.
    pub(super) fn is_cold(&self) -> bool {
        self.warm.is_none()
    }

    /// Whether the next node has accepted it.
    pub(super) fn is_connected(&self) -> bool {
        self.connected
    }

    /// When it wants to be looked at.
    pub(super) fn deadline(&self) -> Option<Duration> {
        (!self.connected).then_some(self.accept_by)
    }
}

impl<I: Intercept> Worker<I> {
    /// Chooses the ways for a flow that begins here.
    pub(super) fn select_next_hops(&mut self, key: u64) {
        let Some(entry) = self.entries.live(key) else {
            return;
        };
        let State::Opening(pending) = &entry.state else {
            return;
        };
        let chains = self.rules.chains();
        let me = chains.me.filter(|_| !chains.is_client);
        let guard = me.and_then(|me| match pending.hop_limit {
            Some(hops) => LoopGuard::with_ttl(me, hops),
            None => Some(LoopGuard::new(me)),
        });
        // A plain connection of a peer's is the end of a chain, and what has come so
        // far may be in a loop of such.
        let ends = chains.is_peer(entry.flow.client().ip()) || me.is_some() && guard.is_none();
        let next_hops = if ends {
            vec![NextHop::Direct]
        } else {
            chains.next_hops(&entry.flow, entry.rule.rule.transfer_bytes)
        };
        if let Some(pending) = self.pending(key) {
            pending.route(next_hops, guard);
        }
    }

    /// Opens the upstream side by the best way that is left, or treats the
    /// failure of all as the server's. `mss` is the client's segment size.
    pub(super) fn open_upstream(&mut self, key: u64, mss: Option<u16>) {
        loop {
            match self.pop_next_hop(key) {
                Some(NextHop::Direct) => return self.open_direct(key, mss),
                Some(NextHop::Hop(via)) => {
                    if self.open_hop(key, via).is_ok() {
                        return;
                    }
                }
                None => return self.exhausted(key),
            }
        }
    }

    /// The best way left: one that has failed of late only if no other is.
    fn pop_next_hop(&mut self, key: u64) -> Option<NextHop> {
        let left = std::mem::take(&mut self.pending(key)?.next_hops);
        let best = left
            .iter()
            .position(|next_hop| self.is_up(next_hop))
            .or_else(|| (!left.is_empty()).then_some(0));
        let mut left = left;
        let next_hop = best.map(|index| left.remove(index));
        self.pending(key)?.next_hops = left;
        if let Some(next_hop) = &next_hop {
            self.try_out(next_hop);
        }
        next_hop
    }

    fn exhausted(&mut self, key: u64) {
        self.fail_upstream(key, Outcome::HopFailed, None, Blame::Us);
    }

    /// Opens a hop to a node.
    fn open_hop(&mut self, key: u64, via: Path) -> io::Result<()> {
        let unusable = || io::Error::from(io::ErrorKind::AddrNotAvailable);
        let next_hop = NextHop::Hop(via);
        // It may have left since the ways were chosen.
        let peer = self.rules.chains().peer(via.peer).ok_or_else(unusable)?;
        let (now, flow) = (self.now, self.entries.live(key).map(|entry| entry.flow));
        let flow = flow.ok_or_else(unusable)?;
        let pending = self.pending(key).ok_or_else(unusable)?;
        pending.connecting = now;
        pending.restrained = false;
        let by_cold = std::mem::take(&mut pending.by_cold);
        let without_syn_option = std::mem::take(&mut pending.without_syn_option);
        let hop_limit = pending.hop_limit;
        let connect = connect_for(&flow, via.rest, pending).ok_or_else(unusable)?;
        let warm = if by_cold {
            None
        } else {
            self.open_warm(peer, &connect)
        };
        let is_warm = warm.is_some();
        let opened = match warm {
            Some(opened) => opened,
            None => self
                .open_cold(peer, &connect, &flow, (!without_syn_option, hop_limit))
                .inspect_err(|_| {
                    self.mark_down(Failure::Peer(via.peer));
                })?,
        };
        self.watch_upstream(key, &opened.socket)?;
        let Some(entry) = self.entries.live_mut(key) else {
            return Ok(());
        };
        entry.sockets[Side::Upstream] = Some(opened.socket);
        let preface = entry.preface.get_or_insert_default();
        preface.expecting = Some(opened.expecting);
        preface.via = Some(via);
        preface.syn_options = opened.requested_in_syn;
        preface.waits_since = is_warm.then_some(now);
        let asked_by_peer = preface.is_for_peer();
        let connect_by = now + entry.rule.rule.timeouts.connect;
        let pending = entry.pending().ok_or_else(unusable)?;
        pending.connect_by = connect_by;
        if !asked_by_peer {
            pending.repeat.note(next_hop);
        }
        // A peer that asked may have another way.
        let accept_by = if pending.next_hops.is_empty() && !asked_by_peer {
            connect_by
        } else {
            connect_by.min(now + HOP_WITHIN)
        };
        pending.hopping = Some(Hopping {
            via,
            warm: is_warm.then_some(next_hop),
            requested_in_syn: opened.requested_in_syn.then_some(next_hop),
            refused: without_syn_option,
            request: opened.request,
            sent: opened.sent,
            connected: is_warm,
            owes_validation: !connect.validated,
            accept_by,
        });
        let due = if is_warm { first_look(now) } else { accept_by };
        self.look_again(key, due);
        if is_warm {
            self.meet_over_hop(key);
        }
        Ok(())
    }

    /// Asks for a flow over a hop that is open, if there is one.
    fn open_warm(&mut self, peer: usize, connect: &Connect) -> Option<Opened> {
        let warm = self.warm.as_mut()?;
        while let Some(mut hop) = warm.take(peer, &self.epoll, self.now) {
            let nonce = Nonce(sys::random());
            let now_ms = self.replay_guard.clock.now_ms();
            let open = hop.dialer.open(connect, now_ms, nonce).ok()?;
            if send(&hop.socket, &open).is_ok() {
                self.counters.hops_warm.add(1);
                return Some(Opened {
                    socket: hop.socket,
                    expecting: Expecting::Reply(hop.dialer.into_reply_reader()),
                    request: Vec::new(),
                    sent: 0,
                    requested_in_syn: false,
                });
            }
        }
        None
    }

    /// Asks for a flow over a hop that is made for it. With `syn_option`, its SYN says so
    /// where that goes, and has the flow's TTL, for which the option has no room.
    fn open_cold(
        &mut self,
        peer: usize,
        connect: &Connect,
        flow: &Flow,
        (syn_option, hop_limit): (bool, Option<u8>),
    ) -> io::Result<Opened> {
        let peer = &self.rules.chains().peers[peer];
        let request = request_of(connect, peer, self.replay_guard.clock.now_ms())?;
        let option = self.syn_option_for(peer, &connect.header);
        let socket = hop_socket(peer, self.socket_mark)?;
        let has_option = option.filter(|_| syn_option).is_some_and(|option| {
            let ipv6 = peer.address.is_ipv6();
            let set = hop_limit.map_or(Ok(()), |hops| sys::set_hop_limit(&socket, ipv6, hops));
            set.and_then(|()| self.intercept.syn_option(socket.as_fd(), &option))
                .is_ok()
        });
        let sent = if has_option {
            sys::connect(&socket, peer.address)?;
            0
        } else {
            sys::connect_saying(&socket, peer.address, &request)?
        };
        self.counters.hops_cold.add(1);
        self.counters.syn_options_sent.add(u64::from(has_option));
        Ok(Opened {
            socket: socket.into(),
            expecting: Expecting::of(peer, flow),
            request,
            sent,
            requested_in_syn: has_option,
        })
    }

    /// The connection to the next node has something to say.
    pub(super) fn on_hop_ready(&mut self, key: u64, ready: Ready) {
        if ready.writable
            && self.is_unconnected(key)
            && let Err(error) = self.on_hop_connected(key)
        {
            return self.on_hop_unaccepted(key, &error);
        }
        if self.is_unconnected(key) || self.meet_over_hop(key) || !ready.readable {
            return;
        }
        self.receive_reply(key);
    }

    fn is_unconnected(&mut self, key: u64) -> bool {
        let pending = self.pending(key);
        pending.is_none_or(|pending| pending.hopping.as_ref().is_none_or(|hop| !hop.connected))
    }

    /// The next node has accepted: it gets what is left of the request.
    fn on_hop_connected(&mut self, key: u64) -> io::Result<()> {
        let gone = || io::Error::from(io::ErrorKind::NotConnected);
        let now = self.now;
        let entry = self.entries.live_mut(key).ok_or_else(gone)?;
        let socket = entry.sockets[Side::Upstream].take().ok_or_else(gone)?;
        let error = hop::connect_error(&socket);
        let pending = entry.pending().ok_or_else(gone)?;
        let connect = now.saturating_sub(pending.connecting).into();
        let hopping = pending.hopping.as_mut().ok_or_else(gone)?;
        let written = match error {
            Some(error) => Err(error),
            None => send(&socket, &hopping.request[hopping.sent..]),
        };
        hopping.connected = written.is_ok();
        if written.is_ok() && hopping.refused {
            self.counters.syn_options_ignored.add(1);
            self.syn_options.note(hopping.via.peer, false, now);
        }
        hopping.request = Vec::new();
        entry.timers.connect = connect;
        entry.sockets[Side::Upstream] = Some(socket);
        if let Some(preface) = &mut entry.preface {
            preface.waits_since = Some(now);
        }
        self.look_again(key, first_look(now));
        written
    }

    /// The next node did not accept. If its SYN had an option, that may be why.
    fn on_hop_unaccepted(&mut self, key: u64, error: &io::Error) {
        let refused = matches!(
            error.kind(),
            io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset
        );
        let hopping = self
            .pending(key)
            .and_then(|pending| pending.hopping.as_mut());
        let requested_in_syn = hopping.and_then(|hop| hop.requested_in_syn.take());
        let (Some(next_hop), true) = (requested_in_syn, refused) else {
            return self.on_hop_failed(key, None);
        };
        let Some(entry) = self.entries.live_mut(key) else {
            return;
        };
        entry.sockets[Side::Upstream] = None;
        if let Some(preface) = &mut entry.preface {
            (preface.expecting, preface.syn_options) = (None, false);
        }
        if let Some(pending) = entry.pending() {
            (pending.hopping, pending.without_syn_option) = (None, true);
        }
        self.retry_cold(key, next_hop);
    }

    /// Joins a client that is validated with a hop that is open: the reply may come
    /// later. Whether it did.
    pub(super) fn meet_over_hop(&mut self, key: u64) -> bool {
        let Some(pending) = self.pending(key) else {
            return true;
        };
        let open = pending.hopping.as_ref().is_some_and(|hop| hop.connected);
        if !open || !pending.opening.is_validated() {
            return false;
        }
        self.join(
            key,
            Ready {
                readable: true,
                writable: true,
                ..Ready::default()
            },
        );
        true
    }

    /// Says that the client is validated, if the next node was told otherwise.
    pub(super) fn send_validation(&mut self, key: u64) -> io::Result<()> {
        let Some(entry) = self.entries.live_mut(key) else {
            return Ok(());
        };
        let hopping = entry.pending().and_then(|pending| pending.hopping.as_mut());
        let owes = hopping.is_some_and(|hop| std::mem::take(&mut hop.owes_validation));
        match &entry.sockets[Side::Upstream] {
            Some(socket) if owes => send(socket, &VALIDATED),
            _ => Ok(()),
        }
    }

    /// Reads the reply before the client is validated.
    fn receive_reply(&mut self, key: u64) {
        let Some(entry) = self.entries.live_mut(key) else {
            return;
        };
        let Some(socket) = &entry.sockets[Side::Upstream] else {
            return;
        };
        let Some(expecting) = entry
            .preface
            .as_mut()
            .and_then(|preface| preface.expecting.as_mut())
        else {
            return;
        };
        let reply = match read_message(socket, |bytes| expecting.feed(bytes)) {
            Ok(reply) => Some(reply),
            Err(ReadError::Incomplete) => return,
            Err(ReadError::Gone | ReadError::Reset | ReadError::Lost | ReadError::Wrong(_)) => None,
        };
        if let (Some(preface), Some(reply)) = (&mut entry.preface, reply) {
            preface.on_reply(reply);
            note_syn_option(preface, &mut self.syn_options, &self.counters, self.now);
        }
        if reply != Some(Reply::Connected) {
            return self.on_hop_failed(key, reply);
        }
        if let Some(preface) = &mut entry.preface {
            preface.expecting = None;
        }
        self.record_replied(key);
        let Some(pending) = self.pending(key) else {
            return;
        };
        let step = pending.opening.on_connected();
        if step == OnMeeting::Admit {
            self.admit_client(key);
        }
    }

    /// The next node did not connect the flow: it says so, of itself or of the
    /// server, or it has said nothing (`None`).
    pub(super) fn on_hop_failed(&mut self, key: u64, reply: Option<Reply>) {
        let lost = reply.is_none();
        let reply = reply.unwrap_or(Reply::Failed);
        let of_hop = is_of_hop(reply);
        let Some(entry) = self.entries.live_mut(key) else {
            return;
        };
        entry.sockets[Side::Upstream] = None;
        let flow = entry.flow;
        let mut origin = Origin::Here;
        if let Some(preface) = &mut entry.preface {
            preface.forget_hop();
            origin = preface.origin();
        }
        let hopping = self.pending(key).and_then(|pending| pending.hopping.take());
        if let (Some(hopping), true) = (hopping, of_hop) {
            if let (Some(next_hop), true) = (hopping.warm, lost) {
                return self.retry_cold(key, next_hop);
            }
            self.counters.hops_failed.add(1);
            if lost && hopping.connected {
                self.record_reset(hopping.via, origin);
            } else if lost {
                self.mark_down(Failure::Peer(hopping.via.peer));
            } else {
                self.record_reply(reply, hopping.via, origin);
            }
            if self.has_way_after(key, reply, lost) {
                return self.try_next(key);
            }
        }
        let error = match reply {
            Reply::Unreachable(icmp) => Some(IcmpError {
                offender: icmp.offender.unwrap_or_else(|| flow.server().ip()),
                kind: icmp.kind,
                code: icmp.code,
            }),
            _ => None,
        };
        // A destination is not to blame for a node.
        let blame = if of_hop { Blame::Us } else { Blame::Them };
        self.fail_upstream(key, outcome_of(reply), error, blame);
    }

    /// Whether a flow whose hop has failed has a next one: if no other is left, a node that could not
    /// reach its own next hop is asked again.
    fn has_way_after(&mut self, key: u64, reply: Reply, lost: bool) -> bool {
        let Some(pending) = self.pending(key) else {
            return false;
        };
        if pending.next_hops.is_empty() && reply == Reply::Failed && !lost {
            pending.next_hops.extend(pending.repeat.take());
        }
        !pending.next_hops.is_empty()
    }

    pub(super) fn try_next(&mut self, key: u64) {
        let syn = self.pending(key).and_then(|pending| pending.syn.as_ref());
        let mss = syn.and_then(Frame::mss).or_else(|| {
            let entry = self.entries.live(key).filter(|entry| !entry.is_requested());
            let client = entry.and_then(|entry| entry.sockets[Side::Downstream].as_ref());
            client.and_then(sys::segment_bytes)
        });
        self.open_upstream(key, mss);
    }

    /// Takes the same way by a cold hop: the warm one was gone, or was not accepted.
    fn retry_cold(&mut self, key: u64, next_hop: NextHop) {
        if let Some(pending) = self.pending(key) {
            pending.by_cold = true;
            pending.next_hops.insert(0, next_hop);
        }
        self.try_next(key);
    }

    /// Whether the hop of an opening flow has taken too long.
    pub(super) fn is_hop_late(&mut self, key: u64) -> bool {
        let now = self.now;
        let hopping = self
            .pending(key)
            .and_then(|pending| pending.hopping.as_ref());
        hopping
            .and_then(Hopping::deadline)
            .is_some_and(|due| due <= now)
    }

    /// What remains of a flow that is opening.
    pub(super) fn pending(&mut self, key: u64) -> Option<&mut Pending> {
        self.entries.live_mut(key)?.pending()
    }
}

/// What the next node is asked for. `None` where a flow cannot be carried.
fn connect_for(flow: &Flow, segments: SegmentList, pending: &Pending) -> Option<Connect> {
    let mut connect = Connect::new(ChainHeader {
        destination: Endpoint::new(flow.server()).ok()?,
        source: Endpoint::new(flow.client()).ok(),
        segments,
        guard: pending.guard,
    });
    connect.validated = pending.opening.is_validated();
    Some(connect)
}

/// A request to a peer as bytes, with an authentication tag of this time if the two share a key.
fn request_of(connect: &Connect, peer: &Peer, now_ms: u64) -> io::Result<Vec<u8>> {
    let request = Request {
        connect: Some(connect.clone()),
        ..Request::default()
    };
    let auth = peer.key.as_ref().map(|key| AuthTag {
        key,
        key_id: peer.key_id,
        receiver: peer.id,
        now_ms,
        nonce: Nonce(sys::random()),
    });
    request.encode(auth.as_ref()).map_err(io::Error::other)
}

/// A socket for a hop to a peer.
fn hop_socket(peer: &Peer, mark: u32) -> io::Result<Socket> {
    let socket = sys::upstream_socket(peer.address.is_ipv6(), mark)?;
    // The connection works without, so let it.
    let _ = sys::apply(&socket, &peer.socket);
    Ok(socket)
}
