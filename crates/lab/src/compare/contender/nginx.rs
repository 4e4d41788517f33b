// SPDX-License-Identifier: Apache-2.0
//! nginx with its stream module: a process per thread, none above them.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::{PORT, Running, Site};
use crate::process::Process;
use crate::scratch::Scratch;

/// Where distributions keep the module; without it nginx may have the module built in.
const MODULE: &str = "/usr/lib/nginx/modules/ngx_stream_module.so";

pub(super) fn fixed(site: &Site<'_>) -> Result<Running> {
    let files = Scratch::new()?;
    let mut processes = Vec::new();
    let mut text = String::new();
    for thread in 0..site.threads {
        let directory = files.path().join(thread.to_string());
        fs::create_dir(&directory).context("make nginx's directory")?;
        text = configuration(site, &directory);
        let file = directory.join("nginx.conf");
        fs::write(&file, &text).context("write nginx's configuration")?;
        let mut command = site.node().command("nginx")?;
        command.arg("-p").arg(&directory).arg("-c").arg(&file);
        command.arg("-e").arg(directory.join("error.log"));
        site.confine(&mut command, Some(thread))?;
        let mut process = Process::spawn("nginx", command)?;
        super::await_listener(&mut process, site.node())?;
        processes.push(process);
    }
    Ok(Running {
        processes,
        ..Running::bare(site.relay(), text)
    })
}

fn configuration(site: &Site<'_>, directory: &Path) -> String {
    let load = match Path::new(MODULE).exists() {
        true => format!("load_module {MODULE};\n"),
        false => String::new(),
    };
    let (directory, server) = (directory.display(), site.server());
    // One listener a process, which they need not share then.
    let reuse = if site.threads > 1 { " reuseport" } else { "" };
    format!(
        "{load}daemon off;\nmaster_process off;\nworker_processes 1;\n\
         pid {directory}/nginx.pid;\nerror_log {directory}/error.log crit;\n\
         worker_rlimit_nofile 20000;\n\
         events {{ worker_connections 8192; use epoll; multi_accept on; }}\n\
         stream {{\n    access_log off;\n    tcp_nodelay on;\n    proxy_buffer_size 16k;\n    \
         proxy_half_close on;\n    \
         server {{ listen {PORT} backlog=16384{reuse}; proxy_pass {server}; }}\n}}\n"
    )
}
