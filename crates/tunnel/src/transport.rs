// SPDX-License-Identifier: Apache-2.0
//! The settings of all connections.

use std::sync::Arc;
use std::time::Duration;

use quinn_proto::{AckFrequencyConfig, MtuDiscoveryConfig, TransportConfig, VarInt};

use crate::control::ControlFactory;

/// Bytes that may be on their way on one stream, so the most that a flow moves in a round trip.
///
/// quinn-proto ends a *connection* when more than 1024 pieces of one stream are left after it has
/// merged those that touch. In a window of 2000 packets of at least 1200 bytes, no more than every
/// second one can be missing, which leaves 1000.
pub const STREAM_WINDOW: u32 = 2_400_000;
/// Bytes that may be received of all streams of a connection and not yet read: a bound on memory
/// that 400 clients which read nothing do not reach, since they would block the others.
const CONNECTION_WINDOW: u32 = 1 << 30;
/// Bytes that may be sent and not yet acknowledged: the same bound at the sender.
pub(crate) const SEND_WINDOW: u64 = 256 << 20;
/// What messages have besides: without them no flow could begin or be refused.
pub(crate) const MESSAGE_WINDOW: u64 = 1 << 20;
/// Streams that may be open on a connection. A flow that finds none free takes a TCP hop.
const STREAMS_MAX: u32 = 4096;
/// How long a connection may be silent. RFC 9000 §10.1.2: a few keep-alives must fit in. After an outage of 10 s
/// the next packet is [`PROBE_INTERVAL`] and a round trip away.
pub(crate) const IDLE_MAX: Duration = Duration::from_secs(13);
/// How often the peer of a silent connection is probed. quinn-proto sends again after twice the time each time.
pub(crate) const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// Round trips after which a packet is lost if a later one was acknowledged. With the 9/8 of RFC 9002 section
/// 6.1.2, paths that let packets overtake others by more than an eighth show losses that are none.
const LOSS_DELAY: f32 = 1.25;
/// When an end that has received nothing sends something: one that only receives learns by it that the path is
/// silent, and shows the peer its new address behind a NAT.
pub(crate) const KEEP_ALIVE: Duration = Duration::from_secs(2);
/// Packets that may arrive without an ACK, and for how long (draft-ietf-quic-ack-frequency). ACKs of every
/// second packet, the default, cost both nodes CPU time.
const UNACKED_PACKETS: VarInt = VarInt::from_u32(8);
const ACK_DELAY: Duration = Duration::from_millis(5);
/// Bytes of repair symbols that wait to be sent, or to be taken.
const REPAIR_BUFFER: usize = 256 << 10;
/// Bytes of UDP payload that fit into Ethernet's 1500 over IPv6.
pub(crate) const MTU_MAX: u16 = 1452;

/// The settings of a connection with this factory of its congestion control.
pub(crate) fn config(control: ControlFactory) -> TransportConfig {
    let mut discovery = MtuDiscoveryConfig::default();
    discovery.upper_bound(MTU_MAX);
    let mut acks = AckFrequencyConfig::default();
    // What is out of order needs none at once: loss shows by time alone.
    acks.ack_eliciting_threshold(UNACKED_PACKETS)
        .max_ack_delay(Some(ACK_DELAY))
        .reordering_threshold(VarInt::from_u32(0));
    let mut config = TransportConfig::default();
    config
        // Bonded links let many packets overtake one, so their number shows no loss. What is left is the time.
        .packet_threshold(u32::MAX)
        .time_threshold(LOSS_DELAY)
        .ack_frequency_config(Some(acks))
        .stream_receive_window(STREAM_WINDOW.into())
        .receive_window(CONNECTION_WINDOW.into())
        .send_window(SEND_WINDOW)
        .max_concurrent_bidi_streams(STREAMS_MAX.into())
        // By one an end reports what it has read, by the other that it goes away.
        .max_concurrent_uni_streams(VarInt::from_u32(2))
        .datagram_receive_buffer_size(Some(REPAIR_BUFFER))
        .datagram_send_buffer_size(REPAIR_BUFFER)
        .keep_alive_interval(Some(KEEP_ALIVE))
        .max_idle_timeout(IDLE_MAX.try_into().ok())
        .mtu_discovery_config(Some(discovery))
        .congestion_controller_factory(Arc::new(control));
    config
}
