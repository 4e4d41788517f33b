// SPDX-License-Identifier: Apache-2.0
//! The `doctor` verb: finds what on this host keeps a node from working, or from working well, and
//! the command that fixes it.
//!
//! One reader fills a [`Host`]; the checks are pure functions over it, so that each is tested with
//! a host that has the problem. Changes nothing.

use std::fmt::Write;
use std::process::ExitCode;

use serde::Serialize;

use crate::verb;
use posthaste_config::Config;

mod checks;
mod cores;
mod host;
mod interception;
mod listening;
mod multipath;
mod offload;
mod others;
mod routers;
#[cfg(test)]
mod tests;
mod topology;
mod tunnels;

use host::Host;

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
enum Level {
    /// As it should be.
    Ok,
    /// A node works, but not for all flows or not as well as it could.
    Warn,
    /// A node does not start, or harms traffic.
    Fail,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Verdict {
    level: Level,
    what: String,
    /// The fix; empty when there is nothing to do.
    #[serde(skip_serializing_if = "String::is_empty")]
    fix: String,
}

/// A result with the name of its check.
#[derive(Debug, Serialize)]
struct Finding {
    check: &'static str,
    #[serde(flatten)]
    verdict: Verdict,
}

/// The output of `doctor --json`.
#[derive(Debug, Serialize)]
struct Diagnosis {
    failed: usize,
    warned: usize,
    findings: Vec<Finding>,
}

impl Diagnosis {
    fn of(host: &Host, config: &Config) -> Self {
        let [interception, routers]: [&[checks::Check]; 2] = if config.transparent.enabled {
            [&interception::ALL, &routers::ALL]
        } else {
            [&[], &[]]
        };
        let tables = [&checks::ALL[..], interception, routers, &cores::ALL];
        let results = tables.into_iter().flatten().flat_map(|(name, check)| {
            let verdicts = check(host, config).into_iter();
            verdicts.map(|verdict| (*name, verdict))
        });
        let results = results.chain(others::settings(host, config));
        let findings: Vec<Finding> = results
            .map(|(check, verdict)| Finding { check, verdict })
            .collect();
        let count = |level| {
            findings
                .iter()
                .filter(|finding| finding.verdict.level == level)
                .count()
        };
        Self {
            failed: count(Level::Fail),
            warned: count(Level::Warn),
            findings,
        }
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for Finding { check, verdict } in &self.findings {
            let level = match verdict.level {
                Level::Ok => "ok  ",
                Level::Warn => "warn",
                Level::Fail => "FAIL",
            };
            let _ = writeln!(text, "{level}  {check:<14} {}", verdict.what);
            if !verdict.fix.is_empty() {
                let _ = writeln!(text, "{:20} -> {}", "", verdict.fix);
            }
        }
        let _ = writeln!(text, "\n{} failed, {} warnings", self.failed, self.warned);
        text
    }
}

/// Checks this host. Exit code 1 when a check failed.
pub(crate) fn run(config: &Config, json: bool) -> anyhow::Result<ExitCode> {
    let diagnosis = Diagnosis::of(&Host::read(config), config);
    if json {
        verb::print_json(&diagnosis)?;
    } else {
        verb::print(&diagnosis.text())?;
    }
    Ok(ExitCode::from(u8::from(diagnosis.failed > 0)))
}
