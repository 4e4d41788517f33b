// SPDX-License-Identifier: Apache-2.0
//! One worker's access to the programs: its events, its half-open entries, its frames.

use std::io;
use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::deferred::TailCalls;
use crate::error::Error;
use crate::object::Map;
use crate::objects::types;
use crate::observe::{Path, Profile, Trust};
use crate::redirect::bytes;
use crate::ring::Reader;
use crate::rules::{Accept, words};
use crate::syn_option;
use crate::sys;

const BPF_F_INGRESS: u32 = 1;
/// Index of `cb` in a `struct __sk_buff`, in words, and its length in words. The kernel gets no
/// later fields.
const CB: usize = 12;
const CB_WORDS: usize = 5;

/// A flow: client and server addresses (16 bytes, network order, v4-mapped)
/// and ports (host order).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowKey {
    /// The client's address.
    pub client_ip: [u8; 16],
    /// The original destination's address.
    pub server_ip: [u8; 16],
    /// The client's port.
    pub client_port: u16,
    /// The original destination's port.
    pub server_port: u16,
}

/// The initial congestion window of connections with a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerSettings {
    /// The least initial window, in segments.
    pub segments: u32,
    /// Bandwidth of the path in bytes per second: the window is one bandwidth-delay product, at
    /// most 1024 segments.
    pub rate: u32,
    /// The round trip time, in microseconds, for a connection that is accepted with its SYN and has
    /// not measured one; 0 if unknown.
    pub rtt_us: u32,
}

impl PeerSettings {
    pub(crate) fn value(self) -> types::peer_settings {
        types::peer_settings {
            segments: self.segments,
            rate: self.rate / 1000,
            rtt_us: self.rtt_us,
        }
    }
}

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A flow to relay begins. If `held`, the SYN was not delivered.
    Syn {
        /// The client waits for [`WorkerMaps::admit`] or [`WorkerMaps::pass`].
        held: bool,
    },
    /// The server answered; its SYN-ACK was not delivered.
    SynAck,
    /// A SYN to answer with a reset.
    Reject,
    /// A SYN to this node announces a flow; the worker's listener got it.
    SynOption,
    /// The same from a sender that is not authorized; the SYN was left alone.
    Unauthorized,
}

/// One event of the redirect program.
#[derive(Clone, Debug)]
pub struct Event {
    /// The kind.
    pub kind: EventKind,
    /// The flow.
    pub flow: FlowKey,
    /// Sequence number of the frame.
    pub isn: u32,
    /// Index of the rule, in the policy of `generation`.
    pub rule: u16,
    /// The generation of the rules in force.
    pub generation: u8,
    /// Whether the flow's half-open entry uses the reserve.
    pub kept: bool,
    /// Whether it is the first of its kind that is relayed after one was observed.
    pub trial: bool,
    /// The path that the observed flow took.
    pub path: Option<Path>,
    /// Index of the interface at which the frame arrived.
    pub ifindex: u32,
    /// Bytes of link layer header at the start of `frame`.
    pub l2_bytes: u8,
    /// The frame, cut at 128 bytes.
    pub frame: Vec<u8>,
}

/// How a frame is injected at a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// As if the device had received it.
    In,
    /// Sent by the device.
    Out,
}

/// The key of a half-open entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HalfOpenKey {
    /// The flow.
    pub flow: FlowKey,
    /// Sequence number of the SYN that made it.
    pub isn: u32,
    /// Whether it uses the reserve.
    pub kept: bool,
}

/// What happens to a client's SYN while it has a half-open entry (`enum half_open_syn`).
#[derive(Clone, Copy)]
enum HalfOpenSyn {
    Admitted = 0,
    Passed = 2,
}

