// SPDX-License-Identifier: Apache-2.0
//! `node.id` and `[[peer]]`: who this node and the other nodes are.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::ops::Range;
use std::path::PathBuf;

use posthaste_relay::chain::{Encapsulation, Peer, PoolLimits};
use posthaste_relay::policy::SideOptions;
use posthaste_wire::auth::{KEY_BYTES, Key};
use posthaste_wire::header::NodeId;
use toml::Spanned;

use super::super::value::{self, HIDDEN};
use super::super::{file, host};
use super::Reader;

/// Bound on `[[peer]]` sections: each worker keeps warm hops to each.
const PEERS_MAX: usize = 1024;
/// Bound on addresses that a peer calls from: the programs hold all of 1024 peers.
const CALLERS_MAX: usize = 4;
/// Bound on warm hops to one peer that wait, at each worker.
const POOL_MAX: u32 = 4096;
/// What is better than the kernel's default over a long hop, where it is there.
const CONGESTION: &str = "bbr";
/// What stands for an address or a key that is missing or wrong until the
/// problems are told.
const NOWHERE: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0));
const NO_KEY: [u8; KEY_BYTES] = [0; KEY_BYTES];

impl Reader {
    /// The number of this node, which some of the other sections demand.
    pub(super) fn node_id(&mut self, file: &file::File) -> Option<NodeId> {
        let field = &file.node.id;
        let id = self.get("node.id", field, None, |v| value::node_id(v).map(Some));
        let peer = file.peer.first().map(|peer| ("peers", peer.span()));
        let fixed = |section: &&Spanned<file::Listener>| {
            let mode = section.get_ref().mode.as_ref();
            mode.is_some_and(|mode| mode.get_ref().as_str() == Some("fixed"))
        };
        let listener = file.listener.iter().find(|section| !fixed(section));
        let listener = listener.map(|listener| ("explicit listeners", listener.span()));
        if let (None, Some((what, section))) = (field, peer.or(listener)) {
            let what = format!(
                "node.id is missing: a node with {what} needs a number of its own, such as id = 7 in [node]"
            );
            self.note(Some(section.start), what);
        }
        id
    }

    /// The peers, and for each the file that its key is in.
    pub(super) fn peers(
        &mut self,
        sections: &[Spanned<file::Peer>],
        me: Option<NodeId>,
    ) -> (Vec<Peer>, Vec<Option<PathBuf>>) {
        self.at_most(PEERS_MAX, "peer", sections);
        let all = || sections.iter().map(Spanned::get_ref);
        self.unique("peer", "name", all().map(|peer| &peer.name), value::name);
        self.unique("peer", "id", all().map(|peer| &peer.id), value::node_id);
        let socket = if sections.is_empty() {
            SideOptions::default()
        } else {
            self.hop_defaults()
        };
        let peers = sections.iter();
        peers.map(|section| self.peer(section, me, &socket)).unzip()
    }

    /// What the sockets of hops are like unless a peer says otherwise.
    pub(super) fn hop_defaults(&self) -> SideOptions {
        let known = (self.capacity.congestion)();
        let there = known.iter().any(|name| name == CONGESTION);
        SideOptions {
            congestion: there.then(|| CONGESTION.to_owned()),
            ..SideOptions::default()
        }
    }

    fn peer(
        &mut self,
        spanned: &Spanned<file::Peer>,
        me: Option<NodeId>,
        socket: &SideOptions,
    ) -> (Peer, Option<PathBuf>) {
        let (section, place) = (spanned.get_ref(), spanned.span());
        let (name, path) = self.name("peer", place.clone(), &section.name);
        let key = |name: &str| format!("{path}: {name}");
        let (secret, key_file) = self.secret(&path, place.clone(), section);
        let address = self.peer_address(&key("address"), place.clone(), &section.address);
        let peer = Peer {
            name: name.into(),
            id: self.peer_id(&key("id"), place, &section.id, me),
            address,
            key: Some(secret),
            key_id: self.get(&key("key_id"), &section.key_id, 1, |v| {
                value::number(v, 0..=u32::MAX)
            }),
            encapsulation: self.encapsulation(&path, section, address),
            source_addresses: self.callers(&path, section, address),
            pool: self.pool(&path, section),
            socket: self.side(&key("socket"), &section.socket, socket),
        };
        (peer, key_file)
    }

    fn peer_id(
        &mut self,
        key: &str,
        section: Range<usize>,
        field: &file::Scalar,
        me: Option<NodeId>,
    ) -> NodeId {
        self.require(key, section, field, "the node's number, its node.id");
        let id = self.get(key, field, None, |v| value::node_id(v).map(Some));
        if let Some(field) = field.as_ref().filter(|_| id.is_some() && id == me) {
            self.reject(key, field, "is this node's own number, node.id");
        }
        id.unwrap_or_else(value::any_node_id)
    }

