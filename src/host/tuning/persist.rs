// SPDX-License-Identifier: Apache-2.0
//! Changed settings that survive a reboot: a file that is applied at boot (sysctl.d(5)).
//!
//! The first line identifies posthaste's file; one without it is never touched. The file also has
//! each setting's former value, which `teardown` restores when the running host's own record is
//! gone.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;

use anyhow::{Context, bail};
use posthaste_daemon::file;

use super::{Change, Report, Setting, joined};

const FILE: &str = "/etc/sysctl.d/90-posthaste.conf";
const HEAD: &str = "# Written by posthaste setup --tune --persist; posthaste teardown removes it.";
/// Precedes the former value before each setting.
const FORMER: &str = "# before: ";

/// Fails where the file would not apply to this network namespace.
pub(super) fn require_namespace_of_boot() -> anyhow::Result<()> {
    let is_it = is_namespace_of_boot();
    if !is_it.context("--persist: compare this network namespace to that of process 1")? {
        bail!(
            "--persist: {FILE} is applied at boot to the network namespace of process 1, and this is another: leave it out here"
        );
    }
    Ok(())
}

/// Whether this is the network namespace of process 1.
fn is_namespace_of_boot() -> anyhow::Result<bool> {
    let of = |process: &str| {
        let file = format!("/proc/{process}/ns/net");
        let found = fs::metadata(&file).with_context(|| format!("look at {file}"))?;
        // Inode numbers are unique within one file system only.
        anyhow::Ok((found.dev(), found.ino()))
    };
    Ok(of("1")? == of("thread-self")?)
}

/// Makes `changes`, and those already in the file, apply at every boot. It can hold sysctls only.
pub(super) fn keep(changes: &[Change], report: &mut Report) -> anyhow::Result<()> {
    let former = recall()?;
    let (sysctls, others): (Vec<_>, Vec<_>) = changes
        .iter()
        .cloned()
        .partition(|change| Setting::at(&change.path).is_sysctl());
    for Change { path, applied, .. } in others {
        let what = format!(
            "{} = {applied} lasts until the next reboot",
            Setting::at(&path)
        );
        report.notes.push(what);
    }
    let all = joined(former.clone().unwrap_or_default(), &sysctls);
    if all.is_empty() || former.is_some_and(|former| former == all) {
        return Ok(());
    }
    // At boot only names in `.conf` are read: a file that was left half written is not.
    file::replace(FILE.as_ref(), 0o644, write(&all).as_bytes())
        .with_context(|| format!("write {FILE}"))?;
    report
        .done
        .push(format!("{FILE} has them set at every start of this host"));
    Ok(())
}

/// The file's changes, if they apply to this network namespace; `None` when there is no such file,
/// or it was edited.
pub(super) fn recall_here() -> anyhow::Result<Option<Vec<Change>>> {
    match text()? {
        // If the namespace is unknown, the file is left alone.
        Some(text) if is_namespace_of_boot().unwrap_or(false) => Ok(parse(&text)),
        _ => Ok(None),
    }
}

/// Removes the file, if it applies to this network namespace and was not edited.
pub(super) fn forget(report: &mut Report) -> anyhow::Result<()> {
    if recall_here()?.is_some() {
        fs::remove_file(FILE).with_context(|| format!("remove {FILE}"))?;
        report.done.push(format!("removed {FILE}"));
    } else if text()?.is_some_and(|text| text.starts_with(HEAD))
        && is_namespace_of_boot().unwrap_or(false)
    {
        let what = format!("{FILE} was changed by another program since setup: not touched");
        report.notes.push(what);
    }
    Ok(())
}

fn text() -> anyhow::Result<Option<String>> {
    match fs::read_to_string(FILE) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        text => text.map(Some).with_context(|| format!("read {FILE}")),
    }
}

fn recall() -> anyhow::Result<Option<Vec<Change>>> {
    let Some(text) = text()? else {
        return Ok(None);
    };
    let changes = parse(&text);
    changes.map(Some).with_context(|| {
        format!("{FILE} is not as posthaste writes it: move it away, or add the settings to it")
    })
}

fn write(changes: &[Change]) -> String {
    let lines = changes.iter().map(|change| {
        let name = change.path.replace('/', ".");
        let Change {
            former, applied, ..
        } = change;
        format!("{FORMER}{name} = {former}\n{name} = {applied}\n")
    });
    format!("{HEAD}\n{}", lines.collect::<String>())
}

/// The changes in a file's text; `None` for any other file, and for one that was edited.
fn parse(text: &str) -> Option<Vec<Change>> {
    let rest = text.strip_prefix(HEAD)?;
    let mut changes = Vec::new();
    let mut former: Option<(&str, &str)> = None;
    for line in rest.lines() {
        if let Some(before) = line.strip_prefix(FORMER) {
            former = before.split_once(" = ");
        } else if let Some((name, applied)) = line.split_once(" = ")
            && let Some((_, before)) = former.take().filter(|(before, _)| *before == name)
        {
            changes.push(Change {
                // No setting of these has a dot in its name, as that of an interface may.
                path: name.replace('.', "/"),
                former: before.into(),
                applied: applied.into(),
            });
        }
    }
    // Byte for byte: an operator's edit must not be overwritten.
    (write(&changes) == text).then_some(changes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(path: &str, former: &str, applied: &str) -> Change {
        Change {
            path: path.into(),
            former: former.into(),
            applied: applied.into(),
        }
    }

    #[test]
    fn written_file_is_own() {
        let changes = [
            change(
                "net/ipv4/tcp_rmem",
                "4096 131072 6291456",
                "4096 1048576 6291456",
            ),
            change("net/ipv4/tcp_fastopen", "1", "3"),
        ];
        assert_eq!(parse(&write(&changes)).unwrap(), changes);
        assert_eq!(parse("net.ipv4.tcp_fastopen = 3\n"), None);
        let added = write(&changes[1..]) + "net.ipv4.tcp_sack = 1\n";
        assert_eq!(parse(&added), None);
    }

    #[test]
    fn newer_change_counts() {
        let older = vec![change("a", "1", "2"), change("b", "1", "2")];
        let newer = [change("b", "5", "6")];
        assert_eq!(
            joined(older, &newer),
            [change("a", "1", "2"), change("b", "5", "6")]
        );
    }
}
