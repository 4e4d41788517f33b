// SPDX-License-Identifier: Apache-2.0
//! `measuring`: what it costs a node to know its links.
//!
//! One node measures many peers, all of which are one other node with as many addresses: the first
//! does all that a node with so many peers does, and the second answers all their probes. What it
//! costs is the processor time of the threads that measure and that of the whole processes, the
//! bytes at the interface between them, and memory.

use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::link::Link;
use crate::netns::Namespace;
use crate::network::{Family, Network, TO_SERVER};
use crate::node::{Binary, Node};
use crate::process::wait_until;
use crate::record::Record;
use crate::table::Table;

/// The thread of a node that measures.
const THREAD: &str = "posthaste-links";
/// How long all peers may take to be measured first.
const PATIENCE: Duration = Duration::from_secs(120);
/// A node has no more peers.
const PEERS_MAX: u16 = 1024;
/// Peers that are measured from one address: as many as a /27 has.
const BLOCK: usize = 32;
const KEY: &str = "6b6579206f6620746865206c616220666f72206d6561737572696e6720616c6c";

/// Arguments of `posthaste-lab measuring`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    binary: Binary,
    /// Numbers of peers
    #[arg(long, value_delimiter = ',', default_values_t = [1, 10, 100, 999], value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=i64::from(PEERS_MAX)))]
    peers: Vec<u16>,
    /// Seconds between two probes of a link
    #[arg(long, default_value_t = 10, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=60))]
    interval: u32,
    /// Seconds that are measured, of each number of peers
    #[arg(long, default_value_t = 60, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
    /// Directory for the record
    #[arg(long, default_value = "lab-output", value_name = "DIR")]
    output: PathBuf,
}

/// What was used at one moment, or between two.
#[derive(Clone, Copy, Debug, Default)]
struct Used {
    /// Processor time of the thread that measures, of the node that does and of the one that answers.
    sending: f64,
    reflecting: f64,
    /// Of the whole process of the node that measures.
    process: f64,
    /// Bytes that this node sent and received, with Ethernet headers.
    sent_bytes: f64,
    received_bytes: f64,
    probes: f64,
    lost: f64,
}

impl Used {
    fn since(self, before: Self) -> Self {
        Self {
            sending: self.sending - before.sending,
            reflecting: self.reflecting - before.reflecting,
            process: self.process - before.process,
            sent_bytes: self.sent_bytes - before.sent_bytes,
            received_bytes: self.received_bytes - before.received_bytes,
            probes: self.probes - before.probes,
            lost: self.lost - before.lost,
        }
    }
}

/// Runs the experiment, prints its table and writes its record.
pub fn run(args: &Args) -> Result<()> {
    let binary = args.binary.find()?;
    let mut record = Record::start("measuring", 0);
    record.parameter("interval_s", args.interval);
    record.parameter("seconds", args.seconds);
    let mut table = Table::new(
        format!("Measuring links every {} s", args.interval),
        &[
            "peers",
            "probes/s",
            "kbit/s out",
            "kbit/s in",
            "thread % CPU",
            "process % CPU",
            "us/answer",
            "lost",
            "MB",
        ],
    );
    for peers in &args.peers {
        let network = Network::line([Link::Veth, Link::Veth, Link::Veth]).build()?;
        let nodes = start(args, &binary, &network, *peers)?;
        let (used, took, megabytes) = observe(args, &network, &nodes, *peers)?;
        let each = took.as_secs_f64();
        let labels = [("peers", peers.to_string())];
        let labels = labels
            .each_ref()
            .map(|(name, value)| (*name, value.as_str()));
        let answer_us = used.reflecting / used.probes.max(1.0) * 1e6;
        let row = [
            ("probes", "1/s", used.probes / each, 1),
            ("out", "kbit/s", used.sent_bytes / each * 8e-3, 1),
            ("in", "kbit/s", used.received_bytes / each * 8e-3, 1),
            ("thread", "%", used.sending / each * 100.0, 2),
            ("process", "%", used.process / each * 100.0, 2),
            ("answer", "us", answer_us, 1),
            ("lost", "probes", used.lost, 0),
            ("memory", "MB", megabytes, 1),
        ];
        let mut cells = vec![peers.to_string()];
        for (quantity, unit, value, digits) in row {
            record.sample(quantity, unit, &labels, vec![value]);
            cells.push(format!("{value:.digits$}"));
        }
        println!("{}", cells.join("  "));
        table.push(cells);
    }
    record.tables.push(table);
    record.remarks.push(
        "all peers are one node with as many addresses; memory is what is resident and backed by \
         no file; bytes have Ethernet headers"
            .to_owned(),
    );
    print!("{}", record.markdown());
    let path = record.write(&args.output)?;
    println!("{}", path.display());
    Ok(())
}

/// The address of a peer, on the node that answers for all.
fn address(peer: u16) -> String {
    let [high, low] = (peer + 256).to_be_bytes();
    format!("10.77.{high}.{low}")
}

