// SPDX-License-Identifier: Apache-2.0
//! The packet path: loads its programs, attaches them, and keeps its flows while the node lives.
//!
//! Without a living node the programs take no new flows. [`pins`] has what outlives it.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use caps::errors::CapsError;
use caps::{CapSet, Capability, CapsHashSet};
use posthaste_relay::flow::Flow;

use crate::bypass::BURY;
use crate::bypass::burial::Burial;
use crate::chains::Chains;
use crate::error::Error;
use crate::layout::{bytes, nanoseconds};
use crate::object::{Map, Object, Program};
use crate::objects::packet_path::{self, map, program};
use crate::objects::types;
use crate::redirect::{self, Settings};
use crate::sys;

pub(crate) mod pins;
pub(crate) mod report;
mod sweep;
#[cfg(test)]
mod tests;

use pins::Pins;
use report::{PacketFlow, PacketKnowledge};
use sweep::Sweep;

/// `BPF_TCX_INGRESS`, `BPF_TCX_EGRESS`
const TCX: [u32; 2] = [46, 47];
/// The maps that outlive the process.
const LASTING: [usize; 7] = [
    map::PACKET_PATIENCE,
    map::PACKET_FLOWS,
    map::PACKET_HELD,
    map::PACKET_PROFILES,
    map::PACKET_PREFIXES,
    map::PACKET_CONTROL,
    map::PACKET_OWNER,
];
/// Time between two rounds of [`Keeper`].
///
/// A SYN that is lost behind the node is late by as much, or by more if the table is so large that a
/// round reads a part of it.
const ROUND: Duration = Duration::from_millis(500);
/// Words of `struct __sk_buff` up to the first of `cb`.
const CONTEXT_WORDS: usize = 13;
const CONTEXT_CB: usize = 12;
/// What running a program needs.
const CAPABILITIES: [Capability; 2] = [Capability::CAP_NET_ADMIN, Capability::CAP_BPF];

/// The loaded programs and their attachments.
#[derive(Debug)]
pub(crate) struct PacketPath {
    maps: Vec<Arc<Map>>,
    programs: [Arc<Program>; 2],
    sweep: Arc<Program>,
    resend: Arc<Program>,
    abort: Program,
    keeper: Option<JoinHandle<()>>,
    burial: Arc<OnceLock<Arc<Burial>>>,
    stops: Arc<AtomicBool>,
    /// Whether another process has this node's place.
    replaced: Arc<AtomicBool>,
    links: HashMap<u32, Vec<OwnedFd>>,
    /// Without them flows end with the process.
    pins: Option<Pins>,
    /// This process.
    owner: u32,
    chains: Chains,
}

/// The work that the programs cannot do on their own, in a thread.
#[derive(Debug)]
struct Keeper {
    walk: Sweep,
    sweep: Arc<Program>,
    resend: Arc<Program>,
    replaced: Arc<AtomicBool>,
    /// Once relays may leave.
    burial: Arc<OnceLock<Arc<Burial>>>,
    /// An earlier process's, whose relays could leave.
    inherited: Option<Burial>,
}

/// How long the packet path waits, beside the time that each rule has for a server's answer.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// How long a flow may be quiet until its ends are probed.
    pub idle: Duration,
    /// How long a client may take to acknowledge its answer while many are half-open.
    pub half_open: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            // RFC 5382 section 5, REQ-5.
            idle: Duration::from_mins(124),
            half_open: Duration::from_secs(5),
        }
    }
}

impl PacketPath {
    /// Loads the programs on the maps of the redirect program, and on those that an earlier process
    /// left. Returns also why flows will end with this process, if they will; with `is_lasting`, that
    /// is an error.
    pub(crate) fn load(
        settings: &Settings,
        shared: &[Arc<Map>],
        is_lasting: bool,
    ) -> Result<(Self, Option<io::Error>), Error> {
        let (pins, unpinned) = match Pins::make(settings.netns) {
            Ok(pins) => (Some(pins), None),
            Err(source) if is_lasting => return Err(Error::Unpinned { source }),
            Err(error) => (None, Some(error)),
        };
        let lock = pins.as_ref().map(Pins::lock).transpose();
        let lock = lock.map_err(Error::map("lock", "pins"))?;
        let loaded = Self::load_on(settings, shared, pins)?;
        let owned = loaded.own();
        // Before `loaded` is dropped, which takes the lock.
        drop(lock);
        owned?;
        Ok((loaded, unpinned))
    }

