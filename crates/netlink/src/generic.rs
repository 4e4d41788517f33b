// SPDX-License-Identifier: Apache-2.0
//! Generic netlink: families of messages, whose numbers the kernel assigns (linux/genetlink.h).

use std::io;

use crate::{Message, Netlink, attribute, u16_at};

/// `GENL_ID_CTRL`, `CTRL_CMD_GETFAMILY`, and its version.
const CONTROL: u16 = 0x10;
const GET_FAMILY: u8 = 3;
const CONTROL_VERSION: u8 = 2;
/// `CTRL_ATTR_FAMILY_ID`, `CTRL_ATTR_FAMILY_NAME`
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
/// Bytes of `struct genlmsghdr`, with which each body begins.
const COMMAND_BYTES: usize = 4;

/// A family that this kernel has.
#[derive(Clone, Copy, Debug)]
pub struct GenericFamily {
    kind: u16,
    version: u8,
}

impl GenericFamily {
    /// Looks a family up; `version` is that of its messages.
    ///
    /// # Errors
    /// `NotFound` for one that this kernel does not have.
    pub fn find(netlink: &mut Netlink, name: &str, version: u8) -> io::Result<Self> {
        let control = Self {
            kind: CONTROL,
            version: CONTROL_VERSION,
        };
        let name = [name.as_bytes(), &[0]].concat();
        let message = control.message(GET_FAMILY).attribute(FAMILY_NAME, &name);
        let mut kind = None;
        netlink.query(message, |_, body| {
            let found = attribute(attributes_of(body), FAMILY_ID);
            kind = found.and_then(|id| u16_at(id, 0)).or(kind);
        })?;
        let kind = kind.ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self { kind, version })
    }

    /// A request of this family.
    pub fn message(self, command: u8) -> Message {
        Message::new(self.kind, 0, &[command, self.version, 0, 0])
    }
}

/// The attributes of an answer's body.
pub fn attributes_of(body: &[u8]) -> &[u8] {
    body.get(COMMAND_BYTES..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_by_name() {
        let mut netlink = Netlink::generic().unwrap();
        let control = GenericFamily::find(&mut netlink, "nlctrl", CONTROL_VERSION).unwrap();
        assert_eq!(control.kind, CONTROL);
        let missing = GenericFamily::find(&mut netlink, "posthaste", 1).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        // Nothing of the failed request is left for the next.
        assert!(GenericFamily::find(&mut netlink, "nlctrl", CONTROL_VERSION).is_ok());
    }
}
