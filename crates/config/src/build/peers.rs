// SPDX-License-Identifier: Apache-2.0
//! `node.id` and `[[peer]]`: who this node and the other nodes are.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::PathBuf;

use posthaste_control::identity::from_hex;
use posthaste_relay::chain::{Encapsulation, Peer, PoolLimits, Transport};
use posthaste_relay::policy::{MULTIPATH_CONGESTION, OWN_CONGESTION, SideOptions};
use posthaste_wire::auth::{KEY_BYTES, Key};
use posthaste_wire::header::NodeId;
use toml::{Spanned, Value};

use super::super::KeyFiles;
use super::super::document::Section;
use super::super::value::{self, HIDDEN};
use super::{Meaning, Reader};

/// Bound on `[[peer]]` sections: each worker keeps warm hops to each.
const PEERS_MAX: usize = 1024;
/// Bound on addresses that a peer calls from: the programs hold all of 1024 peers.
const CALLERS_MAX: usize = 4;
/// What stands for an address or a key that is missing or wrong until the
/// problems are reported.
const NOWHERE: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0));
const NO_KEY: [u8; KEY_BYTES] = [0; KEY_BYTES];
/// What a key looks like.
const KEY_FORM: &str = "64 hexadecimal digits, as posthaste keys generate prints them";

impl Reader {
    /// The number of this node, which some of the other sections demand.
    pub(super) fn node_id(&mut self, file: &Section) -> Option<NodeId> {
        let section = file.one("node");
        let peer = file.all("peer").first().map(|peer| ("peers", peer));
        // Connections to a fixed listener carry no request, so they need no number of this node.
        let is_fixed = |listener: &&Section| {
            let mode = listener.value("mode");
            mode.is_some_and(|mode| mode.get_ref().as_str() == Some("fixed"))
        };
        let mut listeners = file.all("listener").iter();
        let listener = listeners.find(|listener| !is_fixed(listener));
        let listener = listener.map(|listener| ("explicit listeners", listener));
        if !section.has("id")
            && let Some((what, section)) = peer.or(listener)
        {
            let what = format!(
                "node.id is missing: a node with {what} needs a number of its own, such as id = 7 in [node]"
            );
            self.note(section.at, what);
        }
        self.optional(section, "id", value::node_id)
    }

    /// The peers, and for each the files that its keys are in.
    pub(super) fn peers(
        &mut self,
        sections: &[Section],
        me: Option<NodeId>,
    ) -> (Vec<Peer>, Vec<KeyFiles>) {
        self.at_most(PEERS_MAX, "peer", sections);
        self.unique("peer", "name", sections, value::name);
        self.unique("peer", "id", sections, value::node_id);
        let peers = sections.iter();
        peers.map(|section| self.peer(section, me)).unzip()
    }

    fn peer(&mut self, section: &Section, me: Option<NodeId>) -> (Peer, KeyFiles) {
        let name = self.name(section);
        let (secret, own) = self.secret(section);
        let key_id = self.get(section, "key_id");
        let (other_key, other) = self.other_secret(section, key_id);
        self.require(section, "address");
        let address = self.optional(section, "address", value::remote);
        let address = address.unwrap_or(NOWHERE);
        let transport = self.transport(section);
        let socket = self.side(section.one("socket"), Some(&defaults_of(transport)));
        let peer = Peer {
            name: name.into(),
            id: self.peer_id(section, me),
            address,
            key: Some(secret),
            key_id,
            other_key,
            encapsulation: self.encapsulation(section, address, transport),
            transport,
            rate_limit: self.rate_limit(section, &socket),
            source_addresses: self.callers(section, address),
            pool: self.pool(section, transport),
            socket,
        };
        (peer, KeyFiles { own, other })
    }

    fn peer_id(&mut self, section: &Section, me: Option<NodeId>) -> NodeId {
        self.require(section, "id");
        let id = self.optional(section, "id", value::node_id);
        if let Some(field) = section.value("id").filter(|_| id.is_some() && id == me) {
            let form = "is this node's own number, node.id";
            self.reject(&section.path("id"), field, form);
        }
        id.unwrap_or_else(value::any_node_id)
    }

    /// The key that this node uses, and the file that it is in.
    fn secret(&mut self, section: &Section) -> (Key, Option<PathBuf>) {
        let names = ("key", "key_file");
        // Of a wrong type, which was noted when the file was sorted by the table.
        let is_given = section.has(names.0) || section.has(names.1);
        if !is_given {
            let path = section.path(names.0);
            let what = format!(
                "{path} is missing: expected key = \"...\", {KEY_FORM}, or key_file = \"/path\""
            );
            self.note(section.at, what);
        }
        let (bytes, file) = self.secret_of(section, names);
        // No connection ever uses `NO_KEY`: a mistake was noted, so the result is dropped.
        (Key::new(bytes.unwrap_or(NO_KEY)), file)
    }

    /// The key that the peer may use, too, and the file that it is in.
    fn other_secret(
        &mut self,
        section: &Section,
        key_id: u32,
    ) -> (Option<(Key, u32)>, Option<PathBuf>) {
        let (bytes, file) = self.secret_of(section, ("other_key", "other_key_file"));
        let named = section
            .value("other_key")
            .or_else(|| section.value("other_key_file"));
        let path = section.path("other_key_id");
        let other_id = self.optional(section, "other_key_id", |value| {
            u32::of(value, section.key("other_key_id"))
        });
        match (named, section.value("other_key_id")) {
            (Some(key), None) => {
                let what = format!("{path} is missing: expected the number of the other key");
                self.note(Some(key.span().start), what);
            }
            (None, Some(_)) => {
                let what = format!("{path} has no effect without other_key or other_key_file");
                self.warnings.push(what);
            }
            (Some(_), Some(id)) if other_id == Some(key_id) => {
                self.reject(&path, id, "is the number of the first key, key_id");
            }
            _ => {}
        }
        let other = bytes.zip(other_id);
        (other.map(|(bytes, id)| (Key::new(bytes), id)), file)
    }

