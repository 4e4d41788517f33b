// SPDX-License-Identifier: Apache-2.0
//! The counters of a worker: one writer, any number of readers.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::accept_mode::AcceptMode;
use crate::control::Denial;
use crate::outcome::Outcome;
use crate::tally::Tallies;

/// One number that a single thread writes and others read.
///
/// With a single writer a load and a store suffice: no locked instruction on the data path.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`. Only the owning worker may call this.
    pub(crate) fn add(&self, n: u64) {
        self.set(self.read().wrapping_add(n));
    }

    /// Subtracts `n`. Only the owning worker may call this.
    pub(crate) fn sub(&self, n: u64) {
        self.set(self.read().wrapping_sub(n));
    }

    /// The value as last written.
    pub fn read(&self) -> u64 {
        // Relaxed: readers need this one number, and nothing that was written before it.
        self.0.load(Ordering::Relaxed)
    }

    /// Only the owning worker may call this.
    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }
}

/// The documentation of [`Counters::flows`].
const FLOWS: &str = "Flows relayed, by when the client was answered.";

macro_rules! counters {
    ($(#[doc = $help:literal] $name:ident: $kind:ident,)*) => {
        /// The counters of one worker, on cache lines of their own.
        #[derive(Debug, Default)]
        #[repr(align(128))]
        pub struct Counters {
            $(#[doc = $help] pub $name: Counter,)*
            /// Flows opened, by [`AcceptMode`].
            flows: [Counter; AcceptMode::NAMES.len()],
            /// Relays ended, by [`Outcome`] discriminant.
            pub ended: [Counter; Outcome::ALL.len()],
            /// Requests at explicit listeners that were not granted, by [`Denial`]
            /// discriminant.
            pub denied: [Counter; Denial::ALL.len()],
            /// How long relays took and what they saved, by rule.
            pub rules: Tallies,
        }

        impl Counters {
            /// Every single-valued counter, and those of flows by the name of their mode: its
            /// name, its documentation, whether it only grows, and its value.
            pub fn each(&self) -> impl Iterator<Item = (&'static str, &'static str, bool, u64)> + '_ {
                let flows = AcceptMode::all();
                let flows = flows.map(|mode| (mode.name(), FLOWS, true, self.flows(mode).read()));
                [$((stringify!($name), $help, counters!(@$kind), self.$name.read()),)*]
                    .into_iter()
                    .chain(flows)
            }
        }
    };
    (@total) => { true };
    (@gauge) => { false };
}

counters! {
    #[doc = "Relays open now."]
    relays: gauge,
    #[doc = "Relays opened since start."]
    relays_opened: total,
    #[doc = "Upstream connections open now whose client has not completed its handshake."]
    half_open: gauge,
    #[doc = "SYNs of flows to be relayed that reached a worker."]
    syns: total,
    #[doc = "Flows opened late because a half-open budget was used up."]
    over_budget: total,
    #[doc = "Flows passed on unrelayed because a budget or the relay table was full."]
    syns_forwarded: total,
    #[doc = "SYNs answered with a reset by a reject rule."]
    rejected: total,
    #[doc = "Server SYN-ACKs held until the client was validated."]
    syn_acks_held: total,
    #[doc = "Upstream connections that could not keep the client's port."]
    port_fallbacks: total,
    #[doc = "Upstream connections that could not keep the client's address."]
    address_fallbacks: total,
    #[doc = "Bytes from clients to servers."]
    bytes_up: total,
    #[doc = "Bytes from servers to clients."]
    bytes_down: total,
    #[doc = "Bytes moved by splice, in both directions."]
    bytes_spliced: total,
    #[doc = "Attempts of relays to leave their flows to the packet path."]
    bypasses_begun: total,
    #[doc = "Such attempts that were given up without effect: the relay stays."]
    bypasses_given_up: total,
    #[doc = "Such attempts that cannot be given up any more: new segments go past the relay."]
    bypasses_cut: total,
    #[doc = "Flows given back to forwarding as this host did not answer their client."]
    undelivered: total,
    #[doc = "Frames that could not be put back on their device."]
    frames_lost: total,
    #[doc = "Connections to explicit listeners."]
    explicit_connections: total,
    #[doc = "Connections to listeners that have a destination of their own."]
    fixed_connections: total,
    #[doc = "Flows that left for another node over a connection that was open."]
    hops_warm: total,
    #[doc = "Flows that left for another node over a connection of their own."]
    hops_cold: total,
    #[doc = "Flows that left for another node over a stream of a tunnel."]
    hops_quic: total,
    #[doc = "Of these, flows to peers with transport = \"auto\", since hops over TCP lose much."]
    hops_quic_for_loss: total,
    #[doc = "Flows to peers with transport = \"quic\" that left over TCP, since no tunnel carried them."]
    hops_quic_to_tcp: total,
    #[doc = "Flows that a peer with transport = \"quic-only\" did not get, since no tunnel carried them."]
    hops_quic_refused: total,
    #[doc = "Tunnels that are open, dialed and accepted."]
    tunnels_up: gauge,
    #[doc = "Tunnels that were open and were lost."]
    tunnels_lost: total,
    #[doc = "Dialed tunnels that did not open."]
    tunnels_failed: total,
    #[doc = "Peers to which no dialed tunnel is open, counted by each worker."]
    tunnel_peers_down: gauge,
    #[doc = "Datagrams with repair symbols sent over tunnels."]
    tunnel_repairs_sent: total,
    #[doc = "Bytes of streams that followed from repair symbols, a round trip before they were sent again."]
    tunnel_bytes_repaired: total,
    #[doc = "Datagrams that may have begun a tunnel, dropped since too many came."]
    tunnel_initials_dropped: total,
    #[doc = "Flows that another node did not carry on."]
    hops_failed: total,
    #[doc = "Begun flows that went another way, since no byte of them had left or none was delivered."]
    hops_rerouted: total,
    #[doc = "Flows that another node refused since its clock and this node's differ."]
    hops_refused_for_clock: total,
    #[doc = "Times that a chain was left alone for a while, as its flows brought nothing back."]
    chains_silent: total,
    #[doc = "Flows that left for another node with a chain header in their SYN."]
    syn_options_sent: total,
    #[doc = "Chain headers in SYNs by which the next node opened the flow."]
    syn_options_accepted: total,
    #[doc = "Chain headers in SYNs that the next node did not get or did not accept."]
    syn_options_ignored: total,
    #[doc = "SYNs of peers with a chain header."]
    syn_options_received: total,
    #[doc = "Flows opened by the chain header in a peer's SYN."]
    syn_options_opened: total,
    #[doc = "Connections of clients with Multipath TCP."]
    multipath_accepted: total,
    #[doc = "Connections that requested Multipath TCP and became TCP in their handshake."]
    multipath_fell_back: total,
    #[doc = "Connections of Multipath TCP with clients that became TCP later: their path removed an option."]
    multipath_fell_back_later: total,
    #[doc = "Connections that requested Multipath TCP of their server or peer and became TCP."]
    multipath_fell_back_server: total,
    #[doc = "SYNs of further paths that waited for their connection and joined it."]
    multipath_joins_released: total,
    #[doc = "SYNs of further paths that waited and were forwarded: their connection is not the node's."]
    multipath_joins_expired: total,
    #[doc = "SYNs of further paths forwarded as too many waited, or dropped as too many of the node's came."]
    multipath_joins_over_budget: total,
    #[doc = "SYNs of further paths forwarded: the node cannot listen on their port."]
    multipath_ports_unavailable: total,
    #[doc = "Connections that no further path can join, since the node has too many."]
    multipath_tokens_over_budget: total,
    #[doc = "Steps of relays that were gone, a defect of the node."]
    missed_relays: total,
    #[doc = "Log records dropped because the log could not keep up."]
    log_drops: total,
}

impl Counters {
    /// The flows opened in a mode.
    pub(crate) fn flows(&self, mode: AcceptMode) -> &Counter {
        &self.flows[mode.index()]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::thread;

    use super::*;

    #[test]
    fn each_names_every_counter_once() {
        let counters = Counters::default();
        counters.relays.add(3);
        counters.relays.sub(1);
        let (name, help, grows, value) = counters.each().next().unwrap();
        assert_eq!(
            (name, help, grows, value),
            ("relays", "Relays open now.", false, 2)
        );
        let names: HashSet<_> = counters.each().map(|(name, ..)| name).collect();
        assert_eq!(names.len(), counters.each().count());
        let ended = size_of_val(&counters.ended);
        let single = names.len() * size_of::<Counter>();
        let ended = ended + size_of_val(&counters.denied);
        let rules = size_of_val(&counters.rules);
        let padding = size_of::<Counters>() - ended - single - rules;
        assert!(padding < align_of::<Counters>(), "each leaves some out");
    }

    #[test]
    fn counters_across_threads() {
        const COUNT: u64 = 10_000;
        let counters = Counters::default();
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..COUNT {
                    counters.syns.add(2);
                    counters.syns.sub(1);
                }
            });
            while counters.syns.read() < COUNT {
                thread::yield_now();
            }
        });
        assert_eq!(counters.syns.read(), COUNT);
    }

    #[test]
    fn outcomes_have_own_counters() {
        let counters = Counters::default();
        for (count, outcome) in (1..).zip(Outcome::ALL) {
            counters.ended[outcome as usize].add(count);
        }
        let sum: u64 = counters.ended.iter().map(Counter::read).sum();
        let count = Outcome::ALL.len() as u64;
        assert_eq!(sum, count * (count + 1) / 2);
    }

    #[test]
    fn workers_on_own_cache_lines() {
        let counters = [Counters::default(), Counters::default()];
        for one in &counters {
            assert_eq!((&raw const *one).addr() % 128, 0);
        }
    }
}
