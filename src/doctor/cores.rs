// SPDX-License-Identifier: Apache-2.0
//! Whether the packets of flows arrive on the CPUs of the workers that carry them.
//!
//! A SYN goes to the worker with the number of the CPU on which it arrived, modulo the number of
//! workers, and each worker is pinned to such a CPU if there is one for each. So the interrupts of
//! the receive queues, or RPS, distribute flows over workers.

use std::collections::BTreeSet;

use super::checks::{Check, ok, or_ok, verdict, warn};
use super::host::Host;
use super::interception::wanted;
use super::topology::{Card, Cpus, as_list, as_mask};
use super::{Level, Verdict};
use posthaste_config::Config;

#[cfg(test)]
mod tests;

/// The checks, in the order they are shown.
pub(super) const ALL: [Check; 5] = [
    ("workers", workers),
    ("receive queues", queues),
    ("NUMA", numa),
    ("irqbalance", balancer),
    ("RSS", hash),
];

/// Most interrupts listed in a fix.
const NAMED_MAX: usize = 4;

/// A key with which both directions of a flow have the same hash, since it repeats.
const SYMMETRIC_KEY: &str = "6d:5a:6d:5a:... (as long as ethtool -x shows)";

/// The cards whose packets a node takes: those of its interfaces, and the ports of bonds and
/// bridges among them.
fn cards<'a>(host: &'a Host, config: &'a Config) -> impl Iterator<Item = &'a Card> {
    let used: BTreeSet<&str> = match config.transparent.enabled {
        true => wanted(host, config)
            .chain(host.interfaces.iter().filter(|one| one.link.is_port()))
            .filter(|one| one.link.up)
            .map(|one| one.link.name.as_str())
            .collect(),
        false => host
            .interfaces
            .iter()
            .filter(|one| one.link.up)
            .map(|one| one.link.name.as_str())
            .collect(),
    };
    let cards = host.topology.cards.iter();
    cards.filter(move |card| used.contains(card.interface.as_str()))
}

/// The workers that get the SYNs arriving on these CPUs.
fn served(cpus: &Cpus, workers: usize) -> BTreeSet<usize> {
    cpus.iter().map(|cpu| cpu % workers).collect()
}

/// The CPUs as text.
fn named(cpus: &Cpus) -> String {
    let noun = if cpus.len() == 1 { "CPU" } else { "CPUs" };
    format!("{noun} {}", as_list(cpus))
}

/// Whether each of several workers is pinned to one of these CPUs, whose SYNs it gets.
fn stays(workers: usize, cpus: &Cpus) -> bool {
    workers > 1 && cpus.len() == workers && served(cpus, workers).len() == workers
}

fn workers(host: &Host, config: &Config) -> Vec<Verdict> {
    let (workers, cpus) = (config.node.workers, &host.topology.allowed);
    if workers == 1 {
        return ok("one worker has every flow");
    }
    let (count, names) = (cpus.len(), as_list(cpus));
    if count != workers {
        let what = format!("{workers} workers may run on {count} CPUs: none stays on one");
        let fix = "leave out node.workers, and set in the unit which CPUs to use: CPUAffinity=";
        return warn(what, fix);
    }
    if !stays(workers, cpus) {
        let served = served(cpus, workers).len();
        let what = format!(
            "CPUs {names}: by their numbers modulo {workers}, SYNs go to {served} of {workers} workers"
        );
        let fix = "choose CPUs that follow each other: CPUAffinity= in the unit";
        return warn(what, fix);
    }
    ok(format!("each of {workers} has one of the CPUs {names}"))
}

fn queues(host: &Host, config: &Config) -> Vec<Verdict> {
    let (workers, allowed) = (config.node.workers, &host.topology.allowed);
    let findings = cards(host, config).filter_map(|card| {
        let arrivals = card.arrivals();
        let elsewhere: Cpus = arrivals.difference(allowed).copied().collect();
        let (name, served) = (&card.interface, served(&arrivals, workers).len());
        // Some drivers do not show on which CPUs packets arrive.
        let what = if arrivals.is_empty() {
            return None;
        } else if !elsewhere.is_empty() {
            let cpus = named(&elsewhere);
            format!("{name}: packets arrive on {cpus}, where no worker may run")
        } else if served < self::served(&near(host, card), workers).len() {
            let cpus = named(&arrivals);
            format!("{name}: packets arrive on {cpus}: {served} of {workers} workers get flows")
        } else {
            return None;
        };
        let fix = spread(card, &near(host, card), workers);
        Some(verdict(Level::Warn, what, fix))
    });
    or_ok(
        findings.collect(),
        "packets arrive on the CPUs of all workers, or on those of local senders",
    )
}

/// The CPUs on which a card's packets should arrive: those at its NUMA node among the ones that
/// workers may use.
fn near(host: &Host, card: &Card) -> Cpus {
    let allowed = &host.topology.allowed;
    let of_node = card.node.and_then(|node| host.topology.nodes.get(&node));
    let both: Cpus = of_node.map_or_else(Cpus::new, |node| node & allowed);
    if both.is_empty() {
        allowed.clone()
    } else {
        both
    }
}

