// SPDX-License-Identifier: Apache-2.0
//! A worker's ring of events: a ring buffer of the kernel (`BPF_MAP_TYPE_RINGBUF`), and its records.
//!
//! Two pages hold the positions of the consumer and the producers; the data follow. The kernel
//! allows mapping these twice in a row, for records that wrap around the end. Records here have one
//! length that divides the size of the data, so none wraps, and one mapping is enough. A record
//! begins with its length and two flags.

use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use nix::unistd::{SysconfVar, sysconf};
use posthaste_relay::frame::Frame;
use posthaste_relay::intercept::{Event, EventKind, HalfOpen};

use crate::error::Error;
use crate::layout;
use crate::object::Map;
use crate::objects::types;
use crate::observe::path;
use crate::rules::ACCEPT_HOLDS;
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
pub(crate) fn make_ring() -> Result<Arc<Map>, Error> {
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
        let page_bytes = sysconf(SysconfVar::PAGE_SIZE).ok().flatten();
        let page_bytes = page_bytes.and_then(|bytes| usize::try_from(bytes).ok());
        let page_bytes = page_bytes.expect("a page has a size");
        let failed = || Error::map("read", "ring");
        let write = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let read = Mapping::new(ring.as_fd(), write, 0, page_bytes).map_err(failed())?;
        let bytes = page_bytes + DATA_BYTES as usize;
        let written = Mapping::new(ring.as_fd(), ProtFlags::PROT_READ, page_bytes, bytes);
        Ok(Self {
            written: written.map_err(failed())?,
            ring,
            read,
            page_bytes,
        })
    }

    /// Whether the ring has no record, not even one that is being written.
    pub(crate) fn is_empty(&self) -> bool {
        let position = self.read.position().load(Ordering::Relaxed);
        position >= self.written.position().load(Ordering::Acquire)
    }

    /// The next event; `None` when the ring is empty, or its first record is being written. Records of
    /// another layout are skipped.
    pub(crate) fn next(&mut self) -> Option<Event> {
        loop {
            let (position, length) = self.first()?;
            let bytes = (length & !DISCARDED) as usize;
            let after = position + (HEAD_BYTES + bytes.next_multiple_of(HEAD_BYTES)) as u64;
            let event = (length & DISCARDED == 0).then(|| parse(self.record(position, bytes)));
            // A full barrier before the next look at the producers' position: the kernel wakes the
            // reader only for a record that it finds first in the ring.
            self.read.position().store(after, Ordering::SeqCst);
            if let Some(event) = event.flatten() {
                return Some(event);
            }
        }
    }

    /// The content of the complete record at a position, which is not given back yet.
    fn record(&self, position: u64, bytes: usize) -> &[u8] {
        let start = self.head(position).as_ptr();
        let end = position % u64::from(DATA_BYTES) + (HEAD_BYTES + bytes) as u64;
        // Records divide a page (types.h): none wraps, so the data are mapped once and not twice.
        assert!(end <= u64::from(DATA_BYTES), "a record of another length");
        // SAFETY: it ends within the data; it is not written again before
        // it is given back.
        unsafe { std::slice::from_raw_parts(start.add(HEAD_BYTES), bytes) }
    }

    /// Position and length, with flags, of the first record, if it is complete.
    fn first(&self) -> Option<(u64, u32)> {
        if self.is_empty() {
            return None;
        }
        let position = self.read.position().load(Ordering::Relaxed);
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
    fn new(
        ring: BorrowedFd<'_>,
        access: ProtFlags,
        offset: usize,
        bytes: usize,
    ) -> io::Result<Self> {
        let offset = libc::off_t::try_from(offset).expect("a page is small");
        let length = NonZeroUsize::new(bytes).expect("a ring has a size");
        // SAFETY: the kernel picks an address where nothing is.
        let start = unsafe { mmap(None, length, access, MapFlags::MAP_SHARED, ring, offset)? };
        Ok(Self {
            start: start.cast(),
            bytes,
        })
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
        let _ = unsafe { munmap(self.start.cast(), self.bytes) };
    }
}

