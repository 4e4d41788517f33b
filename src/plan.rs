// SPDX-License-Identifier: Apache-2.0
//! The `plan` verb: computes which nodes should carry connections, from a file of measured links.
//! `docs/plan.md` describes formats and output.

use std::fs::File;
use std::io::Read;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use clap::{Args, ValueEnum};
use posthaste_plan::fronts::Limits;
use posthaste_plan::matrix::INITIAL_BANDWIDTH;
use posthaste_plan::model::{Congestion, Mode};
use posthaste_plan::planner::Transfer;
use posthaste_plan::{Model, Planner};
use serde::Serialize;

mod all;
mod chart;
mod pair;
mod read;
mod show;

use crate::verb;
use all::All;
use pair::Pair;
use read::{Format, Network};

/// Bound on the file size: enough for the largest supported number of nodes.
const FILE_BYTES_MAX: u64 = 256 << 20;

/// The default of nodes, and the largest value accepted.
const ASSUMED_MBIT: u32 = INITIAL_BANDWIDTH.get() / BYTES_PER_MBIT;
const ASSUMED_MBIT_MAX: u32 = u32::MAX / BYTES_PER_MBIT;
const BYTES_PER_MBIT: u32 = 125_000;

/// Bound on the nodes between the ends of a chain.
const NODES_BETWEEN_MAX: u8 = 100;

#[derive(Args, Debug)]
pub(crate) struct PlanArgs {
    /// File with the measured links
    #[arg(value_name = "MATRIX")]
    file: PathBuf,
    /// Format of the file (default: json if its name ends in .json, otherwise csv)
    #[arg(long, value_parser = Format::named)]
    format: Option<Format>,
    /// First node of the chains to explain (default: list the chains of all pairs)
    #[arg(long, value_name = "NODE", requires = "to")]
    from: Option<String>,
    /// Last node of the chains to explain
    #[arg(long, value_name = "NODE", requires = "from")]
    to: Option<String>,
    /// Sizes of transfers
    #[arg(long, value_delimiter = ',', value_name = "SIZE", value_parser = bytes, default_value = "10KB,100KB,1MB,10MB")]
    size: Vec<u64>,
    /// Round-trip time in milliseconds of the slower of the hops before the first node and after the last
    #[arg(long, value_name = "MS", default_value_t = 0.0)]
    access: f64,
    /// Cost of each intermediate node of a chain, in milliseconds; a JSON file may have its own
    #[arg(long, value_name = "MS", default_value_t = 0.5)]
    node_cost: f64,
    /// Most intermediate nodes of a chain
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u8).range(0..=i64::from(NODES_BETWEEN_MAX)))]
    nodes_max: Option<u8>,
    /// When nodes complete the client's handshake
    #[arg(long, value_enum, default_value_t = AcceptWord::Early)]
    accept: AcceptWord,
    /// Congestion control of the nodes; it determines the cost of loss
    #[arg(long, value_enum, default_value_t = CongestionWord::Posthaste)]
    congestion: CongestionWord,
    /// Rate at which nodes start a flow on a link, in Mbit/s; 0 for an initial window of 10 segments
    #[arg(long, value_name = "MBIT", value_parser = clap::value_parser!(u32).range(0..=i64::from(ASSUMED_MBIT_MAX)), default_value_t = ASSUMED_MBIT)]
    assumed: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Draw the chains of the pair to a file
    #[arg(long, value_name = "FILE.svg", requires = "from")]
    chart: Option<PathBuf>,
}

/// Accept modes by their names in configurations.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum AcceptWord {
    Early,
    Strict,
    Late,
}

/// Congestion controls by their names in configurations.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum CongestionWord {
    Reno,
    Cubic,
    Bbr,
    Posthaste,
}

/// The output as JSON.
#[derive(Debug, Serialize)]
struct Document<'a, T> {
    /// Data that is allowed but probably not intended, one sentence each.
    warnings: &'a [String],
    #[serde(flatten)]
    answer: T,
}

/// Executes the verb.
pub(crate) fn run(args: &PlanArgs) -> anyhow::Result<()> {
    let network = load(args)?;
    let warnings = read::warnings(&network, args.file.display());
    for warning in &warnings {
        // Not to standard output, which may be JSON and then has them as well.
        eprintln!("warning: {warning}");
    }
    answer(args, &network, &warnings)
}

fn answer(args: &PlanArgs, network: &Network, warnings: &[String]) -> anyhow::Result<()> {
    // A chain has one hop more than nodes between its ends.
    let hops_max = args.nodes_max.map(|nodes| nodes + 1);
    let planner = Planner::new(
        &network.matrix,
        args.model(),
        Limits {
            hops_max,
            ..Limits::default()
        },
    );
    let transfers = args.transfers()?;
    let (Some(from), Some(to)) = (&args.from, &args.to) else {
        let all = All::of(&planner, &network.names, &transfers);
        if args.json {
            let answer = &all;
            return verb::print_json(&Document { warnings, answer });
        }
        return verb::print(&show::all(&all));
    };
    let ends = (node(network, args, from)?, node(network, args, to)?);
    ensure!(
        ends.0 != ends.1,
        "a chain needs two nodes, not {from} alone"
    );
    let pair = Pair::of(&planner, &network.names, ends, &transfers).with_context(|| {
        format!(
            "nothing in {} leads from {from} to {to}",
            args.file.display()
        )
    })?;
    if let Some(file) = &args.chart {
        let written = std::fs::write(file, chart::draw(&pair));
        written.with_context(|| format!("write {}", file.display()))?;
    }
    if args.json {
        let answer = &pair;
        return verb::print_json(&Document { warnings, answer });
    }
    verb::print(&show::pair(&pair))
}

