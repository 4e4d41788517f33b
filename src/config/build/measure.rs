// SPDX-License-Identifier: Apache-2.0
//! `[measure]`, and `reflector` of `[[peer]]`.

use std::net::SocketAddr;
use std::time::Duration;

use posthaste_relay::chain::Peer;
use posthaste_wire::stamp;
use toml::Spanned;

use super::super::{Measure, Schedule, file, value};
use super::Reader;

/// Between two probes of a link: more often says little more, and is bounded by
/// what reflectors answer.
const INTERVAL_MIN: Duration = Duration::from_millis(100);
const INTERVAL_MAX: Duration = Duration::from_secs(3600);
const INTERVAL: Duration = Duration::from_secs(10);
const INTERVAL_IN_USE: Duration = Duration::from_secs(1);
/// Source ports: as many ways of a network as flows are spread over, at most.
const PORTS_MAX: u32 = 16;
const PORTS: u32 = 4;

impl Reader {
    pub(super) fn measure(
        &mut self,
        file: &file::File,
        listeners: &[SocketAddr],
        peers: &[Peer],
    ) -> Measure {
        let section = &file.measure;
        let key = "measure.reflector";
        let reflectors = self.list(key, &section.reflector, value::listener);
        self.named_once(key, &section.reflector);
        let reflectors = match section.reflector {
            Some(_) => reflectors,
            None if peers.is_empty() && file.controller.is_none() => Vec::new(),
            None => beside(listeners),
        };
        let of_peers = file.peer.iter().map(Spanned::get_ref).zip(peers);
        Measure {
            enabled: self.get("measure.enabled", &section.enabled, true, value::switch),
            reflectors,
            open_to: self.list("measure.open_to", &section.open_to, value::prefix),
            schedule: self.schedule(section),
            reflectors_of_peers: of_peers
                .map(|(section, peer)| self.reflector_of(section, peer))
                .collect(),
        }
    }

    fn schedule(&mut self, section: &file::Measure) -> Schedule {
        let bounds = INTERVAL_MIN..=INTERVAL_MAX;
        let interval = self.get("measure.interval", &section.interval, INTERVAL, |v| {
            value::duration(v, bounds)
        });
        let key = "measure.interval_in_use";
        let default = INTERVAL_IN_USE.min(interval);
        let field = &section.interval_in_use;
        let interval_in_use = self.get(key, field, default, |v| {
            value::duration(v, INTERVAL_MIN..=interval.max(INTERVAL_MIN))
        });
        let ports = self.get("measure.source_ports", &section.source_ports, PORTS, |v| {
            value::number(v, 1..=PORTS_MAX)
        });
        Schedule {
            interval,
            interval_in_use,
            ports: u8::try_from(ports).unwrap_or(u8::MAX),
        }
    }

    fn reflector_of(&mut self, section: &file::Peer, peer: &Peer) -> Option<SocketAddr> {
        let usual = Some(SocketAddr::new(peer.address.ip(), stamp::PORT));
        let key = format!("peer \"{}\": reflector", peer.name);
        self.get(&key, &section.reflector, usual, value::reflector)
    }
}

/// The usual port at each address of the explicit listeners.
fn beside(listeners: &[SocketAddr]) -> Vec<SocketAddr> {
    let mut reflectors: Vec<SocketAddr> = Vec::new();
    for listener in listeners {
        let mut reflector = *listener;
        reflector.set_port(stamp::PORT);
        if !reflectors.contains(&reflector) {
            reflectors.push(reflector);
        }
    }
    reflectors
}
