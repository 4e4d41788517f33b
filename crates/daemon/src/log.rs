// SPDX-License-Identifier: Apache-2.0
//! The log: logfmt lines on stdout, written by a separate thread.
//!
//! One line per ended relay and one per event of the process. Logging never blocks: records that do
//! not fit into the queue are dropped and counted. The queue is bounded in records.

use std::fmt::{self, Display, Write as _};
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use posthaste_relay::chain::Encapsulation;
use posthaste_relay::control::{Denied, Ended, Journal};

use crate::{journal, privileges};

mod line;
mod quota;

pub use line::Timestamp;
use line::{Value, write_ended, write_head};
pub use quota::Quota;

/// Bound on queued records.
const QUEUE_RECORDS_MAX: usize = 16 << 10;
/// How long the end of the node waits for a reader of the last lines.
const FINISH_TIME_MAX: Duration = Duration::from_secs(1);
/// How long records gather before they are written. A record that wakes the writer costs its worker more
/// than several system calls; while the writer sleeps, none does.
const GATHER_TIME: Duration = Duration::from_millis(10);
/// Bytes gathered before one write.
const WRITE_BYTES: usize = 64 << 10;

/// The severity of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// As expected.
    Info,
    /// The node continues, but an operator should investigate.
    Warn,
    /// A requested operation failed.
    Error,
}

impl Level {
    fn word(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Error => "error",
        }
    }
}

/// A queue entry for the writer.
enum Entry {
    /// A finished line.
    Line(String),
    /// Ended relays, which the writer formats.
    Ended(Vec<Ended>),
}

impl Entry {
    fn records(&self) -> usize {
        match self {
            Self::Line(_) => 1,
            Self::Ended(ended) => ended.len(),
        }
    }
}

/// State shared by loggers and the writer.
#[derive(Debug)]
struct Shared {
    /// Records in the queue.
    waiting: AtomicUsize,
    /// Whether ended relays are logged.
    connections: AtomicBool,
    /// Dropped events; workers count dropped relays.
    events_dropped: AtomicU64,
    /// Whether lines begin with their priority, for systemd's journal.
    with_priority: bool,
}

impl Shared {
    fn priority(&self, level: Level) -> &'static str {
        if self.with_priority {
            journal::prefix(level)
        } else {
            ""
        }
    }
}

/// A handle of the log: cheap to clone, one per thread.
#[derive(Clone)]
pub struct Log {
    queue: Sender<Entry>,
    shared: Arc<Shared>,
    // Each clone has its own, hence each thread: it needs no lock.
    denials: Quota,
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log")
            .field("shared", &self.shared)
            .finish_non_exhaustive()
    }
}

/// The writer's end, to wait for at the end.
#[derive(Debug)]
pub struct Writer {
    /// Closed when the writer has written everything.
    written: Receiver<()>,
}

impl Writer {
    /// Waits until every line is written, for at most [`FINISH_TIME_MAX`]: stdout may have no
    /// reader. Drop all [`Log`]s before.
    pub fn finish(self) {
        let _ = self.written.recv_timeout(FINISH_TIME_MAX);
    }
}

/// Starts the writer. `connections` is whether ended relays are logged.
pub fn start(connections: bool) -> anyhow::Result<(Log, Writer)> {
    let (queue, entries) = channel();
    let shared = Arc::new(Shared {
        waiting: AtomicUsize::new(0),
        connections: AtomicBool::new(connections),
        events_dropped: AtomicU64::new(0),
        with_priority: journal::reads(std::io::stdout()),
    });
    let theirs = Arc::clone(&shared);
    let (writing, written) = channel();
    thread::Builder::new()
        .name("posthaste-log".into())
        .stack_size(256 << 10)
        .spawn(move || {
            // It formats data from the network. Best effort: it works with privileges, too.
            let _ = privileges::keep_only(&[]);
            // Dropped at the end of the thread, which wakes `Writer::finish`.
            let _writing: Sender<()> = writing;
            write_all(&entries, &theirs, std::io::stdout());
        })
        .context("start the log thread")?;
    let log = Log {
        queue,
        shared,
        denials: Quota::default(),
    };
    Ok((log, Writer { written }))
}

