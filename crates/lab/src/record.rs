// SPDX-License-Identifier: Apache-2.0
//! Records: the conditions of an experiment, the machine, and every raw sample.
//!
//! A record is written once, as JSON, and never edited: charts and tables in the documents are
//! generated from it. It has enough to repeat the experiment and to check every summary row against
//! the samples.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::table::Table;

/// Version of the file format that this lab writes and reads.
const FORMAT: u32 = 1;

/// One run of one experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Version of the file format.
    pub format: u32,
    /// Name of the experiment, as the lab's subcommand.
    pub experiment: String,
    /// Start of the run, UTC, RFC 3339 to the second.
    pub date: String,
    /// The command line that repeats the run.
    pub command: String,
    /// `git describe` of the source tree the lab was built from.
    pub commit: String,
    /// Seed of every random choice in the run.
    pub seed: u64,
    /// The machine it ran on.
    pub machine: Machine,
    /// Parameters: delays, rates, repeats, versions of the subjects.
    pub parameters: BTreeMap<String, Value>,
    /// Every raw sample.
    pub samples: Vec<Samples>,
    /// Summary rows, computed from the samples.
    pub tables: Vec<Table>,
    /// What a reader needs to interpret the numbers: limits, misses, failures.
    pub remarks: Vec<String>,
}

/// The machine an experiment ran on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Kernel release.
    pub kernel: String,
    /// CPUs this process may use.
    pub cpus: usize,
    /// CPU model name.
    pub cpu_model: String,
}

/// Repeated measurements of one quantity under one configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Samples {
    /// The measured quantity, for example `time to first byte`.
    pub quantity: String,
    /// Unit of the values, for example `ms`.
    pub unit: String,
    /// The configuration, for example `subject = early`.
    pub labels: BTreeMap<String, String>,
    /// The values in the order they were taken.
    pub values: Vec<f64>,
}

impl Record {
    /// A record of a run that starts now on this machine.
    pub fn start(experiment: &str, seed: u64) -> Self {
        Self {
            format: FORMAT,
            experiment: experiment.to_string(),
            date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            command: command_line(std::env::args()),
            commit: describe_source(),
            seed,
            machine: Machine::this(),
            parameters: BTreeMap::new(),
            samples: Vec::new(),
            tables: Vec::new(),
            remarks: Vec::new(),
        }
    }

    /// Adds a parameter of the run.
    pub fn parameter(&mut self, name: &str, value: impl Into<Value>) {
        self.parameters.insert(name.to_string(), value.into());
    }

    /// Adds the samples of one quantity under one configuration.
    pub fn sample(
        &mut self,
        quantity: &str,
        unit: &str,
        labels: &[(&str, &str)],
        values: Vec<f64>,
    ) {
        let label = |(name, value): &(&str, &str)| (name.to_string(), value.to_string());
        self.samples.push(Samples {
            quantity: quantity.to_string(),
            unit: unit.to_string(),
            labels: labels.iter().map(label).collect(),
            values,
        });
    }

    /// The path of a file of this run in `directory`: experiment, date, extension.
    pub fn path(&self, directory: &Path, extension: &str) -> PathBuf {
        let date: String = self
            .date
            .chars()
            // Colons are not portable in file names.
            .filter(|c| !matches!(c, '-' | ':'))
            .collect();
        directory.join(format!("{}-{date}.{extension}", self.experiment))
    }

    /// Writes the record below `directory`, which is made if missing.
    pub fn write(&self, directory: &Path) -> anyhow::Result<PathBuf> {
        let path = self.path(directory, "json");
        let json = serde_json::to_string_pretty(self).context("encode the record")?;
        write_file(&path, &(json + "\n"))?;
        Ok(path)
    }

    /// Prints tables and remarks, and saves all as [`Record::save`] does.
    pub(crate) fn publish<N: Display>(
        &self,
        directory: &Path,
        charts: impl IntoIterator<Item = (N, String)>,
    ) -> anyhow::Result<()> {
        for table in &self.tables {
            println!("{table}");
        }
        for remark in &self.remarks {
            println!("{remark}");
        }
        self.save(directory, charts)
    }

    /// Writes charts (SVG), by the extensions of their files' names, and the record below
    /// `directory`, and prints the paths.
    pub(crate) fn save<N: Display>(
        &self,
        directory: &Path,
        charts: impl IntoIterator<Item = (N, String)>,
    ) -> anyhow::Result<()> {
        for (extension, chart) in charts {
            let path = self.path(directory, &extension.to_string());
            write_file(&path, &chart)?;
            println!("Chart: {}", path.display());
        }
        println!("Record: {}", self.write(directory)?.display());
        Ok(())
    }