/// The commands that move a card's packets to these CPUs.
fn spread(card: &Card, cpus: &Cpus, workers: usize) -> String {
    let name = &card.interface;
    // Moving interrupts does not help where RPS moves the packets again, or where a card has too
    // few of them.
    if card.steered.iter().any(|to| !to.is_empty())
        || card.interrupts.len() < workers.min(cpus.len())
    {
        let (count, mask) = (cpus.len(), as_mask(cpus));
        return format!(
            "ethtool -L {name} combined {count}; where it has fewer queues, \
             for q in /sys/class/net/{name}/queues/rx-*; do echo {mask} > $q/rps_cpus; done"
        );
    }
    let pairs = card.interrupts.iter().zip(cpus.iter().cycle());
    let each = pairs
        .map(|((number, _), cpu)| format!("echo {cpu} > /proc/irq/{number}/smp_affinity_list"));
    let shown: Vec<String> = each.take(NAMED_MAX).collect();
    let more = match card.interrupts.len() > NAMED_MAX {
        true => "; and so on",
        false => "",
    };
    shown.join("; ") + more
}

/// Data in the caches of one NUMA node's CPUs is expensive for the others.
fn numa(host: &Host, config: &Config) -> Vec<Verdict> {
    let (allowed, nodes) = (&host.topology.allowed, &host.topology.nodes);
    if nodes.len() < 2 {
        return ok("all CPUs are equally near to everything");
    }
    let placed: Vec<(&Card, usize)> = cards(host, config)
        .filter_map(|card| Some((card, card.node?)))
        .collect();
    if let [(first, node), others @ ..] = placed.as_slice()
        && let Some((other, elsewhere)) = others.iter().find(|(_, other)| other != node)
    {
        let what = format!(
            "{} hangs on NUMA node {node} and {} on {elsewhere}: every flow crosses",
            first.interface, other.interface
        );
        return warn(what, "use ports of cards at one NUMA node");
    }
    let findings = placed.iter().flat_map(|&(card, node)| {
        let cpus = nodes.get(&node).cloned().unwrap_or_default();
        let (name, list) = (&card.interface, as_list(&cpus));
        let unauthorized: Cpus = allowed.difference(&cpus).copied().collect();
        let arrivals = card.arrivals();
        let strayed: Cpus = arrivals.difference(&cpus).copied().collect();
        // Pinned workers on CPUs without arriving packets are idle.
        let here = !arrivals.is_empty() && arrivals.is_subset(&cpus);
        let idle = here && stays(config.node.workers, allowed);
        let workers = (!unauthorized.is_empty() && !idle).then(|| {
            let what = format!(
                "workers may run on {}, {name} hangs on NUMA node {node}",
                named(&unauthorized)
            );
            let fix = format!(
                "CPUAffinity={list}, NUMAPolicy=bind and NUMAMask={node} in the unit: systemctl edit posthaste"
            );
            verdict(Level::Warn, what, fix)
        });
        let packets = (!strayed.is_empty()).then(|| {
            let strayed = named(&strayed);
            let what = format!("{name}: packets arrive on {strayed}, not at NUMA node {node}");
            verdict(Level::Warn, what, spread(card, &near(host, card), cpus.len()))
        });
        workers.into_iter().chain(packets)
    });
    or_ok(
        findings.collect(),
        "workers and packets are at the NUMA node of the cards",
    )
}

/// irqbalance moves interrupts to idle CPUs, and flows with them.
fn balancer(host: &Host, config: &Config) -> Vec<Verdict> {
    let movable = cards(host, config).find(|card| card.interrupts.len() > 1);
    match movable.filter(|_| host.topology.balanced && config.node.workers > 1) {
        Some(card) => {
            let name = &card.interface;
            let what =
                format!("irqbalance runs and may move the interrupts of {name} to other CPUs");
            let fix = "systemctl disable --now irqbalance, then place the interrupts; or name them \
                          with --banirq= in its options";
            warn(what, fix)
        }
        None => ok("nothing moves the interrupts of receive queues"),
    }
}

/// Upstream connections have their client's address and port: if the hash of a flow is the same in
/// both directions, the packets of both its connections arrive on one CPU.
fn hash(host: &Host, config: &Config) -> Vec<Verdict> {
    let findings = cards(host, config).filter(|card| {
        let hashed = card.interrupts.len() > 1 && config.node.workers > 1;
        // A driver that does not report its hash may have a symmetric one.
        hashed && config.transparent.enabled && card.symmetric == Some(false)
    });
    let findings = findings.map(|card| {
        let name = &card.interface;
        let what = format!("{name}: servers' packets arrive on other CPUs than clients'");
        let fix = format!(
            "ethtool -X {name} xfrm symmetric-xor, or ethtool -X {name} hkey {SYMMETRIC_KEY}, alike on all \
             interfaces"
        );
        verdict(Level::Warn, what, fix)
    });
    or_ok(
        findings.collect(),
        "no card is known to part the two directions of a flow",
    )
}