/// A worker's share of the programs, before its thread has started.
#[derive(Debug)]
pub struct WorkerHandle {
    pub(crate) worker: u16,
    pub(crate) ring: Arc<Map>,
    pub(crate) draining: Arc<Map>,
    pub(crate) listeners: Arc<Map>,
    pub(crate) initial_cwnd: Arc<Map>,
    /// Set once the node has settled. Before, flows have no half-open entries.
    pub(crate) tail_call_maps: Arc<OnceLock<TailCalls>>,
    /// Set once SYN options can be sent.
    pub(crate) syn_options: Arc<OnceLock<Arc<Map>>>,
    /// Half-open entries of the budget, and of its reserve.
    pub(crate) half_open_flows: [Arc<Map>; 2],
    pub(crate) profiles: Arc<Map>,
    pub(crate) blocked: Arc<Map>,
}

impl WorkerHandle {
    /// The number of the worker.
    #[must_use]
    pub fn worker(&self) -> u16 {
        self.worker
    }

    /// Starts reading events. Call it in the worker's thread.
    ///
    /// # Errors
    /// [`Error::Map`] when the ring cannot be mapped.
    pub fn open(self) -> Result<WorkerMaps, Error> {
        Ok(WorkerMaps {
            reader: Reader::open(Arc::clone(&self.ring))?,
            worker_maps: self,
        })
    }
}

/// A worker's share of the programs, in its thread.
pub struct WorkerMaps {
    worker_maps: WorkerHandle,
    reader: Reader,
}

impl std::fmt::Debug for WorkerMaps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.worker_maps.fmt(f)
    }
}

