// SPDX-License-Identifier: Apache-2.0
//! Formats the node's responses as text.

use std::borrow::Borrow;
use std::fmt::Write;
use std::time::Duration;

use crate::api::control_client::{Clock, Follow};
use crate::api::packets::Flow;
use crate::api::saved::{Histogram, Rule};
use crate::api::{Detail, Guard, Multipath, Relay, ReloadReport, Side, Status, Tcp};

use super::summary::short;
use posthaste_daemon::http;

/// The `status --all` verb.
pub(super) fn all(status: &Status) -> String {
    let mut text = String::new();
    let config = status.config.as_deref().unwrap_or("none (defaults)");
    let _ = writeln!(
        text,
        "posthaste {}, {}, up {}, {} workers, process {}",
        status.version,
        status.state.word(),
        span(millis(status.uptime_seconds)),
        status.workers,
        status.pid
    );
    let _ = writeln!(text, "configuration  {config}");
    if let Some(error) = &status.reloads.last_error {
        let _ = writeln!(text, "last reload    FAILED: {error}");
    }
    for interface in &status.interfaces {
        let hold = if interface.attached {
            interface.hold.as_str()
        } else {
            // Capitals are for what an operator must not overlook.
            "NOT ATTACHED"
        };
        let _ = writeln!(text, "interface      {} ({hold})", interface.name);
    }
    if status.interfaces.is_empty() {
        text.push_str("interface      NONE: nothing is intercepted\n");
    }
    text.push_str(&guard(status.guard));
    if let Some(follow) = &status.controller {
        text.push_str(&controller(follow));
    }
    ends(&mut text, status);
    let _ = write!(text, "\n{}", table(RULES, &status.rules, 1));
    section(
        &mut text,
        "workers",
        status
            .counters
            .iter()
            .map(|(name, value)| (name.as_str(), *value)),
        true,
    );
    let ended = status.ended.iter().filter(|(_, count)| **count > 0);
    section(
        &mut text,
        "relays ended",
        ended.map(|(name, value)| (name.as_str(), *value)),
        false,
    );
    section(
        &mut text,
        "redirect",
        status
            .redirect
            .iter()
            .map(|(name, value)| (name.as_str(), *value)),
        true,
    );
    text
}

/// The guard process.
fn guard(guard: Guard) -> String {
    let process = match guard.pid {
        Some(pid) => format!("process {pid}"),
        None => "NONE: nothing cleans up if the node dies; see the log for the cause".into(),
    };
    let again = match guard.restarts {
        0 => String::new(),
        times => format!(", started again {times} times"),
    };
    format!("guard          {process}{again}\n")
}

/// The controller and its plan.
fn controller(follow: &Follow) -> String {
    let mut text = format!("controller     {}, ", follow.address);
    match (follow.connected, &follow.trouble) {
        (true, _) => text.push_str("connected\n"),
        (false, Some(trouble)) => {
            let _ = writeln!(text, "NOT JOINED: {trouble}");
        }
        (false, None) => text.push_str("not connected\n"),
    }
    if let Some(clock) = follow.clock {
        let _ = writeln!(text, "clock          {}", own_clock(clock));
    }
    let Some(plan) = &follow.plan else {
        return text + "plan           none: flows go without\n";
    };
    let _ = write!(
        text,
        "plan           {} of epoch {}, ",
        plan.version, plan.epoch
    );
    match plan.age_ms {
        Some(age) => text.push_str(&span(age)),
        None => text.push_str("unknown"),
    }
    let _ = write!(text, " old of at most {}, ", span(plan.ttl_ms));
    let _ = match plan.in_force {
        true => writeln!(text, "{} chains to {} nodes", plan.chains, plan.egresses),
        false => writeln!(text, "NOT IN FORCE: flows go without"),
    };
    text
}

