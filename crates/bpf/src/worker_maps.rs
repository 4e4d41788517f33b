// SPDX-License-Identifier: Apache-2.0
//! One worker's access to the programs: its events, its half-open entries, its frames.

use std::io;
use std::mem::offset_of;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use posthaste_relay::flow::{Flow, mapped};
use posthaste_relay::frame::Frame;
use posthaste_relay::intercept::{
    BypassEnds, BypassStep, Closed, Direction, Event, HalfOpen, Intercept, MultipathListener,
    Observed, PathSettings, Source,
};
use posthaste_relay::sys::monotonic;

use crate::bypass::Pairs;
use crate::deferred::TailCalls;
use crate::error::Error;
use crate::event::Reader;
use crate::layout::{self, bytes, nanoseconds, profile_key};
use crate::object::Map;
use crate::objects::types;
use crate::observe::{Profile, Trust};
use crate::syn_option;
use crate::sys;

const BPF_F_INGRESS: u32 = 1;
/// Index of `cb` in a `struct __sk_buff`, in words, and its length in words. The kernel gets no
/// later fields.
const CB: usize = 12;
const CB_WORDS: usize = 5;

/// How long a client's handshake may take: a round trip of its hop, and the retransmission of a
/// lost segment.
const LAG: Duration = Duration::from_secs(1);
/// If a relay got no answer and a forwarded flow gets one within this time, the relay was at fault,
/// not the server.
const RECORD_NO_ANSWER: Duration = Duration::from_secs(60);
/// How long nothing is relayed after this host blocked relays, if its rules do not change.
const BLOCK: Duration = Duration::from_secs(600);

/// What happens to a client's SYN while it has a half-open entry (`enum half_open_syn`).
#[derive(Clone, Copy)]
enum HalfOpenSyn {
    Admitted = 0,
    Passed = 2,
}

/// The parts of this host that a worker needs besides the programs.
pub trait Host {
    /// Whether the host tracks connections. With `now` its state is read anew; otherwise a recent
    /// reading may serve.
    fn tracks_connections(&mut self, now: bool) -> bool;
    /// Whether it tracks an open connection that a client has opened with these addresses, or one, open
    /// or ended, whose server NAT has changed and answers to this client's address.
    fn tracks(&mut self, client: SocketAddr, server: SocketAddr) -> bool;
    /// Whether it tracks a connection, open or ended, whose server answers to this client's address.
    fn tracks_answers(&mut self, client: SocketAddr, server: SocketAddr) -> bool;
    /// Has it track a connection no longer that the client has opened with these addresses.
    fn untrack(&mut self, client: SocketAddr, server: SocketAddr);
    /// Destroys what the kernel keeps of these sockets.
    fn destroy(&mut self, closed: &[Closed]);
    /// Destroys the socket with these addresses that is in TIME_WAIT. Returns whether there was one.
    fn end_time_wait(&mut self, local: SocketAddr, remote: SocketAddr) -> bool;
    /// Its addresses from which connections of Multipath TCP open further paths.
    fn path_addresses(&mut self) -> Option<Vec<IpAddr>>;
    /// Logs that relays are blocked from now on.
    fn report_block(&mut self);
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
    /// Set once the node can observe.
    pub(crate) trial_sockets: Arc<OnceLock<Arc<Map>>>,
    /// Set once a rule lets relays leave their flows.
    pub(crate) pairs: Arc<OnceLock<Pairs>>,
    /// Half-open entries of the budget, and of its reserve.
    pub(crate) half_open_flows: [Arc<Map>; 2],
    pub(crate) blocked: Arc<Map>,
    /// Where workers listen for Multipath TCP.
    pub(crate) multipath_listeners: Arc<Map>,
}

impl WorkerHandle {
    /// The number of the worker.
    #[must_use]
    pub fn worker(&self) -> u16 {
        self.worker
    }

    /// Starts reading events. Call it in the worker's thread. `listeners` are duplicates of the
    /// worker's own, each with whether it is for IPv6.
    ///
    /// # Errors
    /// [`Error::Map`] when the ring cannot be mapped.
    pub fn open(
        self,
        listeners: Vec<(bool, OwnedFd)>,
        host: Box<dyn Host>,
    ) -> Result<WorkerMaps, Error> {
        Ok(WorkerMaps {
            reader: Reader::open(Arc::clone(&self.ring))?,
            maps: self,
            listeners,
            host,
        })
    }
}

/// A worker's share of the programs, in its thread.
pub struct WorkerMaps {
    maps: WorkerHandle,
    reader: Reader,
    listeners: Vec<(bool, OwnedFd)>,
    host: Box<dyn Host>,
}

