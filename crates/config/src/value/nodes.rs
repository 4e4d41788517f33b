// SPDX-License-Identifier: Apache-2.0
//! Readings of what concerns other nodes.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use posthaste_control::identity::{PublicKey, from_hex};
use posthaste_wire::auth::KEY_BYTES;
use posthaste_wire::header::NodeId;
use toml::Value;

use super::Reading;

/// The address and port of an explicit listener.
pub(in super::super) fn listener(value: &Value) -> Reading<SocketAddr> {
    let form = "expected an address and port such as \"127.0.0.1:4480\" or \"[::1]:4480\"";
    endpoint(value, form)
}

/// The address and port of another node.
pub(in super::super) fn remote(value: &Value) -> Reading<SocketAddr> {
    let form = "expected an address and port such as \"192.0.2.1:4480\" or \"[2001:db8::1]:4480\"";
    let address = endpoint(value, form)?;
    // connect(2) takes the unspecified address for this host; TCP rejects multicast (RFC 9293
    // §3.9.1.1).
    if address.ip().is_unspecified() || address.ip().is_multicast() {
        return Err(form.into());
    }
    // Each link has them (RFC 4007 §6): connect(2) refuses one without its zone.
    if let SocketAddr::V6(address) = address
        && address.ip().is_unicast_link_local()
        && address.scope_id() == 0
    {
        return Err(
            "a link-local address needs the number of its interface, as in \"[fe80::1%2]:4480\""
                .into(),
        );
    }
    Ok(address)
}

/// Where a node answers probes, or `"off"`.
pub(in super::super) fn reflector(value: &Value) -> Reading<Option<SocketAddr>> {
    if value.as_str() == Some("off") {
        return Ok(None);
    }
    let form = "expected an address and port such as \"192.0.2.1:862\" or \"[2001:db8::1]:862\", or \"off\"";
    let address = endpoint(value, form)?;
    let is_remote = !address.ip().is_unspecified() && !address.ip().is_multicast();
    is_remote
        .then_some(Some(address))
        .ok_or_else(|| form.into())
}

fn endpoint(value: &Value, form: &str) -> Reading<SocketAddr> {
    let text = value.as_str().unwrap_or_default();
    let address = text.parse::<SocketAddr>().ok();
    // With port 0 the kernel would choose a port, which no other node has in its file.
    let address = address.filter(|address| address.port() != 0);
    address.ok_or_else(|| match has_name(text) {
        true => format!("{form}: names are not looked up, as nodes work without DNS"),
        false => form.into(),
    })
}

/// Whether a text looks like the name of a host and a port.
pub(super) fn has_name(text: &str) -> bool {
    let parts = text.rsplit_once(':');
    parts.is_some_and(|(host, port)| {
        let is_name = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        port.parse::<u16>().is_ok()
            && host.chars().all(is_name)
            && host.contains(|c: char| c.is_ascii_alphabetic())
    })
}

/// An address that connections come from.
pub(in super::super) fn caller(value: &Value) -> Reading<IpAddr> {
    let form = "expected an address such as \"192.0.2.1\" or \"2001:db8::1\"";
    let address = value.as_str().and_then(|text| text.parse::<IpAddr>().ok());
    // A v4-mapped address is another spelling of an IPv4 address (RFC 4291 section 2.5.5.2).
    let address = address.map(|address| address.to_canonical());
    address
        .filter(|ip| !ip.is_unspecified() && !ip.is_multicast())
        .ok_or_else(|| form.into())
}

/// The number of a node.
pub(in super::super) fn node_id(value: &Value) -> Reading<NodeId> {
    let number = value.as_integer().and_then(|n| u64::try_from(n).ok());
    let id = number.and_then(NodeId::new);
    id.ok_or_else(|| format!("expected a whole number from 1 to {}", NodeId::MAX))
}

/// What stands for a number that is missing or wrong until the problems are
/// reported.
pub(in super::super) fn any_node_id() -> NodeId {
    NodeId::MAX
}

/// What is shown in place of a key.
pub(in super::super) const HIDDEN: &str = "(hidden)";

/// A key. `None` for anything else, of which nothing must be shown.
pub(in super::super) fn key(value: &Value) -> Option<[u8; KEY_BYTES]> {
    from_hex(value.as_str()?)
}

/// The public key of a node or a controller.
pub(in super::super) fn public_key(value: &Value) -> Reading<PublicKey> {
    let key = value.as_str().and_then(PublicKey::from_hex);
    let form = "expected 64 hexadecimal digits, as posthaste keys public prints them";
    key.ok_or_else(|| form.to_owned())
}

/// The path of a directory.
pub(in super::super) fn directory(value: &Value) -> Reading<PathBuf> {
    let text = value.as_str().unwrap_or_default();
    let form = "expected an absolute path such as \"/var/lib/posthaste\"";
    let is_path = text.starts_with('/');
    is_path.then(|| text.into()).ok_or_else(|| form.to_owned())
}

/// The path of a file with a key.
pub(in super::super) fn key_path(value: &Value) -> Reading<PathBuf> {
    let text = value.as_str().unwrap_or_default();
    if text.starts_with('/') && !text.ends_with('/') {
        return Ok(text.into());
    }
    Err("expected an absolute path such as \"/etc/posthaste/paris.key\"".into())
}
