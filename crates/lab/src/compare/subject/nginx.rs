// SPDX-License-Identifier: Apache-2.0
//! nginx with its stream module: a process per thread, without a master process.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::Launched;
use crate::compare::site::{self, PORT, Running, Site};
use crate::process::Process;
use crate::scratch::Scratch;

/// Where distributions install the module; without it nginx may have it built in.
const MODULE: &str = "/usr/lib/nginx/modules/ngx_stream_module.so";

/// Its configuration, in a directory of its own.
const CONFIG_FILE: &str = "nginx.conf";

pub(super) fn fixed(site: &Site<'_>) -> Result<Running> {
    let mut processes = Vec::new();
    let mut configuration = String::new();
    for thread in 0..site.threads {
        let (command, files) = launch(site, thread)?;
        configuration = fs::read_to_string(files.path().join(CONFIG_FILE))?;
        let mut process = Process::spawn("nginx", command)?;
        site::await_listener(&mut process, site.node())?;
        processes.push(process);
    }
    Ok(Running {
        processes,
        ..Running::bare(site.relay(), configuration)
    })
}

pub(super) fn launch_fixed(site: &Site<'_>) -> Result<Launched> {
    let (command, files) = launch(site, 0)?;
    Ok((command, files, site.relay()))
}

/// The command of one process, and its directory.
fn launch(site: &Site<'_>, thread: usize) -> Result<(Command, Scratch)> {
    let files = Scratch::new()?;
    let directory = files.path();
    let file = directory.join(CONFIG_FILE);
    fs::write(&file, configuration(site, directory)).context("write nginx's configuration")?;
    let mut command = site.node().command("nginx")?;
    command.arg("-p").arg(directory).arg("-c").arg(&file);
    command.arg("-e").arg(directory.join("error.log"));
    site.confine(&mut command, Some(thread))?;
    Ok((command, files))
}

fn configuration(site: &Site<'_>, directory: &Path) -> String {
    let load = match Path::new(MODULE).exists() {
        true => format!("load_module {MODULE};\n"),
        false => String::new(),
    };
    let (directory, server) = (directory.display(), site.server());
    // Each connection has two ends, and there is the listener.
    let ends = site.connections * 2 + 16;
    // One listener per process, so that processes share none.
    let reuse = if site.threads > 1 { " reuseport" } else { "" };
    format!(
        "{load}daemon off;\nmaster_process off;\nworker_processes 1;\n\
         pid {directory}/nginx.pid;\nerror_log {directory}/error.log crit;\n\
         events {{ worker_connections {ends}; use epoll; multi_accept on; }}\n\
         stream {{\n    access_log off;\n    tcp_nodelay on;\n    proxy_buffer_size 16k;\n    \
         proxy_half_close on;\n    \
         server {{ listen {PORT} backlog=16384{reuse}; proxy_pass {server}; }}\n}}\n"
    )
}
