// SPDX-License-Identifier: Apache-2.0
//! Opens the upstream side of a flow over a hop to another node, and reads its reply. Which next
//! hop is tried, and what follows from the result, is decided in [`crate::opening`].

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use posthaste_wire::auth::{AuthTag, Nonce};
use posthaste_wire::convert::{Connect, Request};
use posthaste_wire::header::{ChainHeader, Endpoint};
use posthaste_wire::hop::{Dialer, Reply};
use posthaste_wire::segments::SegmentList;

use crate::chain::{Path, Peer, Transport};
use crate::flow::Flow;
use crate::intercept::Intercept;
use crate::opening::{Opening, Report, Sent, Try};
use crate::relay::Ready;
use crate::side::Side;
use crate::sys;
use crate::warm::is_of_uplink;

use super::Worker;
use super::end::StreamEnd;
use super::entry::{State, end_of};
use super::preface::{Expecting, ReadError, read_message, send};
use super::syn_option::note_syn_option;
use super::upstream::connect_error;

/// A connection to the next node.
enum Upstream {
    Socket(OwnedFd),
    Stream(Rc<StreamEnd>),
}

/// A hop over which a flow was requested.
struct Opened {
    end: Upstream,
    expecting: Expecting,
    /// What is left to send of the request.
    request: Vec<u8>,
    sent: Sent,
    /// Its address, unless this host picked one.
    source: Option<IpAddr>,
}

impl<I: Intercept> Worker<I> {
    /// Opens a hop to a node, and requests the flow over it.
    ///
    /// # Errors
    /// It could not be opened; the report is about the node, if that is to blame.
    pub(super) fn open_hop(
        &mut self,
        key: u64,
        via: Path,
        order: Try,
    ) -> Result<Sent, Option<Report>> {
        // The peer may have left the configuration since the next hops were selected.
        let peer = self.rules.chains().peer(via.peer).ok_or(None)?;
        let entry = self.entries.live(key).ok_or(None)?;
        let State::Opening(pending) = &entry.state else {
            return Err(None);
        };
        let flow = entry.flow;
        let hop_limit = pending.opening.hops.hop_limit;
        let connect = connect_for(&flow, via.rest, &pending.opening).ok_or(None)?;
        let preface = entry.preface.as_deref();
        let uplinks_tried = preface.map_or(0, |preface| preface.uplinks_tried);
        let stream = self
            .takes_stream(peer, order)
            .then(|| self.open_stream(key, peer, &connect));
        let opened = match stream.flatten() {
            Some(opened) => opened,
            None => self.open_socket(peer, &connect, &flow, (order, hop_limit, uplinks_tried))?,
        };
        match &opened.end {
            Upstream::Socket(socket) => self.watch_upstream(key, socket).map_err(|_| None)?,
            Upstream::Stream(_) => self.fresh.note(key),
        }
        let entry = self.entries.live_mut(key).ok_or(None)?;
        let preface = entry.preface.get_or_insert_default();
        match opened.end {
            Upstream::Socket(socket) => entry.sockets[Side::Upstream] = Some(socket),
            Upstream::Stream(stream) => preface.streams[Side::Upstream] = Some(stream),
        }
        preface.expecting = Some(opened.expecting);
        (preface.via, preface.source) = (Some(via), opened.source);
        preface.syn_options = opened.sent == Sent::SynOption;
        preface.is_warm = opened.sent == Sent::Warm && !order.cold;
        // Until the node's kernel accepts, the limit for that counts, not the one for a reply.
        (preface.waits_since, preface.alive) = (None, None);
        if let Some(pending) = entry.pending() {
            pending.request = opened.request;
        }
        Ok(opened.sent)
    }

