// SPDX-License-Identifier: Apache-2.0
//! CSV: one line per link. The header names the columns, in any order.

use std::num::NonZeroU32;

use posthaste_plan::{Link, Matrix};

use super::{Free, Names, Network, Problem, add, lines, loss_ppm, micros, rate};

/// A supported column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    From,
    To,
    Rtt,
    Loss,
    Rate,
    Window,
    Both,
}

const COLUMNS: [(&str, Column); 7] = [
    ("from", Column::From),
    ("to", Column::To),
    ("rtt_ms", Column::Rtt),
    ("loss_percent", Column::Loss),
    ("rate_mbit", Column::Rate),
    ("window_segments", Column::Window),
    ("both", Column::Both),
];

/// One line.
#[derive(Debug, Default)]
struct Row<'a> {
    from: &'a str,
    to: &'a str,
    link: Link,
    both: bool,
}

pub(super) fn read(text: &str) -> Result<Network, Problem> {
    let mut lines = lines(text);
    let (line, heading) = lines
        .next()
        .ok_or_else(|| Problem::whole("there is nothing in it"))?;
    let columns = columns(heading).map_err(|what| Problem::at(line, what))?;
    let mut names = Names::default();
    let (mut links, mut free) = (Vec::new(), Free::default());
    for (line, text) in lines {
        let at = |what| Problem::at(line, what);
        let row = row(text, &columns).map_err(at)?;
        free.note(row.link, Some(line), || {
            format!("rtt_ms from {} to {}", row.from, row.to)
        });
        let from = names.number(row.from).map_err(at)?;
        let to = names.number(row.to).map_err(at)?;
        links.push((line, from, to, row.link));
        if row.both {
            links.push((line, to, from, row.link));
        }
    }
    // After all lines: its size is the number of names.
    let mut matrix =
        Matrix::new(names.names.len()).map_err(|error| Problem::whole(error.to_string()))?;
    for (line, from, to, link) in links {
        add(&mut matrix, (from, to), link).map_err(|what| Problem::at(line, what))?;
    }
    Ok(Network {
        free,
        ..Network::without_costs(names.names, matrix)
    })
}

fn columns(heading: &str) -> Result<Vec<Column>, String> {
    let known = |name: &str| {
        let found = COLUMNS.iter().find(|(column, _)| *column == name);
        found.map(|(_, column)| *column).ok_or_else(|| {
            let all = COLUMNS.map(|(column, _)| column).join(", ");
            format!("there is no column {name:?}: expected {all}")
        })
    };
    let columns: Vec<Column> = heading
        .split(',')
        .map(|name| known(name.trim()))
        .collect::<Result<_, _>>()?;
    for (name, column) in COLUMNS {
        let count = columns.iter().filter(|other| **other == column).count();
        if count > 1 {
            return Err(format!("there are {count} columns {name}"));
        }
        let needed = matches!(column, Column::From | Column::To | Column::Rtt);
        if needed && count == 0 {
            return Err(format!("there must be a column {name}"));
        }
    }
    Ok(columns)
}

fn row<'a>(text: &'a str, columns: &[Column]) -> Result<Row<'a>, String> {
    let fields: Vec<&str> = text.split(',').map(str::trim).collect();
    let (count, expected) = (fields.len(), columns.len());
    if count != expected {
        return Err(format!("{count} columns, where the heading has {expected}"));
    }
    let mut row = Row::default();
    for (field, column) in fields.into_iter().zip(columns) {
        set(&mut row, *column, field)?;
    }
    Ok(row)
}

/// An empty field leaves the default; only the ends and the round-trip time are required.
fn set<'a>(row: &mut Row<'a>, column: Column, field: &'a str) -> Result<(), String> {
    let name = COLUMNS.iter().find(|(_, known)| *known == column);
    let name = name.map_or("", |(name, _)| name);
    let named = |what: String| format!("{name}: {what}");
    let number = || -> Result<f64, String> {
        let number = field.parse().ok().filter(|number: &f64| number.is_finite());
        number.ok_or_else(|| format!("{name}: {field:?} is not a number"))
    };
    match column {
        Column::From | Column::To if field.is_empty() => {
            return Err(named("expected a name".into()));
        }
        Column::From => row.from = field,
        Column::To => row.to = field,
        Column::Rtt => row.link.rtt_us = micros(number()?).map_err(named)?,
        _ if field.is_empty() => {}
        Column::Loss => row.link.loss_ppm = loss_ppm(number()?).map_err(named)?,
        Column::Rate => row.link.rate = Some(rate(number()?).map_err(named)?),
        Column::Window => {
            let window = field.parse::<NonZeroU32>();
            let form = || named(format!("{field:?} is not a number of segments"));
            row.link.window = Some(window.map_err(|_| form())?);
        }
        Column::Both => {
            row.both = match field {
                "yes" => true,
                "no" => false,
                _ => return Err(named(format!("expected yes or no, not {field:?}"))),
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::*;

    #[test]
    fn links_are_read() {
        let text = "# measured today\n\
                    to, from, rtt_ms, loss_percent, rate_mbit, window_segments, both\n\
                    b, a, 12.5, 0.1, 100, 64, no\n\n\
                    c, a, 3, , , , yes\n";
        let network = read(text).unwrap();
        assert_eq!(network.names, ["a", "b", "c"]);
        let link = Link {
            rtt_us: 12_500,
            loss_ppm: 1000,
            rate: NonZeroU64::new(100_000_000),
            window: NonZeroU32::new(64),
            assumed: None,
        };
        assert_eq!(network.matrix.link(0, 1), Some(&link));
        assert_eq!(network.matrix.link(1, 0), None);
        assert_eq!(network.matrix.link(0, 2), Some(&Link::of_rtt(3000)));
        assert_eq!(network.matrix.link(2, 0), Some(&Link::of_rtt(3000)));
    }
}
