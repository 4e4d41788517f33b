// SPDX-License-Identifier: Apache-2.0
//! The node that carries the connections of a command.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use posthaste_relay::chain::{Encapsulation, Peer, PoolLimits, Transport};
use posthaste_relay::policy::SideOptions;
use posthaste_wire::header::NodeId;

use posthaste_config::Config;

/// Default path of the configuration with the peers.
const CONFIG: &str = "/etc/posthaste/node.toml";

/// The node.
#[derive(Clone, Debug)]
pub(super) struct Via {
    peer: Peer,
    me: Option<NodeId>,
}

impl Via {
    pub(super) fn address(&self) -> SocketAddr {
        self.peer.address
    }

    pub(super) fn peer(&self) -> &Peer {
        &self.peer
    }

    /// The number by which the node identifies this host, if the two share a key.
    pub(super) fn me(&self) -> Option<NodeId> {
        self.me
    }
}

/// The node with this address or name, or the only peer.
pub(super) fn find(requested: Option<&str>, config: Option<&Path>) -> anyhow::Result<Via> {
    if let Some(address) = requested.and_then(|text| text.parse::<SocketAddr>().ok()) {
        return by_address(address).map(|peer| Via { peer, me: None });
    }
    if let Some(text) = requested
        && text.parse::<IpAddr>().is_ok()
    {
        bail!("--via {text}: the port is missing: expected ADDRESS:PORT, [ADDRESS]:PORT for IPv6");
    }
    let path = config.map_or_else(|| PathBuf::from(CONFIG), Path::to_owned);
    let shown = path.display();
    // A file that cannot be inspected exists: reading it gives the error.
    if config.is_none() && !path.try_exists().unwrap_or(true) {
        bail!(match requested {
            Some(name) => format!(
                "--via {name}: no address and port, and there is no {shown} to find a peer of that \
                 name in: add -c FILE"
            ),
            None => format!("which node? add --via ADDRESS:PORT, or list one peer in {shown}"),
        });
    }
    let config = Config::load(&path)?;
    let chains = &config.policy.chains;
    let peer = by_name(requested, &chains.peers).with_context(|| format!("peers of {shown}"))?;
    Ok(Via {
        peer,
        me: chains.me,
    })
}

/// A node that identifies this host by its address.
fn by_address(address: SocketAddr) -> anyhow::Result<Peer> {
    if address.ip().is_unspecified() || address.ip().is_multicast() || address.port() == 0 {
        bail!("--via {address}: expected the address and port of a node's explicit listener");
    }
    Ok(Peer {
        name: address.to_string().into(),
        // Any number: it stays within this process.
        id: NodeId::new(1).expect("not 0"),
        address,
        key: None,
        key_id: 0,
        other_key: None,
        encapsulation: Encapsulation::Stream,
        transport: Transport::Tcp,
        rate_limit: None,
        source_addresses: Vec::new(),
        // Warm hops need a key.
        pool: PoolLimits { min: 0, max: 0 },
        socket: SideOptions::of_hops(),
    })
}

fn by_name(requested: Option<&str>, peers: &[Peer]) -> anyhow::Result<Peer> {
    let names: Vec<&str> = peers.iter().map(|peer| &*peer.name).collect();
    let listed = if names.is_empty() {
        "there are none".to_owned()
    } else {
        format!("there are {}", names.join(", "))
    };
    match (requested, peers) {
        (None, [only]) => Ok(only.clone()),
        (None, _) => bail!("which one? {listed}: add --via NAME or --via ADDRESS:PORT"),
        (Some(name), _) => {
            let found = peers.iter().find(|peer| &*peer.name == name);
            found
                .cloned()
                .with_context(|| format!("--via {name}: no peer has that name, {listed}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(name: &str) -> Peer {
        Peer {
            name: name.into(),
            ..by_address("192.0.2.1:4480".parse().unwrap()).unwrap()
        }
    }

    fn error<T: std::fmt::Debug>(result: anyhow::Result<T>) -> String {
        format!("{:#}", result.unwrap_err())
    }

    #[test]
    fn an_address_needs_no_configuration() {
        let via = find(Some("[2001:db8::1]:4480"), None).unwrap();
        assert_eq!(via.address(), "[2001:db8::1]:4480".parse().unwrap());
        assert_eq!(via.peer().key, None);
        assert!(error(find(Some("192.0.2.1"), None)).contains("the port is missing"));
        for nowhere in ["0.0.0.0:4480", "192.0.2.1:0", "239.0.0.1:1"] {
            assert!(error(find(Some(nowhere), None)).contains("explicit listener"));
        }
    }

    #[test]
    fn only_peer_is_default() {
        let (one, two) = (peer("paris"), peer("rome"));
        let both = [one.clone(), two];
        assert_eq!(by_name(None, &both[..1]).unwrap(), one);
        assert_eq!(by_name(Some("paris"), &both).unwrap(), one);
        assert!(error(by_name(None, &both)).contains("which one? there are paris, rome"));
        assert!(error(by_name(None, &[])).contains("there are none"));
        assert!(error(by_name(Some("oslo"), &both)).contains("no peer has that name"));
    }

    #[test]
    fn requested_file_must_exist() {
        let missing = find(Some("paris"), Some(Path::new("/nowhere/node.toml")));
        assert!(error(missing).contains("/nowhere/node.toml"));
    }
}
