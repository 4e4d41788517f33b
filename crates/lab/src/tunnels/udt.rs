// SPDX-License-Identifier: Apache-2.0
//! UDT proxying as it was published: two proxies with UDT's own library, of Debian's packages,
//! which carry all connections over tunnels that they open at their start.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::network::{Family, Network};
use crate::process::{Process, run};
use crate::scratch::Scratch;

const SOURCE: &str = include_str!("../../udt/proxy.cpp");
/// Of both proxies.
const PORT: u16 = 4481;
/// The published figures are of up to four clients for each.
const TUNNELS: &str = "1";
const WITHIN: Duration = Duration::from_secs(30);

/// The two proxies on the hosts of the nodes.
#[derive(Debug)]
pub(super) struct Proxies {
    near: Process,
    far: Process,
    /// What clients connect to.
    pub(super) address: SocketAddr,
    _program: Scratch,
}

impl Proxies {
    /// Starts both, with a tunnel between them.
    pub(super) fn start(network: &Network, server: SocketAddr) -> Result<Self> {
        let files = Scratch::new()?;
        let program = build(&files)
            .context("build the UDT proxy: `make setup-bench` installs c++ and libudt-dev")?;
        let far_address = network.node_address(1, Family::V4);
        let spawn = |place: usize, mode: &str, to: IpAddr, port: u16, more: &[&str]| {
            let mut command = network.node(place).command(&program)?;
            command.arg(mode).arg(PORT.to_string());
            command.arg(to.to_string()).arg(port.to_string());
            command.args(more);
            let mut process = Process::spawn("the UDT proxy", command)?;
            let ready = |process: &Process| process.stdout().contains("ready");
            process.wait_until("readiness", WITHIN, ready)?;
            Ok::<_, anyhow::Error>(process)
        };
        let far = spawn(1, "far", server.ip(), server.port(), &[])?;
        let near = spawn(0, "near", far_address, PORT, &[TUNNELS])?;
        let address = SocketAddr::new(network.node_address(0, Family::V4), PORT);
        Ok(Self {
            near,
            far,
            address,
            _program: files,
        })
    }

    /// CPU time of both so far.
    pub(super) fn cpu(&self) -> Result<Duration> {
        Ok(self.near.cpu()? + self.far.cpu()?)
    }
}

fn build(files: &Scratch) -> Result<PathBuf> {
    let source = files.path().join("proxy.cpp");
    fs::write(&source, SOURCE).context("write its source")?;
    let program = files.path().join("udt-proxy");
    let mut compiler = Command::new("c++");
    compiler.args(["-std=c++17", "-O2", "-Wall", "-o"]);
    compiler
        .arg(&program)
        .arg(&source)
        .args(["-ludt", "-lpthread"]);
    run(&mut compiler)?;
    Ok(program)
}
