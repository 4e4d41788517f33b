// SPDX-License-Identifier: Apache-2.0
//! `planning`: measures the gain of choosing chains by the size of transfers, and its cost.
//!
//! Repeats figure 2 of the MOSTO paper on 54 graphs of 7 to 115 nodes, in which every pair of nodes
//! is linked at the distance of the shortest path along a provider's lines: how much longer
//! transfers take over the chains of other strategies. Computed by a model, without packets. Then
//! the time of planning, for up to 1000 nodes.
//!
//! The matrices are not part of the project: `--data` is the path to them.

pub(crate) mod data;
mod quality;
mod report;
mod runtime;

use std::path::PathBuf;

use anyhow::{Result, ensure};

use crate::record::{Common, Record};
use quality::Counting;

/// Rounds of slow start for the three sizes of the paper: 15, 450 and 14935 KB.
const ROUNDS: [u64; 3] = [1, 5, 10];

/// Arguments of `posthaste-lab planning`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Directory with mesh54/ and cloud/
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Numbers of nodes for which the time is measured
    #[arg(long, value_delimiter = ',', default_values_t = [115, 250, 500, 1000], value_name = "COUNT", value_parser = clap::value_parser!(u16).range(2..=2000))]
    nodes: Vec<u16>,
    /// Measurements of each time; the median counts
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    repeats: u32,
    #[command(flatten)]
    common: Common,
}

/// Runs the experiment.
pub fn run(args: &Args) -> Result<()> {
    ensure!(args.nodes.is_sorted_by(|a, b| a < b), "--nodes must ascend");
    let mut record = Record::start("planning", args.common.seed);
    // All data first: a missing file is to fail before minutes of computing.
    let mesh = data::read_mesh(&args.data)?;
    let cloud = [data::read_cloud(&args.data)?];
    record.parameter("repeats", args.repeats);
    record.parameter("rounds", ROUNDS.to_vec());
    record.parameter("graphs", mesh.len());
    for (set, meshes, counting) in [
        (report::PUBLISHED, &mesh[..], Counting::AsPublished),
        (report::COUNTED, &mesh, Counting::WithHandshake),
        (report::CLOUD, &cloud, Counting::WithHandshake),
    ] {
        let qualities = quality::compare(meshes, counting)?;
        report::qualities(set, &qualities, &mut record);
    }
    runtime::measure(args, &mesh, &mut record)?;
    report::fill(mesh.len(), &mut record);
    record.publish(&args.common.output)
}