impl WorkerMaps {
    /// Readable when events are pending.
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }

    /// The next pending event.
    pub fn next_event(&mut self) -> Option<Event> {
        // An event that cannot be parsed is skipped.
        loop {
            if let Some(event) = self.reader.next(parse)? {
                return Some(event);
            }
        }
    }

    /// Sets the worker's listener of one family; `None` removes it, and the worker's new flows are
    /// forwarded.
    ///
    /// # Errors
    /// [`Error::Map`].
    pub fn set_listener(&self, ipv6: bool, listener: Option<BorrowedFd<'_>>) -> Result<(), Error> {
        let key = (2 * u32::from(self.worker_maps.worker) + u32::from(ipv6)).to_ne_bytes();
        let Some(listener) = listener else {
            // EINVAL: there was none.
            let _ = self.worker_maps.listeners.delete(&key);
            return Ok(());
        };
        let value = i64::from(listener.as_raw_fd()).to_ne_bytes();
        self.worker_maps.listeners.update(&key, &value)
    }

    /// Sets the initial window of connections with a node, or removes it. The address is 16 bytes,
    /// v4-mapped for IPv4.
    pub fn set_peer_settings(&self, address: [u8; 16], start: Option<PeerSettings>) {
        let windows = &self.worker_maps.initial_cwnd;
        // Best effort: on failure they get the default window.
        let _ = match start {
            Some(start) => windows.update(&address, bytes(&start.value())),
            None => windows.delete(&address),
        };
    }

    /// Starts or stops forwarding the worker's new flows. Flows that have begun continue.
    ///
    /// # Errors
    /// [`Error::Map`].
    pub fn set_draining(&self, draining: bool) -> Result<(), Error> {
        let key = u32::from(self.worker_maps.worker).to_ne_bytes();
        let value = u32::from(draining).to_ne_bytes();
        self.worker_maps.draining.update(&key, &value)
    }

    /// Removes a flow's half-open entry: from now on its server's SYN-ACK passes.
    pub fn release_half_open(&self, half_open: &HalfOpenKey) {
        // Only a key of another length is an error.
        let _ = self
            .half_open_flows(half_open)
            .delete(bytes(&key(&half_open.flow)));
    }

    /// Removes a half-open entry unless another SYN has replaced it since.
    pub fn release_if_unchanged(&self, half_open: &HalfOpenKey) {
        let half_open_flows = self.half_open_flows(half_open);
        let mut value = [0; size_of::<types::half_open>()];
        let found = half_open_flows.look_up(bytes(&key(&half_open.flow)), &mut value);
        let ours = self.value(half_open, HalfOpenSyn::Admitted);
        // Compares all fields but the last, the state of the SYN, which may have changed.
        let same = offset_of!(types::half_open, syn);
        if found.is_ok_and(|found| found && value[..same] == bytes(&ours)[..same]) {
            self.release_half_open(half_open);
        }
    }

    /// Makes a half-open entry for a flow whose SYN the program did not capture.
    ///
    /// # Errors
    /// [`Error::Map`] when the half-open budget is used up.
    pub fn reserve_half_open(&self, flow: FlowKey) -> Result<HalfOpenKey, Error> {
        let half_open = HalfOpenKey {
            flow,
            isn: 0,
            kept: false,
        };
        self.write_half_open(&half_open, HalfOpenSyn::Admitted)?;
        Ok(half_open)
    }

    /// Lets the retransmission of a held SYN reach the listener. The half-open entry stays.
    ///
    /// # Errors
    /// [`Error::Map`].
    pub fn admit(&self, half_open: &HalfOpenKey) -> Result<(), Error> {
        self.write_half_open(half_open, HalfOpenSyn::Admitted)
    }

    /// Forwards the retransmissions of a held SYN. The half-open entry stays, so that all of them
    /// are forwarded.
    ///
    /// # Errors
    /// [`Error::Map`].
    pub fn pass(&self, half_open: &HalfOpenKey) -> Result<(), Error> {
        self.write_half_open(half_open, HalfOpenSyn::Passed)
    }

    fn write_half_open(&self, half_open: &HalfOpenKey, syn: HalfOpenSyn) -> Result<(), Error> {
        let value = self.value(half_open, syn);
        self.half_open_flows(half_open)
            .update(bytes(&key(&half_open.flow)), bytes(&value))
    }

    /// The map of a half-open entry.
    fn half_open_flows(&self, half_open: &HalfOpenKey) -> &Map {
        &self.worker_maps.half_open_flows[usize::from(half_open.kept)]
    }

    fn value(&self, half_open: &HalfOpenKey, syn: HalfOpenSyn) -> types::half_open {
        types::half_open {
            isn: half_open.isn.to_be(),
            worker: self.worker_maps.worker,
            syn: syn as u8,
            pad: 0,
        }
    }

    /// Sets `option` (RFC 9293 §3.1: kind, length and value, at most 20 bytes) for the SYN of a
    /// socket that has not connected yet.
    ///
    /// # Errors
    /// [`Error::Unsettled`] when SYN options cannot be sent; [`Error::Map`].
    pub fn syn_option(&self, socket: BorrowedFd<'_>, option: &[u8]) -> Result<(), Error> {
        let syn_options = self.worker_maps.syn_options.get().ok_or(Error::Unsettled)?;
        syn_option::leave(syn_options, socket, option)
    }

    /// Remembers that a client prefix completed a handshake.
    pub fn validate_prefix(&self, client_ip: [u8; 16]) {
        if let Some(tail_call_maps) = self.worker_maps.tail_call_maps.get() {
            // A full LRU map evicts an entry.
            let _ = tail_call_maps
                .validated_prefixes
                .update(&client_prefix(client_ip), &[1]);
        }
    }

    /// Opens flows to a destination strictly until `until` (CLOCK_MONOTONIC).
    pub fn record_failure(&self, flow: &FlowKey, until: Duration) {
        let until = u64::try_from(until.as_nanos()).unwrap_or(u64::MAX);
        if let Some(tail_call_maps) = self.worker_maps.tail_call_maps.get() {
            let key = destination(flow);
            let _ = tail_call_maps
                .failed_destinations
                .update(bytes(&key), &until.to_ne_bytes());
        }
    }

    /// Reverts [`Self::record_failure`].
    pub fn clear_failure(&self, flow: &FlowKey) {
        if let Some(tail_call_maps) = self.worker_maps.tail_call_maps.get() {
            let _ = tail_call_maps
                .failed_destinations
                .delete(bytes(&destination(flow)));
        }
    }

    /// The profile of a flow's client and its service.
    #[must_use]
    pub fn profile(&self, flow: &FlowKey) -> Option<Profile> {
        let value = self.read_profile(&profile_key(flow))?;
        Some(Profile::read(&value))
    }

    /// Forwards flows whose relay got no answer. If one of them gets one before `until`
    /// (CLOCK_MONOTONIC), the relay was at fault, and they are bypassed.
    pub fn record_no_answer(&self, flow: &FlowKey, until: Duration) {
        let key = profile_key(flow);
        if let Some(mut value) = self.read_profile(&key) {
            value.state = Trust::Doubted as u8;
            value.until_ns = u64::try_from(until.as_nanos()).unwrap_or(u64::MAX);
            // A concurrent writer of the entry has newer information.
            let _ = self.worker_maps.profiles.update(bytes(&key), bytes(&value));
        }
    }

    /// Forwards all flows that must be observed first, until `until` (CLOCK_MONOTONIC) or until
    /// [`crate::Redirect::forget_profiles`].
    pub fn block(&self, until: Duration) {
        let until = u64::try_from(until.as_nanos()).unwrap_or(u64::MAX);
        // Only a key or value of another length is an error.
        let _ = self
            .worker_maps
            .blocked
            .update(&0_u32.to_ne_bytes(), &until.to_ne_bytes());
    }

    fn read_profile(&self, key: &types::profile_key) -> Option<types::profile> {
        let mut raw = [0; size_of::<types::profile>()];
        let found = self.worker_maps.profiles.look_up(bytes(key), &mut raw);
        whole(&raw).filter(|_| matches!(found, Ok(true)))
    }

    /// Injects a frame at a device. The frame has a link layer header of 14 bytes, real or not,
    /// then IP.
    ///
    /// # Errors
    /// [`Error::Inject`].
    pub fn inject(&self, ifindex: u32, direction: Direction, frame: &[u8]) -> Result<(), Error> {
        let failed = |source| Error::Inject { ifindex, source };
        let mut context = [0; CB + CB_WORDS];
        context[CB] = ifindex;
        if direction == Direction::In {
            context[CB + 1] = BPF_F_INGRESS;
        }
        let Some(tail_call_maps) = self.worker_maps.tail_call_maps.get() else {
            return Err(Error::Unsettled);
        };
        let returned = sys::run(tail_call_maps.inject.as_fd(), frame, &context, None);
        match returned.map_err(failed)?.cast_signed() {
            0 => Ok(()),
            code => Err(failed(io::Error::from_raw_os_error(-code))),
        }
    }
}

