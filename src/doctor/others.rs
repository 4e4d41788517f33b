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
    let setting = recommendation.setting;
    let Some(now) = host.setting(&setting.path()) else {
        if recommendation.is_recent {
            return Vec::new();
        }
        return warn(
            format!("{setting} cannot be read"),
            "use a kernel that has it",
        );
    };
    match (recommendation.better)(now) {
        None => ok(recommendation.fine),
        Some(better) => warn(
            format!("{setting} = {now}: {}", recommendation.lacking),
            format!(
                "{}, or posthaste setup --tune -c FILE (with --persist over a reboot too)",
                setting.command(&better)
            ),
        ),
    }
}
