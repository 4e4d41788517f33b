// SPDX-License-Identifier: Apache-2.0
//! The documents of the admin API, for the server and the client.

use std::collections::BTreeMap;

use posthaste_daemon::http::{micros, millis};
use posthaste_relay::control::{Phase, RelayDetail, RelayInfo, SideInfo};
use posthaste_relay::sys::{MultipathInfo, TcpInfo};
use serde::{Deserialize, Serialize};

pub(crate) mod chains;
pub(crate) mod control_client;
pub(crate) mod observed;
pub(crate) mod packets;
pub(crate) mod saved;

/// The phase of a node's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum State {
    /// Relaying.
    Ready,
    /// Finishing open relays, accepting no flows.
    Draining,
    /// The same, while a successor accepts flows.
    Replaced,
}

impl State {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Draining => "draining",
            Self::Replaced => "replaced",
        }
    }
}

/// `GET /status`
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Status {
    pub(crate) version: String,
    pub(crate) pid: u32,
    pub(crate) state: State,
    /// RFC 3339, UTC.
    pub(crate) started: String,
    pub(crate) uptime_seconds: f64,
    /// The configuration file; absent when the node runs on defaults.
    pub(crate) config: Option<String>,
    pub(crate) workers: usize,
    pub(crate) interfaces: Vec<Interface>,
    /// The process that cleans up if this one dies.
    pub(crate) guard: Guard,
    /// Whether it takes flows off the forwarding path.
    pub(crate) transparent: bool,
    /// Whether this host blocks relays: flows that must be observed are forwarded.
    pub(crate) blocked: bool,
    /// Why rules with `data_path = "auto"` use sockets, and those with `"packet"` forward; absent if there
    /// is a packet path, or no rule wants it.
    #[serde(default)]
    pub(crate) packet_path_trouble: Option<String>,
    /// The workers' counters, summed.
    pub(crate) counters: BTreeMap<String, u64>,
    /// Relays ended, by outcome.
    pub(crate) ended: BTreeMap<String, u64>,
    /// The redirect program's counters.
    pub(crate) redirect: BTreeMap<String, u64>,
    /// Savings of relays, over all rules.
    pub(crate) saved: saved::Saved,
    /// The same by rule, with durations of relays.
    pub(crate) rules: Vec<saved::Rule>,
    pub(crate) reloads: Reloads,
    /// The controller of this node, if any.
    pub(crate) controller: Option<control_client::Follow>,
    /// Time left for open relays; absent unless the node ends.
    pub(crate) deadline_seconds: Option<f64>,
    /// Nodes that it has replaced and that still carry relays, the oldest first.
    pub(crate) replaced: Vec<Replaced>,
    pub(crate) process: Process,
}

/// A node that was replaced and still carries relays.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Replaced {
    pub(crate) pid: u32,
    /// Its admin socket now.
    pub(crate) socket: String,
    /// Its own report; absent when it was not queried.
    pub(crate) relays: Option<u64>,
    pub(crate) deadline_seconds: Option<f64>,
}

/// The information that a successor needs about a node's process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Process {
    /// Path of its executable when it started.
    pub(crate) binary: String,
    /// Whether a service manager started it.
    pub(crate) supervised: bool,
    /// Watchdog interval of the service manager, in microseconds.
    pub(crate) watchdog_us: Option<u64>,
}

/// The process that cleans up after a dead node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Guard {
    /// Its process ID; absent while there is no guard.
    pub(crate) pid: Option<i32>,
    /// How many times it died and was restarted.
    pub(crate) restarts: u64,
}

/// An interface that the node intercepts on, or that is configured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Interface {
    pub(crate) name: String,
    pub(crate) index: u32,
    /// Whether the redirect program is attached.
    pub(crate) attached: bool,
    /// `tcx` ends with the process, `clsact` may outlive it; empty when it is not attached.
    pub(crate) hold: String,
}

impl Interface {
    /// A configured interface that does not exist.
    pub(crate) fn absent(name: &str) -> Self {
        Self {
            name: name.into(),
            index: 0,
            attached: false,
            hold: String::new(),
        }
    }
}

/// Results of configuration reloads.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Reloads {
    pub(crate) succeeded: u64,
    pub(crate) failed: u64,
    /// When the configuration in force was read, in seconds since 1970.
    pub(crate) last_success_unix_seconds: f64,
    /// Error of the last attempt; absent when it succeeded.
    pub(crate) last_error: Option<String>,
}

impl Reloads {
    /// Records an attempt at `now`, in seconds since 1970.
    pub(crate) fn record(&mut self, outcome: &anyhow::Result<ReloadReport>, now_unix_seconds: f64) {
        match outcome {
            Ok(_) => {
                self.succeeded += 1;
                self.last_success_unix_seconds = now_unix_seconds;
                // An operator has corrected what it reported.
                self.last_error = None;
            }
            Err(error) => {
                self.failed += 1;
                self.last_error = Some(format!("{error:#}"));
            }
        }
    }
}

/// `POST /reload`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ReloadReport {
    /// Number of rules now in force.
    pub(crate) rules: usize,
    /// Settings that are allowed but probably not intended.
    pub(crate) warnings: Vec<String>,
    /// Changed keys that take effect only at the next start.
    pub(crate) needs_restart: Vec<String>,
}

/// `POST /drain`
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Draining {
    /// Open relays at its beginning.
    pub(crate) relays: u64,
}

/// `GET /relays`
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Relays {
    pub(crate) relays: Vec<Relay>,
    /// Whether relays are missing because of the limit or a worker that did not answer.
    pub(crate) incomplete: bool,
    /// Workers that did not answer in time: their relays are missing.
    pub(crate) silent_workers: usize,
    /// Flows of the packet path, as far as the limit has room beside the relays.
    #[serde(default)]
    pub(crate) packet_flows: Vec<packets::Flow>,
}

