// SPDX-License-Identifier: Apache-2.0
//! What is compared with what: one table and one chart each.

use super::Args;
use super::way::{Carriage, Way};
use crate::model::Mode;
use crate::network::Family;

/// What one table and one chart show.
#[derive(Clone, Debug)]
pub(super) struct View {
    /// The end of the chart's file name.
    pub(super) file: String,
    /// The table's.
    pub(super) title: String,
    /// The conditions that are not the same in all views.
    pub(super) subtitle: String,
    /// Side by side, the fewest nodes first.
    pub(super) ways: Vec<Way>,
}

impl View {
    /// Everything that was measured, at least once.
    pub(super) fn all(args: &Args) -> Vec<Self> {
        let views = args.family.iter().flat_map(|&family| {
            let mut views = Vec::new();
            for &carriage in args.carriage.iter().filter(|c| !c.is_ends()) {
                // Without any node all modes would show the same.
                let no_node = args.nodes.iter().all(|&nodes| nodes == 0);
                let modes = args.modes_of(carriage);
                let modes = if no_node { &[Mode::Early] } else { modes };
                views.extend(modes.iter().map(|&mode| even(args, family, carriage, mode)));
            }
            views.extend(ends(args, family));
            views
        });
        views.collect()
    }
}

/// Evenly spaced nodes.
fn even(args: &Args, family: Family, carriage: Carriage, mode: Mode) -> View {
    let (file, title, what) = match carriage {
        Carriage::Transparent => (
            mode.name(),
            format!("Accept mode {}", mode.name()),
            format!("accept mode {}", mode.name()),
        ),
        _ => {
            let hops = format!("{} hops", carriage.name());
            (carriage.name(), format!("A chain of {hops}"), hops)
        }
    };
    View {
        file: file_name(file, family),
        title: format!("{title}, {family}"),
        subtitle: format!("{family}, evenly spaced nodes, {what}"),
        ways: args.ways(family, carriage, mode),
    }
}

/// Nodes near the ends, with both kinds of hops, if either was measured.
fn ends(args: &Args, family: Family) -> Option<View> {
    let measured = args.carriage.iter().filter(|carriage| carriage.is_ends());
    let mut ways: Vec<Way> = measured
        .flat_map(|&carriage| args.ways(family, carriage, Mode::Early))
        .collect();
    ways.sort_unstable();
    ways.dedup();
    let place = format!("nodes {} ms from the ends", args.end);
    (!ways.is_empty()).then(|| View {
        file: file_name("ends", family),
        title: format!("Two {place}, {family}"),
        subtitle: format!("{family}, two {place}"),
        ways,
    })
}

fn file_name(what: &str, family: Family) -> String {
    format!("{what}-{family}.svg").to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transfer_times::tests::args;

    fn files(words: &[&str]) -> Vec<String> {
        View::all(&args(words))
            .into_iter()
            .map(|view| view.file)
            .collect()
    }

    #[test]
    fn chart_per_carriage_and_mode() {
        assert_eq!(
            files(&[]),
            ["early-ipv4.svg", "strict-ipv4.svg", "late-ipv4.svg"]
        );
        assert_eq!(
            files(&["--carriage", "cold,cold-ends,warm-ends"]),
            ["cold-ipv4.svg", "ends-ipv4.svg"]
        );
        assert_eq!(files(&["--nodes", "0"]), ["early-ipv4.svg"]);
    }

    #[test]
    fn near_end_nodes_compared() {
        let views = View::all(&args(&["--carriage", "warm-ends,cold-ends"]));
        let names: Vec<_> = views[0].ways.iter().map(|way| way.series_name()).collect();
        assert_eq!(
            names,
            ["no node", "near the ends, cold", "near the ends, warm"]
        );
    }
}
