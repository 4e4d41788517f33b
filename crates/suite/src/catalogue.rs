// SPDX-License-Identifier: Apache-2.0
//! Which tests there are: cargo builds them, their programs list them.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// A program with tests, as cargo built it.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    /// Of the package and of the target, as `posthaste-lab/e2e`.
    pub(crate) name: String,
    pub(crate) file: PathBuf,
    /// Where cargo would start it.
    pub(crate) package: PathBuf,
}

/// One test.
#[derive(Clone, Debug)]
pub(crate) struct Test {
    pub(crate) program: Program,
    pub(crate) name: String,
}

impl Test {
    /// Its name among all tests.
    pub(crate) fn full_name(&self) -> String {
        format!("{} {}", self.program.name, self.name)
    }
}

/// What cargo built.
#[derive(Debug)]
pub(crate) struct Catalogue {
    /// Cargo's target directory.
    pub(crate) directory: PathBuf,
    pub(crate) tests: Vec<Test>,
    /// How many tests are not run unless named.
    pub(crate) ignored: usize,
}

/// Builds the tests that `words`, arguments of `cargo test`, name, and lists those whose full name
/// has one of `filters` in it, or all if there are none.
pub(crate) fn build(words: &[String], filters: &[String]) -> Result<Catalogue> {
    let mut test = cargo();
    test.args([
        "test",
        "--no-run",
        "--message-format=json-render-diagnostics",
    ]);
    let built = output(test.args(words))?;
    let mut catalogue = Catalogue {
        directory: target_directory()?,
        tests: Vec::new(),
        ignored: 0,
    };
    for line in built.lines() {
        let message = serde_json::from_str(line).context("read what cargo prints")?;
        if let Some(program) = program(&message) {
            catalogue.add(&program, filters)?;
        }
    }
    Ok(catalogue)
}

impl Catalogue {
    fn add(&mut self, program: &Program, filters: &[String]) -> Result<()> {
        let ignored = list(program, &["--ignored"])?;
        for name in list(program, &[])? {
            let test = Test {
                program: program.clone(),
                name,
            };
            let full_name = test.full_name();
            if !filters.is_empty() && !filters.iter().any(|filter| full_name.contains(filter)) {
                continue;
            }
            if ignored.contains(&test.name) {
                self.ignored += 1;
            } else {
                self.tests.push(test);
            }
        }
        Ok(())
    }
}

fn target_directory() -> Result<PathBuf> {
    let metadata = output(cargo().args(["metadata", "--no-deps", "--format-version=1"]))?;
    let metadata: Value = serde_json::from_str(&metadata).context("read cargo's metadata")?;
    let directory = text(&metadata, "target_directory").context("find the target directory")?;
    Ok(directory.into())
}

fn cargo() -> Command {
    /// What `cargo run` sets for this package. Build scripts that read their own, as that of ring,
    /// would run again, and all that depends on them would be compiled again, here and in the next
    /// cargo without these.
    const OURS: [&str; 2] = ["CARGO_MANIFEST_", "CARGO_PKG_"];
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in std::env::vars_os() {
        let is_ours = |prefix| name.to_str().is_some_and(|name| name.starts_with(prefix));
        if OURS.into_iter().any(is_ours) {
            command.env_remove(&name);
        }
    }
    command.arg("--locked");
    command
}

/// The program of tests that a message of cargo reports.
fn program(message: &Value) -> Option<Program> {
    let file = PathBuf::from(text(message, "executable")?);
    message["profile"]["test"].as_bool().filter(|test| *test)?;
    let package = Path::new(text(message, "manifest_path")?).parent()?;
    let target = text(&message["target"], "name")?;
    // As `path+file:///src/crates/lab#posthaste-lab@0.1.0`: a checkout may have any name.
    let (_, id) = text(message, "package_id")?.rsplit_once('#')?;
    let (name, _) = id.split_once('@')?;
    Some(Program {
        name: format!("{name}/{target}"),
        file,
        package: package.to_owned(),
    })
}

fn text<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value[key].as_str()
}

fn list(program: &Program, more: &[&str]) -> Result<Vec<String>> {
    let mut command = Command::new(&program.file);
    command.args(["--list", "--format", "terse"]).args(more);
    let listed = output(command.current_dir(&program.package))?;
    let names = listed
        .lines()
        .filter_map(|line| line.strip_suffix(": test"));
    Ok(names.map(str::to_owned).collect())
}

/// The standard output of a command that succeeds.
fn output(command: &mut Command) -> Result<String> {
    let output = command.stderr(Stdio::inherit()).output();
    let output = output.with_context(|| format!("start {command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", output.status);
    String::from_utf8(output.stdout).with_context(|| format!("read what {command:?} prints"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_in_messages() {
        let message = |test: bool| {
            serde_json::json!({
                "reason": "compiler-artifact", "manifest_path": "/src/crates/lab/Cargo.toml",
                "package_id": "path+file:///src/crates/lab#posthaste-lab@0.1.0",
                "target": {"name": "e2e"}, "profile": {"test": test}, "executable": "/target/e2e-1",
            })
        };
        let found = program(&message(true)).unwrap();
        assert_eq!(found.name, "posthaste-lab/e2e");
        assert_eq!(found.package, Path::new("/src/crates/lab"));
        assert!(program(&message(false)).is_none());
        assert!(program(&serde_json::json!({"reason": "build-finished"})).is_none());
    }
}
