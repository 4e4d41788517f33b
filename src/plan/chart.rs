// SPDX-License-Identifier: Apache-2.0
//! The chains of a pair as SVG: a bar for each, to scale, with a part for each hop.
//!
//! Deterministic: the same chains give the same bytes. The longest hop of a chain is darker than
//! its others.

use std::fmt::Write;

use super::pair::{Chain, Pair};
use super::show::size;

const WIDTH: f64 = 900.0;
const LEFT: f64 = 20.0;
/// The times are right of it.
const BARS_END: f64 = 600.0;
const TOP: f64 = 96.0;
const ROW: f64 = 46.0;
const BAR: f64 = 14.0;
const HOP: &str = "#9ecae9";
const LONGEST: &str = "#0072b2";
const BEST: &str = "#d55e00";
const INK: &str = "#222222";
const SOFT: &str = "#555555";

/// The chart.
pub(super) fn draw(pair: &Pair) -> String {
    let height = TOP + ROW * pair.chains.len() as f64 + 24.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" font-family=\"Helvetica, Arial, sans-serif\">\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n"
    );
    let title = format!("Chains from {} to {}", pair.from, pair.to);
    text(&mut svg, (LEFT, 30.0), 18.0, INK, "start", &title);
    let note = "Round-trip times of hops, to scale; the longest hop of each chain is dark. Right: time for each size, ms.";
    text(&mut svg, (LEFT, 50.0), 12.0, SOFT, "start", note);
    let columns = (WIDTH - BARS_END - 20.0) / pair.sizes.len().max(1) as f64;
    let column = |place: usize| BARS_END + columns * (place + 1) as f64;
    for (place, bytes) in pair.sizes.iter().enumerate() {
        text(
            &mut svg,
            (column(place), TOP - 18.0),
            12.0,
            SOFT,
            "end",
            &size(*bytes),
        );
    }
    let longest = pair
        .chains
        .iter()
        .map(|chain| chain.length_ms)
        // Not 0, which would make the scale infinite.
        .fold(1.0, f64::max);
    for (row, chain) in pair.chains.iter().enumerate() {
        let y = TOP + ROW * row as f64;
        bar(&mut svg, chain, y, (BARS_END - LEFT) / longest);
        for (place, time) in chain.times_ms.iter().enumerate() {
            let is_best = pair.best.get(place).is_some_and(|best| best.chain == row);
            let colour = if is_best { BEST } else { INK };
            text(
                &mut svg,
                (column(place), y + BAR - 2.0),
                12.0,
                colour,
                "end",
                &format!("{time:.1}"),
            );
        }
    }
    svg.push_str("</svg>\n");
    svg
}

/// A chain, with `scale` pixels per millisecond.
fn bar(svg: &mut String, chain: &Chain, y: f64, scale: f64) {
    let mut x = LEFT;
    let mut dark = true;
    for hop in &chain.hops_ms {
        let is_longest = dark && *hop >= chain.longest_hop_ms;
        // Of several hops of that length only the first is dark.
        dark &= !is_longest;
        let colour = if is_longest { LONGEST } else { HOP };
        // A gap between hops shows the nodes.
        let width = (hop * scale - 2.0).max(1.0);
        let _ = writeln!(
            svg,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{BAR}\" fill=\"{colour}\"/>"
        );
        x += hop * scale;
    }
    let names = chain.title();
    text(svg, (LEFT, y + BAR + 14.0), 11.0, SOFT, "start", &names);
}

fn text(svg: &mut String, at: (f64, f64), font: f64, colour: &str, anchor: &str, words: &str) {
    let words = words
        // First, since the others add one.
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;");
    let (x, y) = at;
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{font}\" fill=\"{colour}\" text-anchor=\"{anchor}\">{words}</text>"
    );
}

#[cfg(test)]
mod tests {
    use super::super::pair::{Best, Kind};
    use super::*;

    #[test]
    fn hops_and_escaped_names() {
        let chain = Chain {
            nodes: ["a<b", "c", "d"].map(String::from).to_vec(),
            hops_ms: vec![10.0, 20.0],
            length_ms: 30.0,
            longest_hop_ms: 20.0,
            times_ms: vec![50.0],
            is: vec![Kind::Minimax],
        };
        let pair = Pair {
            from: "a<b".to_owned(),
            to: "d".to_owned(),
            sizes: vec![1000],
            chains: vec![chain],
            best: vec![Best {
                bytes: 1000,
                chain: 0,
                time_ms: 50.0,
                direct_percent: None,
                shortest_percent: 0.0,
                minimax_percent: 0.0,
            }],
        };
        let svg = draw(&pair);
        assert_eq!(svg.matches("<rect").count(), 1 + 2);
        assert_eq!(svg.matches(LONGEST).count(), 1);
        assert!(svg.contains("a&lt;b - c - d  (minimax)"), "{svg}");
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
    }
}
