// SPDX-License-Identifier: Apache-2.0
//! What this host tracks (nf_conntrack), as its firewall and NAT do: whether anything, and which
//! connections.

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use posthaste_netlink::{Message, NESTED, Netlink, attribute, nest};

/// Number of tracked connections in the reader's network namespace.
const COUNT: &str = "/proc/sys/net/netfilter/nf_conntrack_count";
/// How long a reading is valid.
const FRESH: Duration = Duration::from_secs(1);

/// Connections were tracked once. An empty table shows nothing: all entries may have expired.
static TRACKS: AtomicBool = AtomicBool::new(false);

/// `NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_GET` (linux/netfilter/nfnetlink_conntrack.h)
const GET: u16 = 0x101;
/// The same with `IPCTNL_MSG_CT_DELETE`.
const DELETE: u16 = 0x102;
/// Bytes of `struct nfgenmsg`, with which each body begins.
const BODY_BYTES: usize = 4;
/// `CTA_TUPLE_ORIG`, `CTA_PROTOINFO`, and what is in them
const TUPLE_ORIG: u16 = 1;
const TUPLE_IP: u16 = 1;
const TUPLE_PROTO: u16 = 2;
const PROTO_NUM: u16 = 1;
const PROTO_SRC_PORT: u16 = 2;
const PROTO_DST_PORT: u16 = 3;
const PROTOINFO: u16 = 4;
const PROTOINFO_TCP: u16 = 1;
const TCP_STATE: u16 = 1;
/// `TCP_CONNTRACK_TIME_WAIT`, `TCP_CONNTRACK_CLOSE`: a SYN begins another connection in their place.
const OVER: [u8; 2] = [7, 8];

/// A tracked connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Open,
    Ended,
}

impl Found {
    /// The connection of an answer.
    fn of(body: &[u8]) -> Self {
        let state = body
            .get(BODY_BYTES..)
            .and_then(|all| attribute(all, PROTOINFO))
            .and_then(|info| attribute(info, PROTOINFO_TCP))
            .and_then(|tcp| attribute(tcp, TCP_STATE)?.first());
        match state.is_some_and(|state| OVER.contains(state)) {
            true => Self::Ended,
            false => Self::Open,
        }
    }
}

/// The last reading, and the kernel's table.
#[derive(Debug)]
pub(crate) struct Conntrack {
    looked: Option<Instant>,
    netlink: Option<Netlink>,
}

impl Conntrack {
    /// For the network namespace of this thread.
    pub(crate) fn open() -> Self {
        Self {
            looked: None,
            netlink: Netlink::netfilter().ok(),
        }
    }

    /// Whether a connection of a client with these addresses would be taken for another one: for an open
    /// one, or for one whose server NAT has changed, open or ended, from which NAT would distinguish it by
    /// another port.
    ///
    /// # Errors
    /// The table cannot be read: once for a kernel that has none, where all later answers are no.
    pub(crate) fn has(&mut self, client: SocketAddr, server: SocketAddr) -> io::Result<bool> {
        Ok(match self.find(client, server)? {
            Some(Found::Open) => true,
            // Its answers come from the same server: a SYN begins another connection in its place.
            Some(Found::Ended) => false,
            None => self.answers(client, server)?,
        })
    }

    /// Whether a connection is tracked, open or ended, whose server answers to this client's address.
    ///
    /// # Errors
    /// As [`Conntrack::has`].
    pub(crate) fn answers(&mut self, client: SocketAddr, server: SocketAddr) -> io::Result<bool> {
        Ok(self.find(server, client)?.is_some())
    }

    /// Removes a connection that a client has opened with these addresses; it need not be there.
    pub(crate) fn forget(&mut self, client: SocketAddr, server: SocketAddr) {
        if let Some(netlink) = &mut self.netlink {
            let request = about(DELETE, client, server);
            // Best effort: the kernel removes it in time.
            let _ = netlink.request(request);
        }
    }

    /// The connection of which a direction has this source and this destination.
    fn find(&mut self, source: SocketAddr, destination: SocketAddr) -> io::Result<Option<Found>> {
        let Some(netlink) = &mut self.netlink else {
            return Ok(None);
        };
        let mut found = None;
        let read = |_, body: &[u8]| found = Some(Found::of(body));
        match netlink.query(about(GET, source, destination), read) {
            Ok(()) => Ok(found),
            // There is no such connection.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            // A signal, or the kernel is late.
            Err(error) if is_passing(&error) => Ok(None),
            Err(error) => {
                self.netlink = None;
                Err(error)
            }
        }
    }

    /// Whether connections are tracked, or were since this process started. With `now` the count is
    /// read anew, otherwise it may be a second old.
    pub(crate) fn is_active(&mut self, now: bool) -> bool {
        let fresh = self.looked.is_some_and(|at| at.elapsed() < FRESH);
        // Once set it stays set, and costs no further read of /proc.
        if !TRACKS.load(Relaxed) && (now || !fresh) {
            // Without the module the file does not exist.
            let count = fs::read_to_string(COUNT).unwrap_or_default();
            // Another worker may have read a positive count meanwhile.
            TRACKS.fetch_or(is_positive(&count), Relaxed);
            self.looked = Some(Instant::now());
        }
        TRACKS.load(Relaxed)
    }
}

fn is_passing(error: &io::Error) -> bool {
    let kinds = [io::ErrorKind::Interrupted, io::ErrorKind::WouldBlock];
    kinds.contains(&error.kind()) || error.raw_os_error() == Some(libc::ENOBUFS)
}

/// A request about the connection of which a direction has these addresses.
fn about(kind: u16, source: SocketAddr, destination: SocketAddr) -> Message {
    let (family, kinds, addresses) = match (source.ip(), destination.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let addresses = [from.octets().to_vec(), to.octets().to_vec()];
            (libc::AF_INET, [1, 2], addresses)
        }
        (from, to) => {
            let octets = |ip: IpAddr| match ip {
                IpAddr::V4(ip) => ip.to_ipv6_mapped().octets().to_vec(),
                IpAddr::V6(ip) => ip.octets().to_vec(),
            };
            (libc::AF_INET6, [3, 4], [octets(from), octets(to)])
        }
    };
    let addresses = nest(&[(kinds[0], &addresses[0]), (kinds[1], &addresses[1])]);
    let protocol = [libc::IPPROTO_TCP.to_le_bytes()[0]];
    let protocol = nest(&[
        (PROTO_NUM, &protocol),
        (PROTO_SRC_PORT, &source.port().to_be_bytes()),
        (PROTO_DST_PORT, &destination.port().to_be_bytes()),
    ]);
    let body = [family.to_le_bytes()[0], 0, 0, 0];
    Message::new(kind, 0, &body).nested(
        TUPLE_ORIG,
        &[
            (TUPLE_IP | NESTED, &addresses),
            (TUPLE_PROTO | NESTED, &protocol),
        ],
    )
}

fn is_positive(count: &str) -> bool {
    count.trim().parse().is_ok_and(|count: u64| count > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_file_no_tracking() {
        let counts = ["", "0\n", "1\n", "262144\n", "many"];
        assert_eq!(counts.map(is_positive), [false, false, true, true, false]);
    }
}
