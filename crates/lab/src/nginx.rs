// SPDX-License-Identifier: Apache-2.0
//! Web servers: nginx as a single process that writes only to its own directory.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::netns::Namespace;
use crate::process::Process;
use crate::rng::scramble;
use crate::scratch::Scratch;
use crate::transfers::KB;

/// Bound on its start.
const PATIENCE: Duration = Duration::from_secs(60);

/// For the section `http`: logs the clients for [`Nginx::visitors`].
pub const LOG_VISITORS: &str = "log_format visitor '$remote_addr';
    access_log access.log visitor;";

/// A running nginx, which ends when dropped.
#[derive(Debug)]
pub struct Nginx {
    _process: Process,
    files: Scratch,
}

impl Nginx {
    /// Starts nginx in a namespace and waits until it listens. `files` is its directory, and `http`
    /// the content of the section of this name.
    pub fn start(host: &Namespace, files: Scratch, http: &str) -> Result<Self> {
        let root = files.path();
        let file = root.join("nginx.conf");
        fs::write(&file, configuration(http)).context("configure nginx")?;
        let mut command = host.command("nginx")?;
        // Both before it reads its configuration: it must write nowhere else.
        // The compiled-in log file belongs to the host.
        command.args(["-e", "stderr", "-p"]).arg(root);
        command.arg("-c").arg(&file);
        // In the foreground and without a master, so that it dies with the lab.
        let process = Process::spawn("nginx", command);
        let mut process = process.context("nginx is of the package nginx-light")?;
        // nginx writes its process id when it listens.
        let listening = root.join("nginx.pid");
        process.wait_until("sign that it listens", PATIENCE, |_| listening.exists())?;
        Ok(Self {
            _process: process,
            files,
        })
    }

    /// Its directory.
    pub fn files(&self) -> &Path {
        self.files.path()
    }

    /// The addresses of all clients so far, in order, one per request. Requires [`LOG_VISITORS`] in
    /// the configuration.
    pub fn visitors(&self) -> Result<Vec<String>> {
        let log = fs::read_to_string(self.files().join("access.log"));
        let log = log.context("read the log of nginx")?;
        Ok(log.lines().map(str::to_owned).collect())
    }
}

/// The content of an object, which does not repeat.
pub(crate) fn object(size: u64) -> Vec<u8> {
    (0..size * KB)
        .map(|at| scramble(at).to_le_bytes()[0])
        .collect()
}

/// The part of a URL that names an object.
pub(crate) fn object_name(size: u64) -> String {
    format!("{size}k")
}

/// The directives that listen on ports of all addresses.
pub(crate) fn listen(ports: &[u16]) -> String {
    let line = |port: &u16| format!("listen 0.0.0.0:{port};\nlisten [::]:{port} ipv6only=on;\n");
    ports.iter().map(line).collect()
}

/// Starts a server on some ports with an object of each size in KB. `http` is the rest of the
/// section of this name.
pub(crate) fn serve_objects(
    host: &Namespace,
    http: &str,
    ports: &[u16],
    sizes: &[u64],
) -> Result<Nginx> {
    let files = Scratch::new()?;
    let root = files.path();
    // Regular files, so that nginx serves them by sendfile as usual.
    for &size in sizes {
        fs::write(root.join(object_name(size)), object(size)).context("write an object")?;
    }
    let (listen, root) = (listen(ports), root.display());
    let http = format!("{http}server {{\n{listen}root {root};\n}}\n");
    Nginx::start(host, files, &http)
}

/// File names are relative to its directory.
fn configuration(http: &str) -> String {
    format!(
        "daemon off;
master_process off;
pid nginx.pid;
error_log stderr;
events {{ worker_connections 1024; }}
http {{
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    sendfile on;
    {http}
}}
"
    )
}
