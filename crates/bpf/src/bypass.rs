// SPDX-License-Identifier: Apache-2.0
//! Hands flows over from their relay to the packet path (docs/design/0023).
//!
//! A worker drives each hand-over by [`Pairs`]; [`Bypass`] attaches the programs.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use posthaste_relay::flow::Flow;
use posthaste_relay::intercept::{BypassEnds, BypassStep};
use posthaste_relay::sys::monotonic;

use crate::chains::Chains;
use crate::error::Error;
use crate::layout::{Structure, bytes, nanoseconds, packet_key};
use crate::object::{Map, Program};
use crate::objects::bypass::{self, map, program};
use crate::objects::types;
use crate::packet::pins::Pins;
use crate::packet::{PacketPath, carried, lasting, lasting_link};
use crate::redirect::{self, Settings};
use crate::sys;

pub(crate) mod burial;
mod table;
#[cfg(test)]
mod tests;

use burial::Burial;
use table::Table;

/// The pin of the program that ends pairs whose relay has ended.
pub(crate) const BURY: &str = "bury";
/// `BPF_TCX_INGRESS`, `BPF_TCX_EGRESS`
const TCX: [u32; 2] = [46, 47];
/// Words of `struct __sk_buff` up to the second of `cb`, which has what a program is given.
const CONTEXT_WORDS: usize = 14;
const CONTEXT_CB: usize = 12;
/// Of an Ethernet header, in front of the key of a pair.
const LINK_BYTES: usize = 14;
/// `BYPASS_CLAMPING` of `enum bypass_phase`.
const CLAMPING: u32 = 1;

impl Structure for types::bypass_pair {}

/// The programs and their attachments. They outlive the process: its sockets go in the middle of a
/// hand-over, and forwarded segments would reach the other end in the wrong numbers.
#[derive(Debug)]
pub(crate) struct Bypass {
    programs: [Program; 2],
    links: HashMap<u32, Vec<OwnedFd>>,
}

/// The flows that are handed over.
#[derive(Debug)]
pub(crate) struct Pairs {
    table: Arc<Table>,
    burial: Arc<Burial>,
    learn: Program,
    step: Program,
    settle: Program,
}

impl Bypass {
    /// Loads the programs on the maps of the redirect program and of the packet path, with pairs
    /// that an earlier process left.
    pub(crate) fn load(
        settings: &Settings,
        shared: &[Arc<Map>],
        packet_path: &PacketPath,
    ) -> Result<(Self, Pairs), Error> {
        let object = &bypass::OBJECT;
        let maps = (0..object.maps.len()).map(|number| {
            let theirs = redirect::shared(object, number, shared);
            match theirs.or_else(|| packet_path.map(object.maps[number].name)) {
                Some(map) => Ok(map),
                None if [map::BYPASS_PAIRS, map::BYPASS_PRESENT].contains(&number) => {
                    lasting(object, number, None, packet_path.pins())
                }
                None => object.make(number, None),
            }
        });
        let maps = maps.collect::<Result<Vec<_>, _>>()?;
        let (attached, pairs) =
            Self::load_on(settings, &maps, packet_path.pins(), packet_path.chains())?;
        packet_path.bury(&pairs.burial)?;
        Ok((attached, pairs))
    }

    fn load_on(
        settings: &Settings,
        maps: &[Arc<Map>],
        pins: Option<&Pins>,
        chains: Chains,
    ) -> Result<(Self, Pairs), Error> {
        let object = &bypass::OBJECT;
        let types = object.load_types()?;
        let constants = bypass::Settings {
            skb_head: chains.skb_head,
            skb_end: chains.skb_end,
            gso_type: chains.gso_type,
            cuts_chains: chains.cuts.into(),
            carried: carried(settings.netns),
            workers: settings.workers,
            redirect_mark: settings.redirect_mark,
            socket_mark: settings.socket_mark,
        };
        let load = |number| object.load(number, &types, maps, &constants.in_order());
        let table = Arc::new(Table::new(maps, pins));
        let burial = Burial::new(&table, load(program::BYPASS_BURY)?);
        let pairs = Pairs {
            table,
            burial: Arc::new(burial),
            learn: load(program::BYPASS_LEARN)?,
            step: load(program::BYPASS_STEP)?,
            settle: load(program::BYPASS_SETTLE)?,
        };
        let attached = Self {
            programs: [load(program::BYPASS_IN)?, load(program::BYPASS_OUT)?],
            links: HashMap::new(),
        };
        Ok((attached, pairs))
    }

