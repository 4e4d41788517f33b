// SPDX-License-Identifier: Apache-2.0
//! The check of the settings that `setup --tune` changes: for each node only those it benefits
//! from.

use super::Verdict;
use super::checks::{ok, warn};
use super::host::Host;
use crate::host::{Recommendation, recommendations};
use posthaste_config::Config;

/// What `setup --tune` would change: verdicts by topic.
pub(super) fn settings(host: &Host, config: &Config) -> Vec<(&'static str, Verdict)> {
    let each = recommendations(config)
        .into_iter()
        .flat_map(|recommendation| {
            let verdicts = setting(host, &recommendation).into_iter();
            verdicts.map(move |verdict| (recommendation.topic, verdict))
        });
    each.collect()
}

fn setting(host: &Host, recommendation: &Recommendation) -> Vec<Verdict> {
    let name = recommendation.name();
    let Some(now) = host.setting(recommendation.path) else {
        return warn(format!("{name} cannot be read"), "use a kernel that has it");
    };
    // The kernel puts tabs between numbers.
    let now = now.split_whitespace().collect::<Vec<_>>().join(" ");
    match (recommendation.better)(&now) {
        None => ok(recommendation.fine),
        Some(better) => warn(
            format!("{name} = {now}: {}", recommendation.lacking),
            format!(
                "sysctl -w {name}=\"{better}\", or posthaste setup --tune -c FILE (with --persist over a reboot too)"
            ),
        ),
    }
}
