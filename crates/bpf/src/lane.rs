// SPDX-License-Identifier: Apache-2.0
//! One worker's access to the programs: its events, its gates, its frames.

use std::io;
use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::error::Error;
use crate::herald;
use crate::later::Tools;
use crate::object::Map;
use crate::objects::types;
use crate::observe::{Path, Profile, Trust};
use crate::redirect::bytes;
use crate::ring::Reader;
use crate::rules::words;
use crate::sys;

const BPF_F_INGRESS: u32 = 1;
/// Where `cb` is in a `struct __sk_buff`, in words, and how many words of it
/// there are. The kernel is given nothing of what follows.
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

/// With which congestion window connections with a node start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerStart {
    /// No less than so many segments.
    pub segments: u32,
    /// What the way takes in a round trip at so many bytes per second, up to 1024
    /// segments.
    pub rate: u32,
    /// The round trip of a connection that is accepted with its SYN, before it has one
    /// of its own, in microseconds; 0 if it is not known.
    pub rtt_us: u32,
}

impl PeerStart {
    pub(crate) fn value(self) -> types::peer_start {
        types::peer_start {
            segments: self.segments,
            rate: self.rate / 1000,
            rtt_us: self.rtt_us,
        }
    }
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A flow to relay begins. With `held`, the SYN went nowhere else.
    Syn {
        /// The client waits for [`OpenLane::admit`] or [`OpenLane::pass`].
        held: bool,
    },
    /// The server answered; its SYN-ACK went nowhere else.
    SynAck,
    /// A SYN to answer with a reset.
    Reject,
    /// A SYN for this node itself heralds a flow; it went to the worker's listener.
    Herald,
    /// The same from somebody who may not; it went its way.
    Stranger,
}

/// One event of the redirect program.
#[derive(Clone, Debug)]
pub struct Event {
    /// What happened.
    pub kind: EventKind,
    /// To which flow.
    pub flow: FlowKey,
    /// Sequence number of the frame.
    pub isn: u32,
    /// Index of the rule, in the policy of `generation`.
    pub rule: u16,
    /// The generation of the rules in force.
    pub generation: u8,
    /// The flow's gate uses the reserve.
    pub kept: bool,
    /// It is the first of its kind that is relayed after one was observed.
    pub trial: bool,
    /// The way that the observed one took.
    pub path: Option<Path>,
    /// Where the frame came in.
    pub ifindex: u32,
    /// Bytes of link layer header at the start of `frame`.
    pub l2_bytes: u8,
    /// The frame, cut at 128 bytes.
    pub frame: Vec<u8>,
}

/// Which way a frame is put on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heading {
    /// As if it had just arrived there.
    In,
    /// Out of it.
    Out,
}

/// Names a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateKey {
    /// The flow it is for.
    pub flow: FlowKey,
    /// Sequence number of the SYN that made it.
    pub isn: u32,
    /// It uses the reserve.
    pub kept: bool,
}

/// What may happen to a client's SYN while its gate stands (`enum gate_syn`).
#[derive(Clone, Copy)]
enum GateSyn {
    Admitted = 0,
    Passed = 2,
}

/// A worker's share of the programs, before its thread has started.
#[derive(Debug)]
pub struct Lane {
    pub(crate) worker: u16,
    pub(crate) ring: Arc<Map>,
    pub(crate) withdrawn: Arc<Map>,
    pub(crate) listeners: Arc<Map>,
    pub(crate) peer_windows: Arc<Map>,
    /// There once the node has settled. Before, flows have no gates.
    pub(crate) tools: Arc<OnceLock<Tools>>,
    /// There once heralds can be sent.
    pub(crate) heralds: Arc<OnceLock<Arc<Map>>>,
    /// Gates within the budget, and within its reserve.
    pub(crate) gates: [Arc<Map>; 2],
    pub(crate) profiles: Arc<Map>,
    pub(crate) blocked: Arc<Map>,
}

impl Lane {
    /// The number of the worker.
    #[must_use]
    pub fn worker(&self) -> u16 {
        self.worker
    }

    /// Starts reading events. For the thread that will use it.
    ///
    /// # Errors
    /// [`Error::Map`] when the ring cannot be mapped.
    pub fn open(self) -> Result<OpenLane, Error> {
        Ok(OpenLane {
            reader: Reader::open(Arc::clone(&self.ring))?,
            lane: self,
        })
    }
}

/// A worker's share of the programs, in its thread.
pub struct OpenLane {
    lane: Lane,
    reader: Reader,
}

impl std::fmt::Debug for OpenLane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.lane.fmt(f)
    }
}

