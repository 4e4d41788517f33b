// SPDX-License-Identifier: Apache-2.0
//! What several verbs have in common: arguments, and how they print.

use std::io::{ErrorKind, Write};
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use posthaste_config::ADMIN_SOCKET;

/// The configuration to use.
#[derive(Args, Clone, Debug)]
pub(crate) struct ConfigArgs {
    /// Configuration file; by default, relay every TCP connection that this host forwards
    #[arg(short, long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

/// The node to query, and the output format.
#[derive(Args, Clone, Debug)]
pub(crate) struct AdminArgs {
    /// Admin socket of the node
    #[arg(long, value_name = "PATH", default_value = ADMIN_SOCKET)]
    pub(crate) socket: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Writes to stdout. A reader that has closed it (`| head`) is not an error.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    match stdout
        .write_all(text.as_bytes())
        // At exit the rest would be flushed without a look at errors, such as a full disk.
        .and_then(|()| stdout.flush())
    {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(error).context("write to stdout")
        }
        _ => Ok(()),
    }
}

/// Writes a document to stdout as JSON.
pub(crate) fn print_json(document: &impl serde::Serialize) -> anyhow::Result<()> {
    print(&format!("{}\n", serde_json::to_string_pretty(document)?))
}
