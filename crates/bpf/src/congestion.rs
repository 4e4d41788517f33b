// SPDX-License-Identifier: Apache-2.0
//! Registers the congestion control of hops (`struct tcp_congestion_ops`) with the kernel.
//!
//! The name is the process's own: the kernel has one list of them for all network namespaces, and a
//! node must not end with the process of another. It lasts as long as the link is open; connections
//! that use it keep it until they end.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use posthaste_relay::flow::mapped;
use posthaste_relay::sys::random;

use crate::error::Error;
use crate::kernel_types::{Field, KernelTypes, Structure};
use crate::layout::{self, bytes};
use crate::object::{Map, Program};
use crate::objects::congestion::{self, map, program};
use crate::sys::{self, MapLayout};

/// `BPF_MAP_TYPE_STRUCT_OPS`; `BPF_F_LINK` (Linux 6.4); `BPF_STRUCT_OPS`
const STRUCT_OPS_MAP: u32 = 26;
const LINKED: u32 = 1 << 13;
const STRUCT_OPS: u32 = 44;
/// `TCP_CONG_NON_RESTRICTED`: workers have no capabilities.
const NON_RESTRICTED: u32 = 1;
/// `TCP_CA_NAME_MAX`
const NAME_BYTES: usize = 16;
/// How many names are tried: of a million, few are taken.
const NAMES_MAX: u32 = 8;
/// The structure of the kernel, and that which user space fills in.
const OPERATIONS: &str = "tcp_congestion_ops";
const VALUE: &str = "bpf_struct_ops_tcp_congestion_ops";

/// A congestion control in the kernel.
#[derive(Debug)]
pub struct Congestion {
    name: String,
    limits: Arc<Map>,
    _map: OwnedFd,
    _link: OwnedFd,
}

impl Congestion {
    /// Loads the programs and registers them. Needs Linux 6.4 with type information.
    ///
    /// # Errors
    /// [`Error::KernelTypes`], [`Error::Load`], [`Error::Map`], [`Error::Register`].
    pub fn register() -> Result<Self, Error> {
        let types = KernelTypes::of_kernel()?;
        let operations = types.structure(OPERATIONS)?;
        let maps = (0..congestion::OBJECT.maps.len()).map(|map| congestion::OBJECT.make(map, None));
        let maps: Vec<_> = maps.collect::<Result<_, _>>()?;
        let programs = load(&types, &operations, &maps)?;
        let value = types.structure(VALUE)?;
        let (name, (map, link)) = under_free_name(|name| {
            register(&value, &fill_in(&operations, &value, &programs, name)?)
        })?;
        Ok(Self {
            name,
            limits: Arc::clone(&maps[map::LIMITS]),
            _map: map,
            _link: link,
        })
    }

    /// Its name for `TCP_CONGESTION`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sets how many bytes per second all connections to an address may send together, and removes
    /// other limits. Connections learn of it within a round trip.
    ///
    /// # Errors
    /// [`Error::Map`].
    pub fn set_limits(&self, limits: &HashMap<IpAddr, u32>) -> Result<(), Error> {
        let new: HashMap<Vec<u8>, u64> = limits
            .iter()
            .map(|(ip, limit)| {
                (
                    bytes(&layout::address(mapped(*ip))).to_vec(),
                    (*limit).into(),
                )
            })
            .collect();
        let mut old = Vec::new();
        self.limits.each(|key, _| {
            old.push(key.to_vec());
            true
        })?;
        for key in old.iter().filter(|key| !new.contains_key(*key)) {
            self.limits.delete(key)?;
        }
        let mut new = new.iter();
        new.try_for_each(|(key, limit)| self.limits.update(key, &limit.to_ne_bytes()))
    }
}

/// Registers under a name that no other process of this kernel has. Not by the number of the process:
/// containers have the same ones.
fn under_free_name<T>(
    mut register: impl FnMut(&str) -> Result<T, Error>,
) -> Result<(String, T), Error> {
    let mut attempts = NAMES_MAX;
    loop {
        // The kernel allows no hyphen, and five digits fit.
        let name = format!("posthaste_{:05x}", u32::from_ne_bytes(random()) & 0xf_ffff);
        attempts -= 1;
        match register(&name) {
            Err(Error::Register { source })
                if source.kind() == ErrorKind::AlreadyExists && attempts > 0 => {}
            result => return Ok((name, result?)),
        }
    }
}

/// Loads the programs, each with the field that it is for.
fn load(
    types: &KernelTypes,
    operations: &Structure<'_>,
    maps: &[Arc<Map>],
) -> Result<Vec<(Field, Program)>, Error> {
    let control = operations.field("cong_control")?;
    let control_program = match types.parameters(control) {
        Some(2) => program::CONTROL_OF_TWO,
        _ => program::CONTROL_OF_FOUR,
    };
    let fields = [
        ("init", program::START),
        ("release", program::RELEASE),
        ("cong_control", control_program),
        ("cwnd_event", program::ON_EVENT),
        ("ssthresh", program::SSTHRESH),
        ("undo_cwnd", program::UNDO_WINDOW),
    ];
    let object = &congestion::OBJECT;
    let own = object.load_types()?;
    let settings = settings(types)?.in_order();
    let each = fields.into_iter().map(|(name, number)| {
        let field = operations.field(name)?;
        let place = (field.index, operations.id);
        let loaded = object.load_as(number, place, &own, maps, &settings)?;
        Ok((field, loaded))
    });
    each.collect()
}

