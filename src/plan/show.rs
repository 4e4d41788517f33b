// SPDX-License-Identifier: Apache-2.0
//! Formats the output as text.

use std::fmt::Write;

use super::all::All;
use super::pair::{Best, Chain, Pair};

/// A pair's chains, and which of them is best for which size.
pub(super) fn pair(pair: &Pair) -> String {
    let mut text = format!(
        "From {} to {}\n\nChains, the longest first:\n",
        pair.from, pair.to
    );
    let sizes: Vec<String> = pair.sizes.iter().map(|bytes| size(*bytes)).collect();
    let heading = format!("{:>9} {:>9}", "length", "longest");
    let times: String = sizes.iter().map(|size| format!(" {size:>9}")).collect();
    line(&mut text, &format!("{heading}{times}  nodes"));
    for (place, chain) in pair.chains.iter().enumerate() {
        let is_best = |size: usize| pair.best.get(size).is_some_and(|best| best.chain == place);
        line(&mut text, &chain_line(chain, is_best));
    }
    text.push_str("Times in ms, without the hops before and after; * is the best of its size.\n\n");
    for best in &pair.best {
        line(&mut text, &explanation(best, &pair.chains[best.chain]));
    }
    text
}

fn chain_line(chain: &Chain, is_best: impl Fn(usize) -> bool) -> String {
    let mut text = format!("{:>9.1} {:>9.1}", chain.length_ms, chain.longest_hop_ms);
    for (size, time) in chain.times_ms.iter().enumerate() {
        let mark = if is_best(size) { "*" } else { "" };
        let time = format!("{time:.1}{mark}");
        let _ = write!(text, " {time:>9}");
    }
    format!("{text}  {}", chain.title())
}

fn explanation(best: &Best, chain: &Chain) -> String {
    let nodes = match chain.nodes.len() - 2 {
        0 => "the direct hop".to_owned(),
        _ => chain.nodes[1..chain.nodes.len() - 1].join(", "),
    };
    let compared = |kind: &str, percent: f64| match percent {
        // Never below 0, since no chain is faster than the best.
        percent if percent > 0.0 => format!("{kind} takes {percent:.1} % longer"),
        _ => format!("{kind} takes as long"),
    };
    let direct = match best.direct_percent {
        Some(percent) => compared("direct", percent),
        None => "there is no direct link".to_owned(),
    };
    format!(
        "{}: {nodes}, {:.1} ms; {direct}, {}, {}",
        size(best.bytes),
        best.time_ms,
        compared("shortest", best.shortest_percent),
        compared("minimax", best.minimax_percent)
    )
}

/// The best chains of all pairs, and their gain.
pub(super) fn all(all: &All) -> String {
    let mut text = String::new();
    for row in &all.pairs {
        let _ = writeln!(text, "{} to {}", row.from, row.to);
        for (place, summary) in all.sizes.iter().enumerate() {
            let nodes = match &row.chains[place][..] {
                [] => "direct".to_owned(),
                nodes => nodes.join(", "),
            };
            let direct = row.direct_percent.as_ref().map(|percents| percents[place]);
            let gain = match direct {
                Some(percent) => format!("direct {percent:+.1} %"),
                None => "no direct link".to_owned(),
            };
            let time = row.times_ms[place];
            let size = size(summary.bytes);
            line(
                &mut text,
                &format!("{size:>9} {time:>9.1} ms  {gain:<18} {nodes}"),
            );
        }
    }
    let _ = writeln!(
        text,
        "\n{} pairs. How much longer others take, on average:",
        all.pairs.len()
    );
    let heading = ["size", "nodes", "direct", "shortest", "minimax"];
    line(
        &mut text,
        &heading.map(|word| format!("{word:>10}")).concat(),
    );
    for summary in &all.sizes {
        let percents = [
            summary.direct_percent,
            summary.shortest_percent,
            summary.minimax_percent,
        ];
        let percents = percents.map(|percent| format!("{:>10}", format!("{percent:.1} %")));
        let size = size(summary.bytes);
        line(
            &mut text,
            &format!("{size:>10}{:>10.1}{}", summary.nodes, percents.concat()),
        );
    }
    text
}

fn line(text: &mut String, line: &str) {
    text.push_str(line.trim_end());
    text.push('\n');
}

/// Bytes in the largest unit that is not larger than the number.
pub(super) fn size(bytes: u64) -> String {
    let (unit, name) = match bytes {
        1_000_000_000.. => (1e9, "GB"),
        1_000_000.. => (1e6, "MB"),
        1_000.. => (1e3, "KB"),
        _ => (1.0, "B"),
    };
    let number = format!("{:.3}", bytes as f64 / unit);
    format!(
        "{} {name}",
        number.trim_end_matches('0').trim_end_matches('.')
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_short() {
        assert_eq!(size(0), "0 B");
        assert_eq!(size(14_480), "14.48 KB");
        assert_eq!(size(1_000_000), "1 MB");
    }
}
