// SPDX-License-Identifier: Apache-2.0
//! The check of what `setup --tune` changes: for each node only what it has use for.

use super::checks::{finding, ok, warn};
use super::host::Host;
use super::{Finding, Level};
use crate::config::Config;
use crate::host::wishes;

/// What `setup --tune` would change.
pub(super) fn settings(host: &Host, config: &Config) -> Vec<Finding> {
    let each = wishes(config).into_iter().flat_map(|wish| {
        let Some(now) = host.setting(wish.path) else {
            return warn(
                wish.topic,
                format!("{} cannot be read", wish.name()),
                "use a kernel that has it",
            );
        };
        let now = now.split_whitespace().collect::<Vec<_>>().join(" ");
        match (wish.better)(&now) {
            None => ok(wish.topic, wish.fine),
            Some(better) => {
                let what = format!("{} = {now}: {}", wish.name(), wish.lacking);
                let remedy = format!(
                    "sysctl -w {}=\"{better}\", or posthaste setup --tune -c FILE (with --persist over a reboot too)",
                    wish.name()
                );
                vec![finding(wish.topic, Level::Warn, what, remedy)]
            }
        }
    });
    each.collect()
}
