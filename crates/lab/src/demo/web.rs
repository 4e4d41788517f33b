// SPDX-License-Identifier: Apache-2.0
//! A real web server and a real browser of the simplest kind: nginx and curl.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::netns::Namespace;
use crate::nginx::{LOG_VISITORS, Nginx};
use crate::rng::scramble;
use crate::scratch::Scratch;

/// Bytes in a KB.
const KB: u64 = 1000;

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

/// An nginx with objects of some sizes, on port 80 of all addresses of a namespace.
#[derive(Debug)]
pub(super) struct WebServer(Nginx);

impl WebServer {
    /// Starts nginx and waits until it listens.
    pub(super) fn start(nginx: &Path, namespace: &Namespace, sizes: &[u64]) -> Result<Self> {
        let files = Scratch::new()?;
        let root = files.path();
        for &size in sizes {
            fs::write(root.join(object_name(size)), object(size)).context("write an object")?;
        }
        let http = format!(
            "{LOG_VISITORS}
    tcp_nopush on;
    server {{
        listen 0.0.0.0:80;
        listen [::]:80 ipv6only=on;
        root {};
    }}",
            root.display()
        );
        Ok(Self(Nginx::start(nginx, namespace, files, &http)?))
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

/// The times of a fetch, in milliseconds from its start, as measured by curl.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Fetched {
    /// Until the connection was open.
    pub connect_ms: f64,
    /// Until the first byte of the answer.
    pub first_byte_ms: f64,
    /// Until the last byte.
    pub complete_ms: f64,
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
    pub(super) fn fetch(&self, from: &Namespace, server: IpAddr, size: u64) -> Result<Fetched> {
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
                "--noproxy",
                "*",
                "--max-time",
                "60",
            ])
            .args([
                "--write-out",
                "%{time_connect} %{time_starttransfer} %{time_total}",
            ])
            .arg("--output")
            .arg(&file)
            .arg(format!("http://{host}/{}", object_name(size)));
        let output = command.output().context("run curl")?;
        if !output.status.success() {
            bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
        }
        let content = fs::read(&file).context("read what curl fetched")?;
        ensure!(
            content == object(size),
            "the object of {size} KB did not arrive as it is"
        );
        parse(&String::from_utf8_lossy(&output.stdout))
    }
}

/// Reads curl's three times, in seconds.
fn parse(text: &str) -> Result<Fetched> {
    let times: Vec<f64> = text
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect();
    let [connect, first_byte, complete] = times[..] else {
        bail!("curl printed {text:?}")
    };
    Ok(Fetched {
        connect_ms: connect * 1e3,
        first_byte_ms: first_byte * 1e3,
        complete_ms: complete * 1e3,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curls_times_are_read() {
        let fetched = parse("0.050213 0.151 0.4071").unwrap();
        assert!((fetched.connect_ms - 50.213).abs() < 1e-9);
        assert!((fetched.complete_ms - 407.1).abs() < 1e-9);
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
