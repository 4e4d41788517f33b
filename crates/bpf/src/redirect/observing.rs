// SPDX-License-Identifier: Apache-2.0
//! Observing forwarded handshakes, and what was learned from them.

use std::time::Duration;

use posthaste_relay::flow::Flow;

use super::Redirect;
use crate::error::Error;
use crate::layout::bytes;
use crate::objects::redirect::map;
use crate::observe::{self, Firewall, Known, Observing, Trust};

impl Redirect {
    /// Sets how destinations are observed.
    ///
    /// # Errors
    /// [`Error::Map`].
    pub fn set_observing(&mut self, observing: Observing) -> Result<(), Error> {
        self.observing = observing;
        self.write_observing()
    }

    /// Invalidates all profiles, under this `firewall` until the next call.
    ///
    /// # Errors
    /// [`Error::Map`].
    pub fn forget_profiles(&mut self, firewall: Firewall) -> Result<(), Error> {
        self.epoch = self.epoch.wrapping_add(1);
        self.filters = firewall.filters;
        self.write_observing()?;
        // What blocked relays may be gone too.
        let until = if firewall.limits { u64::MAX } else { 0 };
        let map = self.shared.get(map::BLOCKED);
        map.update(&0_u32.to_ne_bytes(), &until.to_ne_bytes())
    }

    /// At most `most` valid profiles, in no order.
    ///
    /// # Errors
    /// [`Error::Map`].
    pub fn profiles(&self, most: usize) -> Result<Vec<Known>, Error> {
        match self.shared.tail_call_maps.get() {
            Some(maps) => observe::list(&maps.profiles, self.epoch, most),
            None => Ok(Vec::new()),
        }
    }

    /// Whether relays of the client of a flow to its destination got no answer lately, so that its flows are
    /// forwarded.
    ///
    /// # Errors
    /// [`Error::Map`].
    pub fn is_bypassed(&self, flow: &Flow) -> Result<bool, Error> {
        let maps = self.shared.tail_call_maps.get();
        let profile = maps.map(|maps| observe::find(&maps.profiles, self.epoch, flow));
        let profile = profile.transpose()?.flatten();
        Ok(profile.is_some_and(|profile| profile.trust == Trust::Bypassed))
    }

    /// Until when (CLOCK_MONOTONIC) flows that must be observed are forwarded, because this host
    /// blocks relays.
    ///
    /// # Errors
    /// [`Error::Map`].
    pub fn blocked_until(&self) -> Result<Duration, Error> {
        let mut until = [0; 8];
        let map = self.shared.get(map::BLOCKED);
        map.look_up(&0_u32.to_ne_bytes(), &mut until)?;
        Ok(Duration::from_nanos(u64::from_ne_bytes(until)))
    }

    fn write_observing(&self) -> Result<(), Error> {
        let value = self.observing.value(self.epoch, self.filters);
        self.shared
            .get(map::OBSERVING)
            .update(&0_u32.to_ne_bytes(), bytes(&value))
    }

    /// Observes outgoing handshakes, without which no profile is learned. Call it once the node has
    /// settled.
    pub(super) fn observe(&mut self) -> Result<(), Error> {
        self.observes = true;
        let Some(observer) = &self.observer else {
            return Ok(());
        };
        let successions = self.shared.settings.successions;
        for (ifindex, holds) in &mut self.holds {
            if holds.egress.is_none() {
                let hold = observer.hold(*ifindex, successions);
                holds.egress = Some(hold.map_err(|source| Error::Attach {
                    ifindex: *ifindex,
                    source,
                })?);
            }
        }
        Ok(())
    }
}
