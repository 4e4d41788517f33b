// SPDX-License-Identifier: Apache-2.0
//! Rows of round-trip times in milliseconds, one row for each node, the columns in the same order.
//! Nodes are named by the numbers of their rows, from 1.

use posthaste_plan::{Link, Matrix};

use super::{Free, Network, Problem, lines, micros};

pub(super) fn read(text: &str) -> Result<Network, Problem> {
    let mut rows: Vec<(usize, Vec<&str>)> = lines(text)
        .map(|(line, text)| (line, text.split([' ', '\t', ',', ';']).collect()))
        .map(|(line, fields): (usize, Vec<&str>)| {
            let filled = fields.into_iter().filter(|field| !field.is_empty());
            (line, filled.collect())
        })
        .collect();
    drop_count(&mut rows);
    let nodes = rows.first().map_or(0, |(_, row)| row.len());
    if nodes == 0 {
        return Err(Problem::whole("there is nothing in it"));
    }
    let mut matrix = Matrix::new(nodes).map_err(|error| Problem::whole(error.to_string()))?;
    let mut free = Free::default();
    for (from, (line, row)) in rows.iter().enumerate() {
        if from == nodes {
            let what = format!("more rows than the {nodes} numbers in each");
            return Err(Problem::at(*line, what));
        }
        if row.len() != nodes {
            let what = format!("{} numbers, where the first row has {nodes}", row.len());
            return Err(Problem::at(*line, what));
        }
        for (to, field) in row.iter().enumerate().filter(|(to, _)| *to != from) {
            let link = link(field).map_err(|what| Problem::at(*line, what))?;
            if let Some(link) = link {
                free.note(link, Some(*line), || {
                    format!("row {}, column {}", from + 1, to + 1)
                });
            }
            let set = matrix.set(from, to, link);
            set.map_err(|error| Problem::at(*line, error.to_string()))?;
        }
    }
    if rows.len() < nodes {
        let what = format!("{} rows of {nodes} numbers: expected as many", rows.len());
        return Err(Problem::whole(what));
    }
    let names = (1..=nodes).map(|number| number.to_string()).collect();
    Ok(Network {
        free,
        ..Network::without_costs(names, matrix)
    })
}

/// A first line with nothing but the number of the rows that follow says no more than they do.
fn drop_count(rows: &mut Vec<(usize, Vec<&str>)>) {
    let following = (rows.len().saturating_sub(1)).to_string();
    if rows.len() > 2 && rows[0].1 == [following] {
        rows.remove(0);
    }
}

fn link(field: &str) -> Result<Option<Link>, String> {
    if matches!(field, "-" | "nan" | "NaN") {
        return Ok(None);
    }
    let number = field.parse().ok().filter(|number: &f64| number.is_finite());
    let form = || {
        format!(
            "{field:?} is not a time: expected milliseconds, or - for a link that was not measured"
        )
    };
    Ok(Some(Link::of_rtt(micros(number.ok_or_else(form)?)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_with_optional_number() {
        for text in [
            "3\n0 1.5 -\n1 0 2\n4 5 0\n",
            "0\t1.5\t-\n1\t0\t2\n4\t5\t0\n",
        ] {
            let network = read(text).unwrap();
            assert_eq!(network.names, ["1", "2", "3"]);
            assert_eq!(network.matrix.link(0, 1), Some(&Link::of_rtt(1500)));
            assert_eq!(network.matrix.link(0, 2), None);
            assert_eq!(network.matrix.link(2, 1), Some(&Link::of_rtt(5000)));
        }
    }
}
