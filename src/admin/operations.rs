// SPDX-License-Identifier: Apache-2.0
//! The control thread's interface to the node.

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use posthaste_bpf::{PacketFlow, PacketKnowledge};
use posthaste_relay::control::Handle;
use posthaste_relay::flow::Flow;

use crate::api::observed::Observed;
use crate::api::{self, Interface, ReloadReport, control_client::Follow};
use crate::chains::Followed;
use crate::host::{Claim, HostChange, LinkEvent};
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
    /// Gives a part of the new flows of full CPUs to the workers of idle ones.
    fn place_flows(&self);
    /// Unloads the packet path if nothing needs it any more.
    fn release_packets(&self);
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
    /// At most `most` flows of the packet path, in no order.
    fn packet_flows(&self, most: usize) -> anyhow::Result<Vec<PacketFlow>>;
    /// What decides whether the packet path takes a flow; `None` while it is not loaded.
    fn packet_knowledge(&self, flow: &Flow) -> anyhow::Result<Option<PacketKnowledge>>;
    /// Why rules that want the packet path do without, if they do.
    fn packet_path_trouble(&self) -> Option<String>;
    /// Whether relays of the client of a flow to its destination got no answer lately.
    fn is_bypassed(&self, flow: &Flow) -> anyhow::Result<bool>;
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
