// SPDX-License-Identifier: Apache-2.0
//! The program that puts options which herald flows into SYNs.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::error::Error;
use crate::object::{Map, Program};
use crate::objects::herald::{self, map, program};
use crate::objects::types;
use crate::redirect::bytes;
use crate::sys;

/// `BPF_CGROUP_SOCK_OPS`
const SOCK_OPS: u32 = 3;

/// The loaded program, attached.
#[derive(Debug)]
pub(crate) struct Sender {
    pub(crate) program: Program,
    heralds: Arc<Map>,
    _link: OwnedFd,
}

impl Sender {
    /// Loads the program, which counts in `stats`, and attaches it to a cgroup.
    pub(crate) fn attach(stats: &Arc<Map>, cgroup: BorrowedFd<'_>) -> Result<Self, Error> {
        let object = &herald::OBJECT;
        let types = object.load_types()?;
        let make = |number| match number {
            map::STATS => Ok(Arc::clone(stats)),
            map::HERALDS => object.make_typed(number, &types),
            _ => object.make(number, None),
        };
        let maps: Vec<_> = (0..object.maps.len()).map(make).collect::<Result<_, _>>()?;
        let program = object.load(program::SEND_HERALD, &types, &maps, &[])?;
        let target = cgroup.as_raw_fd().cast_unsigned();
        let link = sys::link(program.as_fd(), target, SOCK_OPS);
        let link = link.map_err(|source| Error::AttachCgroup {
            program: program.name,
            source,
        })?;
        Ok(Self {
            program,
            heralds: Arc::clone(&maps[map::HERALDS]),
            _link: link,
        })
    }

    /// What sockets are to say in their SYN.
    pub(crate) fn heralds(&self) -> Arc<Map> {
        Arc::clone(&self.heralds)
    }
}

/// Has a socket that is yet to connect say `option` in its SYN.
pub(crate) fn leave(heralds: &Map, socket: BorrowedFd<'_>, option: &[u8]) -> Result<(), Error> {
    let mut herald = types::herald::default();
    let length = option.len().min(herald.option.len());
    herald.option[..length].copy_from_slice(&option[..length]);
    herald.bytes = u8::try_from(length).expect("an option is short");
    heralds.update(&socket.as_raw_fd().to_ne_bytes(), bytes(&herald))
}
