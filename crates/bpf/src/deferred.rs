// SPDX-License-Identifier: Apache-2.0
//! The programs that a node loads after it has begun to relay.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use crate::error::Error;
use crate::object::{Map, Program};
use crate::objects::deferred::{self, map, program};
use crate::redirect::{self, Settings};
use crate::sys;

/// `BPF_SK_LOOKUP`
const SK_LOOKUP: u32 = 36;

/// The loaded programs; the look-up program is attached.
#[derive(Debug)]
pub(crate) struct Deferred {
    /// By their indexes in the object.
    pub(crate) maps: Vec<Arc<Map>>,
    pub(crate) programs: Vec<Arc<Program>>,
    _lookup: OwnedFd,
}

/// The parts of the programs that workers need.
#[derive(Debug)]
pub(crate) struct TailCalls {
    pub(crate) validated_prefixes: Arc<Map>,
    pub(crate) failed_destinations: Arc<Map>,
    pub(crate) profiles: Arc<Map>,
    /// Tokens of Multipath TCP: of connections with the node, and of others.
    pub(crate) tokens: Arc<Map>,
    pub(crate) foreign_tokens: Arc<Map>,
    /// The program that injects frames at devices.
    pub(crate) inject: Arc<Program>,
}

impl Deferred {
    /// Loads the programs on the maps of the redirect program, with a ring for each worker, and
    /// attaches the socket look-up for SYNs that meet a TIME_WAIT socket to the network namespace
    /// of this thread.
    pub(crate) fn load(
        settings: &Settings,
        shared: &[Arc<Map>],
        rings: &[Arc<Map>],
    ) -> Result<Self, Error> {
        let object = &deferred::OBJECT;
        let numbers = 0..object.maps.len();
        let maps = numbers.map(|number| match redirect::shared(object, number, shared) {
            Some(map) => Ok(map),
            // The verifier needs a template of the inner maps.
            None if number == map::RINGS => object.make_outer(number, settings.workers, &rings[0]),
            None if number == map::PLACEMENTS => object.make(number, Some(settings.workers)),
            None if number == map::PROFILES => object.make(number, Some(settings.profiles_max)),
            None => object.make(number, None),
        });
        let maps: Vec<_> = maps.collect::<Result<_, _>>()?;
        maps[map::RINGS].fill(rings.iter().map(|ring| ring.as_fd()))?;
        let types = object.load_types()?;
        let constants = deferred::Settings {
            workers: settings.workers,
            redirect_mark: settings.redirect_mark,
            socket_mark: settings.socket_mark,
            least_port: settings.least_port.into(),
        };
        let numbers = 0..object.programs.len();
        let load = |number| object.load(number, &types, &maps, &constants.in_order());
        let programs = numbers.map(|number| load(number).map(Arc::new));
        let programs: Vec<_> = programs.collect::<Result<_, _>>()?;
        let failed = |source| Error::AttachLookup { source };
        let netns = File::open("/proc/thread-self/ns/net").map_err(failed)?;
        let program = programs[program::FIND_LISTENER].as_fd();
        let lookup = sys::link(program, netns.as_raw_fd().cast_unsigned(), SK_LOOKUP);
        Ok(Self {
            maps,
            programs,
            _lookup: lookup.map_err(failed)?,
        })
    }

    /// The parts that workers need. Give them to the workers before [`Self::tail_call_into`]:
    /// handling an event requires them.
    pub(crate) fn tail_call_maps(&self) -> TailCalls {
        let hold = |map: usize| Arc::clone(&self.maps[map]);
        TailCalls {
            validated_prefixes: hold(map::VALIDATED_PREFIXES),
            failed_destinations: hold(map::FAILED_DESTINATIONS),
            profiles: hold(map::PROFILES),
            tokens: hold(map::MULTIPATH_TOKENS),
            foreign_tokens: hold(map::FOREIGN_TOKENS),
            inject: Arc::clone(&self.programs[program::INJECT]),
        }
    }

    /// Connects the redirect program to these programs.
    pub(crate) fn tail_call_into(&self, tail_calls: &Map) -> Result<(), Error> {
        // In the order of `enum step`.
        let in_order = [
            program::OPEN_FLOW,
            program::CHECK_COOKIE,
            program::HOLD_SYN_ACK,
            program::REDIRECT_ICMP_ERROR,
            program::REDIRECT_FRAGMENT,
            program::PARSE_SYN_OPTION,
            program::JOIN_CONNECTION,
            program::END_TIME_WAIT,
        ];
        tail_calls.fill(in_order.iter().map(|number| self.programs[*number].as_fd()))
    }
}