    /// Reads a record back.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
        let record: Self = serde_json::from_str(&text)
            .with_context(|| format!("{} is not a record of the lab", path.display()))?;
        ensure!(
            record.format == FORMAT,
            "{} has record format {}; this lab reads format {FORMAT}",
            path.display(),
            record.format
        );
        Ok(record)
    }

    /// The record's tables and conditions as Markdown.
    pub fn markdown(&self) -> String {
        let mut text = format!("### {}\n\n", self.experiment);
        for table in &self.tables {
            text.push_str(&table.markdown());
            text.push('\n');
        }
        for remark in &self.remarks {
            text.push_str(&format!("* {remark}\n"));
        }
        if !self.remarks.is_empty() {
            text.push('\n');
        }
        text.push_str(&format!(
            "{} at {}, Linux {}, {} CPUs ({}), seed {}. Repeat with `{}`.\n",
            self.date,
            self.commit,
            self.machine.kernel,
            self.machine.cpus,
            self.machine.cpu_model,
            self.seed,
            self.command
        ));
        text
    }
}

impl Machine {
    /// The machine this process runs on.
    fn this() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpuinfo
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            kernel: kernel.trim().to_string(),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            cpu_model: model.map_or("unknown CPU", |(_, name)| name).to_string(),
        }
    }
}

/// Arguments of every experiment.
#[derive(Clone, Debug, clap::Args)]
pub struct Common {
    /// Seed of every random choice
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Directory for the record and the charts
    #[arg(long, default_value = "lab-output", value_name = "DIR")]
    pub(crate) output: PathBuf,
}

/// Arguments of `posthaste-lab report`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Records written by an experiment.
    #[arg(required = true, value_name = "RECORD")]
    records: Vec<PathBuf>,
}

/// Prints the records as Markdown.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let records = args.records.iter().map(|path| Record::read(path));
    let texts: Vec<String> = records
        .map(|record| Ok(record?.markdown()))
        .collect::<anyhow::Result<_>>()?;
    match writeln!(io::stdout(), "{}", texts.join("\n").trim_end()) {
        // The reader of the pipe, for example `head`, has closed it.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result.context("print"),
    }
}

/// Writes `text` to `path`, making its directory if missing.
pub(crate) fn write_file(path: &Path, text: &str) -> anyhow::Result<()> {
    let directory = path.parent().unwrap_or_else(|| Path::new("."));
    fs::create_dir_all(directory)
        .with_context(|| format!("make directory {}", directory.display()))?;
    fs::write(path, text).with_context(|| format!("write {}", path.display()))
}

/// The command line without the program's directory, with quotes around every argument that a shell
/// would split.
fn command_line(arguments: impl Iterator<Item = String>) -> String {
    let mut words: Vec<String> = arguments.collect();
    if let Some(program) = words.first_mut() {
        *program = program.rsplit('/').next().unwrap_or_default().to_string();
    }
    // Only a NUL byte cannot be quoted, and no argument has one.
    shlex::try_join(words.iter().map(String::as_str)).unwrap_or_default()
}

/// The commit of the source tree of this binary; `unknown` if that tree does not exist, as for a
/// copied binary.
fn describe_source() -> String {
    let arguments = [
        "-C",
        env!("CARGO_MANIFEST_DIR"),
        "describe",
        "--always",
        // A record of uncommitted source cannot be repeated, and must show that.
        "--dirty",
        "--tags",
    ];
    let output = Command::new("git").args(arguments).output();
    let described = output.ok().filter(|output| output.status.success());
    let name = described.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_string());
    name.unwrap_or_else(|| "unknown".to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_can_be_pasted() {
        let words = ["/usr/bin/posthaste-lab", "boot", "--note", "it's 1 run"].map(String::from);
        assert_eq!(
            command_line(words.into_iter()),
            r#"posthaste-lab boot --note "it's 1 run""#
        );
    }

    fn example() -> Record {
        let mut record = Record::start("example", 7);
        record.parameter("delays_ms", vec![40, 10]);
        record.sample(
            "time to first byte",
            "ms",
            &[("subject", "early")],
            vec![150.5, 151.0],
        );
        let mut table = Table::new("Time to first byte, ms", &["subject", "median"]);
        table.push(["early", "150.8"]);
        record.tables.push(table);
        record.remarks.push("One node.".to_string());
        record
    }

    #[test]
    fn record_round_trip() {
        let directory =
            std::env::temp_dir().join(format!("posthaste-record-{}", std::process::id()));
        let record = example();
        let path = record.write(&directory).unwrap();
        assert_eq!(Record::read(&path).unwrap(), record);
        fs::write(&path, "{}").unwrap();
        assert!(
            Record::read(&path)
                .unwrap_err()
                .to_string()
                .contains("not a record")
        );
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn markdown_names_conditions() {
        let text = example().markdown();
        assert!(text.contains("| early   |  150.8 |"), "{text}");
        assert!(text.contains("* One node.\n"));
        assert!(text.contains("seed 7. Repeat with `"));
    }
}
