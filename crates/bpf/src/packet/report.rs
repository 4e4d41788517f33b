// SPDX-License-Identifier: Apache-2.0
//! The state of the packet path: its flows, and what decides whether a new one is taken.

use std::net::SocketAddr;
use std::time::Duration;

use posthaste_relay::flow::Flow;

use crate::error::Error;
use crate::layout::{self, bytes, flow as flow_of, whole};
use crate::object::Map;
use crate::objects::types;

/// `PACKET_FIN_CLIENT`, `PACKET_FIN_SERVER`
const FINS: u32 = 1 | 2;
/// `PACKET_RESET`
const RESET: u32 = 4;
/// How long a profile is valid: `PROFILE_NS`.
const PROFILE_VALID: Duration = Duration::from_mins(10);

/// How long it counts that a destination received much: `RECEIVED_NS`.
const RECEIVED_VALID: Duration = Duration::from_hours(24);

/// Where a flow of the packet path is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketPhase {
    /// It is forwarded, and its SYN-ACK shows what its destination grants.
    Learning,
    /// The node has answered the client, and the server has not answered yet.
    Opening,
    /// Its segments are translated.
    Open,
    /// It was reset or refused, or both ends have closed; its entry remains for late segments.
    Closing,
}

/// A flow of the packet path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketFlow {
    /// The client's end.
    pub client: SocketAddr,
    /// The server's end, as the client addressed it.
    pub server: SocketAddr,
    /// Where it is in its life.
    pub phase: PacketPhase,
    /// When its SYN arrived (CLOCK_MONOTONIC).
    pub since: Duration,
    /// When its last segment arrived (CLOCK_MONOTONIC, to 10 ms).
    pub last: Duration,
    /// Bytes of the client that the server has acknowledged; a FIN counts as one (RFC 9293 section
    /// 3.4).
    pub bytes_up: u64,
    /// Bytes of the server that the client has acknowledged.
    pub bytes_down: u64,
}

/// What the programs have learned about a destination (address and port), and about one client of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketKnowledge {
    /// For how long its flows are not taken, since one was refused or got no answer, or a promise
    /// was broken.
    pub bad_for: Option<Duration>,
    /// How long ago it was learned what the destination grants; `None` if that is unknown, or too
    /// old.
    pub learned: Option<Duration>,
    /// Whether it has sent more than a first window on one connection.
    pub is_long: bool,
    /// Whether a client has sent it much on one connection: its clients are not answered early.
    pub receives: bool,
    /// Whether answers from the destination's prefix to the client's were seen to come this way. `false`
    /// without a client.
    pub passes: bool,
}

/// At most `most` flows, in no order.
pub(super) fn flows(map: &Map, most: usize) -> Result<Vec<PacketFlow>, Error> {
    let mut all = Vec::new();
    if most == 0 {
        return Ok(all);
    }
    map.each(|key, value| {
        let key = whole::<types::packet_key>(key);
        all.extend(key.zip(whole(value)).map(|(key, flow)| read(&key, &flow)));
        all.len() < most
    })?;
    Ok(all)
}

fn read(key: &types::packet_key, flow: &types::packet_flow) -> PacketFlow {
    let ends = flow_of(&types::flow {
        client: key.first,
        server: key.second,
        client_port: key.first_port,
        server_port: key.second_port,
    });
    let (client, server) = match flow.turned {
        0 => (ends.client(), ends.server()),
        _ => (ends.server(), ends.client()),
    };
    PacketFlow {
        client,
        server,
        phase: phase(flow),
        since: Duration::from_nanos(flow.since_ns),
        last: Duration::from_nanos(flow.last_ns),
        bytes_up: acknowledged(flow, &flow.up, flow.client_isn),
        bytes_down: acknowledged(flow, &flow.down, flow.node_isn),
    }
}

/// Sequence numbers behind that of a SYN that the other end has acknowledged: payload, and 1 for a FIN.
fn acknowledged(flow: &types::packet_flow, way: &types::packet_way, isn: u32) -> u64 {
    if flow.state != 4 {
        return 0;
    }
    u64::from(way.wraps) << 32 | u64::from(way.acked.wrapping_sub(isn.wrapping_add(1)))
}

/// Of `enum packet_state`.
fn phase(flow: &types::packet_flow) -> PacketPhase {
    match flow.state {
        0 => PacketPhase::Learning,
        1..=3 => PacketPhase::Opening,
        4 if flow.ended & FINS != FINS && flow.ended & RESET == 0 => PacketPhase::Open,
        _ => PacketPhase::Closing,
    }
}

/// `PASSAGE_TURNS`
const TURNS: u32 = 1;

/// What decides about a flow at `now` (CLOCK_MONOTONIC); its client's port does not count. `ttl`: how long it counts
/// that answers came this way.
pub(super) fn knowledge(
    [profiles, passages]: [&Map; 2],
    flow: &Flow,
    ttl: Duration,
    now: Duration,
) -> Result<PacketKnowledge, Error> {
    let (prefixes, mut passes) = (layout::prefixes(flow), false);
    // At whatever interface the client is.
    passages.each(|key, value| {
        let key = whole::<types::packet_passage_key>(key);
        let is_of_flow = key.is_some_and(|key| {
            [key.client, key.server].map(|prefix| prefix.word) == prefixes.map(|prefix| prefix.word)
        });
        let is_valid = |passage: types::packet_passage| {
            let age = now.saturating_sub(Duration::from_nanos(passage.learned_ns));
            passage.mss > TURNS && age < ttl
        };
        passes = is_of_flow && whole(value).is_some_and(is_valid);
        !passes
    })?;
    let key = layout::profile_key(flow);
    let service = types::destination {
        ip: key.server,
        port: key.port,
        pad: 0,
    };
    let profile: Option<types::packet_profile> = value_of(profiles, bytes(&service))?;
    Ok(PacketKnowledge {
        passes,
        ..profile.map_or_else(PacketKnowledge::default, |profile| {
            of_profile(&profile, now)
        })
    })
}

fn value_of<T: Copy + layout::Structure>(map: &Map, key: &[u8]) -> Result<Option<T>, Error> {
    let mut value = vec![0; size_of::<T>()];
    let found = map.look_up(key, &mut value)?;
    Ok(whole(&value).filter(|_| found))
}

fn of_profile(profile: &types::packet_profile, now: Duration) -> PacketKnowledge {
    let bad_until = Duration::from_nanos(profile.bad_until_ns);
    let since = |then: u64| now.saturating_sub(Duration::from_nanos(then));
    let age = since(profile.learned_ns);
    PacketKnowledge {
        bad_for: bad_until.checked_sub(now).filter(|left| !left.is_zero()),
        // Zero stands for never, and would be recent on a host that has just started.
        learned: (profile.learned_ns != 0 && age < PROFILE_VALID).then_some(age),
        is_long: profile.is_long != 0,
        receives: profile.received_ns != 0 && since(profile.received_ns) < RECEIVED_VALID,
        passes: false,
    }
}
