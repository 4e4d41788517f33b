// SPDX-License-Identifier: Apache-2.0
//! The packet path beside the redirect program, and the hand-over of relays to it.

use std::io;
use std::time::Duration;

use posthaste_relay::flow::Flow;

use super::Redirect;
use crate::bypass::Bypass;
use crate::error::Error;
use crate::packet::pins::Pins;
use crate::packet::report::{PacketFlow, PacketKnowledge};
use crate::packet::{PacketPath, Patience};
use crate::rules::Wanted;

impl Redirect {
    /// The entries of the flow table of the packet path if they are not those of the settings, once:
    /// an earlier process left its table.
    pub fn foreign_flow_table(&mut self) -> Option<u32> {
        self.foreign_flow_table.take()
    }

    /// At most `most` flows of the packet path, in no order.
    ///
    /// # Errors
    /// [`Error::Map`].
    pub fn packet_flows(&self, most: usize) -> Result<Vec<PacketFlow>, Error> {
        match &self.packet_path {
            Some(packet_path) => packet_path.flows(most),
            None => Ok(Vec::new()),
        }
    }

    /// What decides whether the packet path takes a flow at `now` (CLOCK_MONOTONIC); `None` while
    /// it is not loaded. The client's port does not count.
    ///
    /// # Errors
    /// [`Error::Map`].
    pub fn packet_knowledge(
        &self,
        flow: &Flow,
        now: Duration,
    ) -> Result<Option<PacketKnowledge>, Error> {
        let packet_path = self.packet_path.as_ref();
        packet_path
            .map(|packet_path| packet_path.knowledge(flow, self.observing.ttl, now))
            .transpose()
    }

    /// Why the packet path is not available although a rule wants it, once after each failure.
    pub fn packet_path_error(&mut self) -> Option<Error> {
        self.packet_path_error.take()
    }

    /// Why rules that want the packet path do without, if they do.
    pub fn packet_path_trouble(&self) -> Option<&str> {
        let trouble = self.packet_path_trouble.as_deref();
        trouble.filter(|_| self.packet_path_failed)
    }

    /// Why the flows of the packet path end with this process, once if they do.
    pub fn packet_path_unpinned(&mut self) -> Option<io::Error> {
        self.packet_path_unpinned.take()
    }

    /// Sets how long the packet path waits.
    ///
    /// # Errors
    /// [`Error::Map`].
    pub fn set_patience(&mut self, patience: Patience) -> Result<(), Error> {
        self.patience = patience;
        match &self.packet_path {
            Some(packet_path) => packet_path.set_patience(patience),
            None => Ok(()),
        }
    }

    /// Unloads the packet path of a predecessor if no rule of this process has wanted it, and no flow is left. Call it now and then, while no
    /// predecessor lives, whose relays could still leave to it.
    pub fn release_packets(&mut self) {
        // Relays of this process may leave as long as it lives.
        if !self.has_wanted_packet_path
            && self.bypass.is_none()
            && self.packet_path.as_ref().is_some_and(PacketPath::is_empty)
        {
            self.packet_path = None;
        }
    }

    /// Loads and attaches the packet path if a rule wants it, or a predecessor has left flows, and the node has
    /// settled. Without it flows are forwarded or use sockets, so a failure is reported and nothing else fails. The
    /// next rules try again.
    pub(super) fn take_packets(&mut self) {
        if let Err(error) = self.attach_packets() {
            self.packet_path_failed = true;
            self.packet_path_trouble = Some(error.to_string());
            self.packet_path_error = Some(error);
        }
    }

    fn attach_packets(&mut self) -> Result<(), Error> {
        let (settings, maps) = (&self.shared.settings, self.maps());
        let is_needed = self.wants_packet_path != Wanted::No
            || self.packet_path.is_some()
            || Pins::are_left(settings.netns);
        if !is_needed || self.packet_path_failed || self.deferred.is_none() {
            return Ok(());
        }
        let packet_path = match &mut self.packet_path {
            Some(packet_path) => packet_path,
            empty @ None => {
                let is_lasting = self.wants_packet_path != Wanted::Always;
                let (loaded, unpinned) = PacketPath::load(settings, &maps, is_lasting)?;
                self.packet_path_unpinned = unpinned;
                let entries = loaded.flows_max().ok();
                self.foreign_flow_table =
                    entries.filter(|entries| *entries != settings.packet_flows);
                loaded.set_patience(self.patience)?;
                // A predecessor may have relays.
                if self.relays || settings.successions > 0 {
                    loaded.spare_relays()?;
                }
                empty.insert(loaded)
            }
        };
        for ifindex in self.holds.keys() {
            let attached = packet_path.attach(*ifindex);
            attached.map_err(|source| Error::Attach {
                ifindex: *ifindex,
                source,
            })?;
        }
        self.attach_bypass()
    }

    /// Loads and attaches what hands flows over to the packet path, in front of it.
    fn attach_bypass(&mut self) -> Result<(), Error> {
        // Without pins a process that ends in the middle would leave its flows in the wrong numbers.
        let (true, Some(packet_path)) = (self.wants_bypass, &self.packet_path) else {
            return Ok(());
        };
        let Some(pins) = packet_path.pins() else {
            return Ok(());
        };
        let (settings, maps) = (&self.shared.settings, self.maps());
        let bypass = match &mut self.bypass {
            Some(bypass) => bypass,
            empty @ None => {
                let (loaded, pairs) = Bypass::load(settings, &maps, packet_path)?;
                self.shared.pairs.get_or_init(|| pairs);
                empty.insert(loaded)
            }
        };
        for ifindex in self.holds.keys() {
            let attached = bypass.attach(*ifindex, pins);
            attached.map_err(|source| Error::Attach {
                ifindex: *ifindex,
                source,
            })?;
        }
        Ok(())
    }
}
