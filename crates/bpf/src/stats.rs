// SPDX-License-Identifier: Apache-2.0
//! The counters of the programs.

use crate::object::Map;

/// Above the largest CPU count that kernels support: the kernel writes one value per CPU.
const CPUS_MAX: usize = 8192;

/// Name and documentation of each counter, in the order of `enum stat`: the rows of `types.h`.
const STATS: &[(&str, &str)] = &include!(concat!(env!("OUT_DIR"), "/stats.rs"));

/// All counters with their values since the programs were loaded.
pub(crate) fn read(map: &Map) -> Vec<(&'static str, &'static str, u64)> {
    let mut values = vec![0; bytes_of_each(map)];
    let mut total = |index: u32| {
        let found = map.look_up(&index.to_ne_bytes(), &mut values);
        let values = values.as_chunks().0.iter();
        let total = values.copied().map(u64::from_ne_bytes).sum();
        if found.is_ok() { total } else { 0 }
    };
    let each = (0..).zip(STATS);
    each.map(|(index, (name, help))| (*name, *help, total(index)))
        .collect()
}

/// Bytes that the kernel writes for a counter.
fn bytes_of_each(map: &Map) -> usize {
    /// No counter comes near this value.
    const UNTOUCHED: [u8; 8] = [0xff; 8];
    let mut values = UNTOUCHED.repeat(CPUS_MAX);
    // If that fails the others fail as well.
    let _ = map.look_up(&0_u32.to_ne_bytes(), &mut values);
    let mut each = values.as_chunks().0.iter();
    let written = each.rposition(|value| *value != UNTOUCHED);
    written.map_or(0, |last| (last + 1) * UNTOUCHED.len())
}
