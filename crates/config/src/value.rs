// SPDX-License-Identifier: Apache-2.0
//! Readings of single values: pure functions from TOML values to meanings.
//!
//! Each returns what it expected, as the end of a sentence, when the value
//! does not fit.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use posthaste_relay::accept_mode::AcceptMode;
use posthaste_relay::policy::{Action, Bypass, DataPath, Multipath, Prefix, SourceAddress};
use toml::Value;

use super::keys::Key;
use crate::groups::Group;

mod nodes;

pub(super) use nodes::*;

/// What a value of one type means, within what its key accepts.
pub(super) trait Meaning: Sized {
    fn of(value: &Value, key: &Key) -> Reading<Self>;
}

impl Meaning for u32 {
    fn of(value: &Value, key: &Key) -> Reading<Self> {
        key.accepted.number(value)
    }
}

impl Meaning for Option<u32> {
    fn of(value: &Value, key: &Key) -> Reading<Self> {
        key.accepted.number_or(value)
    }
}

impl Meaning for Duration {
    fn of(value: &Value, key: &Key) -> Reading<Self> {
        key.accepted.duration(value)
    }
}

impl Meaning for &'static str {
    fn of(value: &Value, key: &Key) -> Reading<Self> {
        key.accepted.word(value)
    }
}

impl Meaning for bool {
    fn of(value: &Value, _: &Key) -> Reading<Self> {
        value
            .as_bool()
            .ok_or_else(|| "expected true or false".into())
    }
}

impl Meaning for AcceptMode {
    fn of(value: &Value, key: &Key) -> Reading<Self> {
        let word = key.accepted.word(value)?;
        Ok(Self::named(word).expect("the table has the names of modes"))
    }
}

/// A value with a word in the configuration.
pub trait Word {
    /// That word.
    fn word(self) -> &'static str;
}

/// Gives the values of a type their words, for reading and for showing.
macro_rules! words {
    ($type:ident: $($word:literal = $value:ident),*) => {
        impl Meaning for $type {
            fn of(value: &Value, key: &Key) -> Reading<Self> {
                match key.accepted.word(value)? {
                    $($word => Ok(Self::$value),)*
                    other => unreachable!("{other} is in the table of keys"),
                }
            }
        }

        impl Word for $type {
            fn word(self) -> &'static str {
                match self {
                    $(Self::$value => $word,)*
                }
            }
        }
    };
}

words!(Action: "relay" = Relay, "forward" = Forward, "reject" = Reject);
words!(Bypass: "off" = Off, "auto" = Auto, "always" = Always);
words!(DataPath: "socket" = Socket, "packet" = Packet, "auto" = Auto);
words!(Multipath: "off" = Off, "convert" = Convert, "pass" = Pass);
words!(SourceAddress: "auto" = Auto, "client" = Client, "node" = Node);

/// A meaning, or the accepted form.
pub(super) type Reading<T> = Result<T, String>;

/// Longest name of a network interface (`IFNAMSIZ` less the NUL).
const INTERFACE_NAME_BYTES_MAX: usize = 15;
/// Bytes per second: less would make a keep-alive wait.
const RATE_LEAST: u32 = 125_000;

/// A whole number within bounds.
pub(super) fn number(value: &Value, bounds: RangeInclusive<u32>) -> Reading<u32> {
    // TOML integers are signed and have 64 bits: a cast could accept a wrong one.
    let fits = value.as_integer().and_then(|n| u32::try_from(n).ok());
    fits.filter(|n| bounds.contains(n)).ok_or_else(|| {
        format!(
            "expected a whole number from {} to {}",
            bounds.start(),
            bounds.end()
        )
    })
}

/// A whole number up to the value of another key.
pub(super) fn at_most(value: &Value, other: &str, most: u32) -> Reading<u32> {
    let form = |_| format!("expected a whole number, at most {other}, which is {most}");
    number(value, 0..=most).map_err(form)
}

