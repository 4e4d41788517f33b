// SPDX-License-Identifier: Apache-2.0
//! Loading, attaching and feeding the redirect programs.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, MapType, Object};

use crate::attach::Hold;
use crate::cgroup;
use crate::error::Error;
use crate::lane::Lane;
use crate::later::{Later, Tools};
use crate::rules::{self, PrefixSpec, RuleSpec};
use crate::skel::{RedirectSkel, RedirectSkelBuilder, types};

/// Bytes of the event ring of each worker: about a thousand events.
const RING_BYTES: u32 = 1 << 18;

/// What the programs must know before they are loaded.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How many workers share the flows.
    pub workers: u32,
    /// The fwmark bit that routes a packet to this host.
    pub redirect_mark: u32,
    /// The fwmark bit that our sockets carry.
    pub socket_mark: u32,
    /// Half-open upstream connections that anybody may cause.
    pub half_open: u32,
    /// Further ones, for clients that completed a handshake before.
    pub half_open_reserve: u32,
    /// Rules may set initial windows.
    pub windows: bool,
}

/// What the packets of an interface start with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkLayer {
    /// An Ethernet header.
    Ethernet,
    /// The IP header (TUN, PPP, WireGuard).
    None,
}

/// The loaded programs of one node.
pub struct Redirect {
    skel: RedirectSkel<'static>,
    holds: HashMap<u32, Hold>,
    settings: Settings,
    /// The other programs, once the node has settled.
    later: Option<Later>,
    tools: Arc<OnceLock<Tools>>,
    /// The cgroup of this process, if the window program may be wanted.
    cgroup: Option<io::Result<OwnedFd>>,
    windows: Option<Link>,
    rings: Vec<MapHandle>,
    prefixes: Vec<(u8, PrefixSpec)>,
}

// SAFETY: libbpf objects may be used from any one thread at a time; `Redirect`
// hands out no references into them across threads (lanes hold descriptors).
unsafe impl Send for Redirect {}

impl std::fmt::Debug for Redirect {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Redirect")
            .field("interfaces", &self.holds.keys())
            .finish_non_exhaustive()
    }
}

impl Redirect {
    /// Loads the programs. Nothing is redirected until listeners and rules are
    /// set and an interface is attached.
    ///
    /// # Errors
    /// [`Error::Load`] with the kernel's reason.
    pub fn load(settings: Settings) -> Result<Self, Error> {
        // SAFETY: sets a number in libbpf, before it is used otherwise. Since
        // Linux 5.11 maps do not count against RLIMIT_MEMLOCK, and finding that
        // out costs a start two system calls.
        unsafe { libbpf_sys::libbpf_set_memlock_rlim(0) };
        let place = Box::leak(Box::new(MaybeUninit::uninit()));
        let builder = RedirectSkelBuilder::default();
        let mut open = builder.open(place).map_err(Error::load("open"))?;
        let rodata = open
            .maps
            .rodata_data
            .as_deref_mut()
            .expect("the program has settings");
        rodata.workers = settings.workers;
        rodata.redirect_mark = settings.redirect_mark;
        rodata.socket_mark = settings.socket_mark;
        let sized = [
            (&mut open.maps.listeners, 2 * settings.workers),
            (&mut open.maps.withdrawn, settings.workers),
        ];
        for (map, entries) in sized {
            map.set_max_entries(entries)
                .map_err(Error::load("size maps"))?;
        }
        open.progs.widen_window.set_autoload(settings.windows);
        let skel = open.load().map_err(Error::load("load"))?;
        let rings = (0..settings.workers)
            .map(|_| ring())
            .collect::<Result<_, _>>()?;
        Ok(Self {
            skel,
            holds: HashMap::new(),
            settings,
            later: None,
            tools: Arc::default(),
            cgroup: settings.windows.then(cgroup::own),
            windows: None,
            rings,
            prefixes: Vec::new(),
        })
    }