/// One relay.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Relay {
    pub(crate) id: String,
    pub(crate) client: String,
    pub(crate) server: String,
    pub(crate) rule: String,
    pub(crate) accept: String,
    pub(crate) phase: String,
    pub(crate) age_ms: u64,
    pub(crate) idle_ms: u64,
    pub(crate) bytes_up: u64,
    pub(crate) bytes_down: u64,
}

impl From<RelayInfo> for Relay {
    fn from(info: RelayInfo) -> Self {
        Self {
            id: info.id.to_string(),
            client: info.flow.client().to_string(),
            server: info.flow.server().to_string(),
            rule: info.rule,
            accept: info.accept.name().into(),
            phase: phase_word(info.phase).into(),
            age_ms: millis(info.age),
            idle_ms: millis(info.idle),
            bytes_up: info.bytes_up,
            bytes_down: info.bytes_down,
        }
    }
}

fn phase_word(phase: Phase) -> &'static str {
    match phase {
        Phase::Opening => "opening",
        Phase::Open => "open",
        Phase::Closing => "closing",
    }
}

/// `GET /relays/ID`
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Detail {
    #[serde(flatten)]
    pub(crate) relay: Relay,
    pub(crate) downstream: Option<Side>,
    pub(crate) upstream: Option<Side>,
}

impl From<RelayDetail> for Detail {
    fn from(detail: RelayDetail) -> Self {
        Self {
            relay: detail.info.into(),
            downstream: detail.downstream.map(Into::into),
            upstream: detail.upstream.map(Into::into),
        }
    }
}

/// One side of a relay.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Side {
    Tcp(Box<Tcp>),
    Stream { tunnel: Tunnel },
}

impl From<SideInfo> for Side {
    fn from(side: SideInfo) -> Self {
        match side {
            SideInfo::Tcp(info) => Self::Tcp(Box::new(info.into())),
            SideInfo::Stream(info) => Self::Stream {
                tunnel: Tunnel {
                    remote: info.remote.to_string(),
                    rtt_us: micros(info.rtt),
                    packets_sent: info.packets_sent,
                    packets_lost: info.packets_lost,
                    streams: info.streams,
                },
            },
        }
    }
}

/// The connection to another node of which a side is a stream.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Tunnel {
    pub(crate) remote: String,
    pub(crate) rtt_us: u64,
    pub(crate) packets_sent: u64,
    pub(crate) packets_lost: u64,
    pub(crate) streams: usize,
}

/// The kernel's view of one connection.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Tcp {
    pub(crate) state: String,
    pub(crate) congestion: String,
    pub(crate) rtt_us: u32,
    pub(crate) rttvar_us: u32,
    pub(crate) min_rtt_us: u32,
    pub(crate) rto_us: u32,
    pub(crate) cwnd_segments: u32,
    pub(crate) send_mss_bytes: u32,
    pub(crate) unacked_segments: u32,
    pub(crate) retransmitted_segments: u32,
    pub(crate) acked_bytes: u64,
    pub(crate) received_bytes: u64,
    pub(crate) notsent_bytes: u32,
    pub(crate) delivery_rate_bytes_per_second: u64,
    /// Of a connection of Multipath TCP, of which the rest describes the first path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) multipath: Option<Multipath>,
}

/// A connection of Multipath TCP above its paths.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Multipath {
    pub(crate) fell_back: bool,
    pub(crate) retransmissions: u32,
    pub(crate) paths: Vec<Path>,
}

/// One path of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Path {
    pub(crate) local: String,
    pub(crate) remote: String,
    pub(crate) state: String,
    pub(crate) rtt_us: u32,
    pub(crate) cwnd_segments: u32,
    pub(crate) retransmitted_segments: u32,
    pub(crate) acked_bytes: u64,
    pub(crate) received_bytes: u64,
    pub(crate) notsent_bytes: u32,
    pub(crate) delivery_rate_bytes_per_second: u64,
}

impl From<MultipathInfo> for Multipath {
    fn from(info: MultipathInfo) -> Self {
        let paths = info.paths.into_iter().map(|path| Path {
            local: path.local.to_string(),
            remote: path.remote.to_string(),
            state: path.state.into(),
            rtt_us: path.rtt_us,
            cwnd_segments: path.cwnd_segments,
            retransmitted_segments: path.retransmitted_segments,
            acked_bytes: path.acked_bytes,
            received_bytes: path.received_bytes,
            notsent_bytes: path.notsent_bytes,
            delivery_rate_bytes_per_second: path.delivery_rate_bytes_per_second,
        });
        Self {
            fell_back: info.fell_back,
            retransmissions: info.retransmissions,
            paths: paths.collect(),
        }
    }
}

impl From<TcpInfo> for Tcp {
    fn from(info: TcpInfo) -> Self {
        Self {
            state: info.state.into(),
            congestion: info.congestion,
            rtt_us: info.rtt_us,
            rttvar_us: info.rttvar_us,
            min_rtt_us: info.min_rtt_us,
            rto_us: info.rto_us,
            cwnd_segments: info.cwnd_segments,
            send_mss_bytes: info.send_mss_bytes,
            unacked_segments: info.unacked_segments,
            retransmitted_segments: info.retransmitted_segments,
            acked_bytes: info.acked_bytes,
            received_bytes: info.received_bytes,
            notsent_bytes: info.notsent_bytes,
            delivery_rate_bytes_per_second: info.delivery_rate_bytes_per_second,
            multipath: info.multipath.map(Into::into),
        }
    }
}
