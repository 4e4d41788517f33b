// SPDX-License-Identifier: Apache-2.0
//! Destroys TCP sockets that a dead node left behind, and those of finished relays.
//!
//! A socket in TIME_WAIT (or an orphan that waits for its peer) keeps the client's own addresses.
//! Early demultiplexing finds it for packets that this host should forward, and forwarding drops
//! packets that belong to a socket: the next flow with the same addresses and ports would hang.
//!
//! Nodes' sockets are identified by their mark. Needs CONFIG_INET_DIAG_DESTROY.

use std::io;
use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, bail};
use posthaste_relay::intercept::Closed;

use super::routing::Family;
use posthaste_netlink::{Message, Netlink};

/// `SOCK_DIAG_BY_FAMILY` and `SOCK_DESTROY`.
const LIST: u16 = 20;
const DESTROY: u16 = 21;
const IPPROTO_TCP: u8 = 6;
/// `INET_DIAG_REQ_BYTECODE`
const BYTECODE: u16 = 1;
/// `INET_DIAG_BC_MARK_COND`
const MARK_CONDITION: u8 = 10;
/// Bytes of `struct inet_diag_req_v2` and of its socket id, and the offsets of the state and the
/// socket id in `struct inet_diag_msg`.
const REQUEST_BYTES: usize = 56;
const ID_BYTES: usize = 48;
const STATE_IN_ANSWER: usize = 1;
const ID_IN_ANSWER: usize = 4;
/// `TCP_TIME_WAIT`
const TIME_WAIT: u8 = 6;
/// `INET_DIAG_NOCOOKIE`, twice
const ANY_COOKIE: u64 = u64::MAX;
/// Requests sent in one datagram.
const BATCH: usize = 128;
/// Sockets may change state while they are listed, so the list is repeated this often.
const ROUNDS: usize = 4;

/// All states, and those in which the peer has yet to acknowledge a FIN or bytes before it:
/// FIN_WAIT1, LAST_ACK and CLOSING.
const ANY_STATE: u32 = u32::MAX;
const FINISHING: u32 = 1 << 4 | 1 << 9 | 1 << 11;

/// Whether an orphaned socket with all bits of `mark` still has bytes to send.
pub(super) fn finishing(mark: u32) -> anyhow::Result<bool> {
    let mut netlink = Netlink::sock_diag().context("open a sock_diag socket")?;
    for family in Family::BOTH {
        let ids = list(&mut netlink, family, mark, FINISHING).context("list sockets by state")?;
        if !ids.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Destroys every TCP socket, in any state and of both families, that has all bits of `mark`.
/// Returns their number.
pub(super) fn destroy(mark: u32) -> anyhow::Result<usize> {
    let mut netlink = Netlink::sock_diag().context("open a sock_diag socket")?;
    let mut destroyed = 0;
    for _ in 0..ROUNDS {
        let mut left = 0;
        for family in Family::BOTH {
            let ids =
                list(&mut netlink, family, mark, ANY_STATE).context("list sockets by mark")?;
            left += ids.len();
            for batch in ids.chunks(BATCH) {
                destroyed += destroy_batch(&mut netlink, family, batch)?;
            }
        }
        if left == 0 {
            break;
        }
    }
    Ok(destroyed)
}

/// Destroys what the kernel keeps of a worker's finished relays. If the kernel does not support it,
/// nothing is done: such sockets do no harm while the node runs.
#[derive(Debug)]
pub(crate) struct Destroyer {
    netlink: Option<Netlink>,
    /// Requests since the last check for failures.
    posted: usize,
}

impl Destroyer {
    /// For the network namespace of this thread.
    pub(crate) fn open() -> Self {
        Self {
            netlink: Netlink::sock_diag().ok(),
            posted: 0,
        }
    }

    /// Destroys these sockets only.
    pub(crate) fn destroy(&mut self, closed: &[Closed]) {
        for batch in closed.chunks(BATCH) {
            if self.post(batch).is_err() {
                // What is left as an error is a lack of the kernel, which would repeat with every
                // relay.
                self.netlink = None;
            }
        }
    }

    /// Destroys the socket with these addresses that is in TIME_WAIT. Returns whether there was one.
    /// One that is bound to an interface is not found.
    pub(crate) fn end_time_wait(&mut self, local: SocketAddr, remote: SocketAddr) -> bool {
        let Some(netlink) = &mut self.netlink else {
            return false;
        };
        let any = Closed {
            local,
            remote,
            ifindex: 0,
            cookie: ANY_COOKIE,
        };
        let family = Family::of(local.ip());
        let find = Message::new(LIST, 0, &request(family, ANY_STATE, &id_of(&any)));
        let mut ids = Vec::new();
        let found = netlink.query(find, |_, answer| {
            let is_waiting = answer.get(STATE_IN_ANSWER) == Some(&TIME_WAIT);
            ids.extend(id_in(answer).filter(|_| is_waiting));
        });
        found.is_ok() && destroy_batch(netlink, family, &ids).is_ok_and(|count| count > 0)
    }

    /// Reads failures only now and then: each read is a system call.
    fn post(&mut self, batch: &[Closed]) -> io::Result<()> {
        let Some(netlink) = &mut self.netlink else {
            return Ok(());
        };
        let requests = batch.iter().map(|closed| {
            let family = Family::of(closed.local.ip());
            Message::new(DESTROY, 0, &request(family, ANY_STATE, &id_of(closed)))
        });
        netlink.post_all(requests.collect())?;
        self.posted += batch.len();
        if self.posted < BATCH {
            return Ok(());
        }
        self.posted = 0;
        let mut unusual = None;
        netlink.failures(|error| {
            // Most have ended already, or the tuple belongs to another socket by now.
            if !matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESTALE)) {
                unusual = Some(error);
            }
        })?;
        unusual.map_or(Ok(()), Err)
    }
}

