// SPDX-License-Identifier: Apache-2.0
//! The pins of the packet path: maps, links and what ages flows outlive the node, because a flow whose
//! entry is lost is dead. The next node adopts them. Until then, or until no flow is left, the
//! guard of the last node looks after them.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use nix::sys::statfs::{BPF_FS_MAGIC, statfs};

use super::sweep::{self, Sweep};
use crate::bypass::burial::Burial;
use crate::object::Map;
use crate::objects::packet_path::{self, map};
use crate::sys;

/// Where a BPF file system is usually mounted, and in it the directory of this program. Only root
/// passes the former.
const FILE_SYSTEM: &str = "/sys/fs/bpf";
const DIRECTORY: &str = "/sys/fs/bpf/posthaste";
/// Where the systemd unit has that directory for its user.
const OF_SERVICE: &str = "/run/posthaste/bpf";
/// Changes with the layout of the maps: flows of another layout are left to the programs that made
/// them.
const LAYOUT: &str = "packets-24";
/// A directory that is made to see whether others can be.
const TEST: &str = "test";
/// The name of the program that removes flows that have ended.
pub(super) const SWEEP: &str = "sweep";
/// The name of the program that sends for flows, and probes the ends of quiet ones.
pub(super) const RESEND: &str = "resend";
/// The name of the program that resets the ends of a flow.
pub(super) const ABORT: &str = "abort";
/// How often [`Orphans::abort`] resets the ends, and the time between. Linux delays an ACK by at most
/// 0.2 s.
const RESETS: u32 = 4;
const RESET_INTERVAL: Duration = Duration::from_millis(250);
/// Time between two rounds of [`Orphans`].
const ROUND: Duration = Duration::from_secs(1);

/// The pins of one network namespace.
#[derive(Clone, Debug)]
pub(crate) struct Pins(PathBuf);

impl Pins {
    fn of(netns: u64) -> Self {
        Self(of_namespace(netns).join(LAYOUT))
    }

    /// The directory of a network namespace, made if needed.
    pub(super) fn make(netns: u64) -> io::Result<Self> {
        find_bpf_file_system()?;
        let pins = Self::of(netns);
        fs::create_dir_all(&pins.0).map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("create {}: {error}", pins.0.display()),
            )
        })?;
        pins.ensure_ours()?;
        Ok(pins)
    }

    /// Refuses a directory of another user's node, in which nothing could be replaced.
    fn ensure_ours(&self) -> io::Result<()> {
        let test = self.path(TEST);
        let made = fs::create_dir(&test);
        // Best effort: it is empty, and found by the next node.
        let _ = fs::remove_dir(&test);
        match made {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                let directory = self.0.display();
                let message = format!(
                    "{directory} is of a node that another user ran: give it to this node's user (chown -R)"
                );
                Err(io::Error::new(error.kind(), message))
            }
            _ => Ok(()),
        }
    }

    /// Whether there are flows that a node may adopt in a network namespace.
    pub(crate) fn are_left(netns: u64) -> bool {
        let flows = packet_path::OBJECT.maps[map::PACKET_FLOWS].name;
        Self::of(netns).path(flows).exists()
    }

    /// Whether an interface exists to which programs are attached.
    fn have_interface(&self) -> bool {
        let names = fs::read_dir(&self.0).into_iter().flatten().flatten();
        let mut attached = names.filter_map(|pin| {
            let name = pin.file_name().into_string().ok()?;
            name.strip_suffix("-in")?.parse().ok()
        });
        attached.any(sys::has_interface)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Excludes others that adopt or remove the pins.
    pub(crate) fn lock(&self) -> io::Result<File> {
        loop {
            fs::create_dir_all(&self.0)?;
            let file = File::open(&self.0)?;
            file.lock()?;
            // Another process may have removed the directory before this one had the lock.
            if self.is_current(&file) {
                return Ok(file);
            }
        }
    }

    fn is_current(&self, file: &File) -> bool {
        let (there, ours) = (fs::metadata(&self.0), file.metadata());
        there
            .and_then(|there| Ok(there.ino() == ours?.ino()))
            .unwrap_or(false)
    }

    /// How many flows are handed over, or were when their relay's process ended.
    pub(super) fn pairs_left(&self) -> usize {
        Burial::pinned(self).map_or(0, |burial| burial.round(false).unwrap_or(1))
    }

    /// Pins an object in place of another.
    pub(super) fn replace(&self, name: &str, object: BorrowedFd<'_>) -> io::Result<()> {
        let path = self.path(name);
        // The kernel does not pin over a name that exists.
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => sys::pin(object, &path),
        }
    }

    /// Removes the pins, unless another node has them by now.
    pub(super) fn remove_of(&self, owners: &Map, owner: u32) {
        let Ok(lock) = self.lock() else {
            return;
        };
        if owner_of(owners) == Some(owner) {
            let _ = fs::remove_dir_all(&self.0);
            // Only if it is empty.
            let _ = self.0.parent().map(fs::remove_dir);
        }
        drop(lock);
    }
}

