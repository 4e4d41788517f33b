// SPDX-License-Identifier: Apache-2.0
//! The control thread's interface to the node.

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use posthaste_relay::control::Handle;

use super::api::observed::Observed;
use super::api::{self, Interface, ReloadReport, control_client::Follow};
use crate::chains::Followed;
use crate::host::{self, Claim, HostChange, LinkEvent};
use crate::node::Node;
use crate::upgrade::{Descriptor, Predecessors};
use posthaste_config::Config;
use posthaste_daemon::log::Log;
use posthaste_measure::documents::Links;

/// A node as the control thread sees it. Every call may block for a moment.
pub(crate) trait Operations: Send + Sync + 'static {
    /// The workers, by number.
    fn workers(&self) -> &[Handle];
    /// Its log.
    fn log(&self) -> &Log;
    /// The configuration file, if there is one.
    fn config_file(&self) -> Option<String>;
    /// The interfaces it intercepts on, and the configured ones that it cannot use.
    fn interfaces(&self) -> Vec<Interface>;
    /// The state of its guard.
    fn guard(&self) -> api::Guard;
    /// Checks whether its guard lives, and starts another if not.
    fn look_after_guard(&self);
    /// The redirect program's counters: name, documentation, value.
    fn redirect_stats(&self) -> Vec<(&'static str, &'static str, u64)>;
    /// The configuration in force.
    fn configuration(&self) -> Config;
    /// The state of the links to its peers.
    fn links(&self) -> Links;
    /// The state of its connection to a controller, if it has one.
    fn follow(&self) -> Option<Follow>;
    /// The knowledge of a destination from the controller, if it has one.
    fn followed(&self, destination: IpAddr) -> Option<Followed>;
    /// Accepts the latest key that the controller reported for a node. Returns whether there is
    /// such a node; `None` without a controller.
    fn forget_key(&self, name: &str) -> Option<bool>;
    /// Default duration of a drain.
    fn drain_timeout(&self) -> Duration;
    /// Reloads the configuration. On an error nothing changes.
    fn reload(&self) -> anyhow::Result<ReloadReport>;
    /// Accepts no new flows; the workers end after the last relay, or after `deadline`. Returns at
    /// once.
    fn drain(&self, deadline: Duration);
    /// Handles added, changed or removed interfaces.
    fn on_links(&self, events: &[LinkEvent]);
    /// At most `most` profiles of destinations.
    fn observed(&self, most: usize) -> anyhow::Result<Observed>;
    /// Whether the host blocks relays.
    fn is_blocked(&self) -> bool;
    /// Handles a change of the host's firewall or routing.
    fn on_change(&self, change: HostChange);
    /// The nodes that it has replaced.
    fn predecessors(&self) -> &Predecessors;
    /// Its part of the claim on the network namespace.
    fn claim(&self) -> &Claim;
    /// Duplicates of the sockets that a successor continues with.
    fn sockets(&self) -> anyhow::Result<Vec<(Descriptor, OwnedFd)>>;
    /// Sets whether a successor's programs run behind those of this node.
    fn set_followed(&self, followed: bool) -> anyhow::Result<()>;
    /// Leaves new flows to a successor; the workers end as in a drain.
    fn replace(&self, deadline: Duration);
}

impl Operations for Node {
    fn workers(&self) -> &[Handle] {
        &self.workers
    }

    fn log(&self) -> &Log {
        &self.log
    }

    fn config_file(&self) -> Option<String> {
        self.path().map(|path| path.display().to_string())
    }

    fn interfaces(&self) -> Vec<Interface> {
        let attached = self.attached().into_iter().map(|interface| Interface {
            name: interface.name,
            index: interface.index,
            attached: true,
            hold: if interface.ends_with_process {
                "tcx"
            } else {
                "clsact"
            }
            .into(),
        });
        let mut all: Vec<Interface> = attached.collect();
        for name in &self.config().transparent.interfaces {
            if !all.iter().any(|interface| interface.name == *name) {
                all.push(Interface::absent(name));
            }
        }
        all
    }

    fn guard(&self) -> api::Guard {
        Self::guard(self).state()
    }

    fn look_after_guard(&self) {
        Self::guard(self).look_after(&self.log);
    }

    fn redirect_stats(&self) -> Vec<(&'static str, &'static str, u64)> {
        self.redirect_stats()
    }

    fn configuration(&self) -> Config {
        self.config().clone()
    }

    fn links(&self) -> Links {
        self.links()
    }

    fn follow(&self) -> Option<Follow> {
        self.following.status()
    }

    fn followed(&self, destination: IpAddr) -> Option<Followed> {
        Some(Followed {
            plan: self.following.status()?.plan,
            whose: self.whose(destination),
            experience: self.following.experience(destination),
        })
    }

    fn forget_key(&self, name: &str) -> Option<bool> {
        self.following.forget_key(name)
    }

    fn drain_timeout(&self) -> Duration {
        self.config().node.drain_timeout
    }

    fn reload(&self) -> anyhow::Result<ReloadReport> {
        let needs_restart = self.reload()?;
        let config = self.config();
        Ok(ReloadReport {
            rules: config.policy.rules.len(),
            warnings: config.warnings.clone(),
            needs_restart,
        })
    }

    fn drain(&self, deadline: Duration) {
        self.drain(deadline);
    }

    fn on_links(&self, events: &[LinkEvent]) {
        let lost = [LinkEvent::RuleGone, LinkEvent::Unknown];
        if events.iter().any(|event| lost.contains(event)) {
            self.restore_routing();
        }
        // Events may be outdated: only the current state matters.
        match host::links() {
            Ok(links) => self.update_interfaces(&links),
            Err(error) => self
                .log
                .warn("could not list the interfaces", &[("error", &error)]),
        }
    }

    fn observed(&self, most: usize) -> anyhow::Result<Observed> {
        self.observed(most)
    }

    fn is_blocked(&self) -> bool {
        self.is_blocked()
    }

    fn on_change(&self, change: HostChange) {
        self.observe_anew(change);
    }

    fn predecessors(&self) -> &Predecessors {
        self.predecessors()
    }

    fn claim(&self) -> &Claim {
        self.claim()
    }

    fn sockets(&self) -> anyhow::Result<Vec<(Descriptor, OwnedFd)>> {
        self.sockets()
    }

    fn set_followed(&self, followed: bool) -> anyhow::Result<()> {
        self.set_followed(followed)
    }

    fn replace(&self, deadline: Duration) {
        self.replace(deadline);
    }
}
