// SPDX-License-Identifier: Apache-2.0
//! Answers the probes of other nodes, statelessly.
//!
//! An answer is no longer than its probe, goes only to peers and to configured sources, and never
//! to a reflector's port.

use std::net::SocketAddr;
use std::time::Duration;

use nix::errno::Errno;
use posthaste_relay::clock::Clock;
use posthaste_wire::stamp::{self, ErrorEstimate, Probe, Received, Reflection, Timestamp};

use super::limit::{Bucket, Rate, Sources};
use super::refusal::Refusal;
use super::targets::Settings;
use super::udp::{Datagram, Udp};

/// Packets read from one socket per turn.
const TURN_MAX: usize = 64;
/// Probes from one source: a peer sends at most 20 per second, and some share an address.
const FROM_ONE: Rate = Rate {
    per_second: 100.0,
    burst: 200.0,
};
/// From all sources together: verifying so many authentication tags takes some percent of a CPU.
const FROM_ALL: Rate = Rate {
    per_second: 10_000.0,
    burst: 10_000.0,
};
/// Bound on the age of an authenticated probe, in either direction: as for requests for flows.
const AGE_MAX: Duration = Duration::from_secs(30);

/// The sockets at which probes are answered.
#[derive(Debug)]
pub(super) struct Reflector {
    sockets: Vec<(SocketAddr, Udp)>,
    sources: Sources,
    all: Bucket,
    clock: Clock,
}

/// The handling of a packet.
pub(super) enum Seen {
    Answered,
    /// With the apparent offset of the sender's clock in milliseconds, if it was rejected for its
    /// time.
    Refused(SocketAddr, Refusal, Option<i64>),
    /// A probe of a node that is no peer, or not yet: the plan of a controller reaches one node before
    /// another. Nobody can verify it.
    NoPeer(SocketAddr),
}

impl Reflector {
    pub(super) fn new(sockets: Vec<(SocketAddr, Udp)>, clock: Clock) -> Self {
        Self {
            sockets,
            clock,
            sources: Sources::new(FROM_ONE),
            all: Bucket::full(FROM_ALL),
        }
    }

    pub(super) fn sockets(&self) -> impl Iterator<Item = &Udp> {
        self.sockets.iter().map(|(_, socket)| socket)
    }

    /// Answers pending probes, up to [`TURN_MAX`] per socket.
    pub(super) fn serve(&mut self, settings: &Settings, now: Duration, mut note: impl FnMut(Seen)) {
        let Self {
            sockets,
            sources,
            all,
            clock,
        } = self;
        for (address, socket) in sockets {
            // Bounded: a flood at one socket must not hold up the others, or the links.
            for _ in 0..TURN_MAX {
                let datagram = match socket.receive() {
                    Ok(datagram) => datagram,
                    Err(Errno::EAGAIN) => break,
                    // The call has consumed the socket's error.
                    Err(_) => continue,
                };
                let from = datagram.from;
                // Two reflectors would answer each other for ever, and nothing listens at port 0.
                let ports = [address.port(), stamp::PORT, 0];
                // Before the tag is verified, which costs more; and by source first, so that one
                // that floods does not use up what all share.
                let within = sources.take(from.ip(), now) && all.take(FROM_ALL, now);
                let answer = if ports.contains(&from.port()) {
                    Err(Refusal::Port)
                } else if within {
                    answer(&datagram, settings, clock)
                } else {
                    Err(Refusal::Limited)
                };
                note(match answer {
                    Ok(answer) => {
                        // Best effort: a failed answer counts as lost.
                        let _ = socket.send(answer.bytes(), from, datagram.to);
                        Seen::Answered
                    }
                    Err(Refusal::AuthTag) if is_of_no_peer(&datagram, settings) => {
                        Seen::NoPeer(from)
                    }
                    Err(refusal) => {
                        // Its tag was valid, so the time is a peer's and not forged.
                        let is_late = refusal == Refusal::Stale;
                        let ahead_ms = is_late.then(|| ahead_ms(&datagram, clock)).flatten();
                        Seen::Refused(from, refusal, ahead_ms)
                    }
                });
            }
        }
    }
}

/// A reflection, as long as its probe.
#[derive(Debug)]
enum Answer {
    Open([u8; stamp::OPEN_BYTES]),
    Authenticated([u8; stamp::AUTHENTICATED_BYTES]),
}

impl Answer {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Open(bytes) => bytes,
            Self::Authenticated(bytes) => bytes,
        }
    }
}

fn answer(datagram: &Datagram, settings: &Settings, clock: &Clock) -> Result<Answer, Refusal> {
    let read = Probe::parse(datagram.bytes()).map_err(|_| Refusal::Malformed)?;
    let key = if read.is_authenticated() {
        let mut keys = settings.keys_of(read.packet.session).iter();
        // Nodes may share a session of 16 bits: the tag decides which one it was.
        let key = keys.find(|key| read.is_of(key)).ok_or(Refusal::AuthTag)?;
        // After the tag: the time of a forged probe means nothing.
        check_age(&read, clock.now())?;
        Some(key)
    } else {
        if !settings.is_open_to(datagram.from.ip()) {
            return Err(Refusal::Unauthorized);
        }
        None
    };
    let probe = read.packet;
    let reflection = Reflection {
        // In stateless mode a reflector repeats the sender's number (RFC 8762 section 4).
        sequence: probe.sequence,
        // Kernel timestamps are of the host's clock; the sender subtracts two times of one clock.
        received: Timestamp::from_unix(clock.corrected(datagram.at)),
        // Before the tag, which covers it: computing the tag counts as part of the path.
        sent: Timestamp::from_unix(clock.now()),
        error: ErrorEstimate::OURS,
        probe,
        ttl: datagram.ttl.unwrap_or(0),
    };
    Ok(match key {
        Some(key) => Answer::Authenticated(reflection.auth(key)),
        None => Answer::Open(reflection.encode()),
    })
}

fn is_of_no_peer(datagram: &Datagram, settings: &Settings) -> bool {
    let probe = Probe::parse(datagram.bytes());
    probe.is_ok_and(|read| settings.keys_of(read.packet.session).is_empty())
}

/// How far the clock of a probe's sender appears to be ahead.
fn ahead_ms(datagram: &Datagram, clock: &Clock) -> Option<i64> {
    let probe = Probe::parse(datagram.bytes()).ok()?.packet;
    let millis = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
    let sent = probe.sent.to_unix(probe.error.format);
    Some(millis(sent).saturating_sub(millis(clock.now())))
}

/// Replayed probes would be answered for ever without a bound on their age.
fn check_age(read: &Received<'_, Probe>, now: Duration) -> Result<(), Refusal> {
    let sent = read.packet.sent.to_unix(read.packet.error.format);
    if sent.abs_diff(now) <= AGE_MAX {
        Ok(())
    } else {
        Err(Refusal::Stale)
    }
}
