// SPDX-License-Identifier: Apache-2.0
//! The counters of the programs.

use crate::object::Map;

/// Above the largest CPU count that kernels support: the kernel writes one value per CPU.
const CPUS_MAX: usize = 8192;

/// Name and documentation of each counter, in the order of `enum stat`: the rows of `types.h`.
const STATS: &[(&str, &str)] = &include!(concat!(env!("OUT_DIR"), "/stats.rs"));

/// All counters with their values since the programs were loaded.
pub(crate) fn read(map: &Map) -> Vec<(&'static str, &'static str, u64)> {
    let mut values = vec![0; CPUS_MAX * size_of::<u64>()];
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
