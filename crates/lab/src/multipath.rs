// SPDX-License-Identifier: Apache-2.0
//! `multipath`: downloads of a client with two paths from a server with TCP.
//!
//! The paths have 8 and 2 Mbit/s. Without a node the client of Multipath TCP falls back to TCP over
//! the faster one. A node between the paths and the server answers in its place.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use socket2::{Domain, Protocol, Socket, Type};

use crate::chart::{Across, Chart, Curve};
use crate::netns::Namespace;
use crate::node::{Binary, Node};
use crate::record::{Common, Record};
use crate::target::Bound;
use crate::transfer::{Request, Server, fetch_over};

const GOODPUT: &str = "goodput";
const UNIT: &str = "Mbit/s";
const PORT: u16 = 80;
/// The paths by their interface at the node, in Mbit/s.
const PATHS: [(&str, u32); 2] = [("c1", 8), ("c2", 2)];
/// What both paths carry of TCP's bytes: all but headers, in full segments with timestamps.
const LIMIT: f64 = 10.0 * 1448.0 / 1514.0;
/// The median must reach this where a node answers Multipath TCP.
const GOAL: f64 = 9.3;
const DEADLINE: Duration = Duration::from_secs(120);

/// Arguments of `posthaste-lab multipath`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    binary: Binary,
    /// Downloads of each subject
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeats: u32,
    /// Bytes of a download
    #[arg(long, default_value_t = 6_000_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    bytes: u64,
    #[command(flatten)]
    common: Common,
}

/// A way to the server.
#[derive(Clone, Copy, Debug)]
struct Subject {
    name: &'static str,
    /// The accept mode of the node, if there is one.
    accept: Option<&'static str>,
    protocol: Protocol,
}

const fn subject(name: &'static str, accept: Option<&'static str>, protocol: Protocol) -> Subject {
    Subject {
        name,
        accept,
        protocol,
    }
}

const SUBJECTS: [Subject; 5] = [
    subject("no node", None, Protocol::MPTCP),
    subject("early", Some("early"), Protocol::MPTCP),
    subject("strict", Some("strict"), Protocol::MPTCP),
    subject("late", Some("late"), Protocol::MPTCP),
    subject("early, client with TCP", Some("early"), Protocol::TCP),
];

/// `client p1,p2 -- c1,c2 router s -- eth0 server`.
struct Site {
    client: Namespace,
    router: Namespace,
    server: Namespace,
}

impl Site {
    fn build() -> Result<Self> {
        let site = Self {
            client: Namespace::new()?,
            router: Namespace::new()?,
            server: Namespace::new()?,
        };
        let router = site.router.name();
        site.client.ip(&format!(
            "link add p1 type veth peer name c1 netns {router}"
        ))?;
        site.client.ip(&format!(
            "link add p2 type veth peer name c2 netns {router}"
        ))?;
        site.server.ip(&format!(
            "link add eth0 type veth peer name s netns {router}"
        ))?;
        batch(
            &site.client,
            "link set p1 up
            link set p2 up
            address add 10.31.1.2/24 dev p1
            address add 10.31.2.2/24 dev p2
            route add default via 10.31.1.1
            route add default via 10.31.2.1 dev p2 table 102
            rule add from 10.31.2.2 lookup 102
            mptcp limits set subflows 4 add_addr_accepted 4
            mptcp endpoint add 10.31.2.2 dev p2 subflow",
        )?;
        batch(
            &site.router,
            "link set c1 up
            link set c2 up
            link set s up
            address add 10.31.1.1/24 dev c1
            address add 10.31.2.1/24 dev c2
            address add 10.31.3.1/24 dev s
            mptcp limits set subflows 4 add_addr_accepted 4",
        )?;
        batch(
            &site.server,
            "link set eth0 up
            address add 10.31.3.2/24 dev eth0
            route add default via 10.31.3.1",
        )?;
        site.router.sysctl("net.ipv4.ip_forward", "1")?;
        for (interface, rate) in PATHS {
            site.shape(interface, rate)?;
        }
        Ok(site)
    }

