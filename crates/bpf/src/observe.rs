// SPDX-License-Identifier: Apache-2.0
//! The program that observes outgoing handshakes, and the profiles learned from them.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use posthaste_relay::flow::Flow;
use posthaste_relay::intercept::ObservedPath;

use crate::attach::{Hold, Hook, Place};
use crate::error::Error;
use crate::layout::{bytes, nanoseconds, octets, profile_key, whole};
use crate::object::{Map, Program};
use crate::objects::observe::{self, map, program};
use crate::objects::types;
use crate::redirect::{self, Settings};

/// `TRANSLATED_SOURCE`, `TRANSLATED_DESTINATION`
const SOURCE: u8 = 1;
const DESTINATION: u8 = 2;

/// How destinations are observed before flows to them are relayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observing {
    /// How long a profile is valid.
    pub ttl: Duration,
    /// How long flows are forwarded whose relays have failed.
    pub bypass: Duration,
    /// Least saving of a relay, by the observed round trips.
    pub gain_min: Duration,
}

/// What the firewall of this host does to forwarded connections, which relays would bypass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Firewall {
    /// It limits them: flows that must be observed are forwarded.
    pub limits: bool,
    /// It may drop their packets: relays leave by the observed interface only.
    pub filters: bool,
}

impl Observing {
    pub(crate) fn value(self, epoch: u32, filters: bool) -> types::observing {
        types::observing {
            ttl_ns: nanoseconds(self.ttl),
            bypass_ns: nanoseconds(self.bypass),
            epoch,
            gain_min_us: u32::try_from(self.gain_min.as_micros()).unwrap_or(u32::MAX),
            filters: filters.into(),
            pad: 0,
        }
    }
}

/// What NAT does to flows, as observed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Translated {
    /// The source: servers see another address or port.
    pub source: bool,
    /// The destination.
    pub destination: bool,
}

impl Translated {
    pub(crate) fn from_bits(bits: u8) -> Self {
        Self {
            source: bits & SOURCE != 0,
            destination: bits & DESTINATION != 0,
        }
    }
}

/// The state of a profile (`enum profile_state`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// A handshake was observed.
    Learned,
    /// A relay's handshake with the client has worked.
    Validated,
    /// A relay got no answer.
    Doubted,
    /// A flow forwarded after that did get one.
    Bypassed,
}

/// The path for a relay of an observed connection. The programs write 0 for an interface that routes lead
/// to, and for an MSS that is not known.
pub(crate) fn path(ifindex: u32, mss: u16) -> Option<ObservedPath> {
    let path = ObservedPath { ifindex, mss };
    (ifindex != 0 || mss != 0).then_some(path)
}

/// The profile of connections of a client with a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// The client's address as the network behind this host sees it.
    pub source: IpAddr,
    /// What NAT does.
    pub translated: Translated,
    /// Its state.
    pub trust: Trust,
    /// The path of its connections.
    pub path: Option<ObservedPath>,
    /// Round trip between this host and the client, at its handshake.
    pub client_rtt: Duration,
    /// Round trip between this host and the server.
    pub server_rtt: Duration,
}

impl Profile {
    pub(crate) fn read(value: &types::profile) -> Self {
        Self {
            source: ip(value.source),
            translated: Translated::from_bits(value.translated),
            trust: match value.state {
                0 => Trust::Learned,
                1 => Trust::Validated,
                2 => Trust::Doubted,
                _ => Trust::Bypassed,
            },
            path: {
                let named = [value.syn_mss, value.options.mss];
                let least = named.into_iter().filter(|mss| *mss != 0).min();
                let bound = if value.routed != 0 {
                    0
                } else {
                    value.out_ifindex
                };
                path(bound, least.unwrap_or(0))
            },
            client_rtt: Duration::from_micros(value.client_us.into()),
            server_rtt: Duration::from_micros(value.server_us.into()),
        }
    }
}

fn ip(address: types::address) -> IpAddr {
    Ipv6Addr::from(octets(address)).to_canonical()
}

/// A profile with its client and service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// The client's address.
    pub client: IpAddr,
    /// The server's address and port.
    pub server: SocketAddr,
    /// When it was learned (CLOCK_MONOTONIC).
    pub learned: Duration,
    /// The profile.
    pub profile: Profile,
}

/// At most `most` valid profiles of an epoch.
pub(crate) fn list(profiles: &Map, epoch: u32, most: usize) -> Result<Vec<Known>, Error> {
    let mut all = Vec::new();
    profiles.each(|key, value| {
        let (Some(key), Some(value)) = (
            whole::<types::profile_key>(key),
            whole::<types::profile>(value),
        ) else {
            return false;
        };
        // Profiles of earlier epochs stay in the map until others need the room.
        if value.epoch == epoch {
            all.push(Known {
                client: ip(key.client),
                server: SocketAddr::new(ip(key.server), u16::from_be(key.port)),
                learned: Duration::from_nanos(value.learned_ns),
                profile: Profile::read(&value),
            });
        }
        all.len() < most
    })?;
    Ok(all)
}

/// The valid profile of a flow's client and service.
pub(crate) fn find(profiles: &Map, epoch: u32, flow: &Flow) -> Result<Option<Profile>, Error> {
    let mut value = vec![0; size_of::<types::profile>()];
    let found = profiles.look_up(bytes(&profile_key(flow)), &mut value)?;
    let found = found.then(|| whole::<types::profile>(&value)).flatten();
    let valid = found.filter(|value| value.epoch == epoch);
    Ok(valid.as_ref().map(Profile::read))
}

/// The loaded program.
#[derive(Debug)]
pub(crate) struct Observer {
    pub(crate) program: Program,
    trial_sockets: Arc<Map>,
}

impl Observer {
    /// Loads the program on the maps of the redirect program.
    pub(crate) fn load(settings: &Settings, shared: &[Arc<Map>]) -> Result<Self, Error> {
        let object = &observe::OBJECT;
        let types = object.load_types()?;
        let make = |number| match number {
            map::TRIAL_SOCKETS => object.make_typed(number, &types),
            _ => object.make(number, None),
        };
        let maps = (0..object.maps.len()).map(|number| {
            redirect::shared(object, number, shared).map_or_else(|| make(number), Ok)
        });
        let maps: Vec<_> = maps.collect::<Result<_, _>>()?;
        let constants = observe::Settings {
            workers: settings.workers,
            redirect_mark: settings.redirect_mark,
            socket_mark: settings.socket_mark,
        };
        let program = object.load(program::OBSERVE, &types, &maps, &constants.in_order())?;
        Ok(Self {
            program,
            trial_sockets: Arc::clone(&maps[map::TRIAL_SOCKETS]),
        })
    }

    /// The map of trials' sockets.
    pub(crate) fn trial_sockets(&self) -> Arc<Map> {
        Arc::clone(&self.trial_sockets)
    }

    /// Observes what leaves by an interface.
    pub(crate) fn hold(&self, ifindex: u32, successions: u16) -> io::Result<Hold> {
        let place = Place {
            ifindex,
            hook: Hook::Egress,
            successions,
        };
        Hold::lasting(&self.program, place)
    }
}
