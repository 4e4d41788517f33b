// SPDX-License-Identifier: Apache-2.0
//! A real web server and a real browser of the simplest kind: nginx and curl.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::netns::Namespace;
use crate::nginx::{self, LOG_VISITORS, Nginx, object, object_name};
use crate::process::run;
use crate::scratch::Scratch;
use crate::transfer::Timing;

/// Directories to search besides PATH: Debian does not include `sbin` in every user's.
const SBIN: [&str; 2] = ["/usr/sbin", "/usr/local/sbin"];

/// The programs that the demonstration needs.
#[derive(Clone, Debug)]
pub(super) struct Programs {
    /// The web server.
    pub nginx: PathBuf,
    /// The browser.
    pub curl: PathBuf,
}

impl Programs {
    /// Finds both; an error includes the name of the missing package.
    pub(super) fn find() -> Result<Self> {
        Ok(Self {
            nginx: find("nginx", "nginx-light")?,
            curl: find("curl", "curl")?,
        })
    }
}

pub(crate) fn find(program: &str, package: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(SBIN.map(PathBuf::from))
        .map(|directory| directory.join(program))
        .find(|candidate| candidate.is_file())
        .with_context(|| format!("{program} is not installed; the package is called {package}"))
}

/// An nginx with objects of some sizes, on port 80 of all addresses of a namespace.
#[derive(Debug)]
pub(super) struct WebServer(Nginx);

impl WebServer {
    /// Starts nginx and waits until it listens.
    pub(super) fn start(program: &Path, namespace: &Namespace, sizes: &[u64]) -> Result<Self> {
        let http = format!("{LOG_VISITORS}\ntcp_nopush on;\n");
        let server = nginx::serve_objects(program, namespace, &http, &[80], sizes)?;
        Ok(Self(server))
    }

    /// The addresses of all clients so far, in order.
    pub(super) fn visitors(&self) -> Result<Vec<IpAddr>> {
        let address = |line: &String| {
            line.parse()
                .with_context(|| format!("address {line:?} in the log"))
        };
        self.0.visitors()?.iter().map(address).collect()
    }
}

/// Fetches with curl.
#[derive(Debug)]
pub(super) struct Browser {
    curl: PathBuf,
    files: Scratch,
}

impl Browser {
    /// Uses the given curl.
    pub(super) fn new(curl: &Path) -> Result<Self> {
        Ok(Self {
            curl: curl.to_path_buf(),
            files: Scratch::new()?,
        })
    }

    /// Fetches the object of `size` KB and compares it with the original.
    pub(super) fn fetch(&self, from: &Namespace, server: IpAddr, size: u64) -> Result<Timing> {
        let file = self.files.path().join(object_name(size));
        let host = if server.is_ipv6() {
            format!("[{server}]")
        } else {
            server.to_string()
        };
        let mut command = from.command(&self.curl)?;
        command
            .args([
                "--silent",
                "--show-error",
                "--fail",
                // A proxy of the environment would be outside the namespace.
                "--noproxy",
                "*",
                "--max-time",
                "60",
            ])
            .args([
                "--write-out",
                "%{time_connect} %{time_starttransfer} %{time_total} %{local_ip} %{local_port}",
            ])
            .arg("--output")
            .arg(&file)
            .arg(format!("http://{host}/{}", object_name(size)));
        let times = run(&mut command)?;
        let content = fs::read(&file).context("read what curl fetched")?;
        ensure!(
            content == object(size),
            "the object of {size} KB did not arrive as it is"
        );
        parse(&times)
    }
}

/// Reads curl's three times, in seconds, and its address and port.
fn parse(text: &str) -> Result<Timing> {
    let [connect, first_byte, complete, address, port] =
        text.split_whitespace().collect::<Vec<_>>()[..]
    else {
        bail!("curl printed {text:?}")
    };
    let time = |text: &str| -> Result<Duration> { Ok(Duration::from_secs_f64(text.parse()?)) };
    Ok(Timing {
        connect: time(connect)?,
        first_byte: time(first_byte)?,
        complete: time(complete)?,
        local: SocketAddr::new(address.parse()?, port.parse()?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curls_times_are_read() {
        let fetched = parse("0.050213 0.151 0.4071 10.0.0.1 4000").unwrap();
        assert_eq!(fetched.connect, Duration::from_micros(50_213));
        assert_eq!(fetched.complete, Duration::from_micros(407_100));
        assert_eq!(fetched.local.to_string(), "10.0.0.1:4000");
        assert!(parse("0.05 0.1").is_err());
    }

    #[test]
    fn missing_program_named() {
        let error = find("no-such-program", "its-package")
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("no-such-program") && error.contains("its-package"),
            "{error}"
        );
    }
}
