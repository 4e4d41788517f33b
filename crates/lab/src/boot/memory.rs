// SPDX-License-Identifier: Apache-2.0
//! The memory of a process and its descendants, by the kernel's accounting.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

/// How long memory may take to stop changing.
const PATIENCE: Duration = Duration::from_secs(30);

/// Memory of one process, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Resident, shared or not.
    pub(crate) resident: u64,
    /// Resident, pages shared with other processes counted in part.
    pub(crate) proportional: u64,
    /// Resident, not shared, and written to.
    pub(crate) dirty: u64,
    /// Resident and not backed by a file: heap, stacks, written pages.
    pub(crate) anonymous: u64,
}

/// Process `pid` and all its descendants, the process first.
pub(crate) fn family(pid: u32) -> Result<Vec<u32>> {
    let mut members = vec![pid];
    let mut place = 0;
    while let Some(&parent) = members.get(place) {
        members.extend(children(parent)?);
        place += 1;
    }
    Ok(members)
}

/// The children of all threads of a process; none of one that has ended.
fn children(pid: u32) -> Result<Vec<u32>> {
    let mut found = Vec::new();
    let threads = fs::read_dir(format!("/proc/{pid}/task"));
    for thread in threads.into_iter().flatten().flatten() {
        // The thread may have ended since.
        let text = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        for child in text.split_whitespace() {
            found.push(child.parse().context("the number of a child process")?);
        }
    }
    Ok(found)
}

/// Memory once it has been stable for longer than a node takes to release what only its start
/// needed.
pub(crate) fn settled(look: impl Fn() -> Result<Vec<Usage>>) -> Result<Vec<Usage>> {
    let until = Instant::now() + PATIENCE;
    let (mut last, mut same) = (Vec::new(), 0);
    while same < 5 {
        ensure!(Instant::now() < until, "memory does not settle");
        thread::sleep(Duration::from_millis(300));
        let now = look()?;
        // Freed pages are returned late, so one equal reading proves nothing.
        same = if now == last { same + 1 } else { 0 };
        last = now;
    }
    Ok(last)
}

/// The memory of one process.
pub(crate) fn of(pid: u32) -> Result<Usage> {
    // The kernel sums all mappings there; those of `smaps` would have to be summed here.
    let path = format!("/proc/{pid}/smaps_rollup");
    let text = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    parse(&text).with_context(|| format!("memory of process {pid}"))
}

fn parse(text: &str) -> Result<Usage> {
    let field = |name: &str| -> Result<u64> {
        let value = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let kilobytes =
            value.and_then(|value| value.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        Ok(kilobytes.with_context(|| format!("no {name} in smaps_rollup"))? * 1024)
    };
    Ok(Usage {
        resident: field("Rss")?,
        proportional: field("Pss")?,
        dirty: field("Private_Dirty")?,
        anonymous: field("Anonymous")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn fields_are_found() {
        let text = "00400000-7fff00000000 ---p 00000000 00:00 0   [rollup]\nRss:    10 kB\nPss:  8 kB\n\
                    Pss_Dirty: 3 kB\nPrivate_Clean: 2 kB\nPrivate_Dirty: 3 kB\nAnonymous:   4 kB\n";
        let usage = parse(text).unwrap();
        assert_eq!((usage.resident, usage.proportional), (10 << 10, 8 << 10));
        assert_eq!(usage.anonymous, 4 << 10);
        assert_eq!(usage.dirty, 3 << 10);
        assert!(parse("Rss: 10 kB\n").is_err());
    }

    #[test]
    fn children_belong_to_the_family() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let family = family(std::process::id()).unwrap();
        let usage = of(family[0]).unwrap();
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(usage.resident > 0);
        assert!(family.contains(&child.id()), "{family:?}");
    }
}
