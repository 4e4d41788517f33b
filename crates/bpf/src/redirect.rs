// SPDX-License-Identifier: Apache-2.0
//! Loads, attaches and configures the redirect programs.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use posthaste_relay::policy::Prefix;

use crate::attach::{Hold, Hook, Place};
use crate::bypass::{Bypass, Pairs};
use crate::cgroup;
use crate::deferred::{Deferred, TailCalls};
use crate::error::Error;
use crate::event;
use crate::layout::bytes;
use crate::object::{Map, Object, Program};
use crate::objects::redirect::{self, map, program};
use crate::objects::{deferred as deferred_object, types};
use crate::observe::{Observer, Observing};
use crate::packet::{PacketPath, Patience};
use crate::rules::Wanted;
use crate::stats;
use crate::syn_option::Sender;
use crate::sys;
use crate::worker_maps::WorkerHandle;

mod observing;
mod packets;
mod policy;

/// Constants of the programs, fixed at load time.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Number of workers that share the flows.
    pub workers: u32,
    /// The fwmark bit that routes a packet to this host.
    pub redirect_mark: u32,
    /// The fwmark bit of the node's sockets.
    pub socket_mark: u32,
    /// The cookie of the network namespace (`SO_NETNS_COOKIE`).
    pub netns: u64,
    /// The lowest client port that the node may bind to; flows from lower ports are forwarded.
    pub least_port: u16,
    /// Bound on half-open upstream connections of any client.
    pub half_open: u32,
    /// Further ones, for clients from prefixes that completed a handshake before.
    pub half_open_reserve: u32,
    /// Bound on the profiles of clients and services.
    pub profiles_max: u32,
    /// Bound on the flows of the packet path.
    pub packet_flows: u32,
    /// Whether rules may set initial windows, or there are peers.
    pub windows: bool,
    /// Number of successive nodes that were replaced before this one. Each attaches its program
    /// behind that of its predecessor.
    pub successions: u16,
}

/// The header that starts the packets of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkLayer {
    /// An Ethernet header.
    Ethernet,
    /// The IP header (TUN, PPP, WireGuard).
    None,
}

/// The properties of an interface that the programs need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// The header of its packets.
    pub layer: LinkLayer,
    /// Whether its reverse path filter for IPv4 is strict: it accepts packets only from sources
    /// that are routed through it.
    pub strict_source: bool,
    /// Whether conntrack sees its packets before the programs do, as on a bridge with
    /// `br_netfilter`.
    pub tracked: bool,
    /// Whether its queue sends packets at the times that they bear (`fq`).
    pub paced: bool,
}

/// The generation of the first rules.
pub const FIRST_GENERATION: u8 = 1;

/// The parts in which the flows of a CPU are given to workers.
pub const PLACEMENT_SLOTS: usize = size_of::<types::placement>() / size_of::<u16>();

/// The maps that the programs of one node share with its workers. Created before the programs, so
/// that workers can start while those are loading.
#[derive(Debug)]
pub struct Maps {
    settings: Settings,
    /// By their indexes in the object.
    maps: Vec<Arc<Map>>,
    /// By worker.
    rings: Vec<OnceLock<Arc<Map>>>,
    tail_call_maps: Arc<OnceLock<TailCalls>>,
    /// The options of sockets' SYNs, once a program sends them.
    syn_options: Arc<OnceLock<Arc<Map>>>,
    trial_sockets: Arc<OnceLock<Arc<Map>>>,
    /// The flows that are handed over, once a rule wants that.
    pairs: Arc<OnceLock<Pairs>>,
}