    /// Whether a tunnel should carry a flow to a peer.
    fn takes_stream(&mut self, peer: usize, order: Try) -> bool {
        match self.rules.chains().peers[peer].transport {
            Transport::QuicOnly => true,
            Transport::Tcp | Transport::Mptcp => false,
            Transport::Quic | Transport::Auto if order.cold => false,
            Transport::Quic => true,
            Transport::Auto => {
                let warm = self.warm.as_mut();
                warm.is_some_and(|warm| warm.avoids_tcp(peer, self.now))
            }
        }
    }

    /// Requests a flow over a stream of a tunnel, if one is up.
    fn open_stream(&mut self, key: u64, index: usize, connect: &Connect) -> Option<Opened> {
        let peer = &self.rules.chains().peers[index];
        let tag = key << 1 | Side::Upstream as u64;
        let (stream, session) = self.tunnels.as_mut()?.open(peer, tag, self.now)?;
        let mut dialer = Dialer::new(session);
        let now_ms = self.common.replay_guard.clock.now_ms();
        let open = dialer.open(connect, now_ms, Nonce(sys::random())).ok()?;
        send(&(&stream).into(), &open).ok()?;
        self.counters.hops_quic.add(1);
        let is_for_loss = peer.transport == Transport::Auto;
        self.counters.hops_quic_for_loss.add(u64::from(is_for_loss));
        if let Some(warm) = &mut self.warm {
            warm.note_stream(index);
        }
        Some(Opened {
            end: Upstream::Stream(stream),
            expecting: Expecting::Reply(dialer.into_reply_reader()),
            request: Vec::new(),
            sent: Sent::Warm,
            source: None,
        })
    }

    /// Requests a flow over a connection of TCP, if the peer may have that.
    fn open_socket(
        &mut self,
        peer: usize,
        connect: &Connect,
        flow: &Flow,
        (order, hop_limit, uplinks_tried): (Try, Option<u8>, usize),
    ) -> Result<Opened, Option<Report>> {
        let (id, transport) = {
            let peer = &self.rules.chains().peers[peer];
            (peer.id, peer.transport)
        };
        if !transport.has_sockets() {
            // Nothing against the peer: the next flow finds a tunnel as soon as one is up.
            self.counters.hops_quic_refused.add(1);
            return Err(None);
        }
        let warm = (!order.cold).then(|| self.open_warm(peer, connect));
        let opened = match warm.flatten() {
            Some(opened) => opened,
            None => self
                .open_cold(
                    peer,
                    connect,
                    flow,
                    (!order.without_syn_option, hop_limit),
                    uplinks_tried,
                )
                .map_err(|error| is_of_network(&error).then_some(Report::Unreached(id)))?,
        };
        let is_instead = transport == Transport::Quic;
        self.counters.hops_quic_to_tcp.add(is_instead.into());
        Ok(opened)
    }

    /// Requests a flow over a hop that is open, if there is one.
    fn open_warm(&mut self, peer: usize, connect: &Connect) -> Option<Opened> {
        let warm = self.warm.as_mut()?;
        // The peer may have closed a hop since the pool looked at it: the next one may be open.
        while let Some(mut hop) = warm.take(peer, &self.epoll, self.now) {
            let nonce = Nonce(sys::random());
            let now_ms = self.common.replay_guard.clock.now_ms();
            let open = hop.dialer.open(connect, now_ms, nonce).ok()?;
            if send(&(&hop.socket).into(), &open).is_ok() {
                self.counters.hops_warm.add(1);
                return Some(Opened {
                    end: Upstream::Socket(hop.socket),
                    // It may have gathered part of a pong, whose rest precedes the reply.
                    expecting: Expecting::Reply(hop.dialer.into_reply_reader()),
                    request: Vec::new(),
                    sent: Sent::Warm,
                    source: None,
                });
            }
        }
        None
    }

