// SPDX-License-Identifier: Apache-2.0
//! The programs that a node can begin to relay without.

use std::fs::File;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, MapMut, Object};

use crate::error::Error;
use crate::later_skel::{LaterSkel, LaterSkelBuilder};
use crate::redirect::Settings;
use crate::skel::RedirectMaps;

/// The loaded programs, the look-up attached.
pub(crate) struct Later {
    skel: LaterSkel<'static>,
    _lookup: Link,
}

/// What the workers need of the programs.
#[derive(Debug)]
pub(crate) struct Tools {
    /// Gates within the budget, and within its reserve.
    pub(crate) gates: [MapHandle; 2],
    pub(crate) known: MapHandle,
    pub(crate) suspects: MapHandle,
    /// The program that puts frames on devices.
    pub(crate) inject: OwnedFd,
}

impl Later {
    /// Loads the programs on the maps of the redirect program, with a ring for
    /// each worker, and serves SYNs that meet a TIME_WAIT socket in the network
    /// namespace of this thread.
    pub(crate) fn load(
        settings: &Settings,
        maps: &RedirectMaps<'_>,
        rings: &[MapHandle],
    ) -> Result<Self, Error> {
        let place = Box::leak(Box::new(MaybeUninit::uninit()));
        let mut open = LaterSkelBuilder::default()
            .open(place)
            .map_err(Error::load("open"))?;
        let rodata = open
            .maps
            .rodata_data
            .as_deref_mut()
            .expect("the programs have settings");
        rodata.workers = settings.workers;
        rodata.redirect_mark = settings.redirect_mark;
        rodata.socket_mark = settings.socket_mark;
        let sized = [
            (&mut open.maps.rings, settings.workers),
            (&mut open.maps.gates, settings.half_open),
            (&mut open.maps.gates_kept, settings.half_open_reserve),
        ];
        for (map, entries) in sized {
            map.set_max_entries(entries.max(1))
                .map_err(Error::load("size maps"))?;
        }
        let shared = [
            (&mut open.maps.devices, &maps.devices),
            (&mut open.maps.listeners, &maps.listeners),
            (&mut open.maps.withdrawn, &maps.withdrawn),
            (&mut open.maps.stats, &maps.stats),
        ];
        for (map, made) in shared {
            map.reuse_fd(made.as_fd())
                .map_err(Error::load("share maps"))?;
        }
        let skel = open.load().map_err(Error::load("load"))?;
        fill(&skel.maps.rings, "rings", rings.iter().map(AsFd::as_fd))?;
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

    /// What the workers need. To be given to them before the redirect program
    /// gets its [steps](Self::step_into): an event asks for it.
    pub(crate) fn tools(&self) -> Result<Tools, Error> {
        let maps = &self.skel.maps;
        let hold =
            |map: &MapMut<'_>, name| MapHandle::try_from(map).map_err(Error::map("hold", name));
        let inject = self.skel.progs.inject.as_fd().try_clone_to_owned();
        Ok(Tools {
            gates: [
                hold(&maps.gates, "gates")?,
                hold(&maps.gates_kept, "gates_kept")?,
            ],
            known: hold(&maps.known, "known")?,
            suspects: hold(&maps.suspects, "suspects")?,
            inject: inject.map_err(|error| Error::map("hold", "inject")(error.into()))?,
        })
    }

    /// Has the redirect program go on with packets here.
    pub(crate) fn step_into(&self, steps: &MapMut<'_>) -> Result<(), Error> {
        let programs = &self.skel.progs;
        // In the order of `enum step`.
        let in_order = [
            &programs.open_flow,
            &programs.check_cookie,
            &programs.hold_syn_ack,
            &programs.claim_error,
            &programs.claim_fragment,
        ];
        fill(steps, "steps", in_order.into_iter().map(AsFd::as_fd))
    }
}

/// Puts descriptors into an array, from index 0 on.
fn fill<'a>(
    map: &MapMut<'_>,
    name: &'static str,
    descriptors: impl Iterator<Item = BorrowedFd<'a>>,
) -> Result<(), Error> {
    for (index, descriptor) in (0_u32..).zip(descriptors) {
        let fd = descriptor.as_raw_fd().to_ne_bytes();
        map.update(&index.to_ne_bytes(), &fd, MapFlags::ANY)
            .map_err(Error::map("write", name))?;
    }
    Ok(())
}
