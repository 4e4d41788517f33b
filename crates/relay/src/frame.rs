// SPDX-License-Identifier: Apache-2.0
//! Frames that a worker keeps, answers and injects: SYNs, SYN-ACKs, and the resets and ICMP errors
//! made from them. Pure.
//!
//! A captured frame may have an unfinished checksum (`CHECKSUM_PARTIAL`: the field holds only the
//! pseudo header's sum), so every frame made here gets new checksums.

use std::net::IpAddr;

use posthaste_wire::tcp_option::TcpOptions;

use crate::sys::IcmpError;

/// Length of the link layer header in front of every [`Frame`].
pub const ETHERNET_BYTES: usize = 14;

const PROTOCOL_TCP: u8 = 6;
const PROTOCOL_ICMP: u8 = 1;
const PROTOCOL_ICMPV6: u8 = 58;
const HOP_LIMIT: u8 = 64;
const FLAG_RST: u8 = 0x04;
const FLAG_ACK: u8 = 0x10;
const OPTION_MSS: u8 = 2;
const OPTION_MULTIPATH: u8 = 30;
const MP_JOIN: u8 = 1;

/// A frame and its device: an Ethernet header (zeros on a device without one), an IP header, and at
/// most the payload that the capture has room for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// The device it arrived at, or the device to send it to.
    pub ifindex: u32,
    bytes: Vec<u8>,
}

/// Offsets of the parts of a TCP segment in a frame.
#[derive(Clone, Copy)]
struct Layout {
    ipv4: bool,
    tcp: usize,
    end: usize,
}

impl Frame {
    /// A captured frame. Its first `l2_bytes` (14 or 0) are its link layer header.
    pub fn captured(ifindex: u32, l2_bytes: u8, captured: &[u8]) -> Self {
        let mut bytes = Vec::with_capacity(ETHERNET_BYTES + captured.len());
        if l2_bytes == 0 {
            let ipv4 = captured.first().is_some_and(|first| first >> 4 == 4);
            // So that offsets are the same for every device.
            bytes.extend_from_slice(&[0; 12]);
            bytes.extend_from_slice(if ipv4 { &[0x08, 0x00] } else { &[0x86, 0xdd] });
        }
        bytes.extend_from_slice(captured);
        Self { ifindex, bytes }
    }

    /// The frame as a device takes it.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The options of its TCP header (RFC 9293 §3.1). `None` if the capture is not a whole TCP
    /// header.
    pub fn tcp_options(&self) -> Option<&[u8]> {
        let layout = self.layout()?;
        self.bytes.get(layout.tcp + 20..layout.end)
    }

    /// The maximum segment size that a SYN announces (RFC 9293 §3.7.1).
    pub fn mss(&self) -> Option<u16> {
        let mut options = TcpOptions::new(self.tcp_options()?).map_while(Result::ok);
        let announced = options.find(|option| option.kind == OPTION_MSS)?;
        Some(u16::from_be_bytes(announced.value.try_into().ok()?))
    }

    /// The token of the connection that a SYN joins (RFC 8684 section 3.2).
    pub fn join_token(&self) -> Option<u32> {
        let mut options = TcpOptions::new(self.tcp_options()?).map_while(Result::ok);
        let multipath = options.find(|option| option.kind == OPTION_MULTIPATH)?;
        // Subtype and flags, an address identifier, the token, a random number.
        let [subtype, _, a, b, c, d, _, _, _, _] = *multipath.value else {
            return None;
        };
        (subtype >> 4 == MP_JOIN).then(|| u32::from_be_bytes([a, b, c, d]))
    }

    /// The TTL (IPv4) or hop limit (IPv6) at capture.
    pub fn hop_limit(&self) -> Option<u8> {
        let layout = self.layout()?;
        let at = if layout.ipv4 { 8 } else { 7 };
        self.bytes.get(ETHERNET_BYTES + at).copied()
    }

    /// The same segment without payload and with its checksums complete.
    /// `None` when the capture is not a whole TCP header.
    pub fn completed(&self) -> Option<Self> {
        let layout = self.layout()?;
        // Data in a SYN (RFC 7413) may be captured in part. Without it, its sender sends it again.
        let mut bytes = self.bytes.get(..layout.end)?.to_vec();
        let total = u16::try_from(layout.end - ETHERNET_BYTES).ok()?;
        let ip = ETHERNET_BYTES;
        if layout.ipv4 {
            bytes[ip + 2..ip + 4].copy_from_slice(&total.to_be_bytes());
        } else {
            bytes[ip + 4..ip + 6].copy_from_slice(&(total - 40).to_be_bytes());
        }
        finish_ip(&mut bytes[ip..], layout.ipv4);
        finish_tcp(&mut bytes[ip..], layout.tcp - ip, layout.ipv4);
        Some(Self {
            ifindex: self.ifindex,
            bytes,
        })
    }

