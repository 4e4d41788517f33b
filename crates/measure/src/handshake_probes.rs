// SPDX-License-Identifier: Apache-2.0
//! Handshakes with peers whose reflectors do not answer.

use std::net::SocketAddr;
use std::time::Duration;

use posthaste_relay::handshake_probe::HandshakeProbe;
use posthaste_wire::header::NodeId;

/// Bound on simultaneous handshakes; if all links fail, most of them wait.
const AT_ONCE: usize = 64;

/// The handshakes in progress, and those that wait.
#[derive(Debug, Default)]
pub(super) struct HandshakeProbes {
    waiting: Vec<(NodeId, SocketAddr, Duration)>,
    open: Vec<(NodeId, HandshakeProbe, Duration)>,
}

impl HandshakeProbes {
    /// Starts a handshake with the timeout `within` as soon as there is room.
    pub(super) fn add(&mut self, peer: NodeId, address: SocketAddr, within: Duration) {
        self.waiting.push((peer, address, within));
    }

    pub(super) fn sockets(&self) -> impl Iterator<Item = &HandshakeProbe> {
        self.open
            .iter()
            .map(|(_, handshake_probe, _)| handshake_probe)
    }

    /// When the next one times out.
    pub(super) fn deadline(&self) -> Option<Duration> {
        self.open.iter().map(|(.., deadline)| *deadline).min()
    }

    /// Starts waiting handshakes where there is room, and reports the results of others.
    pub(super) fn advance(
        &mut self,
        mark: u32,
        now: Duration,
        mut done: impl FnMut(NodeId, Option<u32>),
    ) {
        // Results first: they make room for those that wait.
        self.open.retain(|(peer, handshake_probe, deadline)| {
            let took = match handshake_probe.outcome() {
                Ok(None) if now < *deadline => return true,
                Ok(took) => took,
                Err(_) => None,
            };
            let micros = took.map(|took| u32::try_from(took.as_micros()).unwrap_or(u32::MAX));
            // Reports never hold a round trip of 0.
            done(*peer, micros.map(|micros| micros.max(1)));
            false
        });
        while self.open.len() < AT_ONCE {
            let Some((peer, address, within)) = self.waiting.pop() else {
                return;
            };
            match HandshakeProbe::begin(address, mark) {
                Ok(handshake_probe) => self.open.push((peer, handshake_probe, now + within)),
                // Reported as failed: the link makes no other handshake while one is pending.
                Err(_) => done(peer, None),
            }
        }
    }
}