    /// What worker number `worker` needs.
    ///
    /// # Errors
    /// [`Error::Map`] when a descriptor cannot be duplicated.
    pub fn lane(&self, worker: u16) -> Result<Lane, Error> {
        let maps = &self.skel.maps;
        let hold = |map, name| MapHandle::try_from(map).map_err(Error::map("hold", name));
        Ok(Lane {
            worker,
            ring: MapHandle::try_from(&self.rings[usize::from(worker)])
                .map_err(Error::map("hold", "rings"))?,
            withdrawn: hold(&maps.withdrawn, "withdrawn")?,
            listeners: hold(&maps.listeners, "listeners")?,
            tools: Arc::clone(&self.tools),
        })
    }

    /// Puts rules in force, all at once, and returns the generation that
    /// events under them carry.
    ///
    /// # Errors
    /// The rules do not fit; the former ones stay in force.
    pub fn set_rules(&mut self, rules: &[RuleSpec]) -> Result<u8, Error> {
        let compiled = rules::compile(rules)?;
        if rules.iter().any(|rule| rule.windows != [0; 2]) {
            self.attach_windows()?;
        }
        let next = self.generation().wrapping_add(1);
        if let Err(error) = self.write_rules(next, &compiled) {
            // Nothing of it may come to life with a later generation.
            for prefix in compiled.keys() {
                let _ = self.skel.maps.rules.delete(&rule_key(next, *prefix));
            }
            return Err(error);
        }
        self.bss().generation = u32::from(next);
        let former = std::mem::replace(
            &mut self.prefixes,
            compiled.keys().map(|prefix| (next, *prefix)).collect(),
        );
        for (generation, prefix) in former {
            let deleted = self.skel.maps.rules.delete(&rule_key(generation, prefix));
            deleted.map_err(Error::map("clear", "rules"))?;
        }
        Ok(next)
    }

    fn write_rules(
        &self,
        generation: u8,
        compiled: &BTreeMap<PrefixSpec, types::candidates>,
    ) -> Result<(), Error> {
        let rules = &self.skel.maps.rules;
        for (prefix, value) in compiled {
            rules
                .update(&rule_key(generation, *prefix), bytes(value), MapFlags::ANY)
                .map_err(Error::map("write", "rules"))?;
        }
        Ok(())
    }

    fn generation(&mut self) -> u8 {
        (self.bss().generation & 0xff) as u8
    }

    /// Serves rules that set an initial window.
    fn attach_windows(&mut self) -> Result<(), Error> {
        if self.windows.is_some() {
            return Ok(());
        }
        let cgroup = match &self.cgroup {
            Some(Ok(cgroup)) => cgroup,
            Some(Err(error)) => {
                return Err(Error::Cgroup {
                    reason: error.to_string(),
                });
            }
            None => return Err(Error::WindowsAtStart),
        };
        let program = &self.skel.progs.widen_window;
        let attached = program.attach_cgroup(cgroup.as_raw_fd());
        self.windows = Some(attached.map_err(|source| Error::AttachWindows { source })?);
        Ok(())
    }

    /// Redirects what enters at an interface.
    ///
    /// # Errors
    /// [`Error::Attach`], [`Error::Map`].
    pub fn attach(&mut self, ifindex: u32, layer: LinkLayer) -> Result<(), Error> {
        let l2_bytes: u32 = match layer {
            LinkLayer::Ethernet => 14,
            LinkLayer::None => 0,
        };
        let devices = &self.skel.maps.devices;
        devices
            .update(
                &ifindex.to_ne_bytes(),
                &l2_bytes.to_ne_bytes(),
                MapFlags::ANY,
            )
            .map_err(Error::map("write", "devices"))?;
        let program = &self.skel.progs.redirect;
        let hold = if self.later.is_some() {
            Hold::lasting(program, ifindex)
        } else {
            Hold::quick(program, ifindex)
        };
        let hold = hold.map_err(|source| Error::Attach { ifindex, source })?;
        self.holds.insert(ifindex, hold);
        Ok(())
    }