/// The event of a record, with the one copy of its frame that outlives the ring. `None` for a
/// record of another layout, which only another version writes.
fn parse(raw: &[u8]) -> Option<Event> {
    let (head, frame) = raw.split_at_checked(size_of::<types::event_head>())?;
    let head: types::event_head = layout::whole(head)?;
    let kind = match head.kind {
        0 => EventKind::Syn {
            held: head.accept & ACCEPT_HOLDS != 0,
        },
        1 => EventKind::SynAck,
        2 => EventKind::Reject,
        3 => EventKind::SynOption,
        4 => EventKind::Unauthorized,
        5 => EventKind::Join,
        6 => EventKind::TimeWait,
        _ => return None,
    };
    let frame = frame.get(..usize::from(head.frame_bytes))?;
    Some(Event {
        kind,
        flow: layout::flow(&head.flow),
        frame: Frame::captured(head.ifindex, head.l2_bytes, frame),
        half_open: HalfOpen {
            isn: head.isn,
            kept: head.kept != 0,
        },
        rule: head.rule.into(),
        generation: head.generation,
        trial: head.trial != 0,
        path: path(head.bind_ifindex, head.mss),
    })
}

/// For fuzzing; not part of the product.
#[cfg(feature = "invariants")]
pub fn parse_event(raw: &[u8]) -> Option<Event> {
    parse(raw)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record as the program writes it: head, 128 bytes of frame, of which
    /// `frame_bytes` count.
    fn record(kind: u8, accept: u8, frame_bytes: u16) -> Vec<u8> {
        let head = types::event_head {
            flow: types::flow {
                client: layout::address([1; 16]),
                server: layout::address([2; 16]),
                client_port: 3_u16.to_be(),
                server_port: 4_u16.to_be(),
            },
            isn: 5,
            ifindex: 6,
            rule: 7,
            frame_bytes,
            generation: 8,
            kind,
            accept,
            kept: 1,
            l2_bytes: 14,
            ..Default::default()
        };
        let mut raw = layout::bytes(&head).to_vec();
        raw.extend((0..128).collect::<Vec<u8>>());
        raw
    }

    #[test]
    fn record_round_trip() {
        let event = parse(&record(0, 3, 60)).unwrap();
        assert_eq!(event.kind, EventKind::Syn { held: true });
        assert_eq!(event.flow.addresses(), ([1; 16], [2; 16]));
        let ports = (event.flow.client().port(), event.flow.server().port());
        assert_eq!(ports, (3, 4));
        assert_eq!((event.frame.ifindex, event.rule), (6, 7));
        let half_open = HalfOpen { isn: 5, kept: true };
        assert_eq!((event.generation, event.half_open), (8, half_open));
        assert_eq!(event.frame.as_bytes(), (0..60).collect::<Vec<u8>>());
        let kind = |kind, accept| parse(&record(kind, accept, 60)).map(|event| event.kind);
        assert_eq!(kind(0, 0), Some(EventKind::Syn { held: false }));
        assert_eq!(kind(1, 1), Some(EventKind::SynAck));
        assert_eq!(kind(2, 1), Some(EventKind::Reject));
        assert_eq!(kind(3, 0), Some(EventKind::SynOption));
        assert_eq!(kind(4, 0), Some(EventKind::Unauthorized));
        assert_eq!(kind(5, 0), Some(EventKind::Join));
        assert_eq!(kind(6, 0), Some(EventKind::TimeWait));
        assert_eq!(kind(7, 0), None);
    }

    #[test]
    fn missing_link_layer_made_up() {
        let mut raw = record(0, 0, 60);
        raw[std::mem::offset_of!(types::event_head, l2_bytes)] = 0;
        let frame = parse(&raw).unwrap().frame;
        assert_eq!(frame.as_bytes()[14..], (0..60).collect::<Vec<u8>>());
    }

    #[test]
    fn truncated_record() {
        let whole = record(0, 0, 128);
        assert!(parse(&whole).is_some());
        for length in 0..whole.len() {
            assert!(parse(&whole[..length]).is_none(), "{length}");
        }
        assert!(parse(&record(0, 0, 129)).is_none());
    }

    #[test]
    fn mutated_record() {
        let sound = record(0, 0, 60);
        for at in 0..size_of::<types::event_head>() {
            for value in 0..=u8::MAX {
                let mut raw = sound.clone();
                raw[at] = value;
                if let Some(event) = parse(&raw) {
                    assert!(event.frame.as_bytes().len() <= 128 + 14);
                }
            }
        }
    }
}