    /// Attaches to an interface, in front of other programs. Does nothing if it is attached.
    pub(crate) fn attach(&mut self, ifindex: u32, pins: &Pins) -> io::Result<()> {
        if self.links.contains_key(&ifindex) {
            return Ok(());
        }
        let each = self.programs.iter().zip(TCX).zip(names(pins, ifindex));
        let links = each.map(|((program, at), pin)| lasting_link(Some(pin), program, ifindex, at));
        let links = links.collect::<io::Result<_>>()?;
        self.links.insert(ifindex, links);
        Ok(())
    }

    /// Detaches from an interface.
    pub(crate) fn detach(&mut self, ifindex: u32, pins: &Pins) {
        self.links.remove(&ifindex);
        for pin in names(pins, ifindex) {
            let _ = fs::remove_file(pin);
        }
    }

    /// The loaded programs, for the tests.
    pub(crate) fn programs(&self) -> impl Iterator<Item = &Program> {
        self.programs.iter()
    }
}

impl Pairs {
    /// Begins a hand-over that is given up at `deadline`, in ms.
    pub(crate) fn begin(&self, flow: &Flow, ends: &BypassEnds, deadline: u32) -> Result<(), Error> {
        let (key, turned) = packet_key(flow);
        let direction = |side: usize| types::bypass_direction {
            end_shift: ends.shifts[side].0,
            relay_shift: ends.shifts[side].1,
            ..types::bypass_direction::default()
        };
        let pair = types::bypass_pair {
            phase: CLAMPING,
            deadline,
            by: [direction(0), direction(1)],
            turned: turned.into(),
            skew: ends.skew,
            looked_ns: nanoseconds(monotonic()),
            ..types::bypass_pair::default()
        };
        if self.table.write(bytes(&key), &pair).is_ok() {
            return Ok(());
        }
        // It may be full of dead ones.
        self.burial.round(false)?;
        self.table.write(bytes(&key), &pair)
    }

    /// Adds the numbers of the sockets, whose receive windows are given; false to try again.
    pub(crate) fn learn(&self, flow: &Flow, windows: [u32; 2]) -> bool {
        matches!(Self::run(&self.learn, flow, windows), Ok(1))
    }

    /// Advances a hand-over at `now`, in ms.
    pub(crate) fn step(&self, flow: &Flow, now: u32) -> BypassStep {
        match Self::run(&self.step, flow, [now, 0]) {
            // As `enum bypass_step`.
            // Or another CPU has the pair: once more.
            Ok(2 | 6) => BypassStep::Clamp,
            Ok(3) => BypassStep::Drain,
            Ok(4) => BypassStep::Close,
            Ok(5) => BypassStep::Reset,
            _ => BypassStep::GiveUp,
        }
    }

    /// Makes a flow whose sockets are closed one of the packet path. If that has no room, it stays
    /// a pair until there is.
    pub(crate) fn settle(&self, flow: &Flow) {
        let _ = Self::run(&self.settle, flow, [0; 2]);
    }

    /// Ends a hand-over: the programs leave the flow alone.
    pub(crate) fn remove(&self, flow: &Flow) {
        // Only a key of another length is an error.
        let _ = self.table.remove(bytes(&packet_key(flow).0));
    }

    fn run(program: &Program, flow: &Flow, words: [u32; 2]) -> io::Result<u32> {
        let (key, _) = packet_key(flow);
        let mut context = [0; CONTEXT_WORDS];
        context[CONTEXT_CB..].copy_from_slice(&words);
        let frame = [&[0; LINK_BYTES], bytes(&key)].concat();
        sys::run(program.as_fd(), &frame, &context, None)
    }
}

/// The pins of both links.
fn names(pins: &Pins, ifindex: u32) -> [PathBuf; 2] {
    ["in", "out"].map(|direction| pins.path(&format!("{ifindex}-bypass-{direction}")))
}
