// SPDX-License-Identifier: Apache-2.0
//! A flow with the addresses that the client used.

use std::fmt;
use std::net::{Ipv6Addr, SocketAddr};

pub use posthaste_wire::header::mapped;

/// The two end points of a flow as the client sees them: the sender of the SYN, and the original
/// destination.
///
/// IPv4 addresses are held v4-mapped (RFC 4291 §2.5.5.2), so one table serves both families. All in
/// network order and without padding, as the programs have it: `struct flow`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(C)]
pub struct Flow {
    client_ip: [u8; 16],
    server_ip: [u8; 16],
    client_port: [u8; 2],
    server_port: [u8; 2],
}

impl Flow {
    /// A flow from `client` to `server`.
    pub fn new(client: SocketAddr, server: SocketAddr) -> Self {
        Self {
            client_ip: mapped(client.ip()),
            server_ip: mapped(server.ip()),
            client_port: client.port().to_be_bytes(),
            server_port: server.port().to_be_bytes(),
        }
    }

    /// The address and port of the end point that sent the SYN.
    pub fn client(&self) -> SocketAddr {
        endpoint(self.client_ip, self.client_port)
    }

    /// The address and port the SYN was sent to.
    pub fn server(&self) -> SocketAddr {
        endpoint(self.server_ip, self.server_port)
    }

    /// Whether both end points are IPv4.
    pub fn is_ipv4(&self) -> bool {
        self.server().is_ipv4()
    }

    /// Both addresses as 16 bytes in network order, v4-mapped for IPv4.
    pub fn addresses(&self) -> ([u8; 16], [u8; 16]) {
        (self.client_ip, self.server_ip)
    }
}

fn endpoint(ip: [u8; 16], port: [u8; 2]) -> SocketAddr {
    SocketAddr::new(Ipv6Addr::from(ip).to_canonical(), u16::from_be_bytes(port))
}

impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} > {}", self.client(), self.server())
    }
}

impl fmt::Debug for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_round_trip() {
        for (client, server) in [
            ("10.0.0.1:40000", "192.0.2.7:443"),
            ("[2001:db8::1]:40000", "[2001:db8::2]:80"),
        ] {
            let flow = Flow::new(client.parse().unwrap(), server.parse().unwrap());
            assert_eq!(flow.client().to_string(), client);
            assert_eq!(flow.server().to_string(), server);
        }
        assert_eq!(size_of::<Flow>(), 36);
    }
}
