// SPDX-License-Identifier: Apache-2.0
//! Record, tables and charts of transfers.

use anyhow::{Result, ensure};

use super::results::Check;
use super::{Case, Experiment, Group, Moment, Results};
use crate::chart::{Across, Chart, Series, Spacing};
use crate::link::Stats;
use crate::record::Record;
use crate::stats::percentile;
use crate::table::{Table, cell, percent_cell};

/// Additional results of a topology.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub remarks: Vec<String>,
    /// Missed targets of its own.
    pub misses: Vec<String>,
    pub failures: Vec<String>,
    /// SVG texts, by the suffixes of their file names.
    pub charts: Vec<(String, String)>,
}

/// The exactness of the emulation.
pub(crate) fn emulation_remark(name: &str, stats: Stats) -> String {
    format!(
        "Emulated links of {name}: {} packets, {} dropped, {} more than 1 ms late, at worst \
         {:.1} ms.",
        stats.packets,
        stats.dropped + stats.refused,
        stats.late,
        stats.lateness_us_max as f64 / 1e3
    )
}

impl Results {
    /// Prints and writes everything. Fails when a transfer failed or a target was missed.
    pub(crate) fn publish(&self, mut record: Record, findings: Findings) -> Result<()> {
        let Experiment {
            groups,
            repeats,
            clients,
            ..
        } = &self.experiment;
        record.parameter("repeats", *repeats);
        record.parameter("clients", *clients);
        self.samples(&mut record);
        let tables: Vec<_> = groups.iter().map(|group| self.table(group)).collect();
        record.tables.splice(..0, tables);
        let mut misses = findings.misses;
        self.judge(&mut record.remarks, &mut misses);
        let failures: Vec<_> = self.failures.iter().chain(&findings.failures).collect();
        record
            .remarks
            .extend(misses.iter().map(|text| format!("Missed: {text}.")));
        record.remarks.extend(findings.remarks);
        record.remarks.extend(failures.iter().copied().cloned());
        let charts = groups
            .iter()
            .map(|group| (group.file.clone(), self.chart(group).svg()));
        record.publish(
            &self.experiment.common.output,
            charts.chain(findings.charts),
        )?;
        ensure!(failures.is_empty(), "{} transfers failed", failures.len());
        ensure!(misses.is_empty(), "{} targets were missed", misses.len());
        Ok(())
    }

    fn judge(&self, remarks: &mut Vec<String>, misses: &mut Vec<String>) {
        let checks = self.checks();
        let missed = checks.iter().filter(|check| !check.is_met);
        misses.extend(missed.map(|check| check.text.clone()));
        let met = checks.iter().filter(|check| check.is_met);
        if checks.is_empty() {
            return;
        }
        remarks.push(format!(
            "{} of {} medians reach their targets.",
            met.clone().count(),
            checks.len()
        ));
        let noted = met.filter(|check| check.is_remark);
        remarks.extend(noted.map(|Check { text, .. }| format!("{text}.")));
    }

    fn samples(&self, record: &mut Record) {
        for &case in self.timings.keys() {
            let bytes = case.bytes.to_string();
            let labels = self.experiment.subjects[case.subject].labels.iter();
            let mut labels: Vec<(&str, &str)> = labels
                .map(|(name, value)| (*name, value.as_str()))
                .collect();
            labels.push(("bytes", &bytes));
            if let Some(way) = self.ways.get(&case) {
                labels.push(("way", way));
            }
            for moment in Moment::ALL {
                record.sample(moment.name(), "ms", &labels, self.values(case, moment));
            }
        }
    }

    /// The transfers of a group, by size and then by subject.
    fn rows<'a>(&'a self, group: &'a Group) -> impl Iterator<Item = Case> + 'a {
        let sizes = self.experiment.sizes.iter();
        sizes.flat_map(|size| {
            let of = move |&subject: &usize| Case {
                subject,
                bytes: size * super::KB,
            };
            group.subjects.iter().map(of)
        })
    }

    fn table(&self, group: &Group) -> Table {
        let clients = match self.experiment.clients {
            1 => String::new(),
            more => format!(", {more} transfers at once"),
        };
        let title = format!("{}{clients}, medians in ms", group.title);
        let columns = [
            "KB",
            "nodes",
            "connect",
            "model",
            "first byte",
            "model",
            "off",
            "complete",
            "model",
            "off",
            "gain",
            "way",
        ];
        let mut table = Table::new(title, &columns);
        for case in self.rows(group) {
            let subject = &self.experiment.subjects[case.subject];
            let median = |moment| cell(self.median(case, moment));
            let model = |moment| cell(self.model(case, moment));
            let off = |moment| percent_cell(self.off(case, moment));
            let way = self.ways.get(&case);
            table.push([
                (case.bytes / super::KB).to_string(),
                subject.name.clone(),
                median(Moment::Connect),
                model(Moment::Connect),
                median(Moment::FirstByte),
                model(Moment::FirstByte),
                off(Moment::FirstByte),
                median(Moment::Complete),
                model(Moment::Complete),
                off(Moment::Complete),
                percent_cell(self.gain(case)),
                way.cloned().unwrap_or_else(|| "-".to_owned()),
            ]);
        }
        // Not every topology has a model, or ways.
        table.drop_empty_columns();
        table
    }

    fn chart(&self, group: &Group) -> Chart {
        let experiment = &self.experiment;
        let sizes = experiment.sizes.iter().map(|&size| size as f64).collect();
        let lines = group.subjects.iter().map(|&subject| self.line(subject));
        Chart {
            title: "Time to complete a transfer".to_owned(),
            subtitle: format!("{}, {}", experiment.conditions, group.subtitle),
            across_label: "size, KB".to_owned(),
            value_label: "time from connect() to the last byte, ms".to_owned(),
            across: Across::Numbers(sizes, Spacing::Logarithmic),
            series: lines.collect(),
            model_name: "model".to_owned(),
            note: match experiment.clients {
                1 => format!("Medians of {}; whiskers: all.", experiment.repeats),
                clients => format!(
                    "{clients} transfers at once, {} times, medians; whiskers: all. The model \
                     shares the rate evenly.",
                    experiment.repeats
                ),
            },
        }
    }

    fn line(&self, subject: usize) -> Series {
        let cases = || self.experiment.cases_of(subject);
        let spread = |case| {
            let values = self.values(case, Moment::Complete);
            Some((percentile(&values, 0.0)?, percentile(&values, 100.0)?))
        };
        Series {
            name: self.experiment.subjects[subject].name.clone(),
            values: cases()
                .map(|case| self.median(case, Moment::Complete))
                .collect(),
            spread: cases().map(spread).collect(),
            model: cases()
                .map(|case| self.model(case, Moment::Complete))
                .collect(),
        }
    }
}