impl std::fmt::Debug for WorkerMaps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.maps.fmt(f)
    }
}

impl WorkerMaps {
    /// Sets the worker's listener of one family; `None` removes it, and the worker's new flows are
    /// forwarded.
    ///
    /// # Errors
    /// [`Error::Map`].
    pub fn set_listener(&self, ipv6: bool, listener: Option<BorrowedFd<'_>>) -> Result<(), Error> {
        let key = (2 * u32::from(self.maps.worker) + u32::from(ipv6)).to_ne_bytes();
        let Some(listener) = listener else {
            // EINVAL: there was none.
            let _ = self.maps.listeners.delete(&key);
            return Ok(());
        };
        let value = i64::from(listener.as_raw_fd()).to_ne_bytes();
        self.maps.listeners.update(&key, &value)
    }

    /// Starts or stops forwarding the worker's new flows. Flows that have begun continue.
    ///
    /// # Errors
    /// [`Error::Map`].
    pub fn set_draining(&self, draining: bool) -> Result<(), Error> {
        let key = u32::from(self.maps.worker).to_ne_bytes();
        let value = u32::from(draining).to_ne_bytes();
        self.maps.draining.update(&key, &value)
    }

    fn write_half_open(
        &self,
        flow: &Flow,
        half_open: HalfOpen,
        syn: HalfOpenSyn,
    ) -> Result<(), Error> {
        let value = self.value(half_open, syn);
        self.half_open_flows(half_open)
            .update(bytes(flow), bytes(&value))
    }

    /// The map of a half-open entry.
    fn half_open_flows(&self, half_open: HalfOpen) -> &Map {
        &self.maps.half_open_flows[usize::from(half_open.kept)]
    }

    fn value(&self, half_open: HalfOpen, syn: HalfOpenSyn) -> types::half_open {
        types::half_open {
            // The program compares it with the field of the packet as it is.
            isn: half_open.isn.to_be(),
            worker: self.maps.worker,
            syn: syn as u8,
            pad: 0,
        }
    }

    /// The profile of a flow's client and its service.
    fn profile(&self, flow: &Flow) -> Option<Profile> {
        let value = self.read_profile(&profile_key(flow))?;
        Some(Profile::read(&value))
    }

    fn read_profile(&self, key: &types::profile_key) -> Option<types::profile> {
        let mut raw = [0; size_of::<types::profile>()];
        let profiles = &self.maps.tail_call_maps.get()?.profiles;
        let found = profiles.look_up(bytes(key), &mut raw);
        layout::whole(&raw).filter(|_| matches!(found, Ok(true)))
    }
}

impl Intercept for WorkerMaps {
    fn event_fd(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }

    fn next_event(&mut self) -> Option<Event> {
        self.reader.next()
    }

    fn has_events(&self) -> bool {
        !self.reader.is_empty()
    }

    fn set_accepting(&mut self, listening: bool) -> io::Result<()> {
        // A listener stays in the map for flows that have begun; closing it removes it.
        for (ipv6, listener) in self.listeners.iter().filter(|_| listening) {
            self.set_listener(*ipv6, Some(listener.as_fd()))?;
        }
        Ok(self.set_draining(!listening)?)
    }

    fn original(&mut self, _client: SocketAddr) -> Option<SocketAddr> {
        // The listeners are transparent: an accepted socket's local address is the destination.
        None
    }

    fn lag(&self) -> Duration {
        LAG
    }

    fn release_half_open(&mut self, flow: &Flow, half_open: HalfOpen) {
        // Only a key of another length is an error.
        let _ = self.half_open_flows(half_open).delete(bytes(flow));
    }

    fn release_if_unchanged(&mut self, flow: &Flow, half_open: HalfOpen) {
        let half_open_flows = self.half_open_flows(half_open);
        let mut value = [0; size_of::<types::half_open>()];
        let found = half_open_flows.look_up(bytes(flow), &mut value);
        let ours = self.value(half_open, HalfOpenSyn::Admitted);
        // Compares all fields but the last, the state of the SYN, which may have changed.
        let same = offset_of!(types::half_open, syn);
        if found.is_ok_and(|found| found && value[..same] == bytes(&ours)[..same]) {
            self.release_half_open(flow, half_open);
        }
    }

    fn reserve_half_open(&mut self, flow: &Flow) -> io::Result<HalfOpen> {
        let half_open = HalfOpen::default();
        self.admit(flow, half_open)?;
        Ok(half_open)
    }