/// Milliseconds between two moments at which all hosts let the queue drain.
const DRAIN_INTERVAL_MS: u128 = 5000;

/// What to add to the clock of the programs for that of the host, modulo the interval.
fn clock_ms() -> Result<u32, Error> {
    let read = |clock| {
        let time = clock_gettime(clock).map_err(|source| Error::Register {
            source: source.into(),
        })?;
        Ok(Duration::from(time).as_millis())
    };
    let host = read(ClockId::CLOCK_REALTIME)?;
    let own = read(ClockId::CLOCK_MONOTONIC)?;
    // The former is the larger, unless the clock of the host is not set.
    let ahead = host.saturating_sub(own) % DRAIN_INTERVAL_MS;
    Ok(u32::try_from(ahead).expect("below the interval"))
}

/// Where the fields are that the programs use, and the clock.
fn settings(types: &KernelTypes) -> Result<congestion::Settings, Error> {
    let tcp = types.structure("tcp_sock")?;
    let connection = types.structure("inet_connection_sock")?;
    let sock = types.structure("sock")?;
    let common = types.structure("sock_common")?;
    let sample = types.structure("rate_sample")?;
    // Each of the first four structures begins with the next.
    Ok(congestion::Settings {
        clock_ms: clock_ms()?,
        private: connection.field("icsk_ca_priv")?.offset,
        snd_cwnd: tcp.field("snd_cwnd")?.offset,
        snd_ssthresh: tcp.field("snd_ssthresh")?.offset,
        mss_cache: tcp.field("mss_cache")?.offset,
        packets_out: tcp.field("packets_out")?.offset,
        write_seq: tcp.field("write_seq")?.offset,
        snd_nxt: tcp.field("snd_nxt")?.offset,
        pacing_rate: sock.field("sk_pacing_rate")?.offset,
        pacing_status: sock.field("sk_pacing_status")?.offset,
        family: common.field("skc_family")?.offset,
        daddr: common.field("skc_daddr")?.offset,
        v6_daddr: common.field("skc_v6_daddr")?.offset,
        rcv_saddr: common.field("skc_rcv_saddr")?.offset,
        v6_rcv_saddr: common.field("skc_v6_rcv_saddr")?.offset,
        acked_sacked: sample.field("acked_sacked")?.offset,
        rtt_us: sample.field("rtt_us")?.offset,
        losses: sample.field("losses")?.offset,
        prior_in_flight: sample.field("prior_in_flight")?.offset,
    })
}

/// The structure as the kernel wants it: numbers of programs at the places of functions.
fn fill_in(
    operations: &Structure<'_>,
    value: &Structure<'_>,
    programs: &[(Field, Program)],
    name: &str,
) -> Result<Vec<u8>, Error> {
    let mut filled = vec![0; whole(value.bytes)];
    let start = whole(value.field("data")?.offset);
    let mut put = |field: Field, bytes: &[u8]| {
        let at = start + whole(field.offset);
        filled[at..at + bytes.len()].copy_from_slice(bytes);
    };
    for (field, program) in programs {
        let fd = i64::from(program.as_fd().as_raw_fd());
        put(*field, &fd.to_ne_bytes());
    }
    put(operations.field("flags")?, &NON_RESTRICTED.to_ne_bytes());
    debug_assert!(name.len() < NAME_BYTES, "{name}");
    put(operations.field("name")?, name.as_bytes());
    Ok(filled)
}

/// Registers the structure, for as long as both descriptors are open.
fn register(value: &Structure<'_>, filled: &[u8]) -> Result<(OwnedFd, OwnedFd), Error> {
    let layout = MapLayout {
        kind: STRUCT_OPS_MAP,
        key_bytes: 4,
        value_bytes: value.bytes,
        entries: 1,
        flags: LINKED,
    };
    let types = congestion::OBJECT.load_types()?;
    let map = sys::create_map_of_kernel("congestion", layout, types.as_fd(), value.id);
    let map = map.map_err(Error::map("create", "congestion"))?;
    let written = sys::update(map.as_fd(), &0_u32.to_ne_bytes(), filled);
    written.map_err(Error::map("write", "congestion"))?;
    let link = sys::link(map.as_fd(), 0, STRUCT_OPS);
    let link = link.map_err(|source| Error::Register { source })?;
    Ok((map, link))
}

fn whole(number: u32) -> usize {
    usize::try_from(number).expect("32 bits fit")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taken_names_are_passed_over() {
        let mut tried = Vec::new();
        let taken = || Error::Register {
            source: ErrorKind::AlreadyExists.into(),
        };
        let (name, ()) = under_free_name(|name| {
            tried.push(name.to_owned());
            if tried.len() < 3 {
                Err(taken())
            } else {
                Ok(())
            }
        })
        .unwrap();
        assert!(name.len() < NAME_BYTES && Some(&name) == tried.last());
        let mut count = 0;
        let failed: Result<(String, ()), Error> = under_free_name(|_| {
            count += 1;
            Err(taken())
        });
        assert!(failed.is_err() && count == NAMES_MAX);
    }
}
