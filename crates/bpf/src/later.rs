// SPDX-License-Identifier: Apache-2.0
//! The programs that a node can begin to relay without.

use std::fs::File;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::{Link, MapMut, Object};

use crate::error::Error;
use crate::later_skel::{LaterSkel, LaterSkelBuilder};

/// The loaded programs, the look-up attached.
pub(crate) struct Later {
    skel: LaterSkel<'static>,
    _lookup: Link,
}

impl Later {
    /// Loads the programs on the maps of the redirect program, and serves SYNs
    /// that meet a TIME_WAIT socket in the network namespace of this thread.
    pub(crate) fn load(listeners: &MapMut<'_>, renewals: &MapMut<'_>) -> Result<Self, Error> {
        let place = Box::leak(Box::new(MaybeUninit::uninit()));
        let mut open = LaterSkelBuilder::default()
            .open(place)
            .map_err(Error::load("open"))?;
        let shared = [
            (&mut open.maps.listeners, listeners),
            (&mut open.maps.renewals, renewals),
        ];
        for (map, made) in shared {
            map.reuse_fd(made.as_fd())
                .map_err(Error::load("share maps"))?;
        }
        let skel = open.load().map_err(Error::load("load"))?;
        let failed = |source| Error::AttachLookup { source };
        let netns = File::open("/proc/thread-self/ns/net").map_err(|e| failed(e.into()))?;
        let program = &skel.progs.find_listener;
        let lookup = program.attach_netns(netns.as_raw_fd()).map_err(failed)?;
        Ok(Self {
            skel,
            _lookup: lookup,
        })
    }

    pub(crate) fn object(&self) -> &Object {
        self.skel.object()
    }

    /// A descriptor of the program that puts frames on devices.
    pub(crate) fn inject(&self) -> Result<OwnedFd, Error> {
        let program = self.skel.progs.inject.as_fd().try_clone_to_owned();
        program.map_err(|error| Error::map("hold", "inject")(error.into()))
    }
}
