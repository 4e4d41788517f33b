// SPDX-License-Identifier: Apache-2.0
//! The listeners of `[[listener]]` sections, of which every worker has its own.

use std::net::SocketAddr;

use anyhow::{Context, ensure};
use posthaste_relay::sys::{self, SocketSettings};
use socket2::Socket;

use crate::config::{Config, Fixed};

/// The explicit ones, and the fixed ones with their destinations.
pub(super) type Opened = (Vec<Socket>, Vec<(Socket, SocketAddr)>);

/// Opens the explicit ones, and the fixed ones with their destinations, for a worker
/// that stays on CPU `home`, if it does.
pub(super) fn open(
    config: &Config,
    settings: SocketSettings,
    home: Option<usize>,
) -> anyhow::Result<Opened> {
    let explicit = config.explicit.iter().map(|address| {
        sys::explicit_listener(*address, settings)
            .with_context(|| format!("open the explicit listener {address}"))
    });
    let fixed = config.fixed.iter().map(|fixed| {
        check(fixed, config)?;
        let address = fixed.address;
        let listener = sys::fixed_listener(address, settings)
            .with_context(|| format!("open the listener {address}"))?;
        Ok((listener, fixed.destination))
    });
    let explicit: Vec<_> = explicit.collect::<anyhow::Result<_>>()?;
    let fixed: Vec<_> = fixed.collect::<anyhow::Result<_>>()?;
    if let Some(home) = home {
        for listener in explicit
            .iter()
            .chain(fixed.iter().map(|(listener, _)| listener))
        {
            // Without it, the kernel spreads connections by a hash.
            let _ = sys::prefer_cpu(listener, home);
        }
    }
    Ok((explicit, fixed))
}

/// Connections that lead to the node itself would come again and again. What the file
/// shows of that is found when it is read.
fn check(fixed: &Fixed, config: &Config) -> anyhow::Result<()> {
    let destination = fixed.destination;
    let own = config.fixed.iter().map(|fixed| fixed.address);
    let mut everywhere =
        own.filter(|address| address.ip().is_unspecified() && address.port() == destination.port());
    ensure!(
        everywhere.next().is_none() || !sys::is_own_address(destination.ip()),
        "listener.destination = \"{destination}\": this node listens there itself"
    );
    Ok(())
}