    fn load_on(
        settings: &Settings,
        shared: &[Arc<Map>],
        pins: Option<Pins>,
    ) -> Result<Self, Error> {
        let object = &packet_path::OBJECT;
        let entries = |number| (number == map::PACKET_FLOWS).then_some(settings.packet_flows);
        let numbers = 0..object.maps.len();
        let maps = numbers.map(|number| match redirect::shared(object, number, shared) {
            Some(map) => Ok(map),
            None if LASTING.contains(&number) => {
                lasting(object, number, entries(number), pins.as_ref())
            }
            None => object.make(number, None),
        });
        let maps: Vec<_> = maps.collect::<Result<_, _>>()?;
        let [key0, key1, key2, key3] = random().map_err(Error::load("random numbers"))?;
        let chains = Chains::of_kernel();
        let constants = packet_path::Settings {
            skb_head: chains.skb_head,
            skb_end: chains.skb_end,
            gso_type: chains.gso_type,
            cuts_chains: chains.cuts.into(),
            carried: carried(settings.netns),
            workers: settings.workers,
            redirect_mark: settings.redirect_mark,
            isn_key0: key0,
            isn_key1: key1,
            isn_key2: key2,
            isn_key3: key3,
            socket_mark: settings.socket_mark,
            budget: settings.half_open.max(1),
            reserve: settings.half_open_reserve,
            // One prefix must not use up what all have.
            prefix_budget: settings.half_open.div_ceil(4).max(1),
        };
        let types = object.load_types()?;
        let load = |number| object.load(number, &types, &maps, &constants.in_order());
        let programs = [
            Arc::new(load(program::PACKET_IN)?),
            Arc::new(load(program::PACKET_OUT)?),
        ];
        let replaced = Arc::new(AtomicBool::new(false));
        let burial = Arc::default();
        let keeper = Keeper {
            burial: Arc::clone(&burial),
            inherited: pins.as_ref().and_then(Burial::pinned),
            replaced: Arc::clone(&replaced),
            walk: Sweep::new(&maps[map::PACKET_FLOWS], &maps[map::PACKET_PATIENCE]),
            sweep: Arc::new(load(program::PACKET_SWEEP)?),
            resend: Arc::new(load(program::PACKET_RESEND)?),
        };
        let (sweep, resend) = (Arc::clone(&keeper.sweep), Arc::clone(&keeper.resend));
        let abort = load(program::PACKET_ABORT)?;
        let stops = Arc::new(AtomicBool::new(false));
        let keeper = thread::Builder::new().name("packets".into()).spawn({
            let stops = Arc::clone(&stops);
            move || keeper.run(&stops)
        });
        Ok(Self {
            maps,
            programs,
            sweep,
            resend,
            abort,
            keeper: Some(keeper.map_err(Error::load("a thread"))?),
            burial,
            stops,
            replaced,
            links: HashMap::new(),
            pins,
            owner: std::process::id(),
            chains,
        })
    }

    /// Makes the flows this node's. From here on a predecessor, and the guard of a dead node, leaves
    /// the pins alone.
    fn own(&self) -> Result<(), Error> {
        if let Some(pins) = &self.pins {
            let programs = [
                (pins::SWEEP, &*self.sweep),
                (pins::RESEND, &*self.resend),
                (pins::ABORT, &self.abort),
            ];
            for (name, program) in programs {
                let pinned = pins.replace(name, program.as_fd());
                pinned.map_err(Error::map("pin", name))?;
            }
        }
        self.maps[map::PACKET_OWNER].update(&[0; 4], &self.owner.to_ne_bytes())
    }

    /// Takes the flows back from a successor that failed: what it put into the links would go on by
    /// its rules.
    pub(crate) fn reclaim(&self) -> Result<(), Error> {
        let lock = self.pins.as_ref().map(Pins::lock).transpose();
        let _lock = lock.map_err(Error::map("lock", "pins"))?;
        for (ifindex, links) in &self.links {
            for (link, program) in links.iter().zip(&self.programs) {
                let updated = sys::update_link(link.as_fd(), program.as_fd());
                updated.map_err(|source| Error::Attach {
                    ifindex: *ifindex,
                    source,
                })?;
            }
        }
        self.own()
    }

