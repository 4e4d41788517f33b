// SPDX-License-Identifier: Apache-2.0
//! A page in the Prometheus text format (version 0.0.4).

use std::fmt::{Display, Write};

/// One sample of a table: its family, its labels, what the family is (nothing when the row before
/// is of the same family), and its value, if there is one.
pub type Row<T> = (
    &'static str,
    &'static str,
    &'static str,
    fn(&T) -> Option<f64>,
);

/// The labels of `build_info`.
pub const VERSION: &str = concat!("version=\"", env!("CARGO_PKG_VERSION"), "\"");

/// What `process_resident_memory_bytes` is.
pub const MEMORY: &str = "Memory of the process that is in RAM.";

/// 1 if so, 0 otherwise.
pub fn truth(is: bool) -> Option<f64> {
    Some(f64::from(u8::from(is)))
}

/// The text so far, and what every name begins with.
#[derive(Debug)]
pub struct Page(String, &'static str);

impl Page {
    /// An empty page.
    pub fn of(prefix: &'static str) -> Self {
        Self(String::new(), prefix)
    }

    /// The text, ready to be scraped.
    pub fn finish(self) -> String {
        self.0
    }

    /// Begins a family: a counter if its name ends in `_total`, otherwise a gauge.
    pub fn family(&mut self, name: &str, help: &str) {
        // By the naming convention of Prometheus.
        let is_counter = name.ends_with("_total");
        self.family_of(if is_counter { "counter" } else { "gauge" }, name, help);
    }

    /// Begins a family of a kind: `counter`, `gauge` or `histogram`.
    pub fn family_of(&mut self, kind: &str, name: &str, help: &str) {
        let (help, prefix) = (help.trim(), self.1);
        let _ = writeln!(
            self.0,
            "# HELP {prefix}_{name} {help}\n# TYPE {prefix}_{name} {kind}"
        );
    }

    /// The rows of a table that have a value.
    pub fn rows<T>(&mut self, rows: &[Row<T>], source: &T) {
        for (name, labels, help, value) in rows {
            // A value that is not there is left out: 0 would read as measured.
            let Some(value) = value(source) else { continue };
            if !help.is_empty() {
                self.family(name, help);
            }
            self.sample(name, labels, value);
        }
    }

    /// A family with one sample for each value of a label.
    pub fn by<L: AsRef<str>, V: Display>(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        samples: impl IntoIterator<Item = (L, V)>,
    ) {
        self.family(name, help);
        for (of, value) in samples {
            self.sample(name, &self::label(label, of.as_ref()), value);
        }
    }

    /// One sample of the family begun last.
    pub fn sample(&mut self, name: &str, labels: &str, value: impl Display) {
        let prefix = self.1;
        let _ = match labels {
            "" => writeln!(self.0, "{prefix}_{name} {value}"),
            labels => writeln!(self.0, "{prefix}_{name}{{{labels}}} {value}"),
        };
    }

    /// A family of one sample without labels.
    pub fn single(&mut self, name: &str, help: &str, value: impl Display) {
        self.family(name, help);
        self.sample(name, "", value);
    }
}

/// A label with its value, escaped: interface names may hold quotes and backslashes.
pub fn label(name: &str, value: &str) -> String {
    // Backslashes first: those that are added afterwards must stay single.
    let value = value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n");
    format!("{name}=\"{value}\"")
}

/// How much memory the process has in RAM; nothing where the kernel does not report it.
pub fn resident_bytes() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    // The kernel writes kB and means 1024 bytes (proc(5)).
    let kibibytes: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024.0)
}