    /// The reset that refuses this segment (RFC 9293 §3.10.7.1): for a SYN, as its destination
    /// would send it; for a SYN-ACK, as a host that sent no SYN would. It leaves by the device at
    /// which the segment arrived.
    pub fn reset(&self) -> Option<Self> {
        let layout = self.layout()?;
        let tcp = self.bytes.get(layout.tcp..layout.tcp + 20)?;
        let sequence = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]);
        let mut header = [0_u8; 20];
        header[0..2].copy_from_slice(&tcp[2..4]);
        header[2..4].copy_from_slice(&tcp[0..2]);
        // Data in a SYN is not acknowledged: the reset is acceptable to its sender all the same
        // (RFC 9293 §3.10.7.3).
        if tcp[13] & FLAG_ACK == 0 {
            header[8..12].copy_from_slice(&sequence.wrapping_add(1).to_be_bytes());
            header[13] = FLAG_RST | FLAG_ACK;
        } else {
            header[4..8].copy_from_slice(&tcp[8..12]);
            header[13] = FLAG_RST;
        }
        header[12] = 5 << 4;
        let (source, destination) = self.addresses(layout)?;
        let mut reply = self.reply_header(PROTOCOL_TCP, &destination, &source, header.len())?;
        reply.extend_from_slice(&header);
        let at = reply.len() - header.len() - ETHERNET_BYTES;
        finish_tcp(&mut reply[ETHERNET_BYTES..], at, layout.ipv4);
        Some(Self {
            ifindex: self.ifindex,
            bytes: reply,
        })
    }

    /// The ICMP error `error` about this SYN, addressed to the client, from the same source as the
    /// original error. `None` when the families differ.
    pub fn unreachable(&self, error: IcmpError) -> Option<Self> {
        let layout = self.layout()?;
        let quoted = self.completed()?;
        // Whole, as RFC 4443 §3.1 requires; for ICMP eight bytes of TCP would do (RFC 792).
        let quote = &quoted.bytes[ETHERNET_BYTES..];
        let offender = match error.offender {
            IpAddr::V4(ip) => ip.octets().to_vec(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        };
        let (client, _) = self.addresses(layout)?;
        if offender.len() != client.len() {
            return None;
        }
        let protocol = if layout.ipv4 {
            PROTOCOL_ICMP
        } else {
            PROTOCOL_ICMPV6
        };
        let mut reply = self.reply_header(protocol, &offender, &client, 8 + quote.len())?;
        let at = reply.len();
        reply.extend_from_slice(&[error.kind, error.code, 0, 0, 0, 0, 0, 0]);
        reply.extend_from_slice(quote);
        // Only ICMPv6 covers a pseudo header (RFC 4443 §2.3).
        let pseudo = if layout.ipv4 {
            0
        } else {
            pseudo_header(&offender, &client, protocol, reply.len() - at)
        };
        let sum = checksum(pseudo, &reply[at..]);
        reply[at + 2..at + 4].copy_from_slice(&sum.to_be_bytes());
        Some(Self {
            ifindex: self.ifindex,
            bytes: reply,
        })
    }

    fn layout(&self) -> Option<Layout> {
        let ip = self.bytes.get(ETHERNET_BYTES..)?;
        let (ipv4, header) = match ip.first()? >> 4 {
            4 => (true, usize::from(ip[0] & 0x0f) * 4),
            6 => (false, 40),
            _ => return None,
        };
        let protocol = *ip.get(if ipv4 { 9 } else { 6 })?;
        let tcp = ETHERNET_BYTES + header;
        let data = usize::from(self.bytes.get(tcp + 12)? >> 4) * 4;
        let whole = header >= 20 && data >= 20 && self.bytes.len() >= tcp + data;
        (protocol == PROTOCOL_TCP && whole).then_some(Layout {
            ipv4,
            tcp,
            end: tcp + data,
        })
    }

    fn addresses(&self, layout: Layout) -> Option<(Vec<u8>, Vec<u8>)> {
        let (from, length) = if layout.ipv4 { (12, 4) } else { (8, 16) };
        let both = self.bytes.get(ETHERNET_BYTES + from..)?.get(..2 * length)?;
        let (source, destination) = both.split_at(length);
        Some((source.to_vec(), destination.to_vec()))
    }

    /// Ethernet and IP headers of a packet back to the sender of this frame.
    fn reply_header(
        &self,
        protocol: u8,
        from: &[u8],
        to: &[u8],
        payload: usize,
    ) -> Option<Vec<u8>> {
        let mut bytes = Vec::with_capacity(ETHERNET_BYTES + 40 + payload);
        // Back to the host that sent the frame, which has a route to the source: this node may have
        // none.
        bytes.extend_from_slice(self.bytes.get(6..12)?);
        bytes.extend_from_slice(self.bytes.get(0..6)?);
        bytes.extend_from_slice(self.bytes.get(12..14)?);
        if from.len() == 4 {
            let total = u16::try_from(20 + payload).ok()?.to_be_bytes();
            // Don't fragment, so the identification may be zero (RFC 6864 section 4.1).
            bytes.extend_from_slice(&[0x45, 0, total[0], total[1], 0, 0, 0x40, 0]);
            bytes.extend_from_slice(&[HOP_LIMIT, protocol, 0, 0]);
        } else {
            let length = u16::try_from(payload).ok()?.to_be_bytes();
            bytes.extend_from_slice(&[0x60, 0, 0, 0, length[0], length[1], protocol, HOP_LIMIT]);
        }
        bytes.extend_from_slice(from);
        bytes.extend_from_slice(to);
        finish_ip(&mut bytes[ETHERNET_BYTES..], from.len() == 4);
        Some(bytes)
    }
}

