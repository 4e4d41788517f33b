// SPDX-License-Identifier: Apache-2.0
//! Samples, tables and charts of transfers.

use anyhow::Result;

use super::{Case, Group, KB, Moment, Results};
use crate::chart::{Across, Chart, Curve};
use crate::link::Stats;
use crate::names::Named;
use crate::record::{self, Record, Samples};

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

/// The label of a size in KB.
const SIZE: &str = "KB";
/// How much less time a transfer takes than without nodes.
const SAVED: &str = "time saved";

impl Results {
    /// Prints and writes everything, with what the topology has added to the record and other
    /// failures. Fails when a transfer failed or a target was missed.
    pub(crate) fn publish(&self, mut record: Record, failures: Vec<String>) -> Result<()> {
        let experiment = &self.experiment;
        record.parameter("repeats", experiment.repeats);
        record.parameter("clients", experiment.clients);
        record.parameter("conditions", experiment.conditions.as_str());
        self.samples(&mut record);
        // The transfers come first, then what the topology has measured besides.
        let of_topology = std::mem::take(&mut record.tables);
        for group in &experiment.groups {
            self.table(&mut record, group);
        }
        record.tables.extend(of_topology);
        let charts = experiment.groups.iter().map(|group| self.chart(group));
        record.charts.splice(..0, charts);
        record.targets.extend(self.targets());
        let failures = [self.failures.clone(), failures].concat();
        record.remarks.extend(failures.clone());
        record.finish(&experiment.common.output, &failures)
    }

    fn samples(&self, record: &mut Record) {
        // Rows of tables follow the order of samples: subjects are compared size by size.
        let mut cases: Vec<Case> = self.timings.keys().copied().collect();
        cases.sort_unstable_by_key(|case| (case.bytes, case.subject));
        for case in cases {
            let kilobytes = (case.bytes / KB).to_string();
            let mut labels = self.experiment.subjects[case.subject].labels();
            labels.push((SIZE, &kilobytes));
            if let Some(way) = self.ways.get(&case) {
                labels.push(("way", way));
            }
            for &moment in Moment::ALL {
                record.sample(moment.name(), "ms", &labels, self.values(case, moment));
                record.model(self.model(case, moment));
            }
            if let Some(saved) = self.saved(case) {
                record.sample(SAVED, "%", &labels, vec![saved]);
            }
        }
    }

    fn table(&self, record: &mut Record, group: &Group) {
        let clients = match self.experiment.clients {
            1 => String::new(),
            more => format!(", {more} transfers at once"),
        };
        let of = |&subject: &usize| record::labels(&self.experiment.subjects[subject].labels());
        let shown: Vec<_> = group.subjects.iter().map(of).collect();
        let is_shown = |one: &Samples| shown.iter().any(|labels| one.has(labels));
        let mut quantities: Vec<&str> = Moment::ALL.iter().map(|one| one.name()).collect();
        quantities.push(SAVED);
        let title = format!("{}{clients}", group.title);
        record.table(&title, is_shown, &[SIZE, "subject", "way"], &quantities);
    }

    fn chart(&self, group: &Group) -> Chart {
        let experiment = &self.experiment;
        let curve = |&subject: &usize| {
            let subject = &experiment.subjects[subject];
            let quantity = Moment::Complete.name();
            Curve::new(subject.name.as_str(), quantity, &subject.labels())
        };
        Chart {
            file: group.file.clone(),
            title: "Time to complete a transfer".to_owned(),
            subtitle: format!("{}, {}", experiment.conditions, group.title),
            across_label: "size, KB".to_owned(),
            value_label: "time from connect() to the last byte, ms".to_owned(),
            across: Across::Label(SIZE.to_owned()),
            curves: group.subjects.iter().map(curve).collect(),
            note: match experiment.clients {
                1 => String::new(),
                more => format!("{more} transfers at once; the model shares the rate evenly."),
            },
        }
    }
}