/// A duration such as `"30s"` within bounds.
pub(super) fn duration(value: &Value, bounds: RangeInclusive<Duration>) -> Reading<Duration> {
    let form = "expected a duration such as \"500ms\", \"30s\", \"5m\", \"1h\" or \"1d\"";
    let length = value.as_str().and_then(parse_duration).ok_or(form)?;
    if bounds.contains(&length) {
        return Ok(length);
    }
    let (least, most) = (show_duration(*bounds.start()), show_duration(*bounds.end()));
    Err(format!("expected a duration from {least} to {most}"))
}

fn parse_duration(text: &str) -> Option<Duration> {
    let (count, unit) = split_unit(text)?;
    let unit_ms = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    // Checked: `count` may have 64 bits, and the bounds are compared only afterwards.
    count.checked_mul(unit_ms).map(Duration::from_millis)
}

/// The shortest text that [`duration`] reads as the same length.
pub(super) fn show_duration(length: Duration) -> String {
    let ms = length.as_millis();
    let units = [
        ("d", 86_400_000),
        ("h", 3_600_000),
        ("m", 60_000),
        ("s", 1000),
    ];
    let whole = units
        .into_iter()
        // 0 is a multiple of every unit, and would be shown in days.
        .find(|(_, unit_ms)| ms != 0 && ms.is_multiple_of(*unit_ms));
    match whole {
        Some((unit, unit_ms)) => format!("{}{unit}", ms / unit_ms),
        None if ms == 0 => "0s".into(),
        None => format!("{ms}ms"),
    }
}

/// A number of bytes: `65536` or `"64KiB"`, within bounds.
pub(super) fn size(value: &Value, bounds: RangeInclusive<u32>) -> Reading<u32> {
    // A string needs a unit: of "64" it is not clear whether bytes or KiB are meant.
    let bytes = match value {
        Value::Integer(n) => u64::try_from(*n).ok(),
        Value::String(text) => parse_size(text),
        _ => None,
    };
    let bytes =
        bytes.ok_or("expected bytes as a number, or a size such as \"64KiB\" or \"1MiB\"")?;
    let fits = u32::try_from(bytes)
        .ok()
        .filter(|bytes| bounds.contains(bytes));
    let (least, most) = (show_size(*bounds.start()), show_size(*bounds.end()));
    fits.ok_or_else(|| format!("expected a size from {least} to {most}"))
}

fn parse_size(text: &str) -> Option<u64> {
    let (count, unit) = split_unit(text)?;
    let shift = match unit {
        "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        _ => return None,
    };
    count.checked_mul(1 << shift)
}

/// Bytes per second: `"100Mbit/s"`.
pub(super) fn rate(value: &Value) -> Reading<u32> {
    let bits = value.as_str().and_then(parse_bit_rate);
    let bytes = bits.and_then(|bits| u32::try_from(bits / 8).ok());
    let bytes = bytes.filter(|bytes| *bytes >= RATE_LEAST);
    bytes.ok_or_else(|| "expected a rate from \"1Mbit/s\" to \"34Gbit/s\"".into())
}

fn parse_bit_rate(text: &str) -> Option<u64> {
    let (count, unit) = split_unit(text)?;
    let unit = match unit {
        "kbit/s" => 1000,
        "Mbit/s" => 1_000_000,
        "Gbit/s" => 1_000_000_000,
        _ => return None,
    };
    count.checked_mul(unit)
}

/// The shortest text that [`rate`] reads as the same number of bytes per second.
pub(super) fn show_rate(bytes: u32) -> String {
    let bits = u64::from(bytes) * 8;
    let mut units = [("Gbit/s", 1_000_000_000), ("Mbit/s", 1_000_000)].into_iter();
    let whole = units.find(|(_, unit)| bits.is_multiple_of(*unit));
    let (unit, count) = whole.unwrap_or(("kbit/s", 1000));
    format!("{}{unit}", bits / count)
}

