// SPDX-License-Identifier: Apache-2.0
//! `establish`: how long a connection takes to open when many open at once.
//!
//! The counterpart of the Miniproxy paper's table 1. Links are virtual cables without delay, so
//! what is seen is processing. Two times are taken: until `connect()` is done, which an early
//! node answers itself, and until a byte came back from the server, which nobody can answer for
//! it. Contenders take turns, so that a busy moment of the machine hits all alike.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::chart::{Across, Chart, Series, Spacing};
use crate::echo::{self, Echo};
use crate::encapsulation::{Course, Encapsulation};
use crate::link::Link;
use crate::network::Family;
use crate::node::Binary;
use crate::record::Record;
use crate::stats::{mean, median, percentile};
use crate::table::Table;

const PORT: u16 = 7;

/// No burst may take longer.
const PATIENCE: Duration = Duration::from_secs(30);

/// Table 1 of the Miniproxy paper: connections at once, mean time in milliseconds.
const PAPER: [(usize, f64); 6] = [
    (30, 0.1),
    (70, 1.0),
    (110, 2.0),
    (150, 2.0),
    (190, 3.0),
    (230, 3.0),
];

/// Arguments of `posthaste-lab establish`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    binary: Binary,
    /// Connections opened at once, one burst each
    #[arg(long, value_delimiter = ',', default_values_t = PAPER.map(|(count, _)| count))]
    connections: Vec<usize>,
    /// Bursts per subject and number of connections
    #[arg(long, default_value_t = 20)]
    repeats: usize,
    /// What to compare
    #[arg(long, value_delimiter = ',', default_values_t = Encapsulation::ALL)]
    subjects: Vec<Encapsulation>,
    /// IP version
    #[arg(long, value_enum, default_value = "4")]
    family: Family,
    /// Seed of the network's random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where the record and the pictures go
    #[arg(long, value_name = "DIR", default_value = "lab-output")]
    output: PathBuf,
}

/// The times of one subject with one number of connections, in milliseconds.
#[derive(Debug)]
struct Cell {
    subject: Encapsulation,
    connections: usize,
    connect: Vec<f64>,
    echo: Vec<f64>,
}

/// Runs the experiment, prints its table and writes record and pictures.
pub fn run(args: &Args) -> Result<()> {
    echo::raise_descriptor_limit()?;
    let mut record = Record::start("establish", args.seed);
    if args
        .subjects
        .iter()
        .any(|&subject| subject != Encapsulation::Direct)
    {
        record.parameter("node", args.binary.version()?);
    }
    let cells = measure(args)?;
    fill(&mut record, args, &cells);
    record.tables.push(table(args, &cells));
    let chart = |chart: &Picture| (format!("{}.svg", chart.name), chart.chart(args, &cells));
    record.publish(&args.output, CHARTS.iter().map(chart))
}

fn measure(args: &Args) -> Result<Vec<Cell>> {
    let mut courses = Vec::new();
    for &subject in &args.subjects {
        let course = subject.start([Link::Veth, Link::Veth], &args.binary, args.seed, "")?;
        let server = Echo::start(course.network.server(), PORT)?;
        courses.push((subject, course, server));
    }
    let cell = |&(subject, _, _): &(Encapsulation, Course, Echo), connections| Cell {
        subject,
        connections,
        connect: Vec::new(),
        echo: Vec::new(),
    };
    let counts = &args.connections;
    let mut cells: Vec<Cell> = counts
        .iter()
        .flat_map(|&count| courses.iter().map(move |of| cell(of, count)))
        .collect();
    // The first burst of each warms caches and neighbour tables and is not counted.
    for (_, course, _) in &courses {
        burst(course, args.family, 1)?;
    }
    for repeat in 0..args.repeats {
        eprintln!("establish: round {} of {}", repeat + 1, args.repeats);
        for (index, cell) in cells.iter_mut().enumerate() {
            let (subject, course, _) = &courses[index % courses.len()];
            let calls = burst(course, args.family, cell.connections);
            let calls = calls.with_context(|| format!("{subject}, {}", cell.connections))?;
            cell.connect
                .extend(calls.iter().map(|(connect, _)| milliseconds(*connect)));
            cell.echo
                .extend(calls.iter().map(|(_, echo)| milliseconds(*echo)));
        }
    }
    Ok(cells)
}