impl OpenLane {
    /// Readable when events wait.
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }

    /// The next event, if one waits.
    pub fn next_event(&mut self) -> Option<Event> {
        // One that cannot be read is none, and the next may be.
        loop {
            if let Some(event) = self.reader.next(parse)? {
                return Some(event);
            }
        }
    }

    /// Gives the worker's listener of one family to the programs; with `None`
    /// takes it back, and the worker's new flows are forwarded.
    ///
    /// # Errors
    /// [`Error::Map`].
    pub fn set_listener(&self, ipv6: bool, listener: Option<BorrowedFd<'_>>) -> Result<(), Error> {
        let key = (2 * u32::from(self.lane.worker) + u32::from(ipv6)).to_ne_bytes();
        let Some(listener) = listener else {
            // EINVAL: there was none.
            let _ = self.lane.listeners.delete(&key);
            return Ok(());
        };
        let value = i64::from(listener.as_raw_fd()).to_ne_bytes();
        self.lane.listeners.update(&key, &value)
    }

    /// Says how connections with a node at this address start, or that it is none.
    /// The address is 16 bytes, v4-mapped for IPv4.
    pub fn set_peer_start(&self, address: [u8; 16], start: Option<PeerStart>) {
        let windows = &self.lane.peer_windows;
        // Without it, they start as any other: the map is full, or has none.
        let _ = match start {
            Some(start) => windows.update(&address, bytes(&start.value())),
            None => windows.delete(&address),
        };
    }

    /// Has the worker's new flows forwarded, or no longer. Those it has begun
    /// go on.
    ///
    /// # Errors
    /// [`Error::Map`].
    pub fn set_withdrawn(&self, withdrawn: bool) -> Result<(), Error> {
        let key = u32::from(self.lane.worker).to_ne_bytes();
        let value = u32::from(withdrawn).to_ne_bytes();
        self.lane.withdrawn.update(&key, &value)
    }

    /// Removes a flow's gate: its server's SYN-ACK passes from now on.
    pub fn open_gate(&self, gate: &GateKey) {
        // Only a key of another length is an error.
        let _ = self.gates(gate).delete(bytes(&key(&gate.flow)));
    }

    /// Removes a gate unless another SYN has made it anew since.
    pub fn drop_gate(&self, gate: &GateKey) {
        let gates = self.gates(gate);
        let mut value = [0; size_of::<types::gate>()];
        let found = gates.look_up(bytes(&key(&gate.flow)), &mut value);
        let ours = self.value(gate, GateSyn::Admitted);
        // All but what may happen to the SYN, which is last.
        let same = offset_of!(types::gate, syn);
        if found.is_ok_and(|found| found && value[..same] == bytes(&ours)[..same]) {
            self.open_gate(gate);
        }
    }

    /// Makes a gate for a flow that the program did not see a SYN of.
    ///
    /// # Errors
    /// [`Error::Map`] when the half-open budget is used up.
    pub fn close_gate(&self, flow: FlowKey) -> Result<GateKey, Error> {
        let gate = GateKey {
            flow,
            isn: 0,
            kept: false,
        };
        self.write_gate(&gate, GateSyn::Admitted)?;
        Ok(gate)
    }

    /// Lets a held SYN's repetition go to the listener. The gate stays.
    ///
    /// # Errors
    /// [`Error::Map`].
    pub fn admit(&self, gate: &GateKey) -> Result<(), Error> {
        self.write_gate(gate, GateSyn::Admitted)
    }

    /// Lets a held SYN's repetition be forwarded. The gate stays, so that
    /// further repetitions are forwarded too.
    ///
    /// # Errors
    /// [`Error::Map`].
    pub fn pass(&self, gate: &GateKey) -> Result<(), Error> {
        self.write_gate(gate, GateSyn::Passed)
    }

    fn write_gate(&self, gate: &GateKey, syn: GateSyn) -> Result<(), Error> {
        let value = self.value(gate, syn);
        self.gates(gate)
            .update(bytes(&key(&gate.flow)), bytes(&value))
    }

    /// Where a gate is kept.
    fn gates(&self, gate: &GateKey) -> &Map {
        &self.lane.gates[usize::from(gate.kept)]
    }

    fn value(&self, gate: &GateKey, syn: GateSyn) -> types::gate {
        types::gate {
            isn: gate.isn.to_be(),
            worker: self.lane.worker,
            syn: syn as u8,
            pad: 0,
        }
    }

    /// Has a socket that is yet to connect say `option` (RFC 9293 §3.1: kind, length
    /// and value, at most 20 bytes) in its SYN.
    ///
    /// # Errors
    /// [`Error::Unsettled`] when no heralds can be sent; [`Error::Map`].
    pub fn herald(&self, socket: BorrowedFd<'_>, option: &[u8]) -> Result<(), Error> {
        let heralds = self.lane.heralds.get().ok_or(Error::Unsettled)?;
        herald::leave(heralds, socket, option)
    }

    /// Remembers that a client prefix completed a handshake.
    pub fn know(&self, client_ip: [u8; 16]) {
        if let Some(tools) = self.lane.tools.get() {
            // A full LRU map makes room by itself.
            let _ = tools.known.update(&client_prefix(client_ip), &[1]);
        }
    }

    /// Has flows to a destination opened strictly until `until`
    /// (CLOCK_MONOTONIC).
    pub fn suspect(&self, flow: &FlowKey, until: Duration) {
        let until = u64::try_from(until.as_nanos()).unwrap_or(u64::MAX);
        if let Some(tools) = self.lane.tools.get() {
            let key = destination(flow);
            let _ = tools.suspects.update(bytes(&key), &until.to_ne_bytes());
        }
    }

    /// Takes that back.
    pub fn acquit(&self, flow: &FlowKey) {
        if let Some(tools) = self.lane.tools.get() {
            let _ = tools.suspects.delete(bytes(&destination(flow)));
        }
    }

    /// What was learned of a flow's client and its service.
    #[must_use]
    pub fn profile(&self, flow: &FlowKey) -> Option<Profile> {
        let value = self.read_profile(&profile_key(flow))?;
        Some(Profile::read(&value))
    }

    /// Has flows forwarded whose relay got no answer. If one of them gets one before `until`
    /// (CLOCK_MONOTONIC), the relay was to blame, and they are bypassed.
    pub fn doubt(&self, flow: &FlowKey, until: Duration) {
        let key = profile_key(flow);
        if let Some(mut value) = self.read_profile(&key) {
            value.state = Trust::Doubted as u8;
            value.until_ns = u64::try_from(until.as_nanos()).unwrap_or(u64::MAX);
            // Whatever writes it meanwhile has learned of it what is newer.
            let _ = self.lane.profiles.update(bytes(&key), bytes(&value));
        }
    }

    /// Has all flows forwarded that have to be observed first, until `until` (CLOCK_MONOTONIC) or
    /// until everything is [forgotten](crate::Redirect::forget_profiles).
    pub fn block(&self, until: Duration) {
        let until = u64::try_from(until.as_nanos()).unwrap_or(u64::MAX);
        // Only a key or value of another length is an error.
        let _ = self
            .lane
            .blocked
            .update(&0_u32.to_ne_bytes(), &until.to_ne_bytes());
    }

    fn read_profile(&self, key: &types::profile_key) -> Option<types::profile> {
        let mut raw = [0; size_of::<types::profile>()];
        let found = self.lane.profiles.look_up(bytes(key), &mut raw);
        whole(&raw).filter(|_| matches!(found, Ok(true)))
    }

    /// Puts a frame (link layer header of 14 bytes, real or not, then IP) on a
    /// device.
    ///
    /// # Errors
    /// [`Error::Inject`].
    pub fn inject(&self, ifindex: u32, heading: Heading, frame: &[u8]) -> Result<(), Error> {
        let failed = |source| Error::Inject { ifindex, source };
        let mut context = [0; CB + CB_WORDS];
        context[CB] = ifindex;
        if heading == Heading::In {
            context[CB + 1] = BPF_F_INGRESS;
        }
        let Some(tools) = self.lane.tools.get() else {
            return Err(Error::Unsettled);
        };
        let returned = sys::run(tools.inject.as_fd(), frame, &context, None);
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

/// What takes any bits: integers, and padding that is written out.
pub(crate) trait Structure {}
impl Structure for types::event_head {}
impl Structure for types::profile {}
impl Structure for types::profile_key {}

/// An address as the programs hold it.
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
            held: head.accept == 1,
        },
        1 => EventKind::SynAck,
        2 => EventKind::Reject,
        3 => EventKind::Herald,
        4 => EventKind::Stranger,
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
    fn a_record_is_read_as_it_was_written() {
        let event = parse(&record(0, 1, 60)).unwrap();
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
        assert_eq!(kind(3, 0), Some(EventKind::Herald));
        assert_eq!(kind(4, 0), Some(EventKind::Stranger));
        assert_eq!(kind(5, 0), None);
    }

    #[test]
    fn a_record_that_ends_early_is_none() {
        let whole = record(0, 0, 128);
        assert!(parse(&whole).is_some());
        for length in 0..whole.len() {
            assert!(parse(&whole[..length]).is_none(), "{length}");
        }
        assert!(parse(&record(0, 0, 129)).is_none());
    }

    #[test]
    fn a_record_with_any_byte_changed_is_read_or_refused() {
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
