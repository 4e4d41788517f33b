// SPDX-License-Identifier: Apache-2.0
//! A wrong clock for single processes: the test answers their system calls for the time of day.
//!
//! The kernel has no namespace for that clock. So a process is started with a seccomp filter that
//! hands these calls to the test, and without the vDSO, which would answer without a call. That
//! applies to processes that it forks, but not to other programs that these execute. Other clocks
//! are right. The kernel rejects packet timestamps for it, whose times would be right.

mod time_calls;

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use posthaste_lab::process::Process;

use self::time_calls::{self as sys, TimeCall};
use crate::support::SOON;

/// The vDSO's entry in the auxiliary vector (`getauxval(3)`), and the type of an ignored entry.
const AT_SYSINFO_EHDR: u64 = 33;
const AT_IGNORE: u64 = 1;
/// Bytes of a word of the vector, and of an entry.
const WORD: usize = size_of::<u64>();
const PAIR: usize = 2 * WORD;
/// Bound on the words of arguments and environment to scan.
const WORDS_MAX: usize = 1 << 16;

/// A clock that is ahead of or behind the right one. It can be set while processes use it.
#[derive(Clone, Debug)]
pub(crate) struct WrongClock {
    ahead_ms: Arc<AtomicI64>,
}

impl WrongClock {
    /// `ahead_ms` milliseconds ahead of the right time; behind it, if negative.
    pub(crate) fn new(ahead_ms: i64) -> Self {
        Self {
            ahead_ms: Arc::new(AtomicI64::new(ahead_ms)),
        }
    }

    /// Sets it.
    pub(crate) fn set(&self, ahead_ms: i64) {
        self.ahead_ms.store(ahead_ms, Ordering::Relaxed);
    }

    /// Starts a command that uses this clock.
    pub(crate) fn spawn(&self, name: &str, mut command: Command) -> Result<Process> {
        let (near, far) = UnixStream::pair().context("make a pair of sockets")?;
        sys::hand_time_calls_to(&mut command, far);
        let clock = self.clone();
        Process::spawn_with(name, command, move |pid| {
            sys::await_exec(pid)?;
            hide_page(pid)?;
            let calls = sys::receive_descriptor(&near)?;
            thread::spawn(move || clock.answer(&calls));
            sys::release(pid)
        })
    }

    fn now(&self) -> Duration {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.unwrap_or_default();
        let ahead_ms = self.ahead_ms.load(Ordering::Relaxed);
        let by = Duration::from_millis(ahead_ms.unsigned_abs());
        if ahead_ms < 0 {
            now.saturating_sub(by)
        } else {
            now + by
        }
    }

    /// Answers calls until the last process with this clock has ended.
    fn answer(&self, calls: &OwnedFd) {
        while let Ok(call) = sys::next_time_call(calls) {
            // A caller that has ended needs no answer.
            let Some(call) = call else { continue };
            let answer = self.reply(calls, &call);
            let _ = sys::answer_time_call(calls, &call, answer);
        }
    }

    /// Writes the time into the caller's memory.
    fn reply(&self, calls: &OwnedFd, call: &TimeCall) -> io::Result<()> {
        let memory = memory_of(call.caller)?;
        // The number and the memory belong to the caller only while it waits.
        sys::check_time_call(calls, call)?;
        let now = self.now();
        let small = if call.wants_micros {
            now.subsec_micros()
        } else {
            now.subsec_nanos()
        };
        let words = [now.as_secs(), u64::from(small)].map(u64::to_ne_bytes);
        memory.write_all_at(words.as_flattened(), call.address)
    }
}

fn memory_of(pid: u32) -> io::Result<File> {
    let path = format!("/proc/{pid}/mem");
    OpenOptions::new().read(true).write(true).open(path)
}

/// Hides the vDSO from a program that has not started.
fn hide_page(pid: u32) -> io::Result<()> {
    let memory = memory_of(pid)?;
    let mut at = behind_strings(pid, &memory)?;
    for _ in 0..WORDS_MAX {
        let mut pair = [0; PAIR];
        memory.read_exact_at(&mut pair, at)?;
        let (kind, _) = pair.split_at(WORD);
        match kind.try_into().map(u64::from_ne_bytes) {
            Ok(AT_SYSINFO_EHDR) => return memory.write_all_at(&AT_IGNORE.to_ne_bytes(), at),
            Ok(0) | Err(_) => break,
            Ok(_) => at += PAIR as u64,
        }
    }
    Err(io::Error::other(
        "the program is told of no page for the time",
    ))
}

/// The address of the auxiliary vector: behind the pointers to arguments and environment, each list
/// of which ends with a null pointer.
fn behind_strings(pid: u32, memory: &File) -> io::Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name may contain spaces and parentheses; the 28th field is the start of the stack.
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let begin = fields.split_whitespace().nth(28 - 3);
    let begin = begin.and_then(|field| field.parse::<u64>().ok());
    let mut at = begin.ok_or_else(|| io::Error::other("no stack in /proc/PID/stat"))? + WORD as u64;
    let mut lists = 0;
    for _ in 0..WORDS_MAX {
        let mut word = [0; WORD];
        memory.read_exact_at(&mut word, at)?;
        at += WORD as u64;
        lists += u32::from(word == [0; WORD]);
        if lists == 2 {
            return Ok(at);
        }
    }
    Err(io::Error::other("the program has too many arguments"))
}

/// Times in the output of the shell, in whole seconds.
fn seconds(text: &str) -> Vec<u64> {
    let times = text.lines().filter_map(|line| line.split_once('.'));
    times.filter_map(|(whole, _)| whole.parse().ok()).collect()
}

#[test]
fn children_see_wrong_clock() {
    let clock = WrongClock::new(-3_600_000);
    let directory = posthaste_lab::scratch::Scratch::new().unwrap();
    let flag = directory.path().join("flag");
    let mut command = Command::new("bash");
    let script = format!(
        "echo $EPOCHREALTIME; until test -e {flag:?}; do sleep 0.01; done; (echo $EPOCHREALTIME)"
    );
    command.args(["-c", &script]);
    let before = WrongClock::new(0).now().as_secs();
    let mut process = clock.spawn("the shell", command).unwrap();
    let reported = |process: &Process| seconds(&process.stdout());
    process
        .wait_until("the time", SOON, |process| reported(process).len() == 1)
        .unwrap();
    clock.set(90_000);
    fs::write(&flag, "").unwrap();
    assert!(process.wait(SOON).unwrap().success());
    let after = WrongClock::new(0).now().as_secs();
    let reported = reported(&process);
    assert!(
        (before..=after).contains(&(reported[0] + 3_600)),
        "{reported:?}"
    );
    assert!(
        (before..=after).contains(&(reported[1] - 90)),
        "{reported:?}"
    );
}