    /// Does what takes long and what relaying can begin without: loads the
    /// other programs (until then flows are opened late), and has the kernel let
    /// go of the interfaces when this process ends.
    ///
    /// # Errors
    /// [`Error::Load`], [`Error::AttachLookup`], [`Error::Map`].
    pub fn settle(&mut self) -> Result<(), Error> {
        let maps = &self.skel.maps;
        let later = Later::load(&self.settings, maps, &self.rings)?;
        let tools = later.tools()?;
        self.tools.get_or_init(|| tools);
        later.step_into(&maps.steps)?;
        self.later = Some(later);
        for hold in self.holds.values_mut() {
            hold.settle(&self.skel.progs.redirect);
        }
        Ok(())
    }

    /// Lets go of an interface.
    pub fn detach(&mut self, ifindex: u32) {
        self.holds.remove(&ifindex);
        let _ = self.skel.maps.devices.delete(&ifindex.to_ne_bytes());
    }

    /// The interfaces attached now, and whether the hold ends with the process.
    pub fn attached(&self) -> impl Iterator<Item = (u32, bool)> + '_ {
        self.holds
            .iter()
            .map(|(ifindex, hold)| (*ifindex, hold.ends_with_process()))
    }

    /// What the programs counted: name, documentation, value since load.
    pub fn stats(&self) -> Vec<(&'static str, &'static str, u64)> {
        const STATS: [(&str, &str); 7] = [
            ("syns_redirected", "SYNs given to a listener."),
            (
                "gates_full",
                "SYNs that found no room in the half-open budget.",
            ),
            (
                "events_lost",
                "SYNs and SYN-ACKs whose event found the worker's ring full.",
            ),
            ("cookies", "Client handshakes completed by SYN cookie."),
            ("renewals", "SYNs that met a TIME_WAIT socket."),
            ("icmp_errors", "ICMP errors handed to our sockets."),
            ("suspects", "Early flows made strict by an earlier failure."),
        ];
        let total = |index: usize| {
            let key = u32::try_from(index).expect("seven").to_ne_bytes();
            let values = self
                .skel
                .maps
                .stats
                .lookup_percpu(&key, MapFlags::ANY)
                .ok()
                .flatten();
            let parts = values.unwrap_or_default();
            let parts = parts
                .iter()
                .filter_map(|part| part.as_slice().try_into().ok());
            parts.map(u64::from_ne_bytes).sum()
        };
        let each = STATS.iter().enumerate();
        each.map(|(index, (name, help))| (*name, *help, total(index)))
            .collect()
    }

    /// The loaded objects, for the tests of the programs.
    #[doc(hidden)]
    pub fn objects(&self) -> impl Iterator<Item = &Object> {
        let later = self.later.as_ref().map(Later::object);
        std::iter::once(self.skel.object()).chain(later)
    }

    fn bss(&mut self) -> &mut types::bss {
        self.skel
            .maps
            .bss_data
            .as_deref_mut()
            .expect("the program has state")
    }
}

/// A ring for one worker's events.
fn ring() -> Result<MapHandle, Error> {
    let options = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as libbpf_sys::size_t,
        ..Default::default()
    };
    MapHandle::create(MapType::RingBuf, Some("ring"), 0, 0, RING_BYTES, &options)
        .map_err(Error::map("create", "ring"))
}

fn rule_key(generation: u8, prefix: PrefixSpec) -> Vec<u8> {
    let key = types::rule_key {
        prefix_bits: 32 + u32::from(prefix.bits),
        generation: u32::from(generation),
        ip: rules::address(prefix.ip),
    };
    bytes(&key).to_vec()
}

/// A plain struct of the program as the bytes a map takes.
pub(crate) fn bytes<T: Copy>(value: &T) -> &[u8] {
    // SAFETY: the generated types are `repr(C)` integers with explicit padding,
    // so every byte is initialised; the slice borrows `value`.
    unsafe { std::slice::from_raw_parts((&raw const *value).cast(), size_of::<T>()) }
}
