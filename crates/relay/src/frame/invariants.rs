// SPDX-License-Identifier: Apache-2.0
//! Invariants of every captured frame, whatever its content. For the tests and for fuzzing; not
//! part of the product.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{
    ETHERNET_BYTES, FLAG_ACK, FLAG_RST, Frame, PROTOCOL_ICMP, PROTOCOL_ICMPV6, PROTOCOL_TCP,
    checksum, sum16,
};
use crate::sys::IcmpError;

/// Makes a frame of random bytes: the first byte selects the kind of device, the rest is the
/// capture.
pub fn picked(bytes: &[u8]) -> Frame {
    let (&kind, captured) = bytes.split_first().unwrap_or((&0, &[]));
    let l2_bytes = if kind & 1 == 0 { 0 } else { 14 };
    Frame::captured(7, l2_bytes, captured)
}

/// Checks everything that is derived from a frame.
///
/// # Panics
/// When an invariant does not hold.
pub fn check(frame: &Frame) {
    let mss = frame.mss();
    let completed = frame.completed();
    assert!(mss.is_none() || completed.is_some());
    let whole = completed.is_some();
    if let Some(completed) = completed {
        check_sums(&completed);
        assert!(completed.bytes.len() <= frame.bytes.len());
        assert_eq!(completed.mss(), mss);
        assert_eq!(completed.completed().as_ref(), Some(&completed));
    }
    assert_eq!(check_reset(frame), whole);
    let v4 = check_unreachable(frame, Ipv4Addr::new(192, 0, 2, 1).into());
    let v6 = check_unreachable(frame, Ipv6Addr::LOCALHOST.into());
    assert_eq!(v4 || v6, whole);
    assert!(!(v4 && v6), "a frame is of one family");
}

/// Returns whether there is a reset.
fn check_reset(frame: &Frame) -> bool {
    let Some(reset) = frame.reset() else {
        return false;
    };
    check_sums(&reset);
    let (layout, of) = (reset.layout(), frame.layout());
    let (layout, of) = (layout.expect("a segment"), of.expect("a segment"));
    let (tcp, answered) = (&reset.bytes[layout.tcp..], &frame.bytes[of.tcp..]);
    assert_eq!(tcp.len(), 20, "no options, no data");
    assert_eq!(tcp[..2], answered[2..4]);
    assert_eq!(tcp[2..4], answered[..2]);
    let both = (reset.addresses(layout), frame.addresses(of));
    let ((from, to), (client, server)) = (both.0.expect("addresses"), both.1.expect("addresses"));
    assert_eq!((from, to), (server, client));
    assert_eq!(tcp[13] & FLAG_RST, FLAG_RST);
    // RFC 9293 §3.10.7.1: the reset has an ACK exactly when the segment has none.
    assert_ne!(tcp[13] & FLAG_ACK, answered[13] & FLAG_ACK);
    true
}

/// Returns whether an error can come from this offender.
fn check_unreachable(frame: &Frame, offender: IpAddr) -> bool {
    let error = IcmpError {
        offender,
        kind: if offender.is_ipv4() { 3 } else { 1 },
        code: 1,
    };
    let Some(error) = frame.unreachable(error) else {
        return false;
    };
    check_sums(&error);
    let ip = if offender.is_ipv4() { 20 } else { 40 };
    let quoted = &error.bytes[ETHERNET_BYTES + ip + 8..];
    let completed = frame.completed().expect("it is quoted");
    assert_eq!(quoted, &completed.bytes[ETHERNET_BYTES..]);
    true
}

/// Checks lengths, and checks that each checksum sums to zero.
fn check_sums(frame: &Frame) {
    let packet = &frame.bytes[ETHERNET_BYTES..];
    let number = |at: usize| u16::from_be_bytes([packet[at], packet[at + 1]]);
    let (header, length, protocol, addresses) = if packet[0] >> 4 == 4 {
        let header = usize::from(packet[0] & 0x0f) * 4;
        assert_eq!(checksum(0, &packet[..header]), 0, "IPv4 header");
        (header, number(2), packet[9], 12..20)
    } else {
        (40, 40 + number(4), packet[6], 8..40)
    };
    assert_eq!(usize::from(length), packet.len(), "length");
    let payload = &packet[header..];
    let pseudo = sum16(&packet[addresses]) + u64::from(protocol) + payload.len() as u64;
    let pseudo = match protocol {
        PROTOCOL_TCP | PROTOCOL_ICMPV6 => pseudo,
        PROTOCOL_ICMP => 0,
        _ => panic!("protocol {protocol}"),
    };
    assert_eq!(checksum(pseudo, payload), 0, "payload");
}

#[cfg(test)]
mod tests {
    use super::*;
    use posthaste_testkit::{Rng, simulate};

    /// The redirect program captures no more than this.
    const CAPTURED_MAX: usize = 128;

    #[test]
    fn they_hold_for_noise() {
        simulate(20_000, |mut rng| check(&picked(&noise(&mut rng))));
    }

    #[test]
    fn invariants_of_random_segments() {
        let mut segments = 0;
        simulate(50_000, |mut rng| {
            let frame = picked(&resembling(&mut rng));
            segments += u32::from(frame.completed().is_some());
            check(&frame);
        });
        assert!(segments > 10_000, "{segments} segments are too few");
    }

    fn noise(rng: &mut Rng) -> Vec<u8> {
        let length = rng.below(CAPTURED_MAX + 2);
        (0..length).map(|_| rng.next().to_be_bytes()[0]).collect()
    }

    /// Random bytes with the fields set that decide whether a frame is a segment, each valid most
    /// of the time.
    fn resembling(rng: &mut Rng) -> Vec<u8> {
        let mut bytes = noise(rng);
        bytes.resize(1 + CAPTURED_MAX, 0);
        let ipv4 = rng.once_in(2);
        let words = if rng.once_in(4) { rng.below(16) } else { 5 };
        let ip = if bytes[0] & 1 == 0 { 1 } else { 15 };
        let tcp = ip + if ipv4 { words * 4 } else { 40 };
        let data = if rng.once_in(4) {
            rng.below(16)
        } else {
            5 + rng.below(11)
        };
        let (header, protocol) = if ipv4 { (0x40, 9) } else { (0x60, 6) };
        let nibble = |number: usize| u8::try_from(number).expect("below 16");
        let mut set = |at: usize, value: u8| {
            if let Some(byte) = bytes.get_mut(at)
                && !rng.once_in(20)
            {
                *byte = value;
            }
        };
        set(ip, header | nibble(words));
        set(ip + protocol, PROTOCOL_TCP);
        set(tcp + 12, nibble(data) << 4);
        let whole = bytes.len();
        bytes.truncate(if rng.once_in(4) {
            rng.below(whole) + 1
        } else {
            whole
        });
        bytes
    }
}
