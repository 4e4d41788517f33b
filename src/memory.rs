// SPDX-License-Identifier: Apache-2.0
//! Memory that only starting needed.
//!
//! The kernel maps what lies around each page of the program that is used. A node that has
//! read its command line and its configuration holds most of the file in its memory, and will
//! never need most of that again. What it does need comes back at a touch, from the page cache.

use std::fs;
use std::ops::Range;

/// Gives back the pages of the program's code. Those in use come back by themselves.
pub(crate) fn forget_start() {
    // Without a list nothing is given back, which is no harm.
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    for code in maps.lines().filter_map(code) {
        // SAFETY: the pages are those of a file, which nobody can have written to, so
        // that each is the same when it is mapped again.
        unsafe {
            libc::madvise(
                std::ptr::without_provenance_mut(code.start),
                code.len(),
                libc::MADV_DONTNEED,
            );
        }
    }
}

/// Where a line of /proc/PID/maps has code of a file, if it does (proc_pid_maps(5)).
fn code(line: &str) -> Option<Range<usize>> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let (permissions, _offset, _device, inode) =
        (words.next()?, words.next()?, words.next()?, words.next()?);
    if permissions != "r-xp" || inode == "0" {
        return None;
    }
    let address = |text| usize::from_str_radix(text, 16).ok();
    Some(address(start)?..address(end)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_of_files_is_found_and_nothing_else() {
        let lines = [
            "7f0000000000-7f0000030000 r--p 00000000 fe:00 1234    /usr/bin/posthaste",
            "7f0000030000-7f0000730000 r-xp 00030000 fe:00 1234    /usr/bin/posthaste",
            "7f0000730000-7f0000750000 rw-p 00730000 fe:00 1234    /usr/bin/posthaste",
            "7ffff7fc1000-7ffff7fc3000 r-xp 00000000 00:00 0       [vdso]",
            "7f0000800000-7f0000801000 rwxp 00000000 fe:00 1234    /tmp/odd",
            "",
            "no-map r-xp 0 0 1",
        ];
        let mut found = lines.iter().filter_map(|line| code(line));
        assert_eq!(found.next(), Some(0x7f00_0003_0000..0x7f00_0073_0000));
        assert_eq!(found.next(), None);
    }

    #[test]
    fn who_has_forgotten_goes_on() {
        forget_start();
        code_of_files_is_found_and_nothing_else();
    }
}