    /// Requests a flow over a hop that is made for it, by the first uplink from which one can begin.
    fn open_cold(
        &mut self,
        peer: usize,
        connect: &Connect,
        flow: &Flow,
        options: (bool, Option<u8>),
        mut tried: usize,
    ) -> io::Result<Opened> {
        loop {
            let (source, uplinks) = self.uplink(peer);
            tried += 1;
            let by = (source, tried < uplinks);
            let error = match self.open_cold_by(by, peer, connect, flow, options) {
                Err(error) if tried < uplinks && is_of_uplink(&error) => error,
                answer => return answer,
            };
            let now = self.now;
            let uplinks = self.warm.as_mut().and_then(|warm| warm.uplinks(peer));
            if !uplinks.is_some_and(|uplinks| uplinks.leave(source, now)) {
                return Err(error);
            }
        }
    }

    /// Requests a flow over a hop from `source`, which is not the last that there is if `has_other`. With
    /// `syn_option`, its SYN announces the flow where both ends support that, and has the flow's TTL,
    /// for which the option has no room.
    fn open_cold_by(
        &mut self,
        (source, has_other): (Option<IpAddr>, bool),
        peer: usize,
        connect: &Connect,
        flow: &Flow,
        (syn_option, hop_limit): (bool, Option<u8>),
    ) -> io::Result<Opened> {
        let peer = &self.rules.chains().peers[peer];
        let mut request = request_of(connect, peer, self.common.replay_guard.clock.now_ms())?;
        let option = self.syn_option_for(peer, &connect.header);
        let is_multipath = peer.transport == Transport::Mptcp;
        let socket = sys::hop_socket(peer, source, self.socket_mark)?;
        // Best effort: without the option the flow is requested by the first bytes.
        let has_option = option.filter(|_| syn_option).is_some_and(|option| {
            let ipv6 = peer.address.is_ipv6();
            let set = hop_limit.map_or(Ok(()), |hops| sys::set_hop_limit(&socket, ipv6, hops));
            set.and_then(|()| self.intercept.syn_option(socket.as_fd(), &option))
                .is_ok()
        });
        if has_option || is_multipath {
            // The option and data of TCP Fast Open do not fit into one SYN. With such data a
            // connection of Multipath TCP becomes one of TCP.
            sys::connect(&socket, peer.address)?;
        } else {
            let sent = sys::connect_with_data(&socket, peer.address, &request)?;
            request.drain(..sent);
        }
        self.counters.hops_cold.add(1);
        self.counters.syn_options_sent.add(u64::from(has_option));
        Ok(Opened {
            end: Upstream::Socket(socket.into()),
            expecting: Expecting::of(peer, flow),
            request,
            sent: if has_option {
                Sent::SynOption
            } else if has_other {
                Sent::Uplink
            } else {
                Sent::Cold
            },
            source,
        })
    }

    /// From which address a hop to a peer begins, if not from that of the routes, and how many uplinks
    /// there are.
    fn uplink(&mut self, peer: usize) -> (Option<IpAddr>, usize) {
        // A flow may come before the first sweep.
        self.renew_uplinks();
        let now = self.now;
        let uplinks = self.warm.as_mut().and_then(|warm| warm.uplinks(peer));
        uplinks.map_or((None, 1), |uplinks| (uplinks.source(now), uplinks.count()))
    }

    /// The hop of an opening flow got no answer by its uplink.
    pub(super) fn leave_uplink(&mut self, key: u64) {
        let now = self.now;
        let Some(preface) = self
            .entries
            .live_mut(key)
            .and_then(|entry| entry.preface.as_mut())
        else {
            return;
        };
        preface.uplinks_tried += 1;
        let source = preface.source;
        let peer = preface
            .via
            .and_then(|via| self.rules.chains().peer(via.peer));
        let warm = self.warm.as_mut().zip(peer);
        if let Some(uplinks) = warm.and_then(|(warm, peer)| warm.uplinks(peer)) {
            uplinks.leave(source, now);
        }
    }

    /// Learns which addresses this host has for further paths of Multipath TCP.
    pub(super) fn renew_uplinks(&mut self) {
        let now = self.now;
        if let Some(warm) = self.warm.as_mut().filter(|warm| warm.wants_uplinks(now)) {
            // What could not be read is read again at the next occasion.
            if let Some(addresses) = self.intercept.path_addresses() {
                warm.set_uplinks(&addresses, now);
            }
        }
    }

