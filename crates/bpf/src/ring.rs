// SPDX-License-Identifier: Apache-2.0
//! Reads a ring buffer of the kernel (`BPF_MAP_TYPE_RINGBUF`).
//!
//! Two pages hold the positions of the consumer and the producers; the data follow. The kernel
//! allows mapping these twice in a row, for records that wrap around the end. Records here have one
//! length that divides the size of the data, so none wraps, and one mapping is enough. A record
//! begins with its length and two flags.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::error::Error;
use crate::object::Map;
use crate::sys::MapLayout;

/// `BPF_MAP_TYPE_RINGBUF`
const RING: u32 = 27;
/// Bytes of the data: about a thousand events.
const DATA_BYTES: u32 = 1 << 18;
/// Bytes of a record's header, and the alignment of records.
const HEAD_BYTES: usize = 8;
/// Flags in the length: being written; discarded.
const BUSY: u32 = 1 << 31;
const DISCARDED: u32 = 1 << 30;

/// Creates a ring.
pub(crate) fn make() -> Result<Arc<Map>, Error> {
    let layout = MapLayout {
        kind: RING,
        key_bytes: 0,
        value_bytes: 0,
        entries: DATA_BYTES,
        flags: 0,
    };
    Map::create("ring", layout, None)
}

/// The consumer of a ring.
#[derive(Debug)]
pub(crate) struct Reader {
    ring: Arc<Map>,
    /// Page with the consumer's position.
    read: Mapping,
    /// Page with the producers' position, and the data.
    written: Mapping,
    page_bytes: usize,
}

impl Reader {
    pub(crate) fn open(ring: Arc<Map>) -> Result<Self, Error> {
        // SAFETY: no pointer is passed; the call only returns a number.
        let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        let page_bytes = usize::try_from(page_bytes).expect("a page has a size");
        let failed = || Error::map("read", "ring");
        let write = libc::PROT_READ | libc::PROT_WRITE;
        let read = Mapping::new(ring.as_fd(), write, 0, page_bytes).map_err(failed())?;
        let bytes = page_bytes + DATA_BYTES as usize;
        let written = Mapping::new(ring.as_fd(), libc::PROT_READ, page_bytes, bytes);
        Ok(Self {
            written: written.map_err(failed())?,
            ring,
            read,
            page_bytes,
        })
    }

    /// Passes the next record to `take` and returns its result; `None` when the ring is empty.
    pub(crate) fn next<T>(&mut self, take: impl FnOnce(&[u8]) -> T) -> Option<T> {
        loop {
            let (position, length) = self.first()?;
            let bytes = (length & !DISCARDED) as usize;
            let after = position + (HEAD_BYTES + bytes.next_multiple_of(HEAD_BYTES)) as u64;
            if length & DISCARDED != 0 {
                self.read.position().store(after, Ordering::SeqCst);
                continue;
            }
            let start = self.head(position).as_ptr();
            let end = position % u64::from(DATA_BYTES) + (HEAD_BYTES + bytes) as u64;
            // Records divide a page (types.h): none wraps, so the data are mapped once and not twice.
            assert!(end <= u64::from(DATA_BYTES), "a record of another length");
            // SAFETY: it ends within the data; it is not written again before
            // it is given back.
            let record = unsafe { std::slice::from_raw_parts(start.add(HEAD_BYTES), bytes) };
            let taken = take(record);
            // A full barrier before the next look at the producers' position: the kernel wakes the
            // reader only for a record that it finds first in the ring.
            self.read.position().store(after, Ordering::SeqCst);
            return Some(taken);
        }
    }

    /// Position and length, with flags, of the first record, if it is complete.
    fn first(&self) -> Option<(u64, u32)> {
        let position = self.read.position().load(Ordering::Relaxed);
        if position >= self.written.position().load(Ordering::Acquire) {
            return None;
        }
        // SAFETY: a record begins there, at a multiple of eight, with its
        // length, which the kernel changes in one go.
        let length = unsafe { self.head(position).cast::<AtomicU32>().as_ref() };
        let length = length.load(Ordering::Acquire);
        (length & BUSY == 0).then_some((position, length))
    }

    /// Address of the data at a position.
    fn head(&self, position: u64) -> NonNull<u8> {
        let at = usize::try_from(position % u64::from(DATA_BYTES)).expect("it is small");
        // SAFETY: it is within the data, which begin after the first page.
        unsafe { self.written.start.add(self.page_bytes + at) }
    }
}

impl AsFd for Reader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }
}

/// Memory shared with the kernel.
#[derive(Debug)]
struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread.
unsafe impl Send for Mapping {}

impl Mapping {
    fn new(ring: BorrowedFd<'_>, access: i32, offset: usize, bytes: usize) -> io::Result<Self> {
        let offset = libc::off_t::try_from(offset).expect("a page is small");
        // SAFETY: the kernel picks an address where nothing is.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                access,
                libc::MAP_SHARED,
                ring.as_raw_fd(),
                offset,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).expect("nothing is mapped at zero");
        Ok(Self { start, bytes })
    }

    /// The position in the first page.
    fn position(&self) -> &AtomicU64 {
        // SAFETY: it is eight bytes long, aligned, and the kernel changes it in
        // one go.
        unsafe { self.start.cast().as_ref() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and no reference is left.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}