/// The loaded programs of one node.
pub struct Redirect {
    shared: Arc<Maps>,
    program: Program,
    /// The window program, if it may be needed.
    set_initial_cwnd: Option<Program>,
    /// The generation of the current rules.
    generation: u8,
    holds: HashMap<u32, Holds>,
    /// The deferred programs, once the node has settled.
    deferred: Option<Deferred>,
    observer: Option<Observer>,
    /// The packet path, once a rule wants it and the node has settled.
    packet_path: Option<PacketPath>,
    wants_packet_path: Wanted,
    /// Whether a rule has wanted it since this process began: without the privilege that it has dropped it could
    /// not load it again.
    has_wanted_packet_path: bool,
    /// Whether it could not be loaded or attached. The next rules try again.
    packet_path_failed: bool,
    patience: Patience,
    /// The hand-over of flows to it, once a rule wants that.
    bypass: Option<Bypass>,
    /// Whether a rule wants it.
    wants_bypass: bool,
    /// Why it could not be loaded or attached, until the node has reported it.
    packet_path_error: Option<Error>,
    /// The same in words, as long as it holds.
    packet_path_trouble: Option<String>,
    /// Why its flows end with this process, if they do.
    packet_path_unpinned: Option<io::Error>,
    /// The entries of the flow table if they are not those of the settings, until the node has
    /// reported it.
    foreign_flow_table: Option<u32>,
    /// Whether the node relays, or did: open relays continue under the next rules.
    relays: bool,
    /// Whether a rule observes, or did: trials begun under it continue under the next rules.
    observes: bool,
    observing: Observing,
    /// Profiles of earlier epochs are invalid.
    epoch: u32,
    /// Whether the firewall may drop forwarded packets.
    filters: bool,
    /// The cgroup of this process, if the window program may be needed.
    cgroup: Option<io::Result<OwnedFd>>,
    windows: Option<OwnedFd>,
    /// The program that sends SYN options, once a peer needs it.
    sender: Option<Sender>,
    /// Addresses whose SYN options are accepted.
    syn_option_peers: Vec<IpAddr>,
    prefixes: Vec<(u8, Prefix)>,
    /// Addresses with an initial window.
    peers: Vec<[u8; 16]>,
}

impl std::fmt::Debug for Redirect {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Redirect")
            .field("interfaces", &self.holds.keys())
            .finish_non_exhaustive()
    }
}

/// The attachments of the programs to one interface.
#[derive(Debug)]
struct Holds {
    /// Set once the node relays.
    ingress: Option<Hold>,
    /// Set once the node has settled and a rule observes.
    egress: Option<Hold>,
}

impl Maps {
    /// Creates the maps.
    ///
    /// # Errors
    /// [`Error::Map`].
    pub fn new(settings: Settings) -> Result<Self, Error> {
        let object = &redirect::OBJECT;
        let entries = |number| match number {
            map::LISTENERS | map::MULTIPATH_LISTENERS => Some(2 * settings.workers),
            map::DRAINING => Some(settings.workers + 1),
            map::HALF_OPEN_FLOWS => Some(settings.half_open.max(1)),
            map::HALF_OPEN_RESERVE => Some(settings.half_open_reserve.max(1)),
            _ => None,
        };
        let numbers = 0..object.maps.len();
        let maps = numbers.map(|number| object.make(number, entries(number)));
        Ok(Self {
            settings,
            maps: maps.collect::<Result<_, _>>()?,
            rings: (0..settings.workers).map(|_| OnceLock::new()).collect(),
            tail_call_maps: Arc::default(),
            syn_options: Arc::default(),
            trial_sockets: Arc::default(),
            pairs: Arc::default(),
        })
    }

    /// The handle of worker number `worker`.
    ///
    /// # Errors
    /// [`Error::Map`] when its ring cannot be created.
    pub fn worker_maps(&self, worker: u16) -> Result<WorkerHandle, Error> {
        let hold = |map: usize| Arc::clone(&self.maps[map]);
        Ok(WorkerHandle {
            worker,
            ring: self.ring(&self.rings[usize::from(worker)])?,
            draining: hold(map::DRAINING),
            listeners: hold(map::LISTENERS),
            initial_cwnd: hold(map::INITIAL_CWND),
            tail_call_maps: Arc::clone(&self.tail_call_maps),
            syn_options: Arc::clone(&self.syn_options),
            trial_sockets: Arc::clone(&self.trial_sockets),
            pairs: Arc::clone(&self.pairs),
            half_open_flows: [hold(map::HALF_OPEN_FLOWS), hold(map::HALF_OPEN_RESERVE)],
            multipath_listeners: hold(map::MULTIPATH_LISTENERS),
            blocked: hold(map::BLOCKED),
        })
    }