/// How many bytes transfers have.
pub fn transfer_size(value: &Value) -> Reading<u32> {
    size(value, 1..=1 << 31)
}

/// The shortest text that [`size`] reads as the same number of bytes.
pub(super) fn show_size(bytes: u32) -> String {
    let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let whole = units
        .into_iter()
        .find(|(_, shift)| bytes != 0 && bytes.trailing_zeros() >= *shift);
    whole.map_or_else(
        || format!("{bytes}B"),
        |(unit, shift)| format!("{}{unit}", bytes >> shift),
    )
}

fn split_unit(text: &str) -> Option<(u64, &str)> {
    // Neither a sign nor a fraction: all behind the first digits must be a unit.
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let (count, unit) = text.split_at(digits);
    Some((count.parse().ok()?, unit.trim_start()))
}

/// A mark of exactly one bit.
pub(super) fn mark(value: &Value) -> Reading<u32> {
    let bits = value.as_integer().and_then(|n| u32::try_from(n).ok());
    // One bit, so that the other bits of a mark stay free for other programs.
    bits.filter(|bits| bits.is_power_of_two()).ok_or_else(|| {
        "expected a number with exactly one of 32 bits set, such as 0x10000000".into()
    })
}

/// A routing table number that no other use has by convention.
pub(super) fn table(value: &Value) -> Reading<u32> {
    let form = "expected a table number from 1 to 4294967295 other than 253, 254 and 255 (default, main, local)";
    // 0 is RT_TABLE_UNSPEC, for which the kernel takes the main table.
    let id = number(value, 1..=u32::MAX).map_err(|_| form)?;
    if (253..=255).contains(&id) {
        Err(form.into())
    } else {
        Ok(id)
    }
}

/// The name of a network interface other than `lo`.
pub(super) fn interface(value: &Value) -> Reading<String> {
    let name = value.as_str().unwrap_or_default();
    if name == "lo" {
        return Err(
            "expected an interface that carries forwarded packets; \"lo\" never does".into(),
        );
    }
    // As the kernel's dev_valid_name: no slash, no white space, neither "." nor "..".
    let length_fits = (1..=INTERFACE_NAME_BYTES_MAX).contains(&name.len());
    let allowed = |c: char| c.is_ascii_graphic() && c != '/';
    if length_fits && name != "." && name != ".." && name.chars().all(allowed) {
        return Ok(name.into());
    }
    Err("expected an interface name of 1 to 15 characters, such as \"eth0\"".into())
}

/// An absolute path that fits a unix socket address.
pub(super) fn socket_path(value: &Value) -> Reading<PathBuf> {
    let text = value.as_str().unwrap_or_default();
    // sun_path holds 108 bytes with the NUL.
    if text.starts_with('/') && !text.ends_with('/') && text.len() < 108 {
        return Ok(text.into());
    }
    Err(
        "expected an absolute path of at most 107 bytes, such as \"/run/posthaste/admin.sock\""
            .into(),
    )
}

/// A group of this host by its name, for which `find` has the number, or any by its number.
pub(super) fn group(value: &Value, find: fn(&str) -> Option<u32>) -> Reading<Group> {
    let form = "expected the name of a group of this host (/etc/group), or the number of a group";
    if let Some(number) = value.as_integer() {
        // All ones mean "no change" to chown(2).
        let id = u32::try_from(number).ok().filter(|id| *id != u32::MAX);
        return Ok(Group {
            id: id.ok_or(form)?,
            name: None,
        });
    }
    let name = value.as_str().unwrap_or_default();
    Ok(Group {
        id: find(name).ok_or(form)?,
        name: Some(name.into()),
    })
}