    /// A key and the file that it is in, by the names of the two keys of the table. No message
    /// contains the key.
    fn secret_of(
        &mut self,
        section: &Section,
        (direct, in_file): (&'static str, &'static str),
    ) -> (Option<[u8; KEY_BYTES]>, Option<PathBuf>) {
        let path = section.path(direct);
        match (section.value(direct), section.value(in_file)) {
            (Some(key), None) => {
                let bytes = value::key(key.get_ref());
                if bytes.is_none() {
                    let what = format!("{path} = {HIDDEN}: expected {KEY_FORM}");
                    self.note(Some(key.span().start), what);
                }
                (bytes, None)
            }
            (None, Some(file)) => self.secret_in(section, (direct, in_file), file),
            (None, None) => (None, None),
            (Some(_), Some(file)) => {
                let what = format!("{path} and {in_file}: expected one of them");
                self.note(Some(file.span().start), what);
                (None, None)
            }
        }
    }

    /// The key in the file that `field` names, and that file.
    fn secret_in(
        &mut self,
        section: &Section,
        (direct, in_file): (&'static str, &'static str),
        field: &Spanned<Value>,
    ) -> (Option<[u8; KEY_BYTES]>, Option<PathBuf>) {
        let path = section.path(in_file);
        // A mistake that must not put the key into the message about it.
        if value::key(field.get_ref()).is_some() {
            let what = format!("{path} = {HIDDEN}: is a key, not a path: expected {direct}");
            self.note(Some(field.span().start), what);
            return (None, None);
        }
        let Some((file, text)) = self.key_text(&path, field) else {
            return (None, None);
        };
        let bytes = from_hex(&text);
        if bytes.is_none() {
            let form =
                "expected 64 hexadecimal digits in it, as posthaste keys generate writes them";
            self.reject(&path, field, form);
        }
        (bytes, Some(file))
    }

    fn encapsulation(
        &mut self,
        section: &Section,
        address: SocketAddr,
        transport: Transport,
    ) -> Encapsulation {
        let known = [Encapsulation::Stream, Encapsulation::SynOption];
        let word: &str = self.get(section, "header_in");
        let named = known.into_iter().find(|known| known.name() == word);
        let encapsulation = named.expect("the table has their names");
        let why = match (address.is_ipv6(), transport) {
            _ if encapsulation != Encapsulation::SynOption => None,
            (true, _) => Some(("its address is IPv6", "the option carries IPv4 only")),
            (false, Transport::Mptcp) => Some((
                "its transport is mptcp",
                "the options of both have no room in a SYN",
            )),
            (false, Transport::Tcp | Transport::Quic | Transport::QuicOnly | Transport::Auto) => {
                None
            }
        };
        if let Some((what, since)) = why {
            self.warnings.push(format!(
                "{} = \"syn-option\": {what}: hops to it are opened by Convert, since {since}",
                section.path("header_in")
            ));
        }
        encapsulation
    }

    fn transport(&mut self, section: &Section) -> Transport {
        let word: &str = self.get(section, "transport");
        let mut known = Transport::ALL.into_iter();
        let named = known.find(|known| known.name() == word);
        named.expect("the table has their names")
    }

    /// Of TCP, only the node's own congestion control knows all connections to a peer.
    fn rate_limit(&mut self, section: &Section, socket: &SideOptions) -> Option<u32> {
        let limit = self.optional(section, "rate_limit", value::rate)?;
        let is_kept = socket.congestion.as_deref() == Some(OWN_CONGESTION);
        if let Some(field) = section.value("rate_limit").filter(|_| !is_kept) {
            let form = "needs socket.congestion = \"posthaste\"";
            self.reject(&section.path("rate_limit"), field, form);
        }
        Some(limit)
    }

    /// Where its connections come from: its own address unless others are configured.
    fn callers(&mut self, section: &Section, address: SocketAddr) -> Vec<IpAddr> {
        let key = "source_addresses";
        self.named_once(section, key);
        if let Some(field) = section.items(key).get(CALLERS_MAX) {
            let form = format!("expected at most {CALLERS_MAX} addresses");
            self.reject(&section.path(key), field, &form);
        }
        if !section.has(key) {
            // Canonical, as sockets of both families report IPv4 addresses v4-mapped.
            return vec![address.ip().to_canonical()];
        }
        self.list(section, key, value::caller)
    }

    /// Warm hops are connections of TCP.
    fn pool(&mut self, section: &Section, transport: Transport) -> PoolLimits {
        let narrow = |n: u32| u16::try_from(n).unwrap_or(u16::MAX);
        let most: u32 = self.get(section, "pool_max");
        let number = |v: &Value| value::at_most(v, "pool_max", most);
        let least = self.optional(section, "pool_min", number);
        if !transport.has_sockets() {
            return PoolLimits { min: 0, max: 0 };
        }
        PoolLimits {
            // The default must not exceed a maximum that the file sets.
            min: narrow(least.unwrap_or_else(|| most.min(2))),
            max: narrow(most),
        }
    }
}

/// Settings of hops that are not configured.
fn defaults_of(transport: Transport) -> SideOptions {
    let of_hops = SideOptions::of_hops();
    match transport {
        Transport::Mptcp => SideOptions {
            congestion: Some(MULTIPATH_CONGESTION.to_owned()),
            ..of_hops
        },
        Transport::Tcp | Transport::Quic | Transport::QuicOnly | Transport::Auto => of_hops,
    }
}