    fn admit(&mut self, flow: &Flow, half_open: HalfOpen) -> io::Result<()> {
        Ok(self.write_half_open(flow, half_open, HalfOpenSyn::Admitted)?)
    }

    fn pass(&mut self, flow: &Flow, half_open: HalfOpen) -> io::Result<()> {
        Ok(self.write_half_open(flow, half_open, HalfOpenSyn::Passed)?)
    }

    fn inject(&mut self, frame: &Frame, direction: Direction) -> io::Result<()> {
        let Frame { ifindex, .. } = *frame;
        let failed = |source| Error::Inject { ifindex, source };
        let mut context = [0; CB + CB_WORDS];
        // The program redirects to the device and in the direction that `cb` names.
        context[CB] = ifindex;
        if direction != Direction::Out {
            context[CB + 1] = BPF_F_INGRESS;
        }
        context[CB + 2] = u32::from(direction != Direction::In);
        let tail_call_maps = self.maps.tail_call_maps.get().ok_or(Error::Unsettled)?;
        let program = tail_call_maps.inject.as_fd();
        let returned = sys::run(program, frame.as_bytes(), &context, None);
        match returned.map_err(failed)?.cast_signed() {
            0 => Ok(()),
            code => Err(failed(io::Error::from_raw_os_error(-code)).into()),
        }
    }

    fn syn_option(&mut self, socket: BorrowedFd<'_>, option: &[u8]) -> io::Result<()> {
        let syn_options = self.maps.syn_options.get().ok_or(Error::Unsettled)?;
        Ok(syn_option::leave(syn_options, socket, option)?)
    }

    fn keep_source(&mut self, socket: BorrowedFd<'_>) -> io::Result<()> {
        let sockets = self.maps.trial_sockets.get().ok_or(Error::Unsettled)?;
        let key = socket.as_raw_fd().to_ne_bytes();
        Ok(sockets.update(&key, &1_u32.to_ne_bytes())?)
    }

    fn validate_prefix(&mut self, flow: &Flow, near: bool) {
        if let Some(tail_call_maps) = self.maps.tail_call_maps.get() {
            let prefix = layout::client_prefix(flow.client().ip());
            // A full LRU map evicts an entry.
            let _ = tail_call_maps
                .validated_prefixes
                .update(&prefix, &[near.into()]);
        }
    }

    fn set_initial_cwnd(&mut self, peer: IpAddr, start: Option<PathSettings>) {
        let (windows, address) = (&self.maps.initial_cwnd, mapped(peer));
        // Best effort: on failure they get the default window.
        let _ = match start {
            Some(start) => windows.update(&address, bytes(&layout::peer_settings(start))),
            None => windows.delete(&address),
        };
    }

    fn observed(&mut self, flow: &Flow) -> Option<Observed> {
        let profile = self.profile(flow)?;
        Some(Observed {
            server_rtt: profile.server_rtt,
            answered: profile.trust == Trust::Validated,
            bypassed: profile.trust == Trust::Bypassed,
            path: profile.path,
        })
    }

    fn is_tracked(&mut self, flow: &Flow, source: Source) -> bool {
        let (client, server) = (flow.client(), flow.server());
        match source {
            Source::ClientAddress => self.host.tracks(client, server),
            Source::Translated(_) => self.host.tracks_answers(client, server),
            // With its own port a client is not relayed; NAT leaves this host's address alone.
            Source::Client | Source::Node => false,
        }
    }

    fn untrack(&mut self, flow: &Flow) {
        let profile = self.profile(flow);
        if profile.is_some_and(|profile| profile.translated.source) {
            self.host.untrack(flow.client(), flow.server());
        }
    }

    fn source(&mut self, flow: &Flow, now: bool) -> Source {
        if !self.host.tracks_connections(now) {
            return Source::Client;
        }
        match self.profile(flow) {
            Some(profile) if profile.translated.source => Source::Translated(profile.source),
            _ => Source::ClientAddress,
        }
    }

    fn record_no_answer(&mut self, flow: &Flow) {
        let key = profile_key(flow);
        let Some(tail_call_maps) = self.maps.tail_call_maps.get() else {
            return;
        };
        if let Some(mut value) = self.read_profile(&key) {
            value.state = Trust::Doubted as u8;
            value.until_ns = nanoseconds(monotonic() + RECORD_NO_ANSWER);
            // A concurrent writer of the entry has newer information.
            let _ = tail_call_maps.profiles.update(bytes(&key), bytes(&value));
        }
    }

