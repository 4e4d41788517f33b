// SPDX-License-Identifier: Apache-2.0
//! `demo`: fetches the same web objects with and without a node on the path.
//!
//! Two networks are alike: a client with a real curl, a router halfway, a server with a real nginx.
//! In one of them the router also runs a node with default settings, except for the congestion
//! control, which is the same everywhere, whatever the host's default. Fetches alternate between
//! the two. Every object is compared with the original, and the server's log must have the client's
//! own address.

pub(crate) mod web;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::chart::{Across, Chart, Series};
use crate::link::Link;
use crate::network::{Family, Network};
use crate::node::{Binary, Node};
use crate::record::Record;
use crate::stats::{deviation_percent, median, percentile};
use crate::table::Table;
use web::{Browser, Fetched, Programs, WebServer};

/// Arguments of `posthaste-lab demo`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    binary: Binary,
    /// Round-trip time between client and server, in milliseconds
    #[arg(long, default_value_t = 100, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=2000))]
    rtt: u64,
    /// Rate of every link, in Mbit/s
    #[arg(long, default_value_t = 100, value_name = "MBIT", value_parser = clap::value_parser!(u64).range(1..=200))]
    rate: u64,
    /// Sizes of the objects, in KB of 1000 bytes
    #[arg(long, value_delimiter = ',', default_values_t = [10, 25, 100, 500], value_name = "KB", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    sizes: Vec<u64>,
    /// IP version
    #[arg(long, value_enum, default_value_t = Family::V4, value_name = "VERSION")]
    family: Family,
    /// Fetches of each object each way; the median counts
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeats: u32,
    /// Directory for the record and the chart
    #[arg(long, default_value = "lab-output", value_name = "DIR")]
    output: PathBuf,
}

/// A network with a web server, and a browser to use it. Dropped in the order of its fields.
#[derive(Debug)]
struct Testbed {
    way: &'static str,
    node: Option<Node>,
    server: WebServer,
    browser: Browser,
    network: Network,
    /// Fetches of each size, in the order of the sizes.
    fetched: Vec<Vec<Fetched>>,
}

/// Runs the demonstration.
pub fn run(args: &Args) -> Result<()> {
    let mut record = Record::start("demo", 0);
    let programs = Programs::find()?;
    let node = args.binary.find()?;
    let mut sites = [
        Testbed::new(args, &programs, "directly", None)?,
        Testbed::new(args, &programs, "through a node", Some(&node))?,
    ];
    for repeat in 1..=args.repeats {
        eprintln!("demo: round {repeat} of {}", args.repeats);
        for (index, size) in args.sizes.iter().enumerate() {
            for testbed in &mut sites {
                let fetched = testbed.fetch(args.family, *size)?;
                testbed.fetched[index].push(fetched);
            }
        }
    }
    for testbed in &sites {
        testbed.check(args)?;
    }
    report(args, &sites, &mut record)
}

impl Testbed {
    fn new(
        args: &Args,
        programs: &Programs,
        way: &'static str,
        node: Option<&Path>,
    ) -> Result<Self> {
        let hop = Duration::from_millis(args.rtt) / 4;
        let link = Link::delay(hop)
            .rate(args.rate * 1_000_000)
            .queue(10_000_000);
        let network = Network::line([link.clone(), link]).build()?;
        let server = WebServer::start(&programs.nginx, network.server(), &args.sizes)?;
        let start = |binary| {
            let config = node_config(network.congestion());
            Node::builder(network.node(0), binary)
                .config(&config)
                .start()
        };
        let node = node.map(start).transpose().context("start the node")?;
        let browser = Browser::new(&programs.curl)?;
        let fetched = vec![Vec::new(); args.sizes.len()];
        let testbed = Self {
            way,
            node,
            server,
            browser,
            network,
            fetched,
        };
        // The first fetch fills caches on the path and is not counted.
        testbed.fetch(args.family, args.sizes[0])?;
        Ok(testbed)
    }

    fn fetch(&self, family: Family, size: u64) -> Result<Fetched> {
        let server = self.network.server_address(family);
        self.browser
            .fetch(self.network.client(), server, size)
            .with_context(|| format!("fetch {size} KB {}", self.way))
    }

    /// Checks that the traffic took the expected path.
    fn check(&self, args: &Args) -> Result<()> {
        let fetches = 1 + args.sizes.len() * args.repeats as usize;
        let client = self.network.client_address(args.family);
        let seen = self.server.visitors()?;
        ensure!(
            seen.len() == fetches && seen.iter().all(|visitor| *visitor == client),
            "{}: nginx saw {seen:?} instead of {fetches} times {client}",
            self.way
        );
        let Some(node) = &self.node else {
            return Ok(());
        };
        let relayed = node.counter("relays_opened")?;
        ensure!(
            relayed == fetches as u64,
            "the node relayed {relayed} of {fetches} connections"
        );
        Ok(())
    }