/// An address and port to listen on, or `"off"`.
pub(super) fn listen(value: &Value) -> Reading<Option<SocketAddr>> {
    let text = value.as_str().unwrap_or_default();
    if text == "off" {
        return Ok(None);
    }
    // With port 0 the kernel would choose one, which no scraper can have in its configuration.
    let address = text
        .parse::<SocketAddr>()
        .ok()
        .filter(|address| address.port() != 0);
    let form =
        "expected an address and port such as \"127.0.0.1:9464\" or \"[::1]:9464\", or \"off\"";
    address.map(Some).ok_or_else(|| match has_name(text) {
        true => format!("{form}: names are not looked up"),
        false => form.into(),
    })
}

/// The name of a rule, a peer or a chain.
pub(super) fn name(value: &Value) -> Reading<String> {
    let name = value.as_str().unwrap_or_default();
    // Names are labels of metrics and words of log lines, which need no quotes then.
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if (1..=64).contains(&name.len()) && name.chars().all(allowed) {
        return Ok(name.into());
    }
    Err("expected a name of 1 to 64 letters, digits, '-', '_' or '.'".into())
}

/// `a, b or c`.
pub(super) fn one_of(names: &[String]) -> String {
    match names {
        [before @ .., last] if !before.is_empty() => format!("{} or {last}", before.join(", ")),
        _ => names.concat(),
    }
}

/// A prefix such as `"192.0.2.0/24"`, or one address.
pub(super) fn prefix(value: &Value) -> Reading<Prefix> {
    let form = "expected a prefix such as \"192.0.2.0/24\" or \"2001:db8::/32\"";
    let text = value.as_str().ok_or(form)?;
    let (address, bits) = text
        .split_once('/')
        .map_or((text, None), |(a, b)| (a, Some(b)));
    let ip: IpAddr = address.parse().map_err(|_| form)?;
    let most: u8 = if ip.is_ipv4() { 32 } else { 128 };
    let bits = match bits {
        None => most,
        Some(bits) => bits
            .parse()
            .ok()
            .filter(|bits| *bits <= most)
            .ok_or_else(|| format!("expected a prefix length from 0 to {most} after the '/'"))?,
    };
    // Refused, not cut: bits behind the prefix may show that its length is mistyped.
    Prefix::new(ip, bits).ok_or_else(|| {
        let network = network(ip, bits);
        format!("has address bits set behind its {bits} prefix bits: expected \"{network}/{bits}\", or \"{ip}/{most}\" for the one address")
    })
}

/// The same, of text.
pub fn prefix_text(text: &str) -> Reading<Prefix> {
    prefix(&Value::String(text.to_owned()))
}

/// `ip` with every bit behind the first `bits` cleared.
fn network(ip: IpAddr, bits: u8) -> IpAddr {
    match ip {
        IpAddr::V4(v4) => {
            // A shift by all bits, of the prefix length 0, overflows; the mask is 0 then.
            let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
            IpAddr::V4((v4.to_bits() & mask).into())
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
            IpAddr::V6((v6.to_bits() & mask).into())
        }
    }
}

/// A port, or a range of ports such as `"8000-8999"`.
pub(super) fn ports(value: &Value) -> Reading<RangeInclusive<u16>> {
    let form = "expected a port from 1 to 65535, or a range such as \"8000-8999\"";
    // Port 0 is reserved (RFC 6335 §6) and in no packet of a flow.
    let port = |text: &str| text.trim().parse::<u16>().ok().filter(|port| *port != 0);
    let range = match value {
        Value::Integer(n) => u16::try_from(*n)
            .ok()
            .filter(|port| *port != 0)
            .map(|port| (port, port)),
        Value::String(text) => match text.split_once('-') {
            Some((first, last)) => port(first).zip(port(last)),
            None => port(text).map(|port| (port, port)),
        },
        _ => None,
    };
    match range {
        Some((first, last)) if first > last => Err(format!(
            "is empty: expected the lower port first, \"{last}-{first}\""
        )),
        Some((first, last)) => Ok(first..=last),
        None => Err(form.into()),
    }
}