impl Log {
    /// Logs an event of the node. `fields` become `key=value`.
    pub fn event(&self, level: Level, message: &str, fields: &[(&str, &dyn Display)]) {
        let mut line = self.shared.priority(level).to_owned();
        write_head(&mut line, level, message);
        for (key, value) in fields {
            let _ = write!(line, " {key}={}", Value(&value.to_string()));
        }
        line.push('\n');
        if self.push(Entry::Line(line)).is_err() {
            self.shared.events_dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Logs an event that remote hosts can cause, within a [`Quota`]; the line has the number of
    /// suppressed ones.
    pub fn event_after(
        &self,
        left_out: u64,
        level: Level,
        message: &str,
        fields: &[(&str, &dyn Display)],
    ) {
        let mut fields = fields.to_vec();
        if left_out > 0 {
            fields.push(("left_out", &left_out));
        }
        self.event(level, message, &fields);
    }

    /// Logs an expected event.
    pub fn info(&self, message: &str, fields: &[(&str, &dyn Display)]) {
        self.event(Level::Info, message, fields);
    }

    /// Logs an event that an operator should investigate.
    pub fn warn(&self, message: &str, fields: &[(&str, &dyn Display)]) {
        self.event(Level::Warn, message, fields);
    }

    /// Logs a failed operation.
    pub fn error(&self, message: &str, fields: &[(&str, &dyn Display)]) {
        self.event(Level::Error, message, fields);
    }

    /// Turns the lines of ended relays on or off.
    pub fn log_connections(&self, on: bool) {
        self.shared.connections.store(on, Ordering::Relaxed);
    }

    /// Events dropped since start because the log could not keep up.
    pub fn events_dropped(&self) -> u64 {
        self.shared.events_dropped.load(Ordering::Relaxed)
    }

    /// Queues an entry; on failure returns its number of records.
    fn push(&self, entry: Entry) -> Result<(), u64> {
        let records = entry.records();
        // Added before the check: loggers that come together must not pass the bound together.
        let waiting = self.shared.waiting.fetch_add(records, Ordering::Relaxed);
        if waiting + records > QUEUE_RECORDS_MAX || self.queue.send(entry).is_err() {
            self.shared.waiting.fetch_sub(records, Ordering::Relaxed);
            return Err(records as u64);
        }
        Ok(())
    }
}

impl Journal for Log {
    fn record(&mut self, ended: &mut Vec<Ended>) -> u64 {
        if ended.is_empty() {
            return 0;
        }
        if !self.shared.connections.load(Ordering::Relaxed) {
            // Not dropped for want of room: they do not count as lost.
            ended.clear();
            return 0;
        }
        // As records: the writer formats them, so that workers spend no time on text.
        self.push(Entry::Ended(std::mem::take(ended)))
            .err()
            .unwrap_or(0)
    }

    fn deny(&mut self, denied: &Denied) {
        // All are counted, but a flood of denials must not become a flood of lines.
        let Some(left_out) = self.denials.take(Instant::now()) else {
            return;
        };
        let requested = denied.flow.map(|flow| flow.server().to_string());
        let requested = requested.as_deref().unwrap_or("-");
        let encapsulation = denied.encapsulation.map_or("-", Encapsulation::name);
        let reason = denied.denial.label();
        let mut fields: Vec<(&str, &dyn Display)> = vec![
            ("from", &denied.from),
            ("destination", &requested),
            ("header_in", &encapsulation),
            ("reason", &reason),
        ];
        if let Some(ahead_ms) = &denied.ahead_ms {
            fields.push(("clock_ahead_ms", ahead_ms));
        }
        if let Some(segment) = &denied.segment {
            fields.push(("segment", segment));
        }
        self.event_after(left_out, Level::Warn, "request denied", &fields);
    }
}

/// Runs the writer until every [`Log`] is dropped. If the reader of stdout has closed it, lines are
/// lost, and the node continues.
fn write_all(entries: &Receiver<Entry>, shared: &Shared, mut out: impl Write) {
    let mut text = String::new();
    while let Some(first) = next_entry(entries) {
        let mut next = Some(first);
        while let Some(entry) = next {
            // Before the write: the bound is one of the queue, and `text` has its own.
            shared.waiting.fetch_sub(entry.records(), Ordering::Relaxed);
            write_entry(&mut text, &entry, shared.priority(Level::Info));
            // What has gathered goes out in one write, but memory stays bounded.
            next = if text.len() < WRITE_BYTES {
                entries.try_recv().ok()
            } else {
                None
            };
        }
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
        text.clear();
    }
}

/// Waits for an entry, and then for those that come soon after. `None` when every [`Log`] is dropped.
fn next_entry(entries: &Receiver<Entry>) -> Option<Entry> {
    let waited = || entries.recv().ok().inspect(|_| thread::sleep(GATHER_TIME));
    entries.try_recv().ok().or_else(waited)
}

/// `priority` is that of ended relays.
fn write_entry(text: &mut String, entry: &Entry, priority: &str) {
    match entry {
        Entry::Line(line) => text.push_str(line),
        Entry::Ended(ended) => {
            for ended in ended {
                text.push_str(priority);
                write_ended(text, ended);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use posthaste_relay::accept_mode::AcceptMode;
    use posthaste_relay::control::RelayId;
    use posthaste_relay::flow::Flow;
    use posthaste_relay::outcome::Outcome;

    fn ended() -> Ended {
        Ended {
            id: RelayId(0x2a),
            flow: Flow::new(
                "10.0.0.1:4000".parse().unwrap(),
                "[2001:db8::1]:80".parse().unwrap(),
            ),
            rule: "web".into(),
            accept: AcceptMode::EARLY,
            outcome: Outcome::Finished,
            bytes_up: 100,
            bytes_down: 2000,
            accept_us: Some(1_234),
            connect_us: Some(56_789),
            first_byte_us: None,
            by: None,
            via: None,
            handshake_us: None,
            total: Duration::from_micros(99_001),
            course: None,
        }
    }

    /// A log without a writer, and its queue.
    fn queue() -> (Log, Receiver<Entry>) {
        queue_to(false)
    }

    fn queue_to(with_priority: bool) -> (Log, Receiver<Entry>) {
        let (queue, entries) = channel();
        let shared = Arc::new(Shared {
            waiting: AtomicUsize::new(0),
            connections: AtomicBool::new(true),
            events_dropped: AtomicU64::new(0),
            with_priority,
        });
        let log = Log {
            queue,
            shared,
            denials: Quota::default(),
        };
        (log, entries)
    }

    fn written(log: Log, entries: &Receiver<Entry>) -> String {
        let shared = Arc::clone(&log.shared);
        drop(log);
        let mut out = Vec::new();
        write_all(entries, &shared, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn ended_relay_is_one_line() {
        let (mut log, entries) = queue();
        assert_eq!(log.record(&mut vec![ended()]), 0);
        let line = written(log, &entries);
        let (_, rest) = line.split_once(' ').unwrap();
        assert_eq!(
            rest,
            "level=info msg=relay id=2a rule=web accept=early client=10.0.0.1:4000 server=[2001:db8::1]:80 \
             code=-- outcome=finished bytes_up=100 bytes_down=2000 accept_ms=1.234 connect_ms=56.789 \
             first_byte_ms=- total_ms=99.001\n"
        );
    }

    #[test]
    fn priorities_for_journal() {
        let (mut log, entries) = queue_to(true);
        log.record(&mut vec![ended(), ended()]);
        log.info("ready", &[]);
        log.warn("odd", &[]);
        log.error("bad", &[]);
        let text = written(log, &entries);
        let priorities: Vec<&str> = text.lines().map(|line| &line[..8]).collect();
        let expected = ["<6>time=", "<6>time=", "<6>time=", "<4>time=", "<3>time="];
        assert_eq!(priorities, expected);
    }

    #[test]
    fn values_are_quoted() {
        let (log, entries) = queue();
        log.warn("reload failed", &[("error", &"a \"b\"\nc"), ("count", &3)]);
        let line = written(log, &entries);
        assert!(
            line.ends_with("level=warn msg=\"reload failed\" error=\"a \\\"b\\\"\\nc\" count=3\n"),
            "{line}"
        );
    }

    #[test]
    fn denied_requests_rate_limited() {
        let (mut log, entries) = queue();
        let denied = Denied {
            from: "192.0.2.1:4000".parse().unwrap(),
            flow: None,
            encapsulation: Some(Encapsulation::SynOption),
            denial: posthaste_relay::control::Denial::Unauthorized,
            ahead_ms: None,
            segment: None,
        };
        for _ in 0..1000 {
            log.deny(&denied);
        }
        let text = written(log, &entries);
        let line = "from=192.0.2.1:4000 destination=- header_in=syn-option reason=unauthorized";
        let count = text.lines().filter(|found| found.ends_with(line)).count();
        assert_eq!(count, 20);
    }

    // promise: D9
    #[test]
    fn full_queue_drops_and_counts() {
        let (mut log, entries) = queue();
        let mut many = vec![ended(); QUEUE_RECORDS_MAX];
        assert_eq!(log.record(&mut many), 0);
        assert!(many.is_empty());
        assert_eq!(log.record(&mut vec![ended(), ended()]), 2);
        log.info("lost", &[]);
        assert_eq!(log.events_dropped(), 1);
        assert_eq!(written(log, &entries).lines().count(), QUEUE_RECORDS_MAX);
    }

    #[test]
    fn disabled_log_is_silent() {
        let (mut log, entries) = queue();
        log.log_connections(false);
        let mut batch = vec![ended()];
        assert_eq!(log.record(&mut batch), 0);
        assert!(batch.is_empty());
        assert_eq!(written(log, &entries), "");
    }
}
