// SPDX-License-Identifier: Apache-2.0
//! Sends probes from several ports, and parses the answers.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use nix::errno::Errno;
use posthaste_relay::clock::{self, Clock};
use posthaste_wire::header::NodeId;
use posthaste_wire::stamp::{self, ErrorEstimate, Probe, Reflection, Timestamp};

use super::refusal::Refusal;
use super::targets::{Settings, Target};
use super::udp::{Datagram, Fate, FateKind, Udp};

/// Packets read from one socket per turn.
const TURN_MAX: usize = 64;
/// How long a probe is remembered.
const REMEMBERED: Duration = Duration::from_secs(10);
/// A reflector that keeps a probe for longer than this, and for longer than a part of the whole
/// time, is too busy for valid times. It is also the most by which a reflector can appear nearer: a
/// tick of a kernel at 250 Hz.
const STAY_MAX: Duration = Duration::from_millis(4);
/// That part: a tenth, less than the gain that justifies another chain.
const STAY_PARTS: u32 = 10;
/// How much two clocks of this host may diverge during a probe.
const CLOCKS_DIFFER: Duration = Duration::from_millis(1);

/// A probe in flight.
#[derive(Clone, Copy, Debug)]
struct Sent {
    peer: NodeId,
    port: u8,
    sequence: u32,
    to: SocketAddr,
    /// When it left by the host's own clock: first by the program, later by the kernel's timestamp.
    left: Duration,
    /// By a clock that cannot be set.
    at: Duration,
}

/// A received event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A probe was answered, with the round trip in microseconds if valid.
    Answer(NodeId, (u8, u32), Option<u32>),
    /// A probe did not arrive.
    Refused(NodeId, (u8, u32)),
    /// A packet that is not a valid answer.
    Bad(SocketAddr, Refusal),
}

/// The sockets of one node, and the probes in flight.
#[derive(Debug, Default)]
pub(super) struct Sender {
    /// By family, then by port.
    sockets: [Vec<Udp>; 2],
    /// By T1, which is unique.
    sent: HashMap<Timestamp, Sent>,
    swept: Duration,
    /// The clock of T1.
    clock: Clock,
}

impl Sender {
    /// Without sockets.
    pub(super) fn new(clock: Clock) -> Self {
        Self {
            clock,
            ..Self::default()
        }
    }

    pub(super) fn sockets(&self) -> impl Iterator<Item = &Udp> {
        self.sockets.iter().flatten()
    }

    /// Opens as many sockets as the settings need, of the families they need.
    ///
    /// # Errors
    /// A socket cannot be opened.
    pub(super) fn prepare(&mut self, settings: &Settings) -> Result<(), Errno> {
        let wildcards: [IpAddr; 2] = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
        for (sockets, wildcard) in self.sockets.iter_mut().zip(wildcards) {
            let mut targets = settings.targets.iter();
            let needed = targets.any(|target| target.reflector.is_ipv4() == wildcard.is_ipv4());
            let count = usize::from(settings.schedule.ports);
            // Those that stay keep their ports: networks choose paths by them, so former times
            // remain comparable.
            sockets.truncate(if needed { count } else { 0 });
            while needed && sockets.len() < count {
                sockets.push(Udp::bind((wildcard, 0).into(), settings.mark, true)?);
            }
        }
        Ok(())
    }

    /// Sends a probe.
    ///
    /// # Errors
    /// It was not sent.
    pub(super) fn send(
        &mut self,
        settings: &Settings,
        target: &Target,
        (port, sequence): (u8, u32),
        now: Duration,
    ) -> Result<(), Errno> {
        let family = usize::from(target.reflector.is_ipv6());
        let socket = self.sockets[family].get(usize::from(port));
        let socket = socket.ok_or(Errno::EAFNOSUPPORT)?;
        // Stands until the kernel's timestamp arrives, and if it never does.
        let left = clock::own();
        let mut sent = Timestamp::from_unix(self.clock.now());
        // T1 identifies a probe, and two may be sent within its resolution.
        while self.sent.contains_key(&sent) {
            sent.0 = sent.0.wrapping_add(1);
        }
        let probe = Probe {
            sequence,
            sent,
            error: ErrorEstimate::OURS,
            session: settings.session,
        };
        match &target.key {
            Some(key) => socket.send(&probe.auth(key), target.reflector, None)?,
            None => socket.send(&probe.encode(), target.reflector, None)?,
        }
        let record = Sent {
            peer: target.peer,
            port,
            sequence,
            to: target.reflector,
            left,
            at: now,
        };
        // Only now: the caller counts a probe that was not sent as lost, so none is in flight.
        self.sent.insert(sent, record);
        Ok(())
    }

