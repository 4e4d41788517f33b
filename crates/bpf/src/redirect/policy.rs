// SPDX-License-Identifier: Apache-2.0
//! What the programs follow: rules, initial windows, and the peers of SYN options.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd};

use posthaste_relay::flow::mapped;
use posthaste_relay::intercept::PathSettings;
use posthaste_relay::policy::{Prefix, Rule};

use super::Redirect;
use crate::error::Error;
use crate::layout::{self, bytes};
use crate::objects::redirect::map;
use crate::objects::types;
use crate::rules::{self, Wanted};
use crate::syn_option::Sender;
use crate::sys;

/// `BPF_CGROUP_SOCK_OPS`
const SOCK_OPS: u32 = 3;

impl Redirect {
    /// Installs rules atomically, and returns the generation that events under them carry.
    /// `relays`: whether the node relays at all, also on request. `chained`: whether flows may be
    /// sent through other nodes.
    ///
    /// # Errors
    /// The rules do not fit; the former ones stay in force.
    pub fn set_rules(&mut self, rules: &[Rule], relays: bool, chained: bool) -> Result<u8, Error> {
        let compiled = rules::compile(rules, chained)?;
        if relays {
            self.redirect()?;
        }
        if rules.iter().any(rules::sets_windows) {
            self.attach_windows()?;
        }
        if rules.iter().any(rules::observes) {
            self.observe()?;
        }
        let wanted = rules
            .iter()
            .map(|rule| rules::wants_packet_path(rule, chained));
        self.wants_packet_path = wanted.fold(Wanted::No, Wanted::max);
        self.has_wanted_packet_path |= self.wants_packet_path != Wanted::No;
        self.packet_path_failed = false;
        self.wants_bypass |= rules.iter().any(rules::wants_bypass);
        self.take_packets();
        let next = self.generation.wrapping_add(1);
        if let Err(error) = self.write_rules(next, &compiled) {
            // A later generation must not revive partly written rules.
            for prefix in compiled.keys() {
                let _ = self.shared.get(map::RULES).delete(&rule_key(next, *prefix));
            }
            return Err(error);
        }
        // The switch is one byte, so no program reads a mixture.
        let written = self
            .shared
            .get(map::VARIABLES)
            .update(&[0; 4], &u32::from(next).to_ne_bytes());
        written?;
        self.generation = next;
        let former = std::mem::replace(
            &mut self.prefixes,
            compiled.keys().map(|prefix| (next, *prefix)).collect(),
        );
        for (generation, prefix) in former {
            self.shared
                .get(map::RULES)
                .delete(&rule_key(generation, prefix))?;
        }
        Ok(next)
    }

    /// Sets the initial windows of connections with the nodes at these addresses; rules decide for
    /// all others.
    ///
    /// # Errors
    /// [`Error::InitialCwndAtStart`], [`Error::Cgroup`], [`Error::AttachWindows`], [`Error::Map`].
    pub fn set_peer_starts(&mut self, starts: &[(IpAddr, PathSettings)]) -> Result<(), Error> {
        if !starts.is_empty() {
            self.attach_windows()?;
        }
        let map = self.shared.get(map::INITIAL_CWND);
        for address in std::mem::take(&mut self.peers) {
            map.delete(&address)?;
        }
        for (address, start) in starts {
            let address = mapped(*address);
            map.update(&address, bytes(&layout::peer_settings(*start)))?;
            self.peers.push(address);
        }
        Ok(())
    }

    /// Accepts SYN options from these addresses only.
    ///
    /// # Errors
    /// [`Error::Map`].
    pub fn set_syn_option_peers(&mut self, addresses: &[IpAddr]) -> Result<(), Error> {
        let map = self.shared.get(map::SYN_OPTION_PEERS);
        for address in addresses {
            map.update(&mapped(*address), &1_u32.to_ne_bytes())?;
        }
        // Removed last: a peer that stays must never count as unauthorized.
        let former = std::mem::replace(&mut self.syn_option_peers, addresses.to_vec());
        let gone = former.iter().filter(|address| !addresses.contains(address));
        for address in gone {
            map.delete(&mapped(*address))?;
        }
        Ok(())
    }

    /// Enables workers to send SYN options.
    ///
    /// # Errors
    /// [`Error::SynOptionsAtStart`], [`Error::SynOptionCgroup`], [`Error::Load`],
    /// [`Error::AttachCgroup`].
    pub fn send_syn_options(&mut self) -> Result<(), Error> {
        if self.sender.is_some() {
            return Ok(());
        }
        let cgroup = match &self.cgroup {
            Some(Ok(cgroup)) => cgroup,
            Some(Err(error)) => {
                return Err(Error::SynOptionCgroup {
                    reason: error.to_string(),
                });
            }
            None => return Err(Error::SynOptionsAtStart),
        };
        let sender = Sender::attach(&self.shared.maps[map::STATS], cgroup.as_fd())?;
        self.shared.syn_options.get_or_init(|| sender.syn_options());
        self.sender = Some(sender);
        Ok(())
    }

    fn write_rules(
        &self,
        generation: u8,
        compiled: &BTreeMap<Prefix, types::candidates>,
    ) -> Result<(), Error> {
        let mut each = compiled.iter();
        each.try_for_each(|(prefix, value)| {
            self.shared
                .get(map::RULES)
                .update(&rule_key(generation, *prefix), bytes(value))
        })
    }

    /// Attaches the window program.
    fn attach_windows(&mut self) -> Result<(), Error> {
        if self.windows.is_some() {
            return Ok(());
        }
        let (program, cgroup) = match (&self.set_initial_cwnd, &self.cgroup) {
            (Some(program), Some(Ok(cgroup))) => (program, cgroup),
            (_, Some(Err(error))) => {
                return Err(Error::Cgroup {
                    reason: error.to_string(),
                });
            }
            _ => return Err(Error::InitialCwndAtStart),
        };
        let cgroup = cgroup.as_raw_fd().cast_unsigned();
        let attached = sys::link(program.as_fd(), cgroup, SOCK_OPS);
        self.windows = Some(attached.map_err(|source| Error::AttachWindows { source })?);
        Ok(())
    }
}

fn rule_key(generation: u8, prefix: Prefix) -> Vec<u8> {
    let key = types::rule_key {
        // The generation comes before the address and always counts: one trie holds the rules in
        // force and the next ones.
        prefix_bits: 32 + u32::from(prefix.mapped_bits()),
        generation: u32::from(generation),
        ip: layout::address(prefix.octets()),
    };
    bytes(&key).to_vec()
}
