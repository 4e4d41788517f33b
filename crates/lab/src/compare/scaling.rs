// SPDX-License-Identifier: Apache-2.0
//! The gain of a second CPU: the same connections with everything on one CPU and on two. Pure.
//!
//! Client, subject and server double with the CPUs, so that twice the rate is the upper bound. The
//! rates of one CPU and of two are from the same round, minutes apart.

use super::figures::{Figure, Figures, Spread};
use super::subject::Subject;
use crate::table::Table;

/// The table of all subjects that were measured on both; `None` without any. `figures` returns
/// those of a subject on one CPU and on two.
pub(super) fn table(
    subjects: &[Subject],
    figures: impl Fn(&'static str) -> Option<[Figures; 2]>,
) -> Option<Table> {
    let columns = ["subject", "one CPU", "two CPUs", "ratio"];
    let title = "Connections of 8 KB a second, with everything on one CPU and on two";
    let mut table = Table::new(title, &columns);
    for subject in subjects {
        let row = figures(subject.name).and_then(|[one, two]| {
            let [one, two] = [one, two].map(|figures| figures.of(Figure::Rate).to_vec());
            let ratio = Spread::of_ratio(&two, &one)?;
            Some([Spread::of(&one)?, Spread::of(&two)?, ratio])
        });
        if let Some(row) = row {
            let cells = row.map(|spread| spread.to_string());
            table.push(std::iter::once(subject.name.to_owned()).chain(cells));
        }
    }
    (!table.rows.is_empty()).then_some(table)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::subject::ALL;

    #[test]
    fn rates_within_rounds() {
        let rates = |values: &[f64]| Figures([(Figure::Rate, values.to_vec())].into());
        let found = |name| match name {
            "haproxy" => Some([rates(&[1000.0, 3000.0]), rates(&[1500.0, 4500.0])]),
            "nginx" => Some([rates(&[]), rates(&[1500.0])]),
            _ => None,
        };
        let rows = table(ALL, found).unwrap().rows;
        assert_eq!(rows.len(), 1);
        assert_eq!(
            (&*rows[0][0], &*rows[0][3]),
            ("haproxy", "1.50 (1.50 to 1.50)")
        );
        assert!(table(ALL, |_| None).is_none());
    }
}