    /// The ring in a slot, created at the first call.
    fn ring(&self, place: &OnceLock<Arc<Map>>) -> Result<Arc<Map>, Error> {
        if place.get().is_none() {
            // If another thread has created one meanwhile, that one stays.
            let _ = place.set(event::make_ring()?);
        }
        Ok(Arc::clone(place.get().expect("there is one now")))
    }

    fn get(&self, number: usize) -> &Map {
        &self.maps[number]
    }
}

impl Redirect {
    /// Loads the programs. Nothing is redirected until listeners and rules are
    /// set and an interface is attached.
    ///
    /// # Errors
    /// [`Error::Load`] with the kernel's reason.
    pub fn load(shared: Arc<Maps>) -> Result<Self, Error> {
        let (object, settings) = (&redirect::OBJECT, &shared.settings);
        let types = object.load_types()?;
        let constants = redirect::Settings {
            workers: settings.workers,
            redirect_mark: settings.redirect_mark,
            socket_mark: settings.socket_mark,
            netns: low_half(settings.netns),
            least_port: settings.least_port.into(),
        };
        let load = |number| object.load(number, &types, &shared.maps, &constants.in_order());
        let program = load(program::REDIRECT)?;
        let set_initial_cwnd = settings.windows.then(|| load(program::SET_INITIAL_CWND));
        Ok(Self {
            program,
            set_initial_cwnd: set_initial_cwnd.transpose()?,
            generation: FIRST_GENERATION - 1,
            holds: HashMap::new(),
            deferred: None,
            observer: None,
            packet_path: None,
            wants_packet_path: Wanted::No,
            has_wanted_packet_path: false,
            packet_path_failed: false,
            patience: Patience::default(),
            bypass: None,
            wants_bypass: false,
            packet_path_error: None,
            packet_path_unpinned: None,
            packet_path_trouble: None,
            foreign_flow_table: None,
            relays: false,
            observes: false,
            observing: Observing {
                ttl: Duration::ZERO,
                bypass: Duration::ZERO,
                gain_min: Duration::ZERO,
            },
            epoch: 0,
            filters: true,
            cgroup: settings.windows.then(own_cgroup),
            windows: None,
            sender: None,
            syn_option_peers: Vec::new(),
            prefixes: Vec::new(),
            peers: Vec::new(),
            shared,
        })
    }

    /// The handle of worker number `worker`.
    ///
    /// # Errors
    /// [`Error::Map`] when its ring cannot be created.
    pub fn worker_maps(&self, worker: u16) -> Result<WorkerHandle, Error> {
        self.shared.worker_maps(worker)
    }

    /// Sets the properties of an interface, attached or not.
    ///
    /// # Errors
    /// [`Error::Map`].
    pub fn describe(&mut self, ifindex: u32, device: Device) -> Result<(), Error> {
        let value = types::device {
            l2_bytes: match device.layer {
                LinkLayer::Ethernet => 14,
                LinkLayer::None => 0,
            },
            strict_source: device.strict_source.into(),
            tracked: device.tracked.into(),
            paced: device.paced.into(),
        };
        let devices = self.shared.get(map::DEVICES);
        let described = devices.update(&ifindex.to_ne_bytes(), bytes(&value));
        described.map_err(|error| match &error {
            Error::Map { source, .. } if source.raw_os_error() == Some(libc::E2BIG) => {
                let most = redirect::OBJECT.maps[map::DEVICES].entries;
                Error::TooManyInterfaces { most }
            }
            _ => error,
        })
    }

    /// Redirects what arrives at an interface.
    ///
    /// # Errors
    /// [`Error::Attach`], [`Error::Map`].
    pub fn attach(&mut self, ifindex: u32, device: Device) -> Result<(), Error> {
        self.describe(ifindex, device)?;
        let successions = self.shared.settings.successions;
        let mut holds = Holds {
            ingress: self.relays.then(|| self.hold(ifindex)).transpose()?,
            egress: None,
        };
        if let (Some(observer), true) = (&self.observer, self.observes) {
            let hold = observer.hold(ifindex, successions);
            holds.egress = Some(hold.map_err(|source| Error::Attach { ifindex, source })?);
        }
        self.holds.insert(ifindex, holds);
        self.take_packets();
        Ok(())
    }