fn burst(course: &Course, family: Family, count: usize) -> Result<Vec<(Duration, Duration)>> {
    let target = SocketAddr::new(course.network.server_address(family), PORT);
    let calls = course
        .network
        .client()
        .run_in(|| echo::call(target, count, PATIENCE))?;
    let times = calls.iter().map(|call| (call.connect, call.echo)).collect();
    for call in calls {
        call.close().context("close a connection")?;
    }
    Ok(times)
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

fn fill(record: &mut Record, args: &Args, cells: &[Cell]) {
    record.parameter("family", args.family.to_string());
    record.parameter("repeats", args.repeats);
    record.parameter("links", "veth");
    for cell in cells {
        let connections = cell.connections.to_string();
        let labels = [
            ("subject", cell.subject.name()),
            ("connections", &connections),
        ];
        record.sample("connect", "ms", &labels, cell.connect.clone());
        record.sample("first byte", "ms", &labels, cell.echo.clone());
    }
    record.remarks.push(
        "The paper's times are means on its own hardware (Xeon at 3.4 GHz, 10 Gbit/s link, Xen); \
         here client, node and server share the machine named below."
            .to_string(),
    );
}

fn table(args: &Args, cells: &[Cell]) -> Table {
    let title = format!(
        "Connection establishment, ms ({}, virtual cables, {} bursts each)",
        args.family, args.repeats
    );
    let columns = [
        "connections at once",
        "subject",
        "connect mean",
        "connect median",
        "connect p99",
        "first byte mean",
        "first byte median",
        "first byte p99",
        "Miniproxy paper, mean",
    ];
    let mut table = Table::new(title, &columns);
    for cell in cells {
        let mut row = vec![cell.connections.to_string(), cell.subject.to_string()];
        for times in [&cell.connect, &cell.echo] {
            row.extend([mean(times), median(times), percentile(times, 99.0)].map(shown));
        }
        row.push(shown(paper(cell.connections)));
        table.push(row);
    }
    table
}

fn shown(time: Option<f64>) -> String {
    time.map_or_else(|| "-".to_string(), |time| format!("{time:.2}"))
}

/// One picture: a time of every subject over the number of connections.
struct Picture {
    /// Part of the file's name.
    name: &'static str,
    title: &'static str,
    times: fn(&Cell) -> &[f64],
    /// Whether the paper has that time, too.
    has_paper: bool,
    note: &'static str,
}

const CHARTS: [Picture; 2] = [
    Picture {
        name: "connect",
        title: "Time until connected, many connections at once",
        times: |cell| &cell.connect,
        has_paper: true,
        note: "An early or late node answers by itself; a strict one asks the server first. \
               The paper's figures are from other hardware.",
    },
    Picture {
        name: "first-byte",
        title: "Time until the first byte is back, many connections at once",
        times: |cell| &cell.echo,
        has_paper: false,
        note: "Client, node and server share the CPUs.",
    },
];

impl Picture {
    fn chart(&self, args: &Args, cells: &[Cell]) -> Chart {
        let mut series: Vec<Series> = args
            .subjects
            .iter()
            .map(|&subject| self.series(args, cells, subject))
            .collect();
        series.extend(self.has_paper.then(|| Series {
            name: "Miniproxy paper".to_string(),
            values: args.connections.iter().map(|&count| paper(count)).collect(),
            ..Series::default()
        }));
        let counts = args.connections.iter().map(|&count| count as f64);
        let conditions = format!(
            "{}, virtual cables, means over {} bursts",
            args.family, args.repeats
        );
        Chart {
            title: self.title.to_string(),
            subtitle: conditions,
            x_label: "connections opened at once".to_string(),
            y_label: "mean time, ms".to_string(),
            across: Across::Numbers(counts.collect(), Spacing::Linear),
            series,
            model_name: String::new(),
            note: self.note.to_string(),
        }
    }

    fn series(&self, args: &Args, cells: &[Cell], subject: Encapsulation) -> Series {
        let value = |&count: &usize| {
            let mut mine = cells.iter().filter(|cell| cell.subject == subject);
            mean((self.times)(mine.find(|cell| cell.connections == count)?))
        };
        Series {
            name: subject.to_string(),
            values: args.connections.iter().map(value).collect(),
            ..Series::default()
        }
    }
}

/// The paper's mean time for a number of connections, in milliseconds.
fn paper(connections: usize) -> Option<f64> {
    PAPER
        .iter()
        .find(|(count, _)| *count == connections)
        .map(|(_, time)| *time)
}