/// A structure of the programs from its bytes; `None` if there are fewer.
pub(crate) fn whole<T: Copy + Structure>(raw: &[u8]) -> Option<T> {
    let raw = raw.get(..size_of::<T>())?;
    // SAFETY: `raw` is as long as the structure, whose fields take any bits.
    Some(unsafe { raw.as_ptr().cast::<T>().read_unaligned() })
}

/// Types for which any bit pattern is valid: integers, with explicit padding.
pub(crate) trait Structure {}
impl Structure for types::event_head {}
impl Structure for types::profile {}
impl Structure for types::profile_key {}
impl Structure for types::packet_syn {}

/// An address in the form of the programs.
fn address(ip: [u8; 16]) -> types::address {
    types::address { word: words(ip) }
}

fn key(flow: &FlowKey) -> types::flow {
    types::flow {
        client: address(flow.client_ip),
        server: address(flow.server_ip),
        client_port: flow.client_port.to_be(),
        server_port: flow.server_port.to_be(),
    }
}

fn profile_key(flow: &FlowKey) -> types::profile_key {
    types::profile_key {
        client: address(flow.client_ip),
        server: address(flow.server_ip),
        port: flow.server_port.to_be(),
        pad: 0,
    }
}

fn destination(flow: &FlowKey) -> types::destination {
    types::destination {
        ip: address(flow.server_ip),
        port: flow.server_port.to_be(),
        pad: 0,
    }
}