/// `struct inet_diag_sockid`: ports and addresses in network order, interface, cookie.
fn id_of(closed: &Closed) -> [u8; ID_BYTES] {
    let mut id = [0; ID_BYTES];
    let ends = [closed.local, closed.remote];
    for (at, end) in ends.into_iter().enumerate() {
        id[at * 2..][..2].copy_from_slice(&end.port().to_be_bytes());
        let address = &mut id[4 + at * 16..][..16];
        match end.ip() {
            IpAddr::V4(v4) => address[..4].copy_from_slice(&v4.octets()),
            IpAddr::V6(v6) => address.copy_from_slice(&v6.octets()),
        }
    }
    id[36..40].copy_from_slice(&closed.ifindex.to_ne_bytes());
    // inet_diag has the cookie as two words of 32 bits, the lower one first.
    let (low, high) = (closed.cookie & 0xffff_ffff, closed.cookie >> 32);
    for (at, half) in [low, high].into_iter().enumerate() {
        let half = u32::try_from(half).expect("half of it").to_ne_bytes();
        id[40 + at * 4..][..4].copy_from_slice(&half);
    }
    id
}

fn destroy_batch(netlink: &mut Netlink, family: Family, ids: &[Vec<u8>]) -> anyhow::Result<usize> {
    let requests = ids
        .iter()
        .map(|id| Message::new(DESTROY, 0, &request(family, ANY_STATE, id)));
    let failed = netlink
        .request_all(requests.collect())
        .context("destroy leftover sockets")?;
    for error in &failed {
        match error.raw_os_error() {
            // It has ended already.
            Some(libc::ENOENT) => (),
            Some(libc::EOPNOTSUPP) => {
                bail!(
                    "could not destroy leftover sockets: the kernel lacks CONFIG_INET_DIAG_DESTROY or support for their state"
                )
            }
            _ => bail!("could not destroy leftover sockets: {error}"),
        }
    }
    Ok(ids.len() - failed.len())
}

/// The ids of the sockets in one of `states` with all bits of `mark`.
fn list(netlink: &mut Netlink, family: Family, mark: u32, states: u32) -> io::Result<Vec<Vec<u8>>> {
    let message = Message::new(LIST, 0, &request(family, states, &[0; ID_BYTES]))
        .attribute(BYTECODE, &has_mark(mark));
    let mut ids = Vec::new();
    netlink.dump(message, |_, answer| {
        ids.extend(id_in(answer));
    })?;
    Ok(ids)
}

/// The id of the socket that an answer is about.
fn id_in(answer: &[u8]) -> Option<Vec<u8>> {
    let id = answer.get(ID_IN_ANSWER..ID_IN_ANSWER + ID_BYTES)?;
    Some(id.to_vec())
}

/// `struct inet_diag_req_v2` for one socket, or all in these states.
fn request(family: Family, states: u32, id: &[u8]) -> [u8; REQUEST_BYTES] {
    let mut body = [0; REQUEST_BYTES];
    (body[0], body[1]) = (family.number(), IPPROTO_TCP);
    body[4..8].copy_from_slice(&states.to_ne_bytes());
    body[8..].copy_from_slice(id);
    body
}

/// A filter program of one instruction: accept if the mark matches, else reject.
fn has_mark(mark: u32) -> [u8; 12] {
    let mut program = [0; 12];
    let length = u8::try_from(program.len()).expect("twelve");
    (program[0], program[1]) = (MARK_CONDITION, length);
    // A jump beyond the end rejects.
    program[2..4].copy_from_slice(&u16::from(length + 4).to_ne_bytes());
    program[4..8].copy_from_slice(&mark.to_ne_bytes());
    program[8..12].copy_from_slice(&mark.to_ne_bytes());
    program
}