    /// Attaches the redirect program to an interface.
    fn hold(&self, ifindex: u32) -> Result<Hold, Error> {
        let place = Place {
            ifindex,
            hook: Hook::Ingress,
            successions: self.shared.settings.successions,
        };
        // Creating a link waits for packets in flight, too long for a node that does not relay yet.
        let hold = match &self.deferred {
            Some(_) => Hold::lasting(&self.program, place),
            None => Hold::quick(&self.program, place),
        };
        hold.map_err(|source| Error::Attach { ifindex, source })
    }

    /// Redirects what arrives at the interfaces. A node whose flows take the packet path alone does
    /// without: each packet that this host forwards would pass the program.
    fn redirect(&mut self) -> Result<(), Error> {
        self.relays = true;
        // Before there is any: a program that runs now may still answer a SYN.
        if let Some(packet_path) = &self.packet_path {
            packet_path.spare_relays()?;
        }
        let without = self
            .holds
            .iter()
            .filter(|(_, holds)| holds.ingress.is_none());
        let without: Vec<u32> = without.map(|(ifindex, _)| *ifindex).collect();
        for ifindex in without {
            let hold = self.hold(ifindex)?;
            if let Some(holds) = self.holds.get_mut(&ifindex) {
                holds.ingress = Some(hold);
            }
        }
        Ok(())
    }

    /// Does the slow work that relaying does not need at the start: loads the deferred programs
    /// (until then flows open late), and replaces filters by links, which end with this process.
    ///
    /// # Errors
    /// [`Error::Load`], [`Error::AttachLookup`], [`Error::Map`].
    pub fn settle(&mut self) -> Result<(), Error> {
        let shared = &self.shared;
        let rings = shared.rings.iter().map(|place| shared.ring(place));
        let rings: Vec<_> = rings.collect::<Result<_, _>>()?;
        let deferred = Deferred::load(&shared.settings, &shared.maps, &rings)?;
        // Before the tail calls: workers need these maps for the first event.
        shared
            .tail_call_maps
            .get_or_init(|| deferred.tail_call_maps());
        deferred.tail_call_into(shared.get(map::TAIL_CALLS))?;
        self.deferred = Some(deferred);
        for ingress in self
            .holds
            .values_mut()
            .filter_map(|holds| holds.ingress.as_mut())
        {
            ingress.settle(&self.program);
        }
        let observer = Observer::load(&shared.settings, &self.maps())?;
        shared
            .trial_sockets
            .get_or_init(|| observer.trial_sockets());
        self.observer = Some(observer);
        if self.observes {
            self.observe()?;
        }
        self.take_packets();
        Ok(())
    }

    /// Gives the flows whose SYNs arrive on the CPU of `worker` to these workers, a part of equal
    /// size to each. Has no effect before the node has settled.
    ///
    /// # Errors
    /// [`Error::Map`].
    pub fn place(&self, worker: u16, to: &[u16; PLACEMENT_SLOTS]) -> Result<(), Error> {
        let Some(deferred) = &self.deferred else {
            return Ok(());
        };
        let workers = self.shared.settings.workers;
        let shift = |to: u16| (u32::from(to) + workers - u32::from(worker)) % workers;
        let value = types::placement {
            // Workers have numbers of 16 bits.
            shift: to.map(|to| u16::try_from(shift(to)).unwrap_or(0)),
        };
        let placements = &deferred.maps[deferred_object::map::PLACEMENTS];
        placements.update(&u32::from(worker).to_ne_bytes(), bytes(&value))
    }

    /// All maps that other programs may share.
    fn maps(&self) -> Vec<Arc<Map>> {
        let deferred = self.deferred.iter().flat_map(|deferred| &deferred.maps);
        self.shared.maps.iter().chain(deferred).cloned().collect()
    }

    /// Sets whether a successor's program is attached behind this one. While it is, this one leaves
    /// it every packet that does not belong to a flow of this node.
    ///
    /// # Errors
    /// [`Error::Map`].
    pub fn set_followed(&mut self, followed: bool) -> Result<(), Error> {
        let behind_the_workers = self.shared.settings.workers.to_ne_bytes();
        if let (false, Some(packet_path)) = (followed, &self.packet_path) {
            packet_path.reclaim()?;
        }
        let value = u32::from(followed).to_ne_bytes();
        self.shared
            .get(map::DRAINING)
            .update(&behind_the_workers, &value)
    }