/// As `client_prefix` in the program: IPv4 /24, IPv6 /64.
fn client_prefix(ip: [u8; 16]) -> [u8; 8] {
    let mut prefix = [0; 8];
    if ip.starts_with(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]) {
        prefix[..4].copy_from_slice(&ip[8..12]);
        prefix[4..7].copy_from_slice(&ip[12..15]);
    } else {
        prefix.copy_from_slice(&ip[..8]);
    }
    prefix
}

pub(crate) fn octets(address: types::address) -> [u8; 16] {
    let mut ip = [0; 16];
    for (bytes, word) in ip.chunks_exact_mut(4).zip(address.word) {
        bytes.copy_from_slice(&word.to_ne_bytes());
    }
    ip
}

/// `None` for a record of another layout, which only another version writes.
fn parse(raw: &[u8]) -> Option<Event> {
    let (head, frame) = raw.split_at_checked(size_of::<types::event_head>())?;
    let head: types::event_head = whole(head)?;
    let kind = match head.kind {
        0 => EventKind::Syn {
            held: Accept::is_held(head.accept),
        },
        1 => EventKind::SynAck,
        2 => EventKind::Reject,
        3 => EventKind::SynOption,
        4 => EventKind::Unauthorized,
        _ => return None,
    };
    Some(Event {
        kind,
        flow: FlowKey {
            client_ip: octets(head.flow.client),
            server_ip: octets(head.flow.server),
            client_port: u16::from_be(head.flow.client_port),
            server_port: u16::from_be(head.flow.server_port),
        },
        isn: head.isn,
        rule: head.rule,
        generation: head.generation,
        kept: head.kept != 0,
        trial: head.trial != 0,
        path: Path::of(head.out_ifindex, head.mss),
        ifindex: head.ifindex,
        l2_bytes: head.l2_bytes,
        frame: frame.get(..usize::from(head.frame_bytes))?.to_vec(),
    })
}

/// For fuzzing; not part of the product.
#[cfg(fuzzing)]
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
            flow: key(&FlowKey {
                client_ip: [1; 16],
                server_ip: [2; 16],
                client_port: 3,
                server_port: 4,
            }),
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
        let mut raw = bytes(&head).to_vec();
        raw.extend((0..128).collect::<Vec<u8>>());
        raw
    }

    #[test]
    fn record_round_trip() {
        let event = parse(&record(0, 3, 60)).unwrap();
        assert_eq!(event.kind, EventKind::Syn { held: true });
        assert_eq!(
            (event.flow.client_ip, event.flow.server_ip),
            ([1; 16], [2; 16])
        );
        assert_eq!((event.flow.client_port, event.flow.server_port), (3, 4));
        assert_eq!((event.isn, event.ifindex, event.rule), (5, 6, 7));
        assert_eq!(
            (event.generation, event.kept, event.l2_bytes),
            (8, true, 14)
        );
        assert_eq!(event.frame, (0..60).collect::<Vec<u8>>());
        let kind = |kind, accept| parse(&record(kind, accept, 60)).map(|event| event.kind);
        assert_eq!(kind(0, 0), Some(EventKind::Syn { held: false }));
        assert_eq!(kind(1, 1), Some(EventKind::SynAck));
        assert_eq!(kind(2, 1), Some(EventKind::Reject));
        assert_eq!(kind(3, 0), Some(EventKind::SynOption));
        assert_eq!(kind(4, 0), Some(EventKind::Unauthorized));
        assert_eq!(kind(5, 0), None);
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
                    assert!(event.frame.len() <= 128);
                }
            }
        }
    }
}
