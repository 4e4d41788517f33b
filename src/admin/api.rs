// SPDX-License-Identifier: Apache-2.0
//! The documents of the admin API: what the server sends and the client reads.

use std::collections::BTreeMap;

use posthaste_relay::control::{Phase, RelayDetail, RelayInfo};
use posthaste_relay::sys::TcpInfo;
use serde::{Deserialize, Serialize};

pub(crate) mod chains;
pub(crate) mod control_client;
pub(crate) mod links;
pub(crate) mod observed;
pub(crate) mod saved;

/// Where the node is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum State {
    /// Relaying.
    Ready,
    /// Finishing what is open, accepting nothing new.
    Draining,
    /// The same, while another process accepts what is new.
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
    /// The configuration file; nothing when the node runs on defaults.
    pub(crate) config: Option<String>,
    pub(crate) workers: usize,
    pub(crate) interfaces: Vec<Interface>,
    /// The process that cleans up when this one dies.
    pub(crate) guard: Guard,
    /// It takes flows off the forwarding path.
    pub(crate) transparent: bool,
    /// This host stands in the way of relays: what has to be observed first is forwarded.
    pub(crate) blocked: bool,
    /// The workers' counters, summed.
    pub(crate) counters: BTreeMap<String, u64>,
    /// Relays ended, by outcome.
    pub(crate) ended: BTreeMap<String, u64>,
    /// The redirect program's counters.
    pub(crate) redirect: BTreeMap<String, u64>,
    /// What relays saved, of all rules.
    pub(crate) saved: saved::Saved,
    /// The same by rule, with how long relays took.
    pub(crate) rules: Vec<saved::Rule>,
    pub(crate) reloads: Reloads,
    /// The controller that is followed, if any.
    pub(crate) controller: Option<control_client::Follow>,
    /// What is left of the time for open relays; nothing unless the node ends.
    pub(crate) deadline_seconds: Option<f64>,
    /// Those whose place it has taken and that still carry relays, the oldest first.
    pub(crate) replaced: Vec<Replaced>,
    pub(crate) process: Process,
}

/// A node that was replaced and still carries relays.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Replaced {
    pub(crate) pid: u32,
    /// Where it answers now.
    pub(crate) socket: String,
    /// What it says itself; nothing when it was not asked.
    pub(crate) relays: Option<u64>,
    pub(crate) deadline_seconds: Option<f64>,
}

/// What a successor has to know of a node's process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Process {
    /// Names the file that it runs, as it was when it started.
    pub(crate) binary: String,
    /// A service manager has started it.
    pub(crate) supervised: bool,
    /// How often that wants to hear of it.
    pub(crate) watchdog_us: Option<u64>,
}

/// The process that cleans up after a dead node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Guard {
    /// Its number; nothing while there is no guard.
    pub(crate) pid: Option<i32>,
    /// How many times one died and was started again.
    pub(crate) restarts: u64,
}

/// An interface the node intercepts on, or was told to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Interface {
    pub(crate) name: String,
    pub(crate) index: u32,
    /// Whether the redirect program is attached.
    pub(crate) attached: bool,
    /// How it is attached: `tcx` ends with the process, `clsact` may stay
    /// behind it; empty when it is not.
    pub(crate) hold: String,
}

impl Interface {
    /// One that was asked for and is not there.
    pub(crate) fn absent(name: &str) -> Self {
        Self {
            name: name.into(),
            index: 0,
            attached: false,
            hold: String::new(),
        }
    }
}

/// How reading the configuration again went.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Reloads {
    pub(crate) succeeded: u64,
    pub(crate) failed: u64,
    /// When the configuration in force was read, in seconds since 1970.
    pub(crate) last_success_unix_seconds: f64,
    /// Why the last attempt failed; nothing when it succeeded.
    pub(crate) last_error: Option<String>,
}

impl Reloads {
    /// Takes note of an attempt at `now`, in seconds since 1970.
    pub(crate) fn record(&mut self, outcome: &anyhow::Result<ReloadReport>, now_unix_seconds: f64) {
        match outcome {
            Ok(_) => {
                self.succeeded += 1;
                self.last_success_unix_seconds = now_unix_seconds;
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
    /// Rules in force now.
    pub(crate) rules: usize,
    /// What is allowed but probably not meant.
    pub(crate) warnings: Vec<String>,
    /// Keys that changed and take effect only at the next start.
    pub(crate) needs_restart: Vec<String>,
}

/// `POST /drain`
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Draining {
    /// Relays open when it began.
    pub(crate) relays: u64,
}

/// `GET /relays`
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Relays {
    pub(crate) relays: Vec<Relay>,
    /// Whether the limit or a worker that did not answer left relays out.
    pub(crate) incomplete: bool,
    /// Workers that did not answer in time: their relays are not in the list.
    pub(crate) silent_workers: usize,
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

fn millis(length: std::time::Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}

/// `GET /relays/ID`
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Detail {
    #[serde(flatten)]
    pub(crate) relay: Relay,
    pub(crate) downstream: Option<Tcp>,
    pub(crate) upstream: Option<Tcp>,
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
        }
    }
}

/// Any answer that is not a success.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Refusal {
    pub(crate) error: String,
}