/// Whether this host has a BPF file system where a node looks for one: without it `data_path = "auto"`
/// means sockets.
///
/// # Errors
/// There is none.
pub fn find_bpf_file_system() -> io::Result<()> {
    let places = [FILE_SYSTEM, OF_SERVICE];
    if places.map(Path::new).into_iter().any(is_bpf_file_system) {
        return Ok(());
    }
    let message = format!("no BPF file system is mounted at {FILE_SYSTEM}");
    Err(io::Error::new(io::ErrorKind::NotFound, message))
}

/// Whether a directory is in a BPF file system.
fn is_bpf_file_system(directory: &Path) -> bool {
    statfs(directory).is_ok_and(|system| system.filesystem_type() == BPF_FS_MAGIC)
}

fn of_namespace(netns: u64) -> PathBuf {
    let service = Path::new(OF_SERVICE);
    let directory = if is_bpf_file_system(service) {
        service
    } else {
        Path::new(DIRECTORY)
    };
    directory.join(netns.to_string())
}

/// The process of the node that the flows belong to.
fn owner_of(owners: &Map) -> Option<u32> {
    let mut owner = [0; 4];
    let found = owners.look_up(&[0; 4], &mut owner).ok()?;
    found.then(|| u32::from_ne_bytes(owner))
}

/// Flows of the packet path whose node has ended.
#[derive(Debug)]
pub struct Orphans {
    pins: Pins,
    sweep: OwnedFd,
    resend: OwnedFd,
    abort: OwnedFd,
    burial: Option<Burial>,
    flows: Arc<Map>,
    patience: Arc<Map>,
    owners: Arc<Map>,
    owner: u32,
}

impl Orphans {
    /// The flows that were left in a network namespace. The caller has checked that no node is there, or else
    /// that [`Self::owner`] has ended: flows of a layout that the next node does not know.
    pub fn find(netns: u64) -> Option<Self> {
        let pins = Pins::of(netns);
        let object = &packet_path::OBJECT;
        let adopt = |number: usize| {
            let pinned = sys::pinned(&pins.path(object.maps[number].name));
            Some(object.adopt(number, pinned.ok()?))
        };
        let owners = adopt(map::PACKET_OWNER)?;
        Some(Self {
            flows: adopt(map::PACKET_FLOWS)?,
            patience: adopt(map::PACKET_PATIENCE)?,
            resend: sys::pinned(&pins.path(RESEND)).ok()?,
            sweep: sys::pinned(&pins.path(SWEEP)).ok()?,
            abort: sys::pinned(&pins.path(ABORT)).ok()?,
            owner: owner_of(&owners)?,
            owners,
            burial: Burial::pinned(&pins),
            pins,
        })
    }

    /// The process of their last node.
    #[must_use]
    pub fn owner(&self) -> u32 {
        self.owner
    }

    /// Ends the flows that the node was about to hand over: both ends are reset. Call it before
    /// another node may start, which would take these for its own. Returns how many are left.
    pub fn bury(&self) -> usize {
        let burial = self.burial.as_ref();
        burial.map_or(0, |burial| burial.round(true).unwrap_or(1))
    }

    /// Removes flows that have ended, and has the ends of quiet ones probed, until none is left, another node
    /// has them, or no interface is left at which they could be translated. Then removes the pins.
    pub fn look_after(self) {
        let mut walk = Sweep::new(&self.flows, &self.patience);
        while self.are_mine() {
            let round = walk.round(self.sweep.as_fd()).unwrap_or_default();
            round.act(self.resend.as_fd());
            let is_last = self.bury() == 0 && round.left == Some(0);
            if is_last || !self.pins.have_interface() {
                return self.pins.remove_of(&self.owners, self.owner);
            }
            thread::sleep(ROUND);
        }
    }

    /// Takes no more flows, and resets both ends of those that there are, as far as they can be reached
    /// within a second. Without the programs they would wait for each other until they give up. Returns
    /// how many were open.
    ///
    /// # Errors
    /// The flow table cannot be read.
    pub fn abort(&self) -> io::Result<usize> {
        sweep::take_no_more(self.sweep.as_fd())?;
        let mut open = 0;
        for round in 0..RESETS {
            if round > 0 {
                thread::sleep(RESET_INTERVAL);
            }
            // Anew each time: a program may have had a SYN in hand.
            let flows = sweep::unfinished(&self.flows)?;
            open = open.max(flows.open);
            self.bury();
            for key in sweep::each(&flows.keys) {
                // The next round tries again.
                let _ = sweep::run_on_flow(self.abort.as_fd(), key);
            }
        }
        Ok(open)
    }

    fn are_mine(&self) -> bool {
        self.pins.0.exists() && owner_of(&self.owners) == Some(self.owner)
    }
}

/// Removes the pins of the packet path of a network namespace. Flows that [`Orphans::abort`] has not
/// reset stall. Nothing passes the programs any more when this returns.
///
/// # Errors
/// The pins cannot be removed. That there are none is no error.
pub fn remove_packet_pins(netns: u64) -> io::Result<bool> {
    let directory = of_namespace(netns);
    // Without its pin the kernel detaches a link some time later.
    for layout in fs::read_dir(&directory).into_iter().flatten().flatten() {
        for pin in fs::read_dir(layout.path()).into_iter().flatten().flatten() {
            if let Ok(pinned) = sys::pinned(&pin.path()) {
                // Fails for what is no link.
                let _ = sys::detach_link(pinned.as_fd());
            }
        }
    }
    match fs::remove_dir_all(directory) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}