    /// Sets how long it waits.
    pub(crate) fn set_patience(&self, patience: Patience) -> Result<(), Error> {
        let value = types::packet_patience {
            idle_ns: nanoseconds(patience.idle),
            half_open_ns: nanoseconds(patience.half_open),
        };
        self.maps[map::PACKET_PATIENCE].update(&[0; 4], bytes(&value))
    }

    /// Whether no flow is left, nor one that is handed over.
    pub(crate) fn is_empty(&self) -> bool {
        let flows = &self.maps[map::PACKET_FLOWS];
        let pairs = self.pins.as_ref().map_or(0, Pins::pairs_left);
        pairs == 0 && flows.is_empty().is_ok_and(|empty| empty)
    }

    /// Leaves SYNs to the sockets of relays, of which there may be some from now on.
    pub(crate) fn spare_relays(&self) -> Result<(), Error> {
        self.maps[map::PACKET_RELAYS].update(&[0; 4], &1_u32.to_ne_bytes())
    }

    /// Leaves new flows to a successor: without it the programs take none.
    pub(crate) fn step_back(&self) {
        // Relaxed: the flag guards no data, and the keeper reads it in its next round.
        self.replaced.store(true, Ordering::Relaxed);
    }

    /// Attaches to an interface, in front of other programs. Does nothing if it is attached.
    pub(crate) fn attach(&mut self, ifindex: u32) -> io::Result<()> {
        if self.links.contains_key(&ifindex) {
            return Ok(());
        }
        let mut links = Vec::new();
        for (direction, program) in self.programs.iter().enumerate() {
            links.push(self.link(ifindex, direction, program)?);
        }
        self.links.insert(ifindex, links);
        Ok(())
    }

    /// The link of a direction: an earlier process' with this program in place of its own, or a new
    /// one.
    fn link(&self, ifindex: u32, direction: usize, program: &Program) -> io::Result<OwnedFd> {
        let pin = self.pin_of(ifindex, direction);
        lasting_link(pin, program, ifindex, TCX[direction])
    }

    fn pin_of(&self, ifindex: u32, direction: usize) -> Option<PathBuf> {
        let name = format!("{ifindex}-{}", ["in", "out"][direction]);
        Some(self.pins.as_ref()?.path(&name))
    }

    /// Detaches from an interface.
    pub(crate) fn detach(&mut self, ifindex: u32) {
        self.links.remove(&ifindex);
        for pin in (0..TCX.len()).filter_map(|direction| self.pin_of(ifindex, direction)) {
            let _ = fs::remove_file(pin);
        }
    }

    /// Looks after pairs that are handed over, from now on also when this process has ended.
    pub(crate) fn bury(&self, burial: &Arc<Burial>) -> Result<(), Error> {
        if let Some(pins) = &self.pins {
            let pinned = pins.replace(BURY, burial.as_fd());
            pinned.map_err(Error::map("pin", BURY))?;
        }
        // Only the first call has an effect, and there is one.
        let _ = self.burial.set(Arc::clone(burial));
        Ok(())
    }

    /// What outlives the process, unless its flows end with it.
    pub(crate) fn pins(&self) -> Option<&Pins> {
        self.pins.as_ref()
    }

    /// What is known of chains of segments.
    pub(crate) fn chains(&self) -> Chains {
        self.chains
    }

    /// The map with this name, if the packet path has it.
    pub(crate) fn map(&self, name: &str) -> Option<Arc<Map>> {
        let mut names = packet_path::OBJECT.maps.iter();
        let at = names.position(|map| map.name == name)?;
        Some(Arc::clone(&self.maps[at]))
    }

    /// At most `most` flows, in no order.
    pub(crate) fn flows(&self, most: usize) -> Result<Vec<PacketFlow>, Error> {
        report::flows(&self.maps[map::PACKET_FLOWS], most)
    }

    /// The entries of the flow table: an earlier process' may have other ones than this node's.
    pub(crate) fn flows_max(&self) -> io::Result<u32> {
        sys::entries(self.maps[map::PACKET_FLOWS].as_fd())
    }

    /// What decides whether a flow is taken at `now` (CLOCK_MONOTONIC). `ttl`: how long it counts that answers came
    /// this way.
    pub(crate) fn knowledge(
        &self,
        flow: &Flow,
        ttl: Duration,
        now: Duration,
    ) -> Result<PacketKnowledge, Error> {
        let maps = [map::PACKET_PROFILES, map::PACKET_PASSAGES];
        report::knowledge(maps.map(|map| &*self.maps[map]), flow, ttl, now)
    }