    /// Reads received packets, up to [`TURN_MAX`] per socket.
    pub(super) fn collect(&mut self, settings: &Settings, now: Duration, events: &mut Vec<Event>) {
        // Not at each turn: this looks at every probe in flight.
        if now >= self.swept + REMEMBERED {
            self.swept = now;
            self.sent.retain(|_, sent| now < sent.at + REMEMBERED);
        }
        let Self { sockets, sent, .. } = self;
        for socket in sockets.iter().flatten() {
            // Transmit timestamps first: answers may be queued already.
            for _ in 0..TURN_MAX {
                match socket.next_fate() {
                    Ok(Some(fate)) => events.extend(learn(sent, &fate)),
                    // Neither a timestamp nor an ICMP error: more fates may be queued behind it.
                    Ok(None) => {}
                    Err(_) => break,
                }
            }
        }
        for sockets in sockets {
            for (port, socket) in (0..).zip(sockets) {
                for _ in 0..TURN_MAX {
                    match socket.receive() {
                        Ok(datagram) => {
                            events.push(receive_all(sent, settings, port, &datagram, now))
                        }
                        Err(Errno::EAGAIN) => break,
                        // The error queue reports what the network refused.
                        Err(_) => {}
                    }
                }
            }
        }
    }
}

/// Records the fate of a probe.
fn learn(sent: &mut HashMap<Timestamp, Sent>, fate: &Fate) -> Option<Event> {
    // Headers may stand before the packet, so the length does not show which format it has.
    let authenticated = fate.tail::<{ stamp::AUTHENTICATED_BYTES }>();
    let authenticated = authenticated.and_then(|bytes| probe_of(sent, bytes));
    let open = || probe_of(sent, fate.tail::<{ stamp::OPEN_BYTES }>()?);
    let key = authenticated.or_else(open)?;
    match fate.kind {
        FateKind::Left(left) => {
            sent.get_mut(&key)?.left = left;
            None
        }
        FateKind::Refused => {
            let probe = sent.remove(&key)?;
            Some(Event::Refused(probe.peer, (probe.port, probe.sequence)))
        }
    }
}

/// The T1 of a probe in flight.
fn probe_of(sent: &HashMap<Timestamp, Sent>, bytes: &[u8]) -> Option<Timestamp> {
    let probe = Probe::parse(bytes).ok()?.packet;
    let known = sent.get(&probe.sent)?;
    // An ICMP error can be forged: it must quote a probe in flight.
    (known.sequence == probe.sequence).then_some(probe.sent)
}

fn receive_all(
    sent: &mut HashMap<Timestamp, Sent>,
    settings: &Settings,
    port: u8,
    datagram: &Datagram,
    now: Duration,
) -> Event {
    match understand(sent, settings, port, datagram, now) {
        Ok(event) => event,
        Err(refusal) => Event::Bad(datagram.from, refusal),
    }
}

fn understand(
    sent: &mut HashMap<Timestamp, Sent>,
    settings: &Settings,
    port: u8,
    datagram: &Datagram,
    now: Duration,
) -> Result<Event, Refusal> {
    let read = Reflection::parse(datagram.bytes()).map_err(|_| Refusal::Malformed)?;
    let (reflection, probe) = (read.packet, read.packet.probe);
    let known = sent.get(&probe.sent).ok_or(Refusal::Unexpected)?;
    // An answer to another port, or from another address, was not caused by this probe.
    let of_it = (known.port, known.sequence) == (port, probe.sequence)
        && (known.to, settings.session) == (datagram.from, probe.session);
    let target = settings.target(known.peer).filter(|_| of_it);
    let target = target.ok_or(Refusal::Unexpected)?;
    let genuine = match &target.key {
        Some(key) => read.is_of(key),
        // Without a key a tag cannot be verified.
        None => !read.is_authenticated(),
    };
    if !genuine {
        return Err(Refusal::AuthTag);
    }
    // Only now: a forged answer must not use up the probe.
    let known = sent.remove(&probe.sent).ok_or(Refusal::Unexpected)?;
    let rtt = round_trip(&known, &reflection, datagram.at, now)?;
    // At least 1 µs: a link of length 0 would attract every chain.
    let rtt_us = rtt.map(|rtt| u32::try_from(rtt.as_micros()).unwrap_or(u32::MAX).max(1));
    Ok(Event::Answer(
        known.peer,
        (known.port, known.sequence),
        rtt_us,
    ))
}

/// The round trip without the reflector's time; `None` if the reflector was too busy, or this
/// host's clock was set meanwhile.
fn round_trip(
    sent: &Sent,
    reflection: &Reflection,
    came: Duration,
    now: Duration,
) -> Result<Option<Duration>, Refusal> {
    let format = reflection.error.format;
    let stay = reflection.sent.since(reflection.received, format);
    let stay = stay.ok_or(Refusal::Implausible)?;
    let elapsed = came.checked_sub(sent.left);
    // Kernel timestamps follow the wall clock: a step of it shows as a difference to the
    // clock that cannot be set.
    let within = now.saturating_sub(sent.at) + CLOCKS_DIFFER;
    let Some(elapsed) = elapsed.filter(|elapsed| *elapsed <= within) else {
        return Ok(None);
    };
    let rtt = elapsed.checked_sub(stay).ok_or(Refusal::Implausible)?;
    // A reflector that overstates its stay appears nearer: this bounds what it can gain.
    let is_brief = stay <= STAY_MAX.max(elapsed / STAY_PARTS);
    Ok(is_brief.then_some(rtt))
}

#[cfg(test)]
mod tests;