/// Computes the IPv4 header checksum (RFC 791); IPv6 has none.
fn finish_ip(packet: &mut [u8], ipv4: bool) {
    if !ipv4 {
        return;
    }
    let header = usize::from(packet[0] & 0x0f) * 4;
    packet[10..12].fill(0);
    let sum = checksum(0, &packet[..header]);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
}

/// Computes the TCP checksum (RFC 9293 §3.1) of a packet whose TCP header is
/// at `tcp`.
fn finish_tcp(packet: &mut [u8], tcp: usize, ipv4: bool) {
    let length = packet.len() - tcp;
    let addresses = if ipv4 { 12..20 } else { 8..40 };
    let (source, destination) = packet[addresses.clone()].split_at(addresses.len() / 2);
    let pseudo = pseudo_header(source, destination, PROTOCOL_TCP, length);
    packet[tcp + 16..tcp + 18].fill(0);
    let sum = checksum(pseudo, &packet[tcp..]);
    packet[tcp + 16..tcp + 18].copy_from_slice(&sum.to_be_bytes());
}

fn pseudo_header(source: &[u8], destination: &[u8], protocol: u8, length: usize) -> u64 {
    let addresses = sum16(source) + sum16(destination);
    addresses + u64::from(protocol) + length as u64
}

/// The Internet checksum (RFC 1071) of `bytes`, starting from `sum`.
fn checksum(sum: u64, bytes: &[u8]) -> u16 {
    let mut sum = sum + sum16(bytes);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).expect("folded to 16 bits")
}

fn sum16(bytes: &[u8]) -> u64 {
    let words = bytes.chunks(2);
    words
        .map(|word| u64::from(word[0]) << 8 | word.get(1).map_or(0, |low| u64::from(*low)))
        .sum()
}

#[cfg(any(test, feature = "invariants"))]
pub mod invariants;

#[cfg(test)]
mod tests {
    use posthaste_wire::tcp_option::KIND_NOP;

    use super::*;

    const FLAG_SYN: u8 = 0x02;
    const CLIENT_V4: [u8; 4] = [10, 0, 0, 2];
    const SERVER_V4: [u8; 4] = [10, 0, 9, 2];

    /// A SYN with MSS 1400, behind NOPs, with an unfinished checksum.
    fn syn(source: &[u8], destination: &[u8]) -> Frame {
        let mut tcp = vec![0x9c, 0x40, 0, 80, 1, 2, 3, 4, 0, 0, 0, 0, 0x70, FLAG_SYN];
        tcp.extend_from_slice(&[0xff, 0xff, 0xde, 0xad, 0, 0]);
        tcp.extend_from_slice(&[KIND_NOP, KIND_NOP, OPTION_MSS, 4, 0x05, 0x78, KIND_NOP, 0]);
        let start = Frame {
            ifindex: 7,
            bytes: vec![1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 8, 0],
        };
        let mut frame = start
            .reply_header(PROTOCOL_TCP, source, destination, tcp.len())
            .unwrap();
        frame.extend_from_slice(&tcp);
        Frame::captured(7, 14, &frame)
    }

