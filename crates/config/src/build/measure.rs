// SPDX-License-Identifier: Apache-2.0
//! `[measure]`, and `reflector` of `[[peer]]`.

use std::net::SocketAddr;

use posthaste_relay::chain::Peer;
use posthaste_wire::stamp;

use super::super::document::Section;
use super::super::keys::{INTERVAL_MIN, SECOND};
use super::super::{Measure, Schedule, value};
use super::Reader;

impl Reader {
    pub(super) fn measure(
        &mut self,
        file: &Section,
        listeners: &[SocketAddr],
        peers: &[Peer],
    ) -> Measure {
        let section = file.one("measure");
        let reflectors = self.list(section, "reflector", value::listener);
        self.named_once(section, "reflector");
        // No other node measures a node that is alone: it opens no port unless the file names one.
        let is_alone = peers.is_empty() && file.one("controller").at.is_none();
        let reflectors = match section.has("reflector") {
            true => reflectors,
            false if is_alone => Vec::new(),
            false => beside(listeners),
        };
        let of_peers = file.all("peer").iter().zip(peers);
        Measure {
            enabled: self.get(section, "enabled"),
            reflectors,
            open_to: self.list(section, "open_to", value::prefix),
            schedule: self.schedule(section),
            reflectors_of_peers: of_peers
                .map(|(section, peer)| self.reflector_of(section, peer))
                .collect(),
        }
    }

    fn schedule(&mut self, section: &Section) -> Schedule {
        let interval = self.get(section, "interval");
        // A link in use must not be measured less often than one without flows.
        let bounds = INTERVAL_MIN..=interval;
        let read = |v: &toml::Value| value::duration(v, bounds.clone());
        let interval_in_use = self.optional(section, "interval_in_use", read);
        let ports: u32 = self.get(section, "source_ports");
        Schedule {
            interval,
            interval_in_use: interval_in_use.unwrap_or_else(|| SECOND.min(interval)),
            ports: u8::try_from(ports).unwrap_or(u8::MAX),
        }
    }

    fn reflector_of(&mut self, section: &Section, peer: &Peer) -> Option<SocketAddr> {
        // RFC 8762 §4.1: the reflector listens on UDP port 862 by default.
        let usual = Some(SocketAddr::new(peer.address.ip(), stamp::PORT));
        let given = self.optional(section, "reflector", value::reflector);
        given.unwrap_or(usual)
    }
}

/// The usual port at each address of the explicit listeners.
fn beside(listeners: &[SocketAddr]) -> Vec<SocketAddr> {
    let mut reflectors: Vec<SocketAddr> = Vec::new();
    for listener in listeners {
        let mut reflector = *listener;
        reflector.set_port(stamp::PORT);
        // Listeners at one address differ in their ports alone.
        if !reflectors.contains(&reflector) {
            reflectors.push(reflector);
        }
    }
    reflectors
}