    fn peer_address(
        &mut self,
        key: &str,
        section: Range<usize>,
        field: &file::Scalar,
    ) -> SocketAddr {
        let form = "the address and port of its explicit listener";
        self.require(key, section, field, form);
        self.get(key, field, NOWHERE, value::remote)
    }

    /// The key, and the file that it is in. What is said of a key never has it
    /// in it.
    fn secret(
        &mut self,
        path: &str,
        place: Range<usize>,
        section: &file::Peer,
    ) -> (Key, Option<PathBuf>) {
        let form = "64 hexadecimal digits, as posthaste keys generate prints them";
        let (bytes, file) = match (&section.key, &section.key_file) {
            (Some(key), None) => {
                let bytes = value::key(key.get_ref());
                if bytes.is_none() {
                    let what = format!("{path}: key = {HIDDEN}: expected {form}");
                    self.note(Some(key.span().start), what);
                }
                (bytes, None)
            }
            (None, Some(file)) => self.secret_in(path, file),
            (None, None) => {
                let what = format!(
                    "{path}: key is missing: expected key = \"...\", {form}, or key_file = \"/path\""
                );
                self.note(Some(place.start), what);
                (None, None)
            }
            (Some(_), Some(file)) => {
                let what = format!("{path}: key and key_file: expected one of them");
                self.note(Some(file.span().start), what);
                (None, None)
            }
        };
        (Key::new(bytes.unwrap_or(NO_KEY)), file)
    }

    /// The key in the file that `field` names, and that file.
    fn secret_in(
        &mut self,
        path: &str,
        field: &Spanned<toml::Value>,
    ) -> (Option<[u8; KEY_BYTES]>, Option<PathBuf>) {
        let place = field.span().start;
        if value::key(field.get_ref()).is_some() {
            let what = format!("{path}: key_file = {HIDDEN}: is a key, not a path: expected key");
            self.note(Some(place), what);
            return (None, None);
        }
        let file = match value::key_path(field.get_ref()) {
            Ok(file) => file,
            Err(form) => {
                self.reject(&format!("{path}: key_file"), field, &form);
                return (None, None);
            }
        };
        let named = format!("{path}: key_file = \"{}\"", file.display());
        let bytes = match (self.capacity.key_file)(&file) {
            Err(error) => {
                self.note(Some(place), format!("{named}: cannot be read: {error}"));
                None
            }
            Ok(host::KeyFile { text, for_all }) => {
                if for_all {
                    let what = format!(
                        "{named}: others may read or write it: chmod o= {}",
                        file.display()
                    );
                    self.warnings.push(what);
                }
                let bytes = value::key_text(text.trim());
                if bytes.is_none() {
                    let what = format!(
                        "{named}: expected 64 hexadecimal digits in it, as posthaste keys generate writes them"
                    );
                    self.note(Some(place), what);
                }
                bytes
            }
        };
        (bytes, Some(file))
    }

    fn encapsulation(
        &mut self,
        path: &str,
        section: &file::Peer,
        address: SocketAddr,
    ) -> Encapsulation {
        let key = format!("{path}: header_in");
        let encapsulation = self.get(
            &key,
            &section.header_in,
            Encapsulation::Stream,
            value::encapsulation,
        );
        if encapsulation == Encapsulation::SynOption && address.is_ipv6() {
            self.warnings.push(format!(
                "{key} = \"syn-option\": its address is IPv6: hops to it are opened by Convert, since the option carries IPv4 only"
            ));
        }
        encapsulation
    }

    /// Where its connections come from: its own address unless it says otherwise.
    fn callers(&mut self, path: &str, section: &file::Peer, address: SocketAddr) -> Vec<IpAddr> {
        let key = format!("{path}: source_addresses");
        self.named_once(&key, &section.source_addresses);
        if let Some(field) = section.source_addresses.iter().flatten().nth(CALLERS_MAX) {
            let form = format!("expected at most {CALLERS_MAX} addresses");
            self.reject(&key, field, &form);
        }
        if section.source_addresses.is_none() {
            return vec![address.ip().to_canonical()];
        }
        self.list(&key, &section.source_addresses, value::caller)
    }

    fn pool(&mut self, path: &str, section: &file::Peer) -> PoolLimits {
        let mut get = |name: &str, field: &file::Scalar, default: u16| {
            self.get(&format!("{path}: {name}"), field, default, |v| {
                value::number(v, 0..=POOL_MAX).map(|n| u16::try_from(n).unwrap_or(u16::MAX))
            })
        };
        let max = get("pool_max", &section.pool_max, 64);
        let min = get("pool_min", &section.pool_min, max.min(2));
        if let Some(field) = section.pool_min.as_ref().filter(|_| min > max) {
            let form = format!("expected at most pool_max, which is {max}");
            self.reject(&format!("{path}: pool_min"), field, &form);
        }
        PoolLimits { min, max }
    }
}
