// SPDX-License-Identifier: Apache-2.0
//! Records: the conditions of an experiment, the machine, and every raw sample.
//!
//! A record is written once, as JSON, and never edited: charts and tables in the documents are
//! generated from it. It has enough to repeat the experiment and to check every summary row against
//! the samples.

mod view;

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::chart::Chart;
use crate::stats::Spread;
use crate::table::Table;
use crate::target::{Bound, Target};

/// Version of the file format that this lab writes and reads.
const FORMAT: u32 = 1;

/// One run of one experiment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
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
    /// Bounds on figures, and what was measured.
    #[serde(default)]
    pub targets: Vec<Target>,
    /// Which samples the charts show, and how.
    #[serde(default)]
    pub charts: Vec<Chart>,
    /// What a reader needs to interpret the numbers: limits, misses, failures.
    pub remarks: Vec<String>,
}

/// The machine an experiment ran on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
    /// The model's prediction, if there is a model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<f64>,
}

impl Samples {
    /// Whether these are of this quantity, with all of these labels.
    pub(crate) fn are(&self, quantity: &str, labels: &BTreeMap<String, String>) -> bool {
        self.quantity == quantity && self.has(labels)
    }

    /// Whether these have all of these labels.
    pub(crate) fn has(&self, labels: &BTreeMap<String, String>) -> bool {
        let has = |(name, value): (&String, &String)| self.labels.get(name) == Some(value);
        labels.iter().all(has)
    }

    /// The values of these labels; a dash for one that it does not have.
    pub(crate) fn values_of(&self, labels: &[impl AsRef<str>]) -> Vec<String> {
        let value = |label: &_| self.labels.get(AsRef::as_ref(label));
        let values = labels.iter().map(value);
        values
            .map(|value| value.map_or("-", String::as_str).to_owned())
            .collect()
    }
}

/// Labels of samples.
pub(crate) fn labels(labels: &[(&str, &str)]) -> BTreeMap<String, String> {
    let label = |(name, value): &(&str, &str)| (name.to_string(), value.to_string());
    labels.iter().map(label).collect()
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
            ..Self::default()
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
        self.samples.push(Samples {
            quantity: quantity.to_string(),
            unit: unit.to_string(),
            labels: self::labels(labels),
            values,
            model: None,
        });
    }

    /// Adds the model's prediction for the samples added last.
    pub(crate) fn model(&mut self, model: Option<f64>) {
        if let Some(last) = self.samples.last_mut() {
            last.model = model;
        }
    }

    /// Adds a target for the median of the samples added last.
    pub(crate) fn target(&mut self, what: impl Into<String>, bound: Bound) {
        let target = self.samples.last().map(|last| Target {
            what: what.into(),
            measured: Spread::of(&last.values),
            bound,
            unit: last.unit.clone(),
        });
        self.targets.extend(target);
    }

    /// Adds a table of samples: see [`view::table`].
    pub(crate) fn table(
        &mut self,
        title: &str,
        is_shown: impl Fn(&Samples) -> bool,
        rows: &[&str],
        quantities: &[&str],
    ) {
        let shown = self.samples.iter().filter(|one| is_shown(one));
        let table = view::table(title, shown, rows, quantities);
        if !table.rows.is_empty() {
            self.tables.push(table);
        }
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
        // One value per line: records are compared with diff.
        let json = serde_json::to_string_pretty(self).context("encode the record")?;
        write_file(&path, &(json + "\n"))?;
        Ok(path)
    }

    /// Prints the record, and writes it and its charts below `directory`.
    pub(crate) fn publish(&self, directory: &Path) -> anyhow::Result<()> {
        println!("{}", self.markdown());
        let path = self.write(directory)?;
        self.draw(directory)?;
        // The result is found at the end of the output.
        println!("Record: {}", path.display());
        Ok(())
    }

    /// Publishes the record. Fails when the run has failures, or when a target is missed.
    pub(crate) fn finish(&self, directory: &Path, failures: &[String]) -> anyhow::Result<()> {
        self.publish(directory)?;
        ensure!(
            failures.is_empty(),
            "{} failures:\n{}",
            failures.len(),
            failures.join("\n")
        );
        let missed = self.targets.iter().filter(|target| !target.is_met());
        let missed = missed.count();
        ensure!(missed == 0, "{missed} targets are missed");
        Ok(())
    }

    /// Writes the charts (SVG) below `directory`, and prints their paths on stderr.
    fn draw(&self, directory: &Path) -> anyhow::Result<()> {
        for chart in &self.charts {
            let path = self.path(directory, &chart.extension());
            write_file(&path, &chart.svg(self))?;
            eprintln!("Chart: {}", path.display());
        }
        Ok(())
    }

    /// Reads a record back.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
        let record: Self = serde_json::from_str(&text)
            .with_context(|| format!("{} is not a record of the lab", path.display()))?;
        // New fields have defaults, so older records of this format can be read.
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
        let targets = (!self.targets.is_empty()).then(|| view::targets(&self.targets));
        for table in self.tables.iter().chain(&targets) {
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
            // Those that this process may use, which an affinity or a cgroup limits.
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
    /// Draw the charts again, below this directory
    #[arg(long, value_name = "DIR")]
    charts: Option<PathBuf>,
}

/// Prints the records as Markdown, and draws their charts if requested.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let records = args.records.iter().map(|path| Record::read(path));
    let records: Vec<Record> = records.collect::<anyhow::Result<_>>()?;
    if let Some(directory) = &args.charts {
        records
            .iter()
            .try_for_each(|record| record.draw(directory))?;
    }
    let texts: Vec<String> = records.iter().map(Record::markdown).collect();
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