    /// Leaves new flows of the packet path to a successor.
    pub fn step_back(&self) {
        if let Some(packet_path) = &self.packet_path {
            packet_path.step_back();
        }
    }

    /// Detaches from an interface.
    pub fn detach(&mut self, ifindex: u32) {
        self.holds.remove(&ifindex);
        if let Some(packet_path) = &mut self.packet_path {
            packet_path.detach(ifindex);
            if let (Some(bypass), Some(pins)) = (&mut self.bypass, packet_path.pins()) {
                bypass.detach(ifindex, pins);
            }
        }
        let _ = self.shared.get(map::DEVICES).delete(&ifindex.to_ne_bytes());
    }

    /// The attached interfaces, and whether the attachment ends with the process.
    pub fn attached(&self) -> impl Iterator<Item = (u32, bool)> + '_ {
        self.holds.iter().map(|(ifindex, holds)| {
            let ends = holds.ingress.as_ref().is_none_or(Hold::ends_with_process);
            (*ifindex, ends)
        })
    }

    /// The programs' counters: name, documentation, value since load.
    pub fn stats(&self) -> Vec<(&'static str, &'static str, u64)> {
        stats::read(self.shared.get(map::STATS))
    }

    /// The loaded programs and their names, for the tests.
    #[doc(hidden)]
    pub fn programs(&self) -> Vec<(&'static str, BorrowedFd<'_>)> {
        let deferred = self
            .deferred
            .iter()
            .flat_map(|deferred| deferred.programs.iter());
        let first = std::iter::once(&self.program).chain(&self.set_initial_cwnd);
        let sender = self.sender.iter().map(|sender| &sender.program);
        let observer = self.observer.iter().map(|observer| &observer.program);
        let packets = self.packet_path.iter().flat_map(PacketPath::programs);
        let bypass = self.bypass.iter().flat_map(Bypass::programs);
        let first = first.chain(sender).chain(observer);
        let first = first.chain(packets).chain(bypass);
        let all = first.chain(deferred.map(Arc::as_ref));
        all.map(|program| (program.name, program.as_fd())).collect()
    }

    /// Number of interfaces at which outgoing handshakes are observed; for the tests.
    #[doc(hidden)]
    pub fn watched(&self) -> usize {
        let holds = self.holds.values();
        holds.filter(|holds| holds.egress.is_some()).count()
    }

    /// Number of half-open entries in the general budget and in the reserve; for the tests.
    ///
    /// # Errors
    /// [`Error::Map`], [`Error::Unsettled`].
    #[doc(hidden)]
    pub fn half_open_flows(&self) -> Result<(usize, usize), Error> {
        let [half_open_flows, kept] =
            [map::HALF_OPEN_FLOWS, map::HALF_OPEN_RESERVE].map(|map| self.shared.get(map));
        Ok((half_open_flows.count()?, kept.count()?))
    }

    /// Runs the redirect program on a frame, with the start of a `struct __sk_buff`; returns its
    /// verdict and the structure afterwards. For the tests.
    ///
    /// # Errors
    /// The kernel rejects the frame or the structure.
    #[doc(hidden)]
    pub fn run(&self, frame: &[u8], context: &[u32]) -> io::Result<(u32, [u8; 512])> {
        let mut after = [0; 512];
        let verdict = sys::run(self.program.as_fd(), frame, context, Some(&mut after))?;
        Ok((verdict, after))
    }
}

/// The one of these maps with the name of this object's map.
pub(crate) fn shared(object: &Object, number: usize, maps: &[Arc<Map>]) -> Option<Arc<Map>> {
    let name = object.maps[number].name;
    maps.iter().find(|map| map.name() == name).cloned()
}

/// The cgroup of this process, without privilege or with; on failure the error of the latter. In this
/// order: a service may be forbidden to mount, and need not.
fn own_cgroup() -> io::Result<OwnedFd> {
    cgroup::own_as_mounted().or_else(|_| cgroup::own())
}

/// The number by which the programs identify a network namespace. The kernel numbers them in
/// sequence: no two of a host since its boot have the same low half.
const fn low_half(netns: u64) -> u32 {
    (netns & 0xffff_ffff) as u32
}
