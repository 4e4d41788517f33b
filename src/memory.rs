// SPDX-License-Identifier: Apache-2.0
//! Releases memory that only the start needed, or only a load that is over.
//!
//! The kernel maps pages around each used page of the program. A node that has read its command
//! line and its configuration has most of the file in memory, and never needs most of that again.
//! Needed pages return on access, from the page cache. The same applies to the heap: the allocator
//! keeps freed memory.

use std::fs;
use std::ops::Range;
use std::time::{Duration, Instant};

use posthaste_daemon::metrics::resident_bytes;

/// Bytes of free heap that are kept: what is given back has to be mapped again.
const FREE_MAX: f64 = 64e6;
/// How long more than that is kept.
const FREE_FOR: Duration = Duration::from_secs(30);

/// Releases the pages of the program's code and constants, which return on access, and free pages
/// of the heap.
pub(crate) fn forget_start() {
    // SAFETY: what is in use is left alone.
    unsafe { libc::malloc_trim(0) };
    // Without a list nothing is released, which does no harm.
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    for part in unwritten(&maps) {
        // SAFETY: the pages are those of a file, which nobody can have written to, so
        // that each is the same when it is mapped again.
        unsafe {
            libc::madvise(
                std::ptr::without_provenance_mut(part.start),
                part.len(),
                libc::MADV_DONTNEED,
            );
        }
    }
}

/// Gives back what a load has left in the heap: the allocator keeps most of what is free.
#[derive(Debug, Default)]
pub(crate) struct Heap {
    looked: Option<Instant>,
    was_free: bool,
}

impl Heap {
    /// Looks, not too often, and releases what was free the last time too.
    pub(crate) fn look(&mut self, now: Instant) {
        if self.looked.is_some_and(|looked| now - looked < FREE_FOR) {
            return;
        }
        self.looked = Some(now);
        let heap = heap();
        // Free bytes may have been given back, so the resident ones decide. They are read last:
        // that maps code which an idle node needs for nothing else.
        let is_free = heap.free > FREE_MAX
            && resident_bytes().is_some_and(|resident| resident - heap.used > FREE_MAX);
        if is_free && self.was_free {
            // SAFETY: what is in use is left alone.
            unsafe { libc::malloc_trim(0) };
        }
        self.was_free = is_free;
    }
}

/// Bytes of the heaps of all threads.
struct Bytes {
    used: f64,
    free: f64,
}

fn heap() -> Bytes {
    // SAFETY: it reads the allocator's counters under its locks.
    let counts = unsafe { libc::mallinfo2() };
    Bytes {
        used: (counts.uordblks + counts.hblkhd) as f64,
        free: counts.fordblks as f64,
    }
}

/// The parts of files in /proc/PID/maps (proc_pid_maps(5)) that cannot have been written to: code,
/// and the constants before it in the file. The part after the code was written once, by
/// relocation.
fn unwritten(maps: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut before: Option<Part<'_>> = None;
    for part in maps.lines().map(Part::read) {
        if let Some(code) = part.as_ref().filter(|part| part.permissions == "r-xp") {
            let constants = before.filter(|before| {
                before.inode == code.inode && before.is_head && before.permissions == "r--p"
            });
            found.extend(constants.map(|constants| constants.range));
            found.push(code.range.clone());
        }
        before = part;
    }
    found
}

/// A mapped part of a file.
struct Part<'a> {
    range: Range<usize>,
    permissions: &'a str,
    inode: &'a str,
    /// Whether it is the start of the file.
    is_head: bool,
}

impl<'a> Part<'a> {
    /// Parses a line, if it is about a file.
    fn read(line: &'a str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let (permissions, offset, _device, inode) =
            (words.next()?, words.next()?, words.next()?, words.next()?);
        let address = |text| usize::from_str_radix(text, 16).ok();
        (inode != "0").then_some(Self {
            range: address(start)?..address(end)?,
            permissions,
            inode,
            is_head: address(offset)? == 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_segments_found() {
        let maps = "\
            7f0000000000-7f0000030000 r--p 00000000 fe:00 1234    /usr/bin/posthaste\n\
            7f0000031000-7f0000731000 r-xp 00030000 fe:00 1234    /usr/bin/posthaste\n\
            7f0000731000-7f0000740000 r--p 00730000 fe:00 1234    /usr/bin/posthaste\n\
            7f0000740000-7f0000750000 rw-p 00740000 fe:00 1234    /usr/bin/posthaste\n\
            7ffff7fc1000-7ffff7fc3000 r-xp 00000000 00:00 0       [vdso]\n\
            7f0000800000-7f0000801000 rwxp 00000000 fe:00 1234    /tmp/odd\n\
            \n\
            no-map r-xp 0 0 1\n\
            7f0000900000-7f0000901000 r--p 00000000 fe:00 5678    /tmp/data\n\
            7f0000901000-7f0000902000 r-xp 00000000 fe:00 4321    /tmp/alone\n\
            7f0000a00000-7f0000a01000 r--p 00001000 fe:00 4321    /tmp/alone\n\
            7f0000a01000-7f0000a02000 r-xp 00000000 fe:00 4321    /tmp/alone";
        let found = unwritten(maps);
        assert_eq!(
            found,
            [
                0x7f00_0000_0000..0x7f00_0003_0000,
                0x7f00_0003_1000..0x7f00_0073_1000,
                0x7f00_0090_1000..0x7f00_0090_2000,
                0x7f00_00a0_1000..0x7f00_00a0_2000,
            ]
        );
    }

    #[test]
    fn free_heap_is_given_back() {
        // In a thread's own heap, with pieces between that stay.
        let load = || {
            let pieces: Vec<_> = (0..4000)
                .map(|_| (vec![1_u8; 60_000], vec![1_u8; 100]))
                .collect();
            pieces.into_iter().map(|(_, kept)| kept).collect::<Vec<_>>()
        };
        let kept = std::thread::spawn(load).join().unwrap();
        let resident = || resident_bytes().unwrap();
        let (before, start) = (resident(), Instant::now());
        let mut heap = Heap::default();
        heap.look(start);
        heap.look(start + FREE_FOR / 2);
        assert!(resident() + FREE_MAX > before, "not at once");
        heap.look(start + FREE_FOR);
        assert!(resident() + 150e6 < before, "{before} {}", resident());
        assert_eq!(kept.len(), 4000);
    }

    #[test]
    fn who_has_forgotten_goes_on() {
        forget_start();
        code_segments_found();
    }
}
