// SPDX-License-Identifier: Apache-2.0
//! Flowtables, which forward established connections without the forward chain.

use std::io;

use posthaste_netlink::{Message, Netlink, attribute, text};

use super::{BODY_BYTES, SUBSYSTEM, TABLE, number, shown};

/// `NFT_MSG_NEWFLOWTABLE`, `NFT_MSG_GETFLOWTABLE`.
const NEW_FLOWTABLE: u16 = SUBSYSTEM | 22;
const GET_FLOWTABLE: u16 = SUBSYSTEM | 23;
/// Attributes: name, flags, and of these `NFT_FLOWTABLE_HW_OFFLOAD`.
const NAME: u16 = 2;
const FLAGS: u16 = 7;
const HARDWARE: u32 = 1;

/// A flowtable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Flowtable {
    /// Family, table and name.
    pub(crate) name: String,
    /// Whether network cards forward its connections.
    pub(crate) hardware: bool,
}

/// The flowtables of this host.
///
/// # Errors
/// The kernel's error.
pub(crate) fn flowtables() -> io::Result<Vec<Flowtable>> {
    let mut found = Vec::new();
    let message = Message::new(GET_FLOWTABLE, 0, &[0; BODY_BYTES]);
    Netlink::netfilter()?.dump(message, |kind, body| {
        found.extend(flowtable(body).filter(|_| kind == NEW_FLOWTABLE));
    })?;
    Ok(found)
}

fn flowtable(body: &[u8]) -> Option<Flowtable> {
    let family = *body.first()?;
    let all = body.get(BODY_BYTES..)?;
    let flags = attribute(all, FLAGS).and_then(number).unwrap_or(0);
    let name = (
        family,
        text(attribute(all, TABLE)?),
        text(attribute(all, NAME)?),
    );
    Some(Flowtable {
        name: shown(&name),
        hardware: flags & HARDWARE != 0,
    })
}
