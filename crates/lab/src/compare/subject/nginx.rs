// SPDX-License-Identifier: Apache-2.0
//! nginx with its stream module: a process per thread, without a master process.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::compare::site::{PORT, Running, Site};
use crate::scratch::Scratch;

/// Where distributions install the module; without it nginx may have it built in.
const MODULE: &str = "/usr/lib/nginx/modules/ngx_stream_module.so";

pub(super) fn fixed(site: &Site<'_>) -> Result<Running> {
    let mut running = Running::bare(site.relay(), "");
    for thread in 0..site.threads {
        let files = Scratch::new()?;
        let directory = files.path();
        let file = directory.join("nginx.conf");
        running.configuration = configuration(site, directory);
        fs::write(&file, &running.configuration).context("write nginx's configuration")?;
        let mut command = site.node().command("nginx")?;
        command.arg("-p").arg(directory).arg("-c").arg(&file);
        // Before it reads its configuration it would write to the host's log.
        command.arg("-e").arg(directory.join("error.log"));
        let cpu = thread % site.cpus.len();
        let process = site.spawn("nginx", command, &site.cpus[cpu..=cpu])?;
        running.processes.push(process);
    }
    Ok(running)
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
