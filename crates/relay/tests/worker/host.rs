// SPDX-License-Identifier: Apache-2.0
//! The host of a test: a network namespace with no interface but its loopback, on which are the
//! addresses of the client, the nodes and the server.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{FromRawFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::thread;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, unshare};
use posthaste_netlink::{CREATE, Message, Netlink};
use posthaste_relay::sys;
use socket2::{Domain, Socket, Type};

use crate::node::Node;

/// How long anything may take that happens at once on a machine that is not busy.
pub(crate) const SOON: Duration = Duration::from_secs(30);
/// Between two looks at a condition.
const LOOK: Duration = Duration::from_millis(1);
/// The port of the server.
pub(crate) const PORT: u16 = 80;
/// The port of explicit listeners.
const LISTENER_PORT: u16 = 4480;
/// Nodes with addresses.
const NODES: u8 = 4;

/// `RTM_NEWLINK`, `RTM_NEWADDR`, `RTM_NEWROUTE`.
const NEW_LINK: u16 = 16;
const NEW_ADDRESS: u16 = 20;
const NEW_ROUTE: u16 = 24;
/// `IFLA_MTU`, `IFA_LOCAL`, `RTA_DST`.
const MTU: u16 = 4;
const LOCAL: u16 = 2;
const DESTINATION: u16 = 1;
/// That of a new namespace.
const LOOPBACK: u32 = 1;
/// `IFA_FLAGS`, `IFA_F_NODAD | IFA_F_NOPREFIXROUTE`: by a route to its prefix an address would seem
/// to be usable before it is.
const FLAGS: u16 = 8;
const USED_ALONE: u32 = 0x202;
/// As of Ethernet: segments are as large as between hosts.
const BYTES_OF_FRAME: u32 = 1500;
/// `SIOCGSKNS`: the network namespace of a socket.
const NAMESPACE_OF: libc::Ioctl = 0x894c;

