// SPDX-License-Identifier: Apache-2.0
//! Timestamps of STAMP, and how good they are (RFC 8762 §4.2.1).

use std::time::Duration;

/// Seconds from 1900, where NTP begins, to 1970.
const NTP_TO_UNIX: u64 = 2_208_988_800;
/// Seconds of an era of NTP; the second one begins in February 2036.
const ERA: u64 = 1 << 32;
const NANOS: u64 = 1_000_000_000;

/// How the 64 bits of a timestamp are to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Seconds since 1900 and their fraction, 32 bits each (RFC 5905 §6). What
    /// we send.
    Ntp,
    /// Seconds since 1970 and nanoseconds, 32 bits each: the truncated format
    /// of PTPv2 (RFC 8186 §2.1), which counts leap seconds. We read it.
    Ptp,
}

/// A timestamp as it is sent. What it means depends on the [`Format`] that
/// stands beside it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// From the time since 1970, in the format of NTP. Exact to a quarter of a
    /// nanosecond.
    pub fn from_unix(time: Duration) -> Self {
        // Eras wrap around, as they are meant to.
        let seconds = time.as_secs().wrapping_add(NTP_TO_UNIX) % ERA;
        // Rounded up, so that reading it back gives the same nanosecond.
        let fraction = (u64::from(time.subsec_nanos()) << 32).div_ceil(NANOS);
        Self((seconds << 32) + fraction)
    }

    /// The time since 1970, by a sender whose clock is right to 68 years.
    pub fn to_unix(self, format: Format) -> Duration {
        let (seconds, low) = (self.0 >> 32, self.0 & (ERA - 1));
        match format {
            Format::Ptp => Duration::new(seconds, 0) + Duration::from_nanos(low),
            Format::Ntp => {
                // What lies before 1970 belongs to the next era.
                let era = if seconds < NTP_TO_UNIX { ERA } else { 0 };
                Duration::new(seconds + era - NTP_TO_UNIX, 0)
                    + Duration::from_nanos((low * NANOS) >> 32)
            }
        }
    }

    /// How long after `earlier` this was; nothing when it was before. Both are
    /// of one clock, so neither its error nor an era that ends matters. Of two
    /// that are half an era of NTP apart, 68 years, neither was after the other.
    pub fn since(self, earlier: Self, format: Format) -> Option<Duration> {
        match format {
            Format::Ptp => self.to_unix(format).checked_sub(earlier.to_unix(format)),
            Format::Ntp => {
                let elapsed = self.0.wrapping_sub(earlier.0);
                // The upper half are negative numbers.
                (elapsed >> 63 == 0).then(|| {
                    let fraction = (elapsed & (ERA - 1)) * NANOS;
                    Duration::new(elapsed >> 32, 0) + Duration::from_nanos(fraction >> 32)
                })
            }
        }
    }
}

/// How good a timestamp is, as its maker reports (RFC 4656 §4.1.2): the time is
/// right to `multiplier * 2^(scale - 32)` seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorEstimate {
    /// The clock is kept in step with UTC from outside.
    pub synchronized: bool,
    /// How the timestamps beside it are to be read.
    pub format: Format,
    /// 0 to 63.
    pub scale: u8,
    /// Not 0.
    pub multiplier: u8,
}

impl ErrorEstimate {
    /// What we send: NTP's format, nothing claimed of the clock, and the
    /// microsecond that a packet spends between its timestamp and the wire.
    pub const OURS: Self = Self {
        synchronized: false,
        format: Format::Ntp,
        scale: 12,
        multiplier: 1,
    };

    pub(super) fn to_bits(self) -> u16 {
        let format = u16::from(self.format == Format::Ptp);
        u16::from(self.synchronized) << 15
            | format << 14
            // The scale has 6 bits; a seventh would be the format's.
            | u16::from(self.scale & 63) << 8
            | u16::from(self.multiplier)
    }

    /// Nothing for a multiplier of 0, which makes a packet corrupt (RFC 4656
    /// §4.1.2).
    pub(super) fn from_bits(bits: u16) -> Option<Self> {
        let [high, multiplier] = bits.to_be_bytes();
        (multiplier != 0).then_some(Self {
            synchronized: high & 0x80 != 0,
            format: if high & 0x40 == 0 {
                Format::Ntp
            } else {
                Format::Ptp
            },
            scale: high & 63,
            multiplier,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamp_round_trip() {
        for seconds in [
            0,
            1,
            1_700_000_000,
            2_085_978_495,
            2_085_978_496,
            4_000_000_000,
        ] {
            for nanos in [0, 1, 2, 499_999_999, 500_000_000, 999_999_998, 999_999_999] {
                let time = Duration::new(seconds, nanos);
                let read = Timestamp::from_unix(time).to_unix(Format::Ntp);
                assert_eq!(read, time);
            }
        }
    }

    #[test]
    fn ntp_and_ptp_epochs() {
        let time = Duration::new(1, 500_000_000);
        assert_eq!(Timestamp::from_unix(time).0, 0x83aa_7e81_8000_0000);
        let ptp = Timestamp(0x0000_0001_1dcd_6500);
        assert_eq!(ptp.to_unix(Format::Ptp), time);
    }

    #[test]
    fn difference_across_eras() {
        let before = Timestamp::from_unix(Duration::new(2_085_978_495, 900_000_000));
        let after = Timestamp::from_unix(Duration::new(2_085_978_496, 100_000_000));
        assert!(after.0 < before.0, "they are in two eras");
        let elapsed = after.since(before, Format::Ntp).unwrap();
        assert!(elapsed.abs_diff(Duration::from_millis(200)) <= Duration::from_nanos(1));
        assert_eq!(before.since(after, Format::Ntp), None);
        let [early, late] = [7, 9].map(|seconds| Timestamp(seconds << 32));
        assert_eq!(late.since(early, Format::Ptp), Some(Duration::from_secs(2)));
        assert_eq!(early.since(late, Format::Ptp), None);
        let (one, other) = (Timestamp(1), Timestamp(1 | 1 << 63));
        assert_eq!(one.since(other, Format::Ntp), None, "half an era");
        assert_eq!(other.since(one, Format::Ntp), None, "half an era");
    }

    #[test]
    fn error_estimate_round_trip() {
        for bits in [0x0c01, 0x8001, 0x4001, 0x3fff, 0xffff] {
            assert_eq!(ErrorEstimate::from_bits(bits).unwrap().to_bits(), bits);
        }
        assert_eq!(ErrorEstimate::OURS.to_bits(), 0x0c01);
        assert_eq!(ErrorEstimate::from_bits(0xff00), None);
    }
}