/// When the node ends, if it does, and the nodes that it has replaced.
fn ends(text: &mut String, status: &Status) {
    if let Some(left) = status.deadline_seconds {
        let _ = writeln!(
            text,
            "ends           in {} at the latest",
            span(millis(left))
        );
    }
    for node in &status.replaced {
        let relays = node
            .relays
            .map_or_else(|| "?".into(), |count| count.to_string());
        let left = node.deadline_seconds;
        let left = left.map_or_else(|| "?".into(), |left| span(millis(left)));
        let _ = writeln!(
            text,
            "replaced       process {}: {relays} relays, for {left} at most (--socket {})",
            node.pid, node.socket
        );
    }
}

/// The host's clock compared to the controller's.
pub(super) fn own_clock(clock: Clock) -> String {
    let side = if clock.offset_us < 0 {
        "behind"
    } else {
        "ahead of"
    };
    let by = span(clock.offset_us.unsigned_abs() / 1_000);
    let verdict = if clock.is_wrong() {
        ": WRONG, by one of the two: is something like chrony running?"
    } else {
        ""
    };
    format!("{by} {side} the controller's{verdict}")
}

fn section<'a>(
    text: &mut String,
    title: &str,
    rows: impl Iterator<Item = (&'a str, u64)>,
    always: bool,
) {
    let rows: Vec<_> = rows.collect();
    if rows.is_empty() && !always {
        return;
    }
    let _ = writeln!(text, "\n{title}");
    for (name, value) in rows {
        // The name is all that is known of a counter here.
        let readable = if name.starts_with("bytes") {
            bytes(value)
        } else {
            value.to_string()
        };
        let _ = writeln!(text, "  {name:<22} {readable:>14}");
    }
}

/// Average durations and total savings of the relays of each rule.
const RULES: &[Column<Rule>] = &[
    ("RULE", |rule| rule.name.clone()),
    ("ENDED", |rule| rule.duration_seconds.count.to_string()),
    ("CONNECT", |rule| mean(&rule.connect_seconds)),
    ("FIRST BYTE", |rule| mean(&rule.first_byte_seconds)),
    ("SAVED TO FIRST BYTE", |rule| {
        short(rule.saved.first_byte_seconds)
    }),
    ("SAVED TO END", |rule| short(rule.saved.end_seconds)),
    ("SLOWER", |rule| rule.saved.slower.to_string()),
];

fn mean(times: &Histogram) -> String {
    match times.count {
        0 => "-".to_owned(),
        count => short(times.sum / count as f64),
    }
}

/// A relay, and what it moved toward the server and toward the client: totals or rates.
pub(super) type Moved = (Relay, String, String);

/// The relays of `relays list` and `top`.
pub(super) const RELAYS: &[Column<Moved>] = &[
    ("ID", |(relay, ..)| relay.id.clone()),
    ("CLIENT", |(relay, ..)| relay.client.clone()),
    ("SERVER", |(relay, ..)| relay.server.clone()),
    ("RULE", |(relay, ..)| relay.rule.clone()),
    ("PHASE", |(relay, ..)| relay.phase.clone()),
    ("AGE", |(relay, ..)| span(relay.age_ms)),
    ("UP", |(_, up, _)| up.clone()),
    ("DOWN", |(.., down)| down.clone()),
];

/// The flows of the packet path in the `relays list` verb.
pub(super) const PACKET_FLOWS: &[Column<Flow>] = &[
    ("CLIENT", |flow| flow.client.clone()),
    ("SERVER", |flow| flow.server.clone()),
    ("PHASE", |flow| flow.phase.clone()),
    ("AGE", |flow| span(flow.age_ms)),
    ("IDLE", |flow| span(flow.idle_ms)),
    ("UP", |flow| bytes(flow.bytes_up)),
    ("DOWN", |flow| bytes(flow.bytes_down)),
];