    fn block(&mut self) {
        let until = nanoseconds(monotonic() + BLOCK).to_ne_bytes();
        // Only a key or value of another length is an error.
        let _ = self.maps.blocked.update(&0_u32.to_ne_bytes(), &until);
        self.host.report_block();
    }

    fn record_failure(&mut self, flow: &Flow, period: Duration) {
        if let Some(tail_call_maps) = self.maps.tail_call_maps.get() {
            let until = nanoseconds(monotonic() + period).to_ne_bytes();
            let key = destination(flow);
            // A full LRU map evicts an entry.
            let _ = tail_call_maps
                .failed_destinations
                .update(bytes(&key), &until);
        }
    }

    fn clear_failure(&mut self, flow: &Flow) {
        if let Some(tail_call_maps) = self.maps.tail_call_maps.get() {
            let key = destination(flow);
            let _ = tail_call_maps.failed_destinations.delete(bytes(&key));
        }
    }

    fn begin_bypass(
        &mut self,
        flow: &Flow,
        ends: &BypassEnds,
        deadline: Duration,
    ) -> io::Result<()> {
        let pairs = self.maps.pairs.get().ok_or(Error::Unsettled)?;
        Ok(pairs.begin(flow, ends, low_millis(deadline))?)
    }

    fn learn_bypass(&mut self, flow: &Flow, windows: [u32; 2]) -> bool {
        let pairs = self.maps.pairs.get();
        pairs.is_some_and(|pairs| pairs.learn(flow, windows))
    }

    fn step_bypass(&mut self, flow: &Flow, now: Duration) -> BypassStep {
        let pairs = self.maps.pairs.get();
        pairs.map_or(BypassStep::GiveUp, |pairs| {
            pairs.step(flow, low_millis(now))
        })
    }

    fn settle_bypass(&mut self, flow: &Flow) {
        if let Some(pairs) = self.maps.pairs.get() {
            pairs.settle(flow);
        }
    }

    fn end_bypass(&mut self, flow: &Flow) {
        if let Some(pairs) = self.maps.pairs.get() {
            pairs.remove(flow);
        }
    }

    fn set_multipath(&mut self, ipv6: bool, to: MultipathListener) -> io::Result<()> {
        let value = types::multipath_listener {
            joins: to.joins.to_be(),
            port: to.port.to_be(),
            pad: 0,
        };
        let key = (2 * u32::from(self.maps.worker) + u32::from(ipv6)).to_ne_bytes();
        Ok(self.maps.multipath_listeners.update(&key, bytes(&value))?)
    }

    fn set_token(&mut self, token: u32, server: Option<SocketAddr>) -> io::Result<()> {
        let tail_call_maps = self.maps.tail_call_maps.get().ok_or(Error::Unsettled)?;
        let (tokens, key) = (&tail_call_maps.tokens, token.to_be_bytes());
        let Some(server) = server else {
            return Ok(tokens.delete(&key)?);
        };
        let value = types::multipath_token {
            server: layout::address(mapped(server.ip())),
            port: server.port().to_be(),
            worker: self.maps.worker,
        };
        Ok(tokens.update(&key, bytes(&value))?)
    }

    fn has_token(&mut self, token: u32) -> bool {
        let mut value = [0; size_of::<types::multipath_token>()];
        let key = token.to_be_bytes();
        let tail_call_maps = self.maps.tail_call_maps.get();
        tail_call_maps.is_some_and(|maps| matches!(maps.tokens.look_up(&key, &mut value), Ok(true)))
    }

    fn forward_joins(&mut self, token: u32) {
        if let Some(tail_call_maps) = self.maps.tail_call_maps.get() {
            let (map, key) = (&tail_call_maps.foreign_tokens, token.to_be_bytes());
            // A full LRU map evicts an entry.
            let _ = map.update(&key, &1_u32.to_ne_bytes());
        }
    }

    fn end_time_wait(&mut self, local: SocketAddr, remote: SocketAddr) -> bool {
        self.host.end_time_wait(local, remote)
    }

    fn forget(&mut self, closed: &[Closed]) {
        self.host.destroy(closed);
    }

    fn path_addresses(&mut self) -> Option<Vec<IpAddr>> {
        self.host.path_addresses()
    }
}

/// Milliseconds that wrap: only differences count.
#[expect(clippy::cast_possible_truncation, reason = "they wrap")]
fn low_millis(time: Duration) -> u32 {
    time.as_millis() as u32
}

fn destination(flow: &Flow) -> types::destination {
    layout::destination(flow.server().ip(), flow.server().port())
}
