// SPDX-License-Identifier: Apache-2.0
//! What the endpoints of a node hand each other: datagrams of connections of one that came by a socket of another,
//! since a NAT has given their sender another address.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use nix::sys::eventfd::{EfdFlags, EventFd};
use quinn_proto::EcnCodepoint;

/// Datagrams that wait for an endpoint: what comes at once, until its connection has a socket that gets them. What
/// is lost is sent again.
const WAITING_MAX: usize = 256;

/// The endpoints of the workers of a node.
#[derive(Debug, Default)]
pub struct Siblings(Mutex<HashMap<u16, Weak<Inbox>>>);

/// A datagram that came by the socket of another endpoint.
#[derive(Debug)]
pub(crate) struct Stray {
    pub(crate) from: SocketAddr,
    pub(crate) to: Option<IpAddr>,
    pub(crate) ecn: Option<EcnCodepoint>,
    pub(crate) datagram: Box<[u8]>,
}

/// What waits for one endpoint.
#[derive(Debug)]
pub(crate) struct Inbox {
    waiting: Mutex<VecDeque<Stray>>,
    filled: EventFd,
}

impl Siblings {
    /// The inbox of the endpoint with this number, for as long as it is held.
    pub(crate) fn join(&self, index: u16) -> io::Result<Arc<Inbox>> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let inbox = Arc::new(Inbox {
            waiting: Mutex::default(),
            filled: EventFd::from_flags(flags)?,
        });
        lock(&self.0).insert(index, Arc::downgrade(&inbox));
        Ok(inbox)
    }

    /// Hands a datagram to the endpoint with this number. Returns whether there is one.
    pub(crate) fn hand_over(&self, index: u16, stray: Stray) -> bool {
        let inbox = lock(&self.0).get(&index).and_then(Weak::upgrade);
        let Some(inbox) = inbox else {
            return false;
        };
        let mut waiting = lock(&inbox.waiting);
        if waiting.len() < WAITING_MAX {
            waiting.push_back(stray);
            // It fails only if it is readable already.
            let _ = inbox.filled.write(1);
        }
        true
    }
}

impl Inbox {
    /// What has come since the last call.
    pub(crate) fn take(&self) -> VecDeque<Stray> {
        let _ = self.filled.read();
        std::mem::take(&mut lock(&self.waiting))
    }
}

impl AsFd for Inbox {
    /// Readable while something waits.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.filled.as_fd()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No update leaves half of a change behind.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
