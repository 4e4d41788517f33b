// SPDX-License-Identifier: Apache-2.0
//! Reads the matrices.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

/// What to do if a file is missing.
const WHERE: &str = "The data are not part of the project. mesh54/*.txt are the graphs of \
    docs/design/0013-planning.md, which describes how they are made from public maps: Rocketfuel's of \
    github.com/icarus-sim/icarus, the Topology Zoo's of github.com/svissicchio/Repetita. \
    cloud/aws21_cloudping_ms.tsv holds the round-trip times of the class AwsLatencies of \
    github.com/libp2p/jvm-libp2p";

/// Number of graphs in MOSTO's evaluation.
const GRAPHS: usize = 54;

/// Round-trip times between all nodes of a graph.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Mesh {
    pub(crate) name: String,
    /// By row, in milliseconds.
    pub(crate) rtts_ms: Vec<Vec<f64>>,
    /// Cost of a node.
    pub(crate) cost_us: u32,
}

/// Enough that a chain without needless nodes wins a tie: the paper has no such cost. The graphs'
/// times are rounded to less.
const COST_US: u32 = 20;

/// Node cost in a cloud.
const CLOUD_COST_US: u32 = 500;

/// The 54 graphs.
pub(super) fn read_mesh(data: &Path) -> Result<Vec<Mesh>> {
    let directory = data.join("mesh54");
    let shown = directory.display();
    let files = fs::read_dir(&directory).with_context(|| format!("list {shown}. {WHERE}"))?;
    let mut meshes = Vec::new();
    for file in files {
        let path = file?.path();
        if path.extension().is_some_and(|ending| ending == "txt") {
            meshes.push(read_matrix(&path, COST_US)?);
        }
    }
    let count = meshes.len();
    ensure!(
        count == GRAPHS,
        "{shown} holds {count} graphs, not {GRAPHS}. {WHERE}"
    );
    // The order of a directory is arbitrary, and the record must not depend on it.
    meshes.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(meshes)
}

/// Round-trip times between the regions of a cloud.
pub(crate) fn read_cloud(data: &Path) -> Result<Mesh> {
    read_matrix(&data.join("cloud/aws21_cloudping_ms.tsv"), CLOUD_COST_US)
}

/// Rows of numbers, optionally preceded by their count.
fn read_matrix(path: &Path, cost_us: u32) -> Result<Mesh> {
    let file = path.display();
    let text = fs::read_to_string(path).with_context(|| format!("read {file}. {WHERE}"))?;
    let row = |line: &str| -> Result<Vec<f64>> {
        let numbers = line.split_whitespace().map(str::parse);
        Ok(numbers.collect::<Result<_, _>>()?)
    };
    let rows = text.lines().filter(|line| !line.trim().is_empty()).map(row);
    let mut rtts_ms: Vec<Vec<f64>> = rows
        .collect::<Result<_>>()
        .with_context(|| format!("{file} has other than numbers"))?;
    // The graphs begin with their number of nodes, the matrix of the cloud does not.
    if rtts_ms.first().is_some_and(|row| row.len() == 1) {
        rtts_ms.remove(0);
    }
    let nodes = rtts_ms.len();
    ensure!(
        nodes > 1 && rtts_ms.iter().all(|row| row.len() == nodes),
        "{file} is not square"
    );
    let name = path.file_stem().unwrap_or_default();
    Ok(Mesh {
        name: name.to_string_lossy().into_owned(),
        rtts_ms,
        cost_us,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn missing_data_named() {
        let nowhere = Path::new("/nonexistent");
        for error in [
            read_mesh(nowhere).unwrap_err(),
            read_cloud(nowhere).unwrap_err(),
        ] {
            let message = format!("{error:#}");
            assert!(
                message.contains("/nonexistent/") && message.contains("github.com"),
                "{message}"
            );
        }
    }

    #[test]
    fn rows_are_read() {
        let scratch = Scratch::new().unwrap();
        let path = scratch.path().join("two.txt");
        fs::write(&path, "2\n0.0 1.5\n1.5 0.0\n").unwrap();
        let mesh = read_matrix(&path, 7).unwrap();
        assert_eq!((mesh.name.as_str(), mesh.rtts_ms[1][0]), ("two", 1.5));
        fs::write(&path, "0 1 2\n1 0\n").unwrap();
        assert!(read_matrix(&path, 7).is_err());
    }
}
