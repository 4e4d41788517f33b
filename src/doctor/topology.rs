// SPDX-License-Identifier: Apache-2.0
//! The CPUs of the host, and on which of them packets of network cards arrive: read from `/proc`
//! and `/sys`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use super::offload;

#[cfg(test)]
mod tests;

/// CPUs by their numbers.
pub(super) type Cpus = BTreeSet<usize>;

/// The CPUs of a host, and its network cards.
#[derive(Clone, Debug, Default)]
pub(super) struct Topology {
    /// CPUs that this process may use.
    pub(super) allowed: Cpus,
    /// CPUs of each NUMA node.
    pub(super) nodes: BTreeMap<usize, Cpus>,
    /// Whether `irqbalance` runs.
    pub(super) balanced: bool,
    /// Interfaces with a device.
    pub(super) cards: Vec<Card>,
}

/// How the packets of one interface are spread over CPUs.
#[derive(Clone, Debug, Default)]
pub(super) struct Card {
    pub(super) interface: String,
    /// The NUMA node of its device, if known.
    pub(super) node: Option<usize>,
    /// For each receive queue, the CPUs that RPS hands its packets to; empty if it is off.
    pub(super) steered: Vec<Cpus>,
    /// Interrupts for received packets, and the CPUs that handle them.
    pub(super) interrupts: Vec<(u32, Cpus)>,
    /// Whether both directions of a flow have the same hash, and so the same queue.
    pub(super) symmetric: Option<bool>,
}

impl Topology {
    /// Reads the trees below `proc` and `sys`. What cannot be read stays empty.
    pub(super) fn read(proc: &Path, sys: &Path, allowed: Cpus) -> Self {
        let mut cards: Vec<Card> = numbered(&sys.join("class/net"), Some)
            .into_iter()
            .filter_map(|(name, path)| Card::read(name, &path, proc))
            .collect();
        cards.sort_by(|a, b| a.interface.cmp(&b.interface));
        let nodes = numbered(&sys.join("devices/system/node"), |name| {
            name.strip_prefix("node")?.parse().ok()
        });
        let cpus = |path: PathBuf| list(&text(&path.join("cpulist")));
        let is_number = |name: String| name.parse::<u32>().ok();
        let balances = |path: &Path| text(&path.join("comm")) == "irqbalance";
        Self {
            allowed,
            nodes: nodes
                .into_iter()
                .map(|(number, path)| (number, cpus(path)))
                // A NUMA node may have only memory.
                .filter(|(_, cpus)| !cpus.is_empty())
                .collect(),
            balanced: numbered(proc, is_number)
                .iter()
                .any(|(_, path)| balances(path)),
            cards,
        }
    }
}

impl Card {
    fn read(interface: String, path: &Path, proc: &Path) -> Option<Self> {
        // A virtio device is below a PCI device, which has the rest.
        let device = path.join("device").canonicalize().ok()?;
        let places = [device.as_path(), device.parent()?];
        let node = places
            .iter()
            .find_map(|place| text(&place.join("numa_node")).parse::<i32>().ok());
        let vectors = places
            .iter()
            .map(|place| numbered(&place.join("msi_irqs"), |name| name.parse().ok()))
            .find(|found| !found.is_empty());
        let vectors = vectors.into_iter().flatten().map(|(number, _)| number);
        let mut queues = numbered(&path.join("queues"), |name| {
            name.strip_prefix("rx-")?.parse::<usize>().ok()
        });
        // A directory has no order.
        queues.sort();
        Some(Self {
            // The kernel shows -1 for a device that belongs to none.
            node: node.and_then(|node| usize::try_from(node).ok()),
            steered: queues
                .into_iter()
                .map(|(_, path)| mask(&text(&path.join("rps_cpus"))))
                .collect(),
            interrupts: receiving(vectors, &interface, &proc.join("irq")),
            symmetric: offload::symmetric(&interface),
            interface,
        })
    }

