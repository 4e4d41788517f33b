// SPDX-License-Identifier: Apache-2.0
//! Hosts with multi-queue cards, and the findings for them.

use super::super::tests::{config, interface};
use super::super::topology::Topology;
use super::*;

/// A card with an interrupt for each of these CPUs.
fn card(name: &str, node: usize, cpus: impl IntoIterator<Item = usize>) -> Card {
    let interrupts = (40..).zip(cpus).map(|(number, cpu)| (number, [cpu].into()));
    let interrupts: Vec<(u32, Cpus)> = interrupts.collect();
    Card {
        interface: name.into(),
        node: Some(node),
        steered: vec![Cpus::new(); interrupts.len()],
        interrupts,
        symmetric: Some(true),
    }
}

/// Two NUMA nodes of four CPUs, two cards at the first, and a node that uses its CPUs.
fn sound() -> (Host, Config) {
    let host = Host {
        interfaces: vec![interface("c0"), interface("s0"), interface("veth0")],
        topology: Topology {
            allowed: (0..4).collect(),
            nodes: [(0, (0..4).collect()), (1, (4..8).collect())].into(),
            balanced: false,
            cards: vec![card("c0", 0, 0..4), card("s0", 0, 0..4)],
        },
        ..Host::default()
    };
    let mut config = config();
    config.node.workers = 4;
    (host, config)
}

/// The finding and the fix for a host with this problem.
fn list(problem: impl FnOnce(&mut Host, &mut Config)) -> Vec<(String, String)> {
    let (mut host, mut config) = sound();
    problem(&mut host, &mut config);
    let findings = ALL.iter().flat_map(|(_, check)| check(&host, &config));
    let bad = findings.filter(|finding| finding.level != Level::Ok);
    bad.map(|finding| (finding.what, finding.fix)).collect()
}

/// A problem, and parts of its finding and fix.
type Problem = (fn(&mut Host, &mut Config), &'static str, &'static str);

const PROBLEMS: [Problem; 11] = [
    (
        |h, _| h.topology.cards[0] = card("c0", 0, [0, 0, 2, 0]),
        "c0: packets arrive on CPUs 0,2: 2 of 4 workers get flows",
        "echo 0 > /proc/irq/40/smp_affinity_list; echo 1 > /proc/irq/41",
    ),
    (
        |h, _| h.topology.cards[1] = card("s0", 0, [3]),
        "s0: packets arrive on CPU 3: 1 of 4 workers get flows",
        "ethtool -L s0 combined 4; where it has fewer queues, for q in /sys/class/net/s0/queues/rx-*; do echo f >",
    ),
    (
        |h, _| h.topology.cards[1].steered = vec![[1, 2].into(); 4],
        "s0: packets arrive on CPUs 1-2: 2 of 4",
        "echo f > $q/rps_cpus",
    ),
    (
        |h, c| {
            h.topology.allowed = [0, 1].into();
            c.node.workers = 2;
            h.topology.cards[0] = card("c0", 0, [0, 1]);
        },
        "s0: packets arrive on CPUs 2-3, where no worker may run",
        "echo 1 > /proc/irq/43",
    ),
    (
        |_, c| c.node.workers = 3,
        "3 workers may run on 4 CPUs",
        "CPUAffinity=",
    ),
    (
        |h, _| {
            h.topology.nodes = [(0, [0, 2, 4, 6].into()), (1, [1, 3, 5, 7].into())].into();
            h.topology.allowed = [0, 2, 4, 6].into();
            for card in &mut h.topology.cards {
                card.steered = vec![[0, 2, 4, 6].into()];
            }
        },
        "CPUs 0,2,4,6: by their numbers modulo 4, SYNs go to 2 of 4 workers",
        "follow each other",
    ),
    (
        |h, c| {
            h.topology.allowed.extend(4..8);
            c.node.workers = 8;
            for card in &mut h.topology.cards {
                card.steered = vec![(0..8).collect()];
            }
            h.topology.cards.pop();
        },
        "workers may run on CPUs 4-7, c0 hangs on NUMA node 0",
        "CPUAffinity=0-3, NUMAPolicy=bind and NUMAMask=0",
    ),
    (
        |h, _| h.topology.cards[1].node = Some(1),
        "c0 hangs on NUMA node 0 and s0 on 1",
        "one NUMA node",
    ),
    (
        |h, _| h.topology.balanced = true,
        "irqbalance runs and may move the interrupts of c0",
        "systemctl disable --now irqbalance",
    ),
    (
        |h, _| h.topology.cards[0].symmetric = Some(false),
        "c0: servers' packets arrive on other CPUs",
        "ethtool -X c0 xfrm symmetric-xor",
    ),
    (
        |h, c| {
            // A bond of both: packets arrive at its ports.
            h.interfaces[0].link.port_of = Some("bond".into());
            c.transparent.interfaces = vec!["bond0".into()];
            h.topology.cards[0] = card("c0", 0, [1]);
        },
        "c0: packets arrive on CPU 1: 1 of 4",
        "ethtool -L c0",
    ),
];

