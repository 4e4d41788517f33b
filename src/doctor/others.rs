// SPDX-License-Identifier: Apache-2.0
//! The check of the settings that `setup --tune` changes: for each node only those it benefits
//! from.

use super::checks::{finding, ok, warn};
use super::host::Host;
use super::{Finding, Level};
use crate::host::recommendations;
use posthaste_config::Config;

/// What `setup --tune` would change.
pub(super) fn settings(host: &Host, config: &Config) -> Vec<Finding> {
    let each = recommendations(config).into_iter().flat_map(|recommendation| {
        let Some(now) = host.setting(recommendation.path) else {
            return warn(
                recommendation.topic,
                format!("{} cannot be read", recommendation.name()),
                "use a kernel that has it",
            );
        };
        // The kernel puts tabs between numbers.
        let now = now.split_whitespace().collect::<Vec<_>>().join(" ");
        match (recommendation.better)(&now) {
            None => ok(recommendation.topic, recommendation.fine),
            Some(better) => {
                let what = format!("{} = {now}: {}", recommendation.name(), recommendation.lacking);
                let fix = format!(
                    "sysctl -w {}=\"{better}\", or posthaste setup --tune -c FILE (with --persist over a reboot too)",
                    recommendation.name()
                );
                vec![finding(recommendation.topic, Level::Warn, what, fix)]
            }
        }
    });
    each.collect()
}