/// A family of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    pub(crate) const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// An address of a host of the test.
    fn address(self, network: u8, host: u8) -> IpAddr {
        match self {
            Self::V4 => IpAddr::from([10, 0, network, host]),
            Self::V6 => Ipv6Addr::new(0xfd00, 0, 0, network.into(), 0, 0, 0, host.into()).into(),
        }
    }

    pub(crate) fn client(self) -> IpAddr {
        self.address(1, 1)
    }

    /// Another address of the client.
    pub(crate) fn other_client(self) -> IpAddr {
        self.address(1, 2)
    }

    /// The server at its port.
    pub(crate) fn server(self) -> SocketAddr {
        SocketAddr::new(self.address(2, 1), PORT)
    }

    /// Where a node takes requests.
    pub(crate) fn node(self, node: u8) -> SocketAddr {
        SocketAddr::new(self.address(3, node + 1), LISTENER_PORT)
    }

    pub(crate) fn of(address: SocketAddr) -> Self {
        Self::ALL[usize::from(address.is_ipv6())]
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// The namespace of the thread that has entered it, and of those that this one starts.
pub(crate) struct Host {
    netlink: RefCell<Netlink>,
    /// Sockets in the namespace while no client was connected.
    at_rest: Cell<usize>,
}

impl Host {
    /// Has this thread leave its namespace for a new one.
    pub(crate) fn enter() -> Self {
        unshare(CloneFlags::CLONE_NEWNET).expect("root can have another network namespace");
        let host = Self {
            netlink: Netlink::route().unwrap().into(),
            at_rest: Cell::new(0),
        };
        let up = [
            &[0; 4][..],
            &LOOPBACK.to_ne_bytes(),
            &1_u32.to_ne_bytes(),
            &1_u32.to_ne_bytes(),
        ];
        let link = Message::new(NEW_LINK, 0, &up.concat());
        host.request(link.attribute(MTU, &BYTES_OF_FRAME.to_ne_bytes()));
        let all = Family::ALL.into_iter().flat_map(|family| {
            let nodes = (0..NODES).map(move |node| family.node(node).ip());
            nodes.chain([family.client(), family.other_client(), family.server().ip()])
        });
        host.add_addresses(&all.collect::<Vec<_>>());
        host.rest();
        host
    }

    pub(crate) fn add_addresses(&self, all: &[IpAddr]) {
        for ip in all {
            let (family, bits, bytes) = parts(*ip);
            let body = [&[family, bits, 0, 0][..], &LOOPBACK.to_ne_bytes()].concat();
            let address = Message::new(NEW_ADDRESS, CREATE, &body).attribute(LOCAL, &bytes);
            self.request(address.attribute(FLAGS, &USED_ALONE.to_ne_bytes()));
        }
        // The kernel adds the routes of those of IPv6 a moment later.
        until("addresses", || all.iter().all(|ip| sys::leads_here(*ip)));
    }

    /// Adds a route of this kind (`RTN_UNREACHABLE` and others) to one address.
    pub(crate) fn add_route(&self, kind: u8, ip: IpAddr) {
        let (family, bits, bytes) = parts(ip);
        // In the main table, by an administrator, for all scopes.
        let body = [family, bits, 0, 0, 254, 4, 0, kind, 0, 0, 0, 0];
        self.request(Message::new(NEW_ROUTE, CREATE, &body).attribute(DESTINATION, &bytes));
    }

    fn request(&self, message: Message) {
        let done = self.netlink.borrow_mut().request(message);
        done.expect("a namespace can be set up");
    }

    /// Has the server listen at its port.
    pub(crate) fn listen(&self) -> TcpListener {
        self.listen_at(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), PORT), 128)
    }

    /// The same of any host, for so many connections at a time that nobody accepts.
    pub(crate) fn listen_at(&self, address: SocketAddr, backlog: i32) -> TcpListener {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None).unwrap();
        if address.is_ipv6() {
            socket.set_only_v6(false).unwrap();
        }
        socket.set_reuse_address(true).unwrap();
        // A node may be about to listen there too.
        socket.set_reuse_port(true).unwrap();
        socket.bind(&address.into()).unwrap();
        socket.listen(backlog).unwrap();
        // Accepting gives up after this.
        socket.set_read_timeout(Some(SOON)).unwrap();
        self.rest();
        socket.into()
    }

    /// Has no SYN to an address answered, until the result is dropped: a listener with a full queue.
    pub(crate) fn silence(&self, at: SocketAddr) -> (TcpListener, TcpStream) {
        let listener = self.listen_at(at, 0);
        let only = TcpStream::connect(at).unwrap();
        self.rest();
        (listener, only)
    }

    /// No client is connected now.
    pub(crate) fn rest(&self) {
        self.at_rest.set(sockets());
    }

    /// Waits until all relays of a node have ended, asserts that each was counted once, that no
    /// socket is left of them, and returns how many there were.
    pub(crate) fn settle(&self, node: &Node) -> u64 {
        let relays = node.settle();
        until("the end of all sockets", || sockets() <= self.at_rest.get());
        relays
    }
}

/// Family, length and bytes of an address.
fn parts(ip: IpAddr) -> (u8, u8, Vec<u8>) {
    match ip {
        IpAddr::V4(ip) => (2, 32, ip.octets().to_vec()),
        IpAddr::V6(ip) => (10, 128, ip.octets().to_vec()),
    }
}

/// How many sockets of this process are in this thread's namespace. Other tests have others.
fn sockets() -> usize {
    let own = fs::metadata("/proc/thread-self/ns/net").unwrap().ino();
    let open = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let open = open.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    open.filter(|fd| namespace_of(*fd).is_ok_and(|inode| inode == own))
        .count()
}

fn namespace_of(fd: RawFd) -> io::Result<u64> {
    // SAFETY: the call has no argument; a descriptor that is closed by now, or no socket, is an
    // error.
    let namespace = unsafe { libc::ioctl(fd, NAMESPACE_OF) };
    if namespace < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has opened it for this call.
    let namespace = unsafe { File::from_raw_fd(namespace) };
    Ok(namespace.metadata()?.ino())
}

/// Waits for something that should happen soon.
pub(crate) fn until(what: &str, condition: impl FnMut() -> bool) {
    assert!(happens(condition), "{what}: it does not happen");
}

/// Waits for something, and returns whether it happened soon.
pub(crate) fn happens(mut condition: impl FnMut() -> bool) -> bool {
    let given_up = Instant::now() + SOON;
    while !condition() {
        if Instant::now() > given_up {
            return false;
        }
        thread::sleep(LOOK);
    }
    true
}