    /// The loaded programs, for the tests.
    pub(crate) fn programs(&self) -> impl Iterator<Item = &Program> {
        self.programs.iter().map(Arc::as_ref)
    }
}

impl Drop for PacketPath {
    fn drop(&mut self) {
        self.stops.store(true, Ordering::Relaxed);
        if let Some(keeper) = self.keeper.take() {
            keeper.thread().unpark();
            let _ = keeper.join();
        }
        if let Some(pins) = &self.pins
            && self.is_empty()
        {
            pins.remove_of(&self.maps[map::PACKET_OWNER], self.owner);
        }
    }
}

/// The mark of translated segments, of 16 bits: no packet has it before, nor that of another network
/// namespace among the last 32,768. A successor has its predecessor's.
pub(crate) fn carried(netns: u64) -> u32 {
    0x8000 | u32::try_from(netns & 0x7fff).expect("15 bits")
}

/// Drops all other capabilities of this thread.
fn keep_capabilities() -> Result<(), CapsError> {
    let held = caps::read(None, CapSet::Permitted)?;
    let kept = held.into_iter().filter(|held| CAPABILITIES.contains(held));
    let kept: CapsHashSet = kept.collect();
    caps::clear(None, CapSet::Inheritable)?;
    // Before the permitted set, of which it must be a part (capset(2)).
    caps::set(None, CapSet::Effective, &kept)?;
    caps::set(None, CapSet::Permitted, &kept)
}

impl Keeper {
    fn run(mut self, stops: &AtomicBool) {
        // Threads inherit the privileges of the start, which this one outlives.
        let _ = keep_capabilities();
        while !stops.load(Ordering::Relaxed) {
            self.round();
            thread::park_timeout(ROUND);
        }
    }

    /// Shows that the node lives and has its place, removes flows that have ended, has lost SYNs sent
    /// again and the ends of quiet flows probed.
    fn round(&mut self) {
        let is_replaced = self.replaced.load(Ordering::Relaxed);
        let burial = self.burial.get().map(Arc::as_ref);
        if let Some(burial) = burial.or(self.inherited.as_ref()) {
            // The next round tries again.
            let _ = burial.round(false);
        }
        if !is_replaced {
            let _ = sweep::show_life(self.sweep.as_fd());
        }
        let round = self.walk.round(self.sweep.as_fd()).unwrap_or_default();
        if !is_replaced {
            round.act(self.resend.as_fd());
        }
    }
}

/// A map that an earlier process pinned, or a new one, pinned.
pub(crate) fn lasting(
    object: &Object,
    number: usize,
    entries: Option<u32>,
    pins: Option<&Pins>,
) -> Result<Arc<Map>, Error> {
    let Some(pins) = pins else {
        return object.make(number, entries);
    };
    let pin = pins.path(object.maps[number].name);
    if let Ok(map) = sys::pinned(&pin) {
        return Ok(object.adopt(number, map));
    }
    let map = object.make(number, entries)?;
    sys::pin(map.as_fd(), &pin).map_err(Error::map("pin", object.maps[number].name))?;
    Ok(map)
}

/// The link at a pin: an earlier process' with this program in place of its own, or a new one.
pub(crate) fn lasting_link(
    pin: Option<PathBuf>,
    program: &Program,
    ifindex: u32,
    attach: u32,
) -> io::Result<OwnedFd> {
    if let Some(pin) = &pin {
        let adopted = sys::pinned(pin).and_then(|link| {
            sys::update_link(link.as_fd(), program.as_fd())?;
            Ok(link)
        });
        if let Ok(link) = adopted {
            return Ok(link);
        }
        // The interface that it was for is gone.
        let _ = fs::remove_file(pin);
    }
    let link = sys::link_first(program.as_fd(), ifindex, attach)?;
    if let Some(pin) = &pin {
        sys::pin(link.as_fd(), pin)?;
    }
    Ok(link)
}

/// Secret random numbers.
fn random() -> io::Result<[u32; 4]> {
    let mut octets = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut octets)?;
    let mut numbers = [0; 4];
    for (number, octets) in numbers.iter_mut().zip(octets.as_chunks().0) {
        *number = u32::from_ne_bytes(*octets);
    }
    Ok(numbers)
}