    /// Limits what the router sends to the client by an interface.
    fn shape(&self, interface: &str, rate: u32) -> Result<()> {
        let words =
            format!("qdisc add dev {interface} root tbf rate {rate}mbit burst 16kb latency 100ms");
        let mut tc = self.router.command("tc")?;
        let status = tc.args(words.split(' ')).status().context("run tc")?;
        ensure!(status.success(), "tc {words}: {status}");
        Ok(())
    }

    /// Downloads once; the goodput in Mbit/s.
    fn download(&self, protocol: Protocol, bytes: u64) -> Result<f64> {
        let request = Request {
            deadline: DEADLINE,
            ..Request::new([10, 31, 3, 2].into(), PORT, bytes)
        };
        let timing = self.client.run_in(|| {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(protocol))?;
            fetch_over(socket, &request, |_| ())
        })?;
        Ok(bytes as f64 * 8.0 / timing.complete.as_secs_f64() / 1e6)
    }
}

fn batch(host: &Namespace, lines: &str) -> Result<()> {
    let lines: Vec<String> = lines.lines().map(|line| line.trim().to_owned()).collect();
    host.ip_batch(&lines)
}

fn config(accept: &str) -> String {
    // BBR without fq uses several paths less well, and is the default of some hosts.
    format!(
        "[defaults]\naccept = {accept:?}\nmultipath = \"convert\"\n\
         [defaults.downstream]\ncongestion = \"cubic\"\n"
    )
}

/// Runs the experiment, prints its table, writes record and chart. Fails when a goal is missed.
pub fn run(args: &Args) -> Result<()> {
    let mut record = Record::start("multipath", args.common.seed);
    record.parameter("node", args.binary.version()?);
    record.parameter("bytes", args.bytes);
    record.parameter("limit in Mbit/s", LIMIT);
    for subject in SUBJECTS {
        eprintln!("multipath: {}", subject.name);
        let values = downloads(subject, args).with_context(|| subject.name)?;
        record.sample(GOODPUT, UNIT, &[("subject", subject.name)], values);
        let is_multipath = subject.protocol == Protocol::MPTCP;
        record.model(is_multipath.then_some(LIMIT));
        if subject.accept.is_some() && is_multipath {
            record.target(format!("goodput, {}", subject.name), Bound::AtLeast(GOAL));
        }
    }
    record.table(
        "Goodput over paths of 8 and 2 Mbit/s",
        |_| true,
        &["subject"],
        &[GOODPUT],
    );
    record.charts.push(chart(args));
    record.finish(&args.common.output, &[])
}

fn downloads(subject: Subject, args: &Args) -> Result<Vec<f64>> {
    let site = Site::build()?;
    let _server = Server::start(&site.server, PORT, "cubic")?;
    let node = subject.accept.map(|accept| -> Result<Node> {
        let binary = args.binary.find()?;
        Node::builder(&site.router, binary)
            .config(&config(accept))
            .start()
    });
    let node = node.transpose()?;
    let values = (0..args.repeats).map(|_| site.download(subject.protocol, args.bytes));
    let values = values.collect();
    drop(node);
    values
}

fn chart(args: &Args) -> Chart {
    Chart {
        file: String::new(),
        title: "Downloads of a client with two paths, from a server with TCP".to_owned(),
        subtitle: format!(
            "paths of 8 and 2 Mbit/s, {} downloads of {} bytes",
            args.repeats, args.bytes
        ),
        across_label: "subject".to_owned(),
        value_label: "goodput, Mbit/s".to_owned(),
        across: Across::Rows(vec!["subject".to_owned()]),
        curves: vec![Curve::new(GOODPUT, GOODPUT, &[])],
        note: format!("Model: {LIMIT:.2} Mbit/s, both paths less headers."),
    }
}
