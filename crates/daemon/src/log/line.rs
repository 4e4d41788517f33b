// SPDX-License-Identifier: Apache-2.0
//! The text of a line: logfmt, times in UTC.

use std::fmt::{self, Display, Write as _};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use posthaste_relay::control::Ended;

use super::Level;

/// The line of one ended relay.
pub(super) fn write_ended(text: &mut String, ended: &Ended) {
    write_head(text, Level::Info, "relay");
    let _ = writeln!(
        text,
        " id={} rule={} accept={} client={} server={} code={} outcome={} bytes_up={} bytes_down={} \
         accept_ms={} connect_ms={} first_byte_ms={} total_ms={:.3}",
        ended.id,
        Value(&ended.rule),
        ended.accept.name(),
        ended.flow.client(),
        ended.flow.server(),
        ended.outcome.code(),
        ended.outcome.label(),
        ended.bytes_up,
        ended.bytes_down,
        Millis(ended.accept_us),
        Millis(ended.connect_us),
        Millis(ended.first_byte_us),
        ended.total.as_secs_f64() * 1000.0,
    );
}

/// The beginning of every line.
pub(super) fn write_head(text: &mut String, level: Level, message: &str) {
    // A clock before 1970 is shown as 1970: it must not cost the line.
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let _ = write!(
        text,
        "time={} level={} msg={}",
        Timestamp(now),
        level.word(),
        Value(message)
    );
}

/// A phase in milliseconds, `-` when it was not reached.
struct Millis(Option<u32>);

impl Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(us) => write!(f, "{}.{:03}", us / 1000, us % 1000),
            None => f.write_str("-"),
        }
    }
}

/// Bound on the bytes of a value: remote hosts choose some values.
const VALUE_BYTES_MAX: usize = 1024;

/// A logfmt value: quoted unless it has only plain characters, and truncated if too long.
pub(super) struct Value<'a>(pub(super) &'a str);

impl Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.len() > VALUE_BYTES_MAX {
            // A cut within a character of several bytes would panic.
            let end = self.0.floor_char_boundary(VALUE_BYTES_MAX);
            let (kept, cut) = self.0.split_at(end);
            let cut = format!("{kept}... ({} bytes more)", cut.len());
            return write!(f, "{cut:?}");
        }
        // Anything else is quoted: a remote host must not forge a key or a line.
        let plain = |c: char| c.is_ascii_graphic() && !matches!(c, '"' | '=' | '\\');
        if !self.0.is_empty() && self.0.chars().all(plain) {
            return f.write_str(self.0);
        }
        // Rust's string form escapes quotes, backslashes and control characters.
        write!(f, "{:?}", self.0)
    }
}

/// Time since 1970 as RFC 3339 in UTC with milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct Timestamp(pub Duration);

impl Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        let (year, month, day) = civil(seconds / 86_400);
        let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
        let millis = self.0.subsec_millis();
        write!(
            f,
            "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z"
        )
    }
}

/// Year, month and day of a day counted from 1 January 1970, by the Gregorian
/// calendar. Years are counted from March, so that a leap day ends its year.
fn civil(days: u64) -> (u64, u64, u64) {
    // 719,468 days lie between 1 March of the year 0 and 1 January 1970;
    // an era is the 146,097 days after which the calendar repeats.
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 {
        from_march + 3
    } else {
        from_march - 9
    };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounded_quoted_value() {
        assert_eq!(Value("plain").to_string(), "plain");
        assert_eq!(Value("a b\n\u{1b}[2J").to_string(), r#""a b\n\u{1b}[2J""#);
        let long = "\u{e9}".repeat(VALUE_BYTES_MAX);
        let value = Value(&long).to_string();
        assert!(value.ends_with("... (1024 bytes more)\""), "{value}");
        assert!(value.len() < VALUE_BYTES_MAX + 40);
    }

    #[test]
    fn dates_around_leap_days() {
        for (seconds, date) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399, "2000-02-28T23:59:59.000Z"),
            (951_868_799, "2000-02-29T23:59:59.000Z"),
            (1_795_177_884, "2026-11-20T12:31:24.000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(Timestamp(Duration::from_secs(seconds)).to_string(), date);
        }
    }
}