    /// The connection to the next node is ready.
    pub(super) fn on_hop_ready(&mut self, key: u64, ready: Ready) {
        if ready.writable && self.awaits_acceptance(key) {
            match self.send_request(key) {
                Ok(()) => self.drive(key, |opening, _| opening.on_hop_accepted()),
                Err(error) => {
                    let is_rejected = matches!(
                        error.kind(),
                        io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset
                    );
                    return self.drive(key, |opening, _| opening.on_hop_unaccepted(is_rejected));
                }
            }
        }
        // It may have been joined by now, or be the relay's to read.
        if ready.readable && self.entries.get(key).is_some_and(|entry| !entry.is_open()) {
            self.receive_reply(key);
        }
    }

    fn awaits_acceptance(&mut self, key: u64) -> bool {
        let pending = self.pending(key);
        pending.is_some_and(|pending| pending.opening.awaits_acceptance())
    }

    /// The next node has accepted the connection, unless that failed: sends the rest of the
    /// request.
    fn send_request(&mut self, key: u64) -> io::Result<()> {
        let gone = || io::Error::from(io::ErrorKind::NotConnected);
        let now = self.now;
        let entry = self.entries.live_mut(key).ok_or_else(gone)?;
        let State::Opening(pending) = &mut entry.state else {
            return Err(gone());
        };
        entry.timers.connect = pending.opening.since_connect(now).into();
        let request = std::mem::take(&mut pending.request);
        let socket = entry.sockets[Side::Upstream].as_ref().ok_or_else(gone)?;
        // Writable may also mean failed.
        connect_error(socket).map_or(Ok(()), Err)?;
        send(&socket.into(), &request)
    }

    /// Reads the reply before the client is validated.
    fn receive_reply(&mut self, key: u64) {
        if self.awaits_acceptance(key) {
            return;
        }
        let Some(entry) = self.entries.live_mut(key) else {
            return;
        };
        let preface = entry.preface.as_deref_mut();
        let upstream = end_of(&entry.sockets, preface.as_deref(), Side::Upstream);
        let (Some(upstream), Some(preface)) = (upstream, preface) else {
            return;
        };
        let Some(expecting) = &mut preface.expecting else {
            return;
        };
        let reply = match read_message(&upstream, |bytes| expecting.feed(bytes)) {
            Ok(reply) => Some(reply),
            Err(ReadError::Incomplete) => return,
            Err(ReadError::Gone | ReadError::Reset | ReadError::Lost | ReadError::Wrong(_)) => None,
        };
        if let Some(reply) = reply {
            preface.on_reply(reply);
            note_syn_option(preface, &mut self.syn_options, &self.counters, self.now);
        }
        if reply == Some(Reply::Connected) {
            preface.expecting = None;
        }
        self.drive(key, |opening, now| opening.on_reply(reply, now));
    }
}

/// Whether an error shows something of the way to a peer. Others are of this host, as when no descriptor or port
/// is free.
fn is_of_network(error: &io::Error) -> bool {
    let of_network = [
        libc::ECONNREFUSED,
        libc::ECONNRESET,
        libc::EHOSTUNREACH,
        libc::ENETDOWN,
        libc::ENETUNREACH,
        libc::ETIMEDOUT,
    ];
    error
        .raw_os_error()
        .is_some_and(|number| of_network.contains(&number))
}

/// The request to the next node. `None` where a flow cannot be carried.
fn connect_for(flow: &Flow, segments: SegmentList, opening: &Opening) -> Option<Connect> {
    let mut connect = Connect::new(ChainHeader {
        destination: Endpoint::new(flow.server()).ok()?,
        source: Endpoint::new(flow.client()).ok(),
        segments,
        guard: opening.hops.guard,
    });
    connect.validated = opening.is_validated();
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
