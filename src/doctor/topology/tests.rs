// SPDX-License-Identifier: Apache-2.0
//! Reading file trees as the kernel presents them.

use std::os::unix::fs::symlink;

use posthaste_lab::scratch::Scratch;

use super::*;

/// A `/proc` and a `/sys` for a test; dropping it removes them.
struct Trees(Scratch);

impl Trees {
    fn new() -> Self {
        Self(Scratch::new().unwrap())
    }

    /// Writes a file below `proc` or `sys`.
    fn put(&self, path: &str, text: &str) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }

    /// An interrupt of a device, handled on these CPUs.
    fn interrupt(&self, device: &str, number: u32, action: &str, cpus: &str) {
        self.put(&format!("{device}/msi_irqs/{number}"), "msix");
        let action = self.0.path().join(format!("proc/irq/{number}/{action}"));
        fs::create_dir_all(action).unwrap();
        self.put(&format!("proc/irq/{number}/smp_affinity_list"), "0-7");
        self.put(&format!("proc/irq/{number}/effective_affinity_list"), cpus);
    }

    /// An interface on a device, with a receive queue for each of these masks.
    fn interface(&self, name: &str, device: &str, masks: &[&str]) {
        for (queue, mask) in masks.iter().enumerate() {
            self.put(
                &format!("sys/class/net/{name}/queues/rx-{queue}/rps_cpus"),
                mask,
            );
        }
        self.put(&format!("sys/class/net/{name}/queues/tx-0/xps_cpus"), "ff");
        let to = self.0.path().join(device);
        symlink(
            to,
            self.0.path().join(format!("sys/class/net/{name}/device")),
        )
        .unwrap();
    }

    fn read(&self) -> Topology {
        let [proc, sys] = ["proc", "sys"].map(|name| self.0.path().join(name));
        Topology::read(&proc, &sys, [0, 1].into())
    }
}

const CARD: &str = "sys/devices/pci0/0000:18:00.0";

#[test]
fn large_card_topology() {
    let trees = Trees::new();
    trees.put(&format!("{CARD}/numa_node"), "1");
    trees.interrupt(CARD, 60, "ice-eth7:misc", "5");
    trees.interrupt(CARD, 61, "ice-eth7-TxRx-0", "1");
    trees.interrupt(CARD, 62, "ice-eth7-TxRx-1", "3");
    trees.interrupt(CARD, 63, "ice-eth8-TxRx-0", "4");
    trees.interface("eth7", CARD, &["0", "00000001,00000003"]);
    trees.put("sys/devices/system/node/node0/cpulist", "0,2,4,6");
    trees.put("sys/devices/system/node/node1/cpulist", "1,3,5,7");
    trees.put("sys/devices/system/node/node2/cpulist", "");
    trees.put("proc/4711/comm", "irqbalance");
    let read = trees.read();
    assert_eq!(
        read.nodes,
        [(0, [0, 2, 4, 6].into()), (1, [1, 3, 5, 7].into())].into()
    );
    assert!(read.balanced);
    let [card] = read.cards.as_slice() else {
        panic!("one card, not {:?}", read.cards)
    };
    assert_eq!((card.interface.as_str(), card.node), ("eth7", Some(1)));
    assert_eq!(card.steered, [Cpus::new(), [0, 1, 32].into()]);
    assert_eq!(card.interrupts, [(61, [1].into()), (62, [3].into())]);
    assert_eq!(card.arrivals(), [0, 1, 3, 32].into());
}

#[test]
fn virtio_behind_pci() {
    let trees = Trees::new();
    trees.put(&format!("{CARD}/numa_node"), "-1");
    trees.put(&format!("{CARD}/virtio2/features"), "1");
    trees.interrupt(CARD, 37, "virtio2-config", "0");
    trees.interrupt(CARD, 38, "virtio2-input.0", "1");
    trees.interrupt(CARD, 39, "virtio2-output.0", "0");
    trees.interface("eth0", &format!("{CARD}/virtio2"), &["0"]);
    let read = trees.read();
    assert_eq!(read.cards[0].node, None);
    assert_eq!(read.cards[0].interrupts, [(38, [1].into())]);
    assert_eq!(read.cards[0].arrivals(), [1].into());
    assert!(!read.balanced && read.nodes.is_empty());
}

#[test]
fn rps_and_veth_excluded() {
    let trees = Trees::new();
    trees.interrupt(CARD, 38, "virtio2-input.0", "7");
    trees.interface("eth0", CARD, &["3"]);
    trees.put("sys/class/net/veth0/queues/rx-0/rps_cpus", "0");
    let read = trees.read();
    assert_eq!(read.cards.len(), 1);
    assert_eq!(read.cards[0].arrivals(), [0, 1].into());
}

#[test]
fn allowed_cpus_count() {
    let trees = Trees::new();
    trees.interrupt(CARD, 38, "virtio2-input.0", "");
    trees.interface("eth0", CARD, &["0"]);
    assert_eq!(trees.read().cards[0].arrivals().len(), 8);
}

#[test]
fn cpu_lists_and_masks() {
    let cpus: Cpus = [0, 1, 2, 8, 32, 33, 63].into();
    assert_eq!(as_list(&cpus), "0-2,8,32-33,63");
    assert_eq!(list(&as_list(&cpus)), cpus);
    assert_eq!(as_mask(&cpus), "80000003,00000107");
    assert_eq!(mask(&as_mask(&cpus)), cpus);
    assert_eq!(
        (as_mask(&Cpus::new()), as_list(&Cpus::new())),
        ("0".into(), String::new())
    );
    assert_eq!((list("none"), mask("none")), (Cpus::new(), Cpus::new()));
}

#[test]
fn this_host_can_be_read() {
    let read = Topology::read(Path::new("/proc"), Path::new("/sys"), [0].into());
    // Kernels without NUMA show no node; others show the CPUs of each.
    assert!(read.nodes.values().all(|cpus| !cpus.is_empty()));
    assert!(read.cards.iter().all(|card| !card.steered.is_empty()));
}