impl PlanArgs {
    fn model(&self) -> Model {
        Model {
            mode: match self.accept {
                AcceptWord::Early => Mode::Early,
                AcceptWord::Strict => Mode::Strict,
                AcceptWord::Late => Mode::Late,
            },
            congestion: match self.congestion {
                CongestionWord::Reno => Congestion::Reno,
                CongestionWord::Cubic => Congestion::Cubic,
                CongestionWord::Bbr => Congestion::Bbr,
                CongestionWord::Posthaste => Congestion::Posthaste,
            },
            ..Model::default()
        }
    }

    fn transfers(&self) -> anyhow::Result<Vec<Transfer>> {
        let access_us = read::micros(self.access).map_err(|what| wrong("--access", &what))?;
        let mut sizes = self.size.clone();
        sizes.sort_unstable();
        sizes.dedup();
        let transfer = |bytes| Transfer { bytes, access_us };
        Ok(sizes.into_iter().map(transfer).collect())
    }
}

fn wrong(flag: &str, what: &str) -> anyhow::Error {
    anyhow::anyhow!("{flag}: {what}")
}

/// Reads the file. A node's cost in the file takes precedence.
fn load(args: &PlanArgs) -> anyhow::Result<Network> {
    let file = args.file.display();
    let name = args.file.to_string_lossy();
    let format = args.format.unwrap_or_else(|| Format::of_name(&name));
    let text = text_of(&args.file).with_context(|| format!("read {file}"))?;
    let mut network =
        read::read(&text, format).map_err(|problem| anyhow::anyhow!(problem.of_file(&file)))?;
    let cost = read::micros(args.node_cost).map_err(|what| wrong("--node-cost", &what))?;
    for node in 0..network.names.len() {
        if !network.costed.contains(&node) {
            network.matrix.set_cost(node, cost)?;
        }
    }
    let assumed = NonZeroU32::new(args.assumed * BYTES_PER_MBIT);
    network.matrix.assume(assumed);
    Ok(network)
}

fn text_of(path: &Path) -> anyhow::Result<String> {
    let mut text = String::new();
    // One byte more shows that the file is larger.
    let mut file = File::open(path)?.take(FILE_BYTES_MAX + 1);
    let read = file.read_to_string(&mut text)?;
    if read as u64 > FILE_BYTES_MAX {
        bail!("it is larger than {} MB", FILE_BYTES_MAX >> 20);
    }
    Ok(text)
}

fn node(network: &Network, args: &PlanArgs, name: &str) -> anyhow::Result<usize> {
    network.node(name).with_context(|| {
        let shown = 8;
        let known = network.names.iter().take(shown).map(String::as_str);
        let rest = if network.names.len() > shown {
            ", ..."
        } else {
            ""
        };
        format!(
            "there is no node {name} in {}, which has {}{rest}",
            args.file.display(),
            known.collect::<Vec<_>>().join(", ")
        )
    })
}

/// Parses `100KB` as bytes; a KB is 1000 bytes.
fn bytes(text: &str) -> Result<u64, String> {
    let form = || format!("expected a size such as 15KB, 1.5MB or 800, not {text}");
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" | "B" => 1.0,
        "KB" => 1e3,
        "MB" => 1e6,
        "GB" => 1e9,
        _ => return Err(form()),
    };
    let number: f64 = digits.parse().map_err(|_| form())?;
    let bytes = (number * unit).round();
    // False for NaN, too. Above this bound an f64 has no exact bytes any more.
    if !(0.0..=1e15).contains(&bytes) {
        return Err(form());
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it was compared with its bounds"
    )]
    let bytes = bytes as u64;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: G5
    #[test]
    fn plans_assume_what_nodes_do() {
        assert_eq!(
            INITIAL_BANDWIDTH.get(),
            posthaste_relay::chain::INITIAL_BANDWIDTH
        );
        assert_eq!(ASSUMED_MBIT * BYTES_PER_MBIT, INITIAL_BANDWIDTH.get());
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!(bytes("15KB"), Ok(15_000));
        assert_eq!(bytes("1.5MB"), Ok(1_500_000));
        assert_eq!(bytes("800"), Ok(800));
        for wrong in ["", "KB", "15kb", "1 MB", "-1", "nan", "1e300GB", "5KiB"] {
            assert!(bytes(wrong).unwrap_err().contains("expected"), "{wrong}");
        }
    }
}