    /// Verifies every checksum of a packet by summing to zero.
    fn assert_sums(frame: &Frame) {
        let packet = &frame.bytes[ETHERNET_BYTES..];
        let ipv4 = packet[0] >> 4 == 4;
        let (header, protocol) = if ipv4 {
            (20, packet[9])
        } else {
            (40, packet[6])
        };
        if ipv4 {
            assert_eq!(checksum(0, &packet[..20]), 0, "IPv4 header");
        }
        let addresses = if ipv4 {
            &packet[12..20]
        } else {
            &packet[8..40]
        };
        let pseudo = sum16(addresses) + u64::from(protocol) + (packet.len() - header) as u64;
        let pseudo = if protocol == PROTOCOL_ICMP { 0 } else { pseudo };
        assert_eq!(checksum(pseudo, &packet[header..]), 0, "payload");
    }

    #[test]
    fn mss_behind_other_options() {
        assert_eq!(syn(&CLIENT_V4, &SERVER_V4).mss(), Some(1400));
    }

    #[test]
    fn hop_limit_both_families() {
        for mut frame in [syn(&CLIENT_V4, &SERVER_V4), syn(&[2; 16], &[3; 16])] {
            assert_eq!(frame.hop_limit(), Some(HOP_LIMIT));
            let at = if frame.bytes[14] >> 4 == 4 { 22 } else { 21 };
            frame.bytes[at] = 7;
            assert_eq!(frame.hop_limit(), Some(7));
        }
    }

    #[test]
    fn a_captured_syn_is_completed() {
        for frame in [syn(&CLIENT_V4, &SERVER_V4), syn(&[2; 16], &[3; 16])] {
            assert_sums(&frame.completed().unwrap());
        }
    }

    #[test]
    fn payload_cut_from_syn() {
        let mut with_data = syn(&CLIENT_V4, &SERVER_V4);
        let bare = with_data.completed().unwrap();
        with_data.bytes.extend_from_slice(b"data");
        assert_eq!(with_data.completed().unwrap(), bare);
    }

    #[test]
    fn reset_for_refused_syn() {
        let reset = syn(&CLIENT_V4, &SERVER_V4).reset().unwrap();
        assert_sums(&reset);
        let bytes = reset.as_bytes();
        assert_eq!(bytes[..6], [1; 6], "to whom it came from");
        assert_eq!(bytes[26..30], SERVER_V4);
        assert_eq!(bytes[30..34], CLIENT_V4);
        assert_eq!(bytes[34..38], [0, 80, 0x9c, 0x40]);
        assert_eq!(bytes[42..46], [1, 2, 3, 5], "acknowledges the SYN");
        assert_eq!(bytes[47], FLAG_RST | FLAG_ACK);
    }

    #[test]
    fn reset_for_aborted_syn_ack() {
        let mut syn_ack = syn(&[4; 16], &[5; 16]);
        syn_ack.bytes[54 + 13] = FLAG_SYN | FLAG_ACK;
        syn_ack.bytes[54 + 8..54 + 12].copy_from_slice(&[9, 9, 9, 9]);
        let reset = syn_ack.reset().unwrap();
        assert_sums(&reset);
        assert_eq!(reset.bytes[54 + 4..54 + 8], [9, 9, 9, 9]);
        assert_eq!(reset.bytes[54 + 13], FLAG_RST);
    }

    #[test]
    fn icmp_quotes_syn() {
        let v4 = IcmpError {
            offender: "10.0.5.1".parse().unwrap(),
            kind: 3,
            code: 13,
        };
        let reply = syn(&CLIENT_V4, &SERVER_V4).unreachable(v4).unwrap();
        assert_sums(&reply);
        assert_eq!(reply.bytes[26..30], [10, 0, 5, 1]);
        assert_eq!(reply.bytes[34..36], [3, 13]);
        let v6 = IcmpError {
            offender: "fd00::1".parse().unwrap(),
            kind: 1,
            code: 1,
        };
        assert_sums(&syn(&[2; 16], &[3; 16]).unreachable(v6).unwrap());
        assert_eq!(
            syn(&[2; 16], &[3; 16]).unreachable(v4),
            None,
            "families differ"
        );
    }

    #[test]
    fn no_truncation_panics() {
        let whole = syn(&CLIENT_V4, &SERVER_V4);
        for length in 0..whole.bytes.len() {
            let cut = Frame {
                ifindex: 1,
                bytes: whole.bytes[..length].to_vec(),
            };
            let _ = (cut.mss(), cut.completed(), cut.reset());
        }
    }
}
