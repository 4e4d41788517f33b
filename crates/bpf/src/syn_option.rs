// SPDX-License-Identifier: Apache-2.0
//! The program that adds options to SYNs.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::error::Error;
use crate::layout::bytes;
use crate::object::{Map, Program};
use crate::objects::syn_option::{self, map, program};
use crate::objects::types;
use crate::sys;

/// `BPF_CGROUP_SOCK_OPS`
const SOCK_OPS: u32 = 3;

/// The loaded program, attached.
#[derive(Debug)]
pub(crate) struct Sender {
    pub(crate) program: Program,
    syn_options: Arc<Map>,
    _link: OwnedFd,
}

impl Sender {
    /// Loads the program, which counts in `stats`, and attaches it to a cgroup.
    pub(crate) fn attach(stats: &Arc<Map>, cgroup: BorrowedFd<'_>) -> Result<Self, Error> {
        let object = &syn_option::OBJECT;
        let types = object.load_types()?;
        let make = |number| match number {
            map::STATS => Ok(Arc::clone(stats)),
            map::SYN_OPTIONS => object.make_typed(number, &types),
            _ => object.make(number, None),
        };
        let maps: Vec<_> = (0..object.maps.len()).map(make).collect::<Result<_, _>>()?;
        let program = object.load(program::ADD_SYN_OPTION, &types, &maps, &[])?;
        let target = cgroup.as_raw_fd().cast_unsigned();
        let link = sys::link(program.as_fd(), target, SOCK_OPS);
        let link = link.map_err(|source| Error::AttachCgroup {
            program: program.name,
            source,
        })?;
        Ok(Self {
            program,
            syn_options: Arc::clone(&maps[map::SYN_OPTIONS]),
            _link: link,
        })
    }

    /// The map of sockets' options.
    pub(crate) fn syn_options(&self) -> Arc<Map> {
        Arc::clone(&self.syn_options)
    }
}

/// Sets `option` for the SYN of a socket that has not connected yet.
pub(crate) fn leave(syn_options: &Map, socket: BorrowedFd<'_>, option: &[u8]) -> Result<(), Error> {
    let mut syn_option = types::syn_option::default();
    let length = option.len().min(syn_option.option.len());
    syn_option.option[..length].copy_from_slice(&option[..length]);
    syn_option.bytes = u8::try_from(length).expect("an option is short");
    syn_options.update(&socket.as_raw_fd().to_ne_bytes(), bytes(&syn_option))
}