fn start(args: &Args, binary: &PathBuf, network: &Network, peers: u16) -> Result<[Node; 2]> {
    let there = network.node_address(1, Family::V4);
    let lines: Vec<String> = (0..peers)
        .map(|peer| format!("address add {}/32 dev lo", address(peer)))
        .collect();
    network.node(1).ip_batch(&lines)?;
    let here = network.calling_address(0, Family::V4);
    network
        .node(1)
        .ip(&format!("route add 10.78.0.0/16 via {here}"))?;
    network.node(0).ip_batch(&sources(peers, there))?;
    let answers = format!(
        "[node]\nid = 2\nworkers = 1\n[transparent]\nenabled = false\n\
         [[listener]]\naddress = \"{there}:4480\"\n[measure]\nreflector = [\"0.0.0.0:862\"]\n\
         [[peer]]\nname = \"measures\"\nid = 1\naddress = \"{here}:4480\"\nreflector = \"off\"\n\
         pool_max = 0\nkey = \"{KEY}\"\n"
    );
    let mut measures = format!(
        "[node]\nid = 1\nworkers = 1\n[measure]\ninterval = \"{}s\"\n",
        args.interval
    );
    for peer in 0..peers {
        measures += &format!(
            "[[peer]]\nname = \"peer-{peer}\"\nid = {}\naddress = \"{}:4480\"\npool_max = 0\nkey = \"{KEY}\"\n",
            peer + 2,
            address(peer),
        );
    }
    // Who answers is there first.
    let answers = start_node(network.node(1), binary, &answers)?;
    Ok([start_node(network.node(0), binary, &measures)?, answers])
}

/// Gives the node that measures an address for every so many peers. A reflector answers no more
/// than 100 probes in a second from one.
fn sources(peers: u16, there: IpAddr) -> Vec<String> {
    let blocks = (0..peers).step_by(BLOCK).zip(1..);
    let lines = blocks.flat_map(|(first, block): (u16, u8)| {
        let source = format!("10.78.0.{block}");
        let prefix = format!("{}/27", address(first));
        [
            format!("address add {source}/32 dev lo"),
            format!("route add {prefix} via {there} src {source}"),
        ]
    });
    lines.collect()
}

fn start_node(host: &Namespace, binary: &PathBuf, config: &str) -> Result<Node> {
    Node::builder(host, binary).config(config).start()
}

/// What was used, in which time, and the memory of the node that measures, in MB.
fn observe(
    args: &Args,
    network: &Network,
    nodes: &[Node; 2],
    peers: u16,
) -> Result<(Used, Duration, f64)> {
    let up = || -> Result<usize> {
        let links = nodes[0].admin_json("links")?;
        let links = links["links"].as_array().context("a list of links")?;
        Ok(links.iter().filter(|link| link["state"] == "up").count())
    };
    wait_until("all links measured", PATIENCE, || {
        up().is_ok_and(|up| up == usize::from(peers))
    })?;
    // What is checked once is over, too.
    thread::sleep(Duration::from_secs(u64::from(args.interval)));
    let (before, begun) = (look(network, nodes)?, Instant::now());
    thread::sleep(Duration::from_secs(u64::from(args.seconds)));
    let (after, took) = (look(network, nodes)?, begun.elapsed());
    ensure!(up()? == usize::from(peers), "links went down");
    let memory = memory_bytes(nodes[0].process().pid())?;
    Ok((after.since(before), took, memory / 1e6))
}

fn look(network: &Network, nodes: &[Node; 2]) -> Result<Used> {
    let links = nodes[0].admin_json("links")?;
    let links = links["links"].as_array().context("a list of links")?;
    let sum = |name: &str| links.iter().filter_map(|link| link[name].as_f64()).sum();
    let (process, sending) = processor_seconds(nodes[0].process().pid())?;
    let (_, reflecting) = processor_seconds(nodes[1].process().pid())?;
    let (received_bytes, sent_bytes) = traffic(network.node(0))?;
    Ok(Used {
        sending,
        reflecting,
        process,
        sent_bytes,
        received_bytes,
        probes: sum("probes"),
        lost: sum("losses"),
    })
}

/// Processor time of a process, and of its thread that measures.
fn processor_seconds(pid: u32) -> Result<(f64, f64)> {
    let (mut all, mut thread) = (0.0, 0.0);
    for task in fs::read_dir(format!("/proc/{pid}/task")).context("list threads")? {
        let task = task.context("list threads")?.path();
        let read = |file: &str| fs::read_to_string(task.join(file));
        // A thread may have ended meanwhile.
        let (Ok(name), Ok(times)) = (read("comm"), read("schedstat")) else {
            continue;
        };
        let nanos = times
            .split(' ')
            .next()
            .and_then(|first| first.parse::<f64>().ok());
        let seconds = nanos.context("read schedstat")? / 1e9;
        all += seconds;
        if name.trim() == THREAD {
            thread += seconds;
        }
    }
    Ok((all, thread))
}

/// Bytes that a host received and sent at its interface toward the other node.
fn traffic(host: &Namespace) -> Result<(f64, f64)> {
    let text = host.run_in(|| fs::read_to_string("/proc/thread-self/net/dev"));
    let text = text.context("read the counters of interfaces")?;
    let line = text.lines().find_map(|line| {
        let (name, rest) = line.trim().split_once(':')?;
        (name == TO_SERVER).then(|| rest.to_owned())
    });
    let line = line.with_context(|| format!("no interface {TO_SERVER}"))?;
    let counts: Vec<f64> = line.split_whitespace().flat_map(str::parse).collect();
    counts
        .first()
        .copied()
        .zip(counts.get(8).copied())
        .context("read the counters of interfaces")
}

/// Memory that is resident and backed by no file.
pub(crate) fn memory_bytes(pid: u32) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).context("read memory")?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<f64>().ok());
    Ok(kilobytes.context("read memory")? * 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_have_own_addresses() {
        let all: std::collections::HashSet<_> = (0..PEERS_MAX).map(address).collect();
        assert_eq!(all.len(), usize::from(PEERS_MAX));
        assert_eq!(
            (address(0), address(999)),
            ("10.77.1.0".into(), "10.77.4.231".into())
        );
    }

    #[test]
    fn process_time_and_memory() {
        let pid = std::process::id();
        let (all, thread) = processor_seconds(pid).unwrap();
        assert!(all > 0.0 && thread == 0.0);
        assert!(memory_bytes(pid).unwrap() > 1e4);
    }
}
