// SPDX-License-Identifier: Apache-2.0
//! The other ends of the host's cables: frames in, and what becomes of them.

use std::cell::RefCell;
use std::io::{self, Read, Write};
use std::time::Duration;

use posthaste_lab::network::Family;
use socket2::{Domain, Socket, Type};

use crate::host::{client, server};
use crate::segment::{ICMP, ICMPV6, Segment, UDP, checksum, ethernet, ip};
use crate::wire::link_address;

/// `struct virtio_net_hdr`, which comes before each frame, and some of its values.
const OFFLOAD_BYTES: usize = 10;
const NEEDS_CHECKSUM: u8 = 1;
const CUT_IPV4: u8 = 1;
const CUT_IPV6: u8 = 4;
/// `ETH_P_ALL`
const ALL: u16 = 3;
/// The longest frame that is sent.
const FRAME_MAX: usize = 65_536;
/// How long a frame takes at the most.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a sender leaves to its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Offload {
    None,
    Checksum,
    /// Also to cut the segment into pieces of so many bytes.
    Cutting(u16),
}

/// One end of a cable.
#[derive(Debug)]
pub(super) struct Port {
    socket: Socket,
}

impl Port {
    pub(super) fn new(interface: u32) -> Self {
        let socket = Socket::new(Domain::PACKET, Type::RAW, None).unwrap();
        let on: libc::c_int = 1;
        // SAFETY: the kernel reads the four bytes of `on`.
        let set = unsafe {
            libc::setsockopt(
                std::os::fd::AsRawFd::as_raw_fd(&socket),
                libc::SOL_PACKET,
                libc::PACKET_VNET_HDR,
                (&raw const on).cast(),
                4,
            )
        };
        assert_eq!(set, 0, "{}", io::Error::last_os_error());
        socket.bind(&link_address(interface, ALL)).unwrap();
        socket.set_recv_buffer_size(1 << 24).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { socket }
    }

    pub(super) fn send(&self, segment: &Segment, offload: Offload) {
        let mut frame = segment.frame();
        let mut head = [0; OFFLOAD_BYTES];
        if offload != Offload::None {
            let ip = if segment.from.is_ipv4() { 20 } else { 40 };
            let start = u16::try_from(14 + ip).unwrap();
            let sum = Segment::pseudo_sum(&frame[14..], ip).to_be_bytes();
            let at = usize::from(start) + 16;
            frame[at..at + 2].copy_from_slice(&sum);
            head[0] = NEEDS_CHECKSUM;
            head[6..8].copy_from_slice(&start.to_ne_bytes());
            head[8..].copy_from_slice(&16_u16.to_ne_bytes());
            if let Offload::Cutting(piece) = offload {
                head[1] = if segment.from.is_ipv4() {
                    CUT_IPV4
                } else {
                    CUT_IPV6
                };
                let headers = start + 20 + u16::try_from(segment.options.len()).unwrap();
                head[2..4].copy_from_slice(&headers.to_ne_bytes());
                head[4..6].copy_from_slice(&piece.to_ne_bytes());
            }
        }
        self.send_raw(&[&head[..], &frame].concat());
    }

    /// Sends a segment of which a bit has changed on its way.
    pub(super) fn send_corrupted(&self, segment: &Segment) {
        let mut frame = segment.frame();
        *frame.last_mut().unwrap() ^= 4;
        self.send_raw(&[&[0; OFFLOAD_BYTES][..], &frame].concat());
    }

    fn send_raw(&self, octets: &[u8]) {
        (&self.socket).write_all(octets).unwrap();
    }

    /// Calls `take` with the frames that have come until a mark of the other end comes, and whether
    /// their device completes the checksum.
    fn receive(&self, mut take: impl FnMut(&[u8], bool)) {
        let mut octets = vec![0; FRAME_MAX];
        loop {
            let length = (&self.socket).read(&mut octets).expect("a frame comes");
            let (head, frame) = octets[..length].split_at(OFFLOAD_BYTES);
            if frame[12..14] == [8, 0] && frame[14 + 9] == UDP {
                return;
            }
            take(frame, head[0] & NEEDS_CHECKSUM != 0);
        }
    }
}

/// Both ends of the host: clients' and servers'.
#[derive(Debug)]
pub(super) struct Ports {
    pub(super) client: Port,
    pub(super) server: Port,
    /// The sequence numbers of clients' segments that errors have quoted, "packet too big".
    pub(super) errors: RefCell<Vec<u32>>,
}

impl Ports {
    /// All segments that have left the host since the last time: to clients, and to servers.
    pub(super) fn collect(&self) -> [Vec<Segment>; 2] {
        let mut segments = [vec![], vec![]];
        self.each(|end, frame, partial| {
            segments[end].extend(Segment::read(frame, partial));
            if end == 0 {
                self.errors.borrow_mut().extend(quoted(frame, partial));
            }
        });
        segments
    }

    /// What errors to the client have quoted since the last time.
    pub(super) fn take_errors(&self) -> Vec<u32> {
        self.errors.take()
    }

    /// Forgets them.
    pub(super) fn discard(&self) {
        self.each(|_, _, _| ());
    }

    /// The frames of this thread stay in order, as all run on its CPU: a mark that goes from end to
    /// end, and one back, come behind all that was sent before, and all that the host made of it.
    fn each(&self, mut take: impl FnMut(usize, &[u8], bool)) {
        let ends = [client(Family::V4).ip(), server(Family::V4).ip()];
        let ports = [&self.client, &self.server];
        for to in [0, 1] {
            let datagram = ip(ends[1 - to], ends[to], UDP, &[0, 9, 0, 9, 0, 8, 0, 0]);
            ports[1 - to].send_raw(&[&[0; OFFLOAD_BYTES][..], &ethernet(&datagram)].concat());
            ports[to].receive(|frame, partial| take(to, frame, partial));
        }
    }
}

/// The sequence number of the segment that the frame of an ICMP error quotes. `partial`: the device completes
/// the checksum of that.
///
/// # Panics
/// The checksum of the error is wrong, or will be.
fn quoted(frame: &[u8], partial: bool) -> Option<u32> {
    let (kind, at) = match frame[12..14] {
        [8, 0] if frame[14 + 9] == ICMP => ([3, 4], 34),
        [0x86, 0xdd] if frame[14 + 6] == ICMPV6 => ([2, 0], 54),
        _ => return None,
    };
    if frame[at..at + 2] != kind {
        return None;
    }
    let (ip, mut message) = (&frame[14..at], frame[at..].to_vec());
    let tcp = 8 + ip.len();
    if partial {
        let sum = checksum(&[&message[tcp..]]).to_be_bytes();
        message[tcp + 16..tcp + 18].copy_from_slice(&sum);
    }
    let length = u16::try_from(message.len()).unwrap().to_be_bytes();
    let pseudo = match ip.len() {
        40 => [&ip[8..], &length, &[0, ICMPV6]].concat(),
        _ => Vec::new(),
    };
    assert_eq!(checksum(&[&pseudo, &message]), 0, "checksum of an error");
    let words = message[tcp + 4..].first_chunk().expect("a sequence number");
    Some(u32::from_be_bytes(*words))
}