    /// The CPUs on which the stack first handles its packets; empty if unknown.
    pub(super) fn arrivals(&self) -> Cpus {
        let steered = self.steered.iter().flatten();
        // A queue without RPS leaves its packets on the CPU of its interrupt.
        let all_steered = !self.steered.is_empty() && self.steered.iter().all(|to| !to.is_empty());
        let interrupted = self.interrupts.iter().flat_map(|(_, cpus)| cpus);
        steered
            .chain(interrupted.filter(|_| !all_steered))
            .copied()
            .collect()
    }
}

/// Selects the interrupts for packets received by an interface. Their names depend on the driver:
/// most contain `rx`, virtio `input`, mlx5 `comp`, gve `ntfy`.
fn receiving(vectors: impl Iterator<Item = u32>, interface: &str, irq: &Path) -> Vec<(u32, Cpus)> {
    let mut named: Vec<(u32, String)> = vectors
        .filter_map(|number| {
            let actions = numbered(&irq.join(number.to_string()), Some);
            let action = actions.into_iter().find(|(_, path)| path.is_dir());
            Some((number, action?.0))
        })
        .collect();
    named.sort();
    // A device may have several interfaces.
    keep_if_any(&mut named, |name| name.contains(interface));
    keep_if_any(&mut named, |name| {
        let name = name.to_lowercase();
        ["rx", "input", "comp", "ntfy"]
            .iter()
            .any(|word| name.contains(word))
    });
    let handled = |number: u32| {
        let read = |file| list(&text(&irq.join(number.to_string()).join(file)));
        // Of the allowed CPUs the hardware uses one, or a few.
        let effective = read("effective_affinity_list");
        match effective.is_empty() {
            true => read("smp_affinity_list"),
            false => effective,
        }
    };
    let each = named.into_iter();
    each.map(|(number, _)| (number, handled(number))).collect()
}

/// Keeps those whose name matches, unless none does.
fn keep_if_any(named: &mut Vec<(u32, String)>, fits: impl Fn(&str) -> bool) {
    if named.iter().any(|(_, name)| fits(name)) {
        named.retain(|(_, name)| fits(name));
    }
}

/// The entries of a directory whose names match, with the parsed names.
fn numbered<T>(directory: &Path, kind: impl Fn(String) -> Option<T>) -> Vec<(T, PathBuf)> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let named = entries.filter_map(|entry| {
        let name = kind(entry.file_name().into_string().ok()?)?;
        Some((name, entry.path()))
    });
    named.collect()
}

/// The trimmed content of a small file; empty if it cannot be read.
fn text(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.trim().to_owned()
}

/// `0-2,8`
fn list(text: &str) -> Cpus {
    let ranges = text.split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse().ok()?..=last.parse().ok()?)
    });
    ranges.flatten().collect()
}

/// `00000001,00000003`: words of 32 bits in hexadecimal, the highest first.
fn mask(text: &str) -> Cpus {
    let words = text.rsplit(',').enumerate();
    let each = words.flat_map(|(word, digits)| {
        let bits = u32::from_str_radix(digits, 16).unwrap_or(0);
        let set = (0..32).filter(move |bit| bits >> bit & 1 != 0);
        set.map(move |bit| word * 32 + bit)
    });
    each.collect()
}

/// The kernel's list format: `0-2,8`.
pub(super) fn as_list(cpus: &Cpus) -> String {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for &cpu in cpus {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == cpu => *last = cpu,
            _ => ranges.push((cpu, cpu)),
        }
    }
    let texts: Vec<String> = ranges
        .into_iter()
        .map(|(first, last)| match first == last {
            true => first.to_string(),
            false => format!("{first}-{last}"),
        })
        .collect();
    texts.join(",")
}

/// The kernel's mask format.
pub(super) fn as_mask(cpus: &Cpus) -> String {
    let words = cpus.last().map_or(1, |last| last / 32 + 1);
    let mut bits = vec![0_u32; words];
    for cpu in cpus {
        bits[cpu / 32] |= 1 << (cpu % 32);
    }
    let (highest, others) = (bits[words - 1], bits[..words - 1].iter().rev());
    others.fold(format!("{highest:x}"), |text, word| {
        format!("{text},{word:08x}")
    })
}