/// A column of a table: its title, and the cell of a row.
pub(crate) type Column<T> = (&'static str, fn(&T) -> String);

/// Columns as wide as their widest cell; those after the first `left` are right-aligned.
pub(crate) fn table<T>(
    columns: &[Column<T>],
    rows: impl IntoIterator<Item: Borrow<T>>,
    left: usize,
) -> String {
    let head = columns.iter().map(|(title, _)| (*title).to_owned());
    let mut lines: Vec<Vec<String>> = vec![head.collect()];
    for row in rows {
        lines.push(columns.iter().map(|(_, cell)| cell(row.borrow())).collect());
    }
    let mut text = String::new();
    for line in &lines {
        let mut cells = String::new();
        for (column, cell) in line.iter().enumerate() {
            // Characters, as the widths of a format count, and not bytes.
            let widths = lines.iter().map(|line| line[column].chars().count());
            let width = widths.max().unwrap_or(0);
            let _ = if column < left {
                write!(cells, "{cell:<width$}  ")
            } else {
                write!(cells, "{cell:>width$}  ")
            };
        }
        // The last column is padded, too.
        text.push_str(cells.trim_end());
        text.push('\n');
    }
    text
}

/// The `relays show` verb.
pub(super) fn detail(detail: &Detail) -> String {
    let relay = &detail.relay;
    let mut text = String::new();
    let _ = writeln!(
        text,
        "relay {}: {} > {}",
        relay.id, relay.client, relay.server
    );
    let _ = writeln!(
        text,
        "rule {}, accept {}, {}, age {}, idle {}, up {}, down {}",
        relay.rule,
        relay.accept,
        relay.phase,
        span(relay.age_ms),
        span(relay.idle_ms),
        bytes(relay.bytes_up),
        bytes(relay.bytes_down)
    );
    side(&mut text, "downstream (client)", detail.downstream.as_ref());
    side(&mut text, "upstream (server)", detail.upstream.as_ref());
    text
}

fn side(text: &mut String, title: &str, side: Option<&Side>) {
    let _ = writeln!(text, "\n{title}");
    match side {
        None => text.push_str("  not open yet\n"),
        Some(Side::Stream { tunnel }) => {
            let _ = writeln!(
                text,
                "  a stream of a tunnel with {}, one of {}\n  rtt {}, {} packets sent, {} lost",
                tunnel.remote,
                tunnel.streams,
                micros(tunnel.rtt_us),
                tunnel.packets_sent,
                tunnel.packets_lost
            );
        }
        Some(Side::Tcp(tcp)) => socket(text, tcp),
    }
}

fn socket(text: &mut String, tcp: &Tcp) {
    let _ = writeln!(text, "  {}, {}", tcp.state, tcp.congestion);
    let _ = writeln!(
        text,
        "  rtt {} (variation {}, least {}), rto {}",
        micros(tcp.rtt_us),
        micros(tcp.rttvar_us),
        micros(tcp.min_rtt_us),
        micros(tcp.rto_us)
    );
    let _ = writeln!(
        text,
        "  window {} segments of {} B, {} unacknowledged, {} retransmitted",
        tcp.cwnd_segments, tcp.send_mss_bytes, tcp.unacked_segments, tcp.retransmitted_segments
    );
    let _ = writeln!(
        text,
        "  acknowledged {}, received {}, unsent {}, delivery rate {}/s",
        bytes(tcp.acked_bytes),
        bytes(tcp.received_bytes),
        bytes(u64::from(tcp.notsent_bytes)),
        bytes(tcp.delivery_rate_bytes_per_second)
    );
    if let Some(multipath) = &tcp.multipath {
        paths(text, multipath);
    }
}

/// The paths of a connection of Multipath TCP.
fn paths(text: &mut String, multipath: &Multipath) {
    let fallback = if multipath.fell_back {
        ", fell back to TCP"
    } else {
        ""
    };
    let _ = writeln!(
        text,
        "  multipath: {} paths, {} retransmissions{fallback}",
        multipath.paths.len(),
        multipath.retransmissions
    );
    for path in &multipath.paths {
        let _ = writeln!(
            text,
            "    {} - {}: {}, rtt {}, window {} segments, {} retransmitted, \
             acknowledged {}, received {}, unsent {}, delivery rate {}/s",
            path.local,
            path.remote,
            path.state,
            micros(path.rtt_us),
            path.cwnd_segments,
            path.retransmitted_segments,
            bytes(path.acked_bytes),
            bytes(path.received_bytes),
            bytes(u64::from(path.notsent_bytes)),
            bytes(path.delivery_rate_bytes_per_second)
        );
    }
}

/// The `reload` verb.
pub(super) fn reload(report: &ReloadReport) -> String {
    let mut text = format!("reloaded; rules in force: {}\n", report.rules);
    for warning in &report.warnings {
        let _ = writeln!(text, "warning: {warning}");
    }
    if !report.needs_restart.is_empty() {
        let _ = writeln!(
            text,
            "takes effect at the next start only: {}",
            report.needs_restart.join(", ")
        );
    }
    text
}

/// Bytes with three digits and a binary unit.
pub(super) fn bytes(count: u64) -> String {
    if count < 1024 {
        return format!("{count} B");
    }
    scaled(count as f64)
}

/// Bytes per second in the same form.
pub(super) fn rate(bytes_per_second: f64) -> String {
    if bytes_per_second < 1024.0 {
        return format!("{bytes_per_second:.0} B/s");
    }
    scaled(bytes_per_second) + "/s"
}

fn scaled(mut bytes: f64) -> String {
    let mut units = ["KiB", "MiB", "GiB", "TiB"].into_iter();
    let mut unit = "B";
    while bytes >= 1024.0 {
        let Some(next) = units.next() else { break };
        (bytes, unit) = (bytes / 1024.0, next);
    }
    let digits = if bytes < 10.0 {
        2
    } else {
        usize::from(bytes < 100.0)
    };
    format!("{bytes:.digits$} {unit}")
}

pub(super) fn millis(seconds: f64) -> u64 {
    http::millis(Duration::try_from_secs_f64(seconds).unwrap_or_default())
}

/// Milliseconds in the two largest units that fit.
pub(super) fn span(ms: u64) -> String {
    let seconds = ms / 1000;
    match seconds {
        0..10 => format!("{}.{}s", seconds, ms % 1000 / 100),
        10..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

pub(super) fn micros(us: impl Into<u64>) -> String {
    let us = us.into();
    format!("{}.{:03} ms", us / 1000, us % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        for (count, shown) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.00 KiB"),
            (10_240, "10.0 KiB"),
            (5 << 20, "5.00 MiB"),
            (3 << 50, "3072 TiB"),
        ] {
            assert_eq!(bytes(count), shown);
        }
        assert_eq!(
            (rate(0.4), rate(2048.0)),
            ("0 B/s".into(), "2.00 KiB/s".into())
        );
        for (ms, shown) in [
            (0, "0.0s"),
            (9_990, "9.9s"),
            (61_000, "1m01s"),
            (3_660_000, "1h01m"),
            (90_000_000, "1d01h"),
        ] {
            assert_eq!(span(ms), shown);
        }
    }

    #[test]
    fn columns_line_up() {
        let relay = Relay {
            id: "2a".into(),
            client: "10.0.0.1:4000".into(),
            server: "[2001:db8::1]:80".into(),
            rule: "all".into(),
            accept: "early".into(),
            phase: "open".into(),
            age_ms: 1_500,
            idle_ms: 0,
            bytes_up: 1,
            bytes_down: 2,
        };
        let moved = (relay, "1 B".to_owned(), "2 B".to_owned());
        let text = table(RELAYS, [moved], 5);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[0],
            "ID  CLIENT         SERVER            RULE  PHASE   AGE   UP  DOWN"
        );
        assert_eq!(
            lines[1],
            "2a  10.0.0.1:4000  [2001:db8::1]:80  all   open   1.5s  1 B   2 B"
        );
    }
}