#[test]
fn sound_host_passes() {
    assert_eq!(list(|_, _| ()), []);
    let (host, config) = sound();
    let texts: Vec<_> = ALL
        .iter()
        .map(|(_, check)| check(&host, &config).len())
        .collect();
    assert_eq!(texts, [1; ALL.len()], "one finding each");
}

// promise: H8
#[test]
fn problems_and_their_fixes() {
    for (problem, texts, advised) in PROBLEMS {
        let list = list(problem);
        // Findings about queues and about NUMA nodes may occur together.
        let [(what, fix), ..] = list.as_slice() else {
            panic!("{texts}: nothing is reported")
        };
        assert!(
            what.contains(texts) && fix.contains(advised),
            "{texts}: {list:?}"
        );
        assert!(list.len() <= 2, "{list:?}");
    }
}

#[test]
fn other_numa_node_found() {
    let list = list(|h, _| h.topology.cards[0] = card("c0", 0, 4..8));
    let texts: Vec<&str> = list.iter().map(|(what, _)| what.as_str()).collect();
    assert_eq!(
        texts,
        [
            "c0: packets arrive on CPUs 4-7, where no worker may run",
            "c0: packets arrive on CPUs 4-7, not at NUMA node 0"
        ]
    );
    assert!(list[1].1.starts_with("echo 0 > /proc/irq/40"), "{list:?}");
}

// promise: H8
#[test]
fn small_machines_pass() {
    let nothing: [fn(&mut Host, &mut Config); 6] = [
        // CPUs numbered alternately, all of them the node's, and packets on those of one NUMA node.
        |h, c| {
            h.topology.nodes = [(0, [0, 2, 4, 6].into()), (1, [1, 3, 5, 7].into())].into();
            h.topology.allowed = (0..8).collect();
            c.node.workers = 8;
            h.topology.cards = vec![card("c0", 0, [0, 2, 4, 6]), card("s0", 0, [0, 2, 4, 6])];
        },
        // Cables alone.
        |h, _| h.topology.cards.clear(),
        // A card that the node does not use.
        |h, c| {
            c.transparent.interfaces = vec!["s0".into()];
            h.topology.cards[0] = card("c0", 1, [7]);
        },
        // One CPU, with a card of one queue.
        |h, c| {
            c.node.workers = 1;
            h.topology.allowed = [0].into();
            h.topology.nodes = [(0, [0].into())].into();
            h.topology.cards = vec![card("c0", 0, [0])];
            h.topology.balanced = true;
        },
        // A card without information about interrupts and hash.
        |h, _| {
            let card = &mut h.topology.cards[0];
            (card.node, card.symmetric) = (None, None);
            card.interrupts.clear();
        },
        // RPS over all CPUs, from one queue that another CPU serves.
        |h, _| {
            h.topology.cards[0] = Card {
                steered: vec![(0..4).collect()],
                ..card("c0", 0, [3])
            };
        },
    ];
    for change in nothing {
        assert_eq!(list(change), []);
    }
}
