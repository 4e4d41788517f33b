// SPDX-License-Identifier: Apache-2.0
//! Who has sent a request, and whether it counts: peers prove it by a key, clients of RFC 8803 by
//! their address and a cookie.

use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};

use posthaste_wire::auth::Key;
use posthaste_wire::convert::{Answer, ConvertError, Head, cookie, is_cookie_of};
use posthaste_wire::header::NodeId;
use posthaste_wire::replay::ReplayWindow;

use crate::chain::Chains;
use crate::clock::Clock;
use crate::control::Denial;
use crate::intercept::Intercept;
use crate::sys;

use super::Worker;
use super::connect_request::ConnectRequest;
use super::denial::{Reason, encoded};
use super::preface::{OPTIONS, Requester};

/// How long an authenticated request is valid, and how much clocks may differ. Hosts that use NTP
/// differ by far less; a longer time means more requests to remember.
const FRESH_MS: u64 = 30_000;
/// Requests remembered, by all workers together: as many as may come in that
/// time at two thousand in a second.
const REMEMBERED: usize = 60_000;

/// What the workers of a node share about requests.
#[derive(Debug)]
pub struct ReplayGuard {
    /// When requests are made, and seen.
    pub(super) clock: Clock,
    /// Requests that count no more.
    seen: Mutex<ReplayWindow>,
    /// What cookies are made with.
    secret: Key,
}

impl ReplayGuard {
    /// Goes by `clock`.
    pub fn new(clock: Clock) -> Self {
        Self {
            clock,
            seen: Mutex::new(ReplayWindow::new(FRESH_MS, REMEMBERED)),
            secret: Key::new(sys::random()),
        }
    }
}

impl Default for ReplayGuard {
    fn default() -> Self {
        Self::new(Clock::default())
    }
}

impl<I: Intercept> Worker<I> {
    /// A client or a node has sent a request.
    pub(super) fn on_request(&mut self, key: u64, head: Box<Head>) {
        let Some(pending_request) = self.pending_requests.get(key) else {
            return;
        };
        let from = pending_request.from;
        if head.claim.is_none() {
            return self.on_unauthenticated(key, from, head);
        }
        match self.authenticate(&head) {
            Ok(peer) => {
                self.welcome(key, peer);
                if let Some(connect) = head.request.connect {
                    self.on_connect_request(key, ConnectRequest::of_peer(peer, connect, from));
                }
            }
            Err(why) => self.refuse(key, None, Requester::Peer, why),
        }
    }

    /// Which peer has made a request, if it counts.
    fn authenticate(&self, head: &Head) -> Result<NodeId, Reason> {
        let chains = self.rules.chains();
        let (Some(me), Some(claim)) = (chains.me, head.claim) else {
            return Err(Denial::AuthTag.into());
        };
        // A request does not name its sender, so each key of that number is tried.
        let found = chains.peers.iter().find_map(|peer| {
            let authentic = head.verify(peer.key(claim.key_id)?, me).ok()?;
            Some((peer.id, authentic))
        });
        // Only then the window: a sender without a key must not fill it. All workers share it,
        // since the kernel may give a repetition to another one.
        let (peer, authentic) = found.ok_or(Denial::AuthTag)?;
        let mut seen = self
            .common
            .replay_guard
            .seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let now_ms = self.common.replay_guard.clock.now_ms();
        seen.admit(now_ms, authentic)
            .map_err(|_| untimely(claim.timestamp_ms, now_ms))?;
        Ok(peer)
    }

    /// A client of RFC 8803 has sent a request.
    fn on_unauthenticated(&mut self, key: u64, from: SocketAddr, head: Box<Head>) {
        let requester = Requester::CLIENT;
        let access = &self.rules.policy.access;
        if !access.admits(from.ip()) {
            return self.refuse(key, None, requester, Denial::Unauthorized);
        }
        if let Some(text) = &access.cookie {
            let sent = head.request.cookie.as_ref();
            if !sent.is_some_and(|cookie| text.is_sent_as(cookie)) {
                return self.refuse(key, None, requester, Denial::Cookie);
            }
        } else if access.cookies {
            match &head.request.cookie {
                Some(cookie)
                    if is_cookie_of(&self.common.replay_guard.secret, from.ip(), cookie) => {}
                Some(_) => return self.refuse(key, None, requester, Denial::Cookie),
                None => {
                    // RFC 8803 §6.2.7: the client repeats its request with this cookie.
                    let fresh = cookie(&self.common.replay_guard.secret, from.ip()).into_bytes();
                    return self.answer_request(key, &encoded(ConvertError::MissingCookie(fresh)));
                }
            }
        }
        let Some(pending_request) = self.pending_requests.get_mut(key) else {
            return;
        };
        // The request was in the SYN (RFC 7413), whose source may be spoofed: without a tag it
        // must not make a server work.
        if sys::is_handshaking(&pending_request.socket) {
            return pending_request.validate(head);
        }
        let extensions = head.request.wants_extensions;
        let Some(connect) = head.request.connect else {
            let answer = Answer {
                extensions: extensions.then(|| OPTIONS.to_vec()),
                ..Answer::default()
            };
            return self.answer_request(key, &answer.encode().unwrap_or_default());
        };
        if let Some(error) = connect.unsupported(&OPTIONS) {
            return self.answer_request(key, &encoded(error));
        }
        let request = ConnectRequest::of_client(connect, extensions, from);
        self.on_connect_request(key, request);
    }
}

/// Why an authentic request that was made then is not valid. A fresh one was received before, or is
/// as old as others that were forgotten for lack of room.
fn untimely(made_ms: u64, now_ms: u64) -> Reason {
    if made_ms.abs_diff(now_ms) <= FRESH_MS {
        return Denial::Replay.into();
    }
    let millis = |ms: u64| i64::try_from(ms).unwrap_or(i64::MAX);
    Reason {
        ahead_ms: Some(millis(made_ms).saturating_sub(millis(now_ms))),
        ..Denial::Clock.into()
    }
}

pub(super) fn key_of(chains: &Chains, id: NodeId, key_id: u32) -> Option<Key> {
    chains.find_peer(id)?.key(key_id).cloned()
}