    /// The value `part` of the fetches of size number `index`, in milliseconds.
    fn values(&self, index: usize, part: fn(&Fetched) -> f64) -> Vec<f64> {
        self.fetched[index].iter().map(part).collect()
    }

    fn series(&self) -> Series {
        let sizes = 0..self.fetched.len();
        let complete = |index: usize| self.values(index, |fetched| fetched.complete_ms);
        let spread = |values: &[f64]| Some((percentile(values, 0.0)?, percentile(values, 100.0)?));
        Series {
            name: self.way.to_owned(),
            values: sizes
                .clone()
                .map(|index| median(&complete(index)))
                .collect(),
            spread: sizes.map(|index| spread(&complete(index))).collect(),
            model: Vec::new(),
        }
    }
}

fn node_config(congestion: &str) -> String {
    ["downstream", "upstream"]
        .map(|side| format!("[defaults.{side}]\ncongestion = {congestion:?}\n"))
        .concat()
}

fn report(args: &Args, sites: &[Testbed; 2], record: &mut Record) -> Result<()> {
    record.parameter("rtt_ms", args.rtt);
    record.parameter("rate_mbit", args.rate);
    record.parameter("repeats", args.repeats);
    record.parameter("congestion", sites[0].network.congestion());
    for testbed in sites {
        for (index, size) in args.sizes.iter().enumerate() {
            let labels = [("way", testbed.way), ("kb", &size.to_string())];
            record.sample(
                "time to connect",
                "ms",
                &labels,
                testbed.values(index, |f| f.connect_ms),
            );
            record.sample(
                "time to first byte",
                "ms",
                &labels,
                testbed.values(index, |f| f.first_byte_ms),
            );
            record.sample(
                "time to completion",
                "ms",
                &labels,
                testbed.values(index, |f| f.complete_ms),
            );
        }
    }
    record.tables.push(table(args, sites)?);
    println!(
        "A client fetches objects from a web server with curl and nginx, over {}.\n\
         Round-trip time {} ms, {} Mbit/s, {}; the node is halfway. Medians of {}.\n",
        args.family,
        args.rtt,
        args.rate,
        sites[0].network.congestion(),
        args.repeats
    );
    println!("{}", record.tables[0]);
    println!("Every object arrived unchanged, and nginx saw the client's own address both ways.");
    record.save(&args.output, [("svg", chart(args, sites).svg())])
}

fn table(args: &Args, sites: &[Testbed; 2]) -> Result<Table> {
    let mut table = Table::new(
        "Times from the start of the connection, in ms",
        &[
            "KB",
            "first byte",
            "with node",
            "complete",
            "with node",
            "saved",
            "",
        ],
    );
    for (index, size) in args.sizes.iter().enumerate() {
        let median_of = |testbed: &Testbed, part: fn(&Fetched) -> f64| {
            median(&testbed.values(index, part)).context("nothing was fetched")
        };
        let [direct, node] = sites;
        let first = [direct, node].map(|testbed| median_of(testbed, |f| f.first_byte_ms));
        let complete = [direct, node].map(|testbed| median_of(testbed, |f| f.complete_ms));
        let ([first, first_node], [complete, complete_node]) = (flat(first)?, flat(complete)?);
        table.push([
            size.to_string(),
            format!("{first:.0}"),
            format!("{first_node:.0}"),
            format!("{complete:.0}"),
            format!("{complete_node:.0}"),
            whole(complete - complete_node),
            format!("{} %", whole(-deviation_percent(complete_node, complete))),
        ]);
    }
    Ok(table)
}

/// Rounded, and without the sign of zero.
fn whole(number: f64) -> String {
    format!("{:.0}", number.round() + 0.0)
}

fn flat([first, second]: [Result<f64>; 2]) -> Result<[f64; 2]> {
    Ok([first?, second?])
}

fn chart(args: &Args, sites: &[Testbed; 2]) -> Chart {
    Chart {
        title: "Fetching web objects, with and without a node halfway".to_owned(),
        subtitle: format!(
            "curl and nginx, {} ms round-trip time, {} Mbit/s, {}, {}",
            args.rtt,
            args.rate,
            sites[0].network.congestion(),
            args.family
        ),
        across_label: "size of the object, KB".to_owned(),
        value_label: "time from connecting to the last byte, ms".to_owned(),
        across: Across::Rows(args.sizes.iter().map(ToString::to_string).collect()),
        series: sites.iter().map(Testbed::series).collect(),
        model_name: String::new(),
        note: format!(
            "Medians of {}; whiskers from the fastest to the slowest.",
            args.repeats
        ),
    }
}
