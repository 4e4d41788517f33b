// SPDX-License-Identifier: Apache-2.0
//! TCP handshakes that only measure. A handshake takes one round trip to the host, since the other
//! kernel makes the SYN-ACK; this serves hosts for which there is no other measurement.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use socket2::Socket;

use crate::sys;

/// A handshake that is under way or complete. Dropping this ends the connection with a reset: no
/// data was sent, and no port stays in TIME_WAIT.
#[derive(Debug)]
pub struct HandshakeProbe(Socket);

impl HandshakeProbe {
    /// Sends a SYN to an address and port, with `mark` (`SO_MARK`).
    ///
    /// # Errors
    /// There is no socket for it, or no route.
    pub fn begin(address: SocketAddr, mark: u32) -> io::Result<Self> {
        let socket = sys::tcp_socket(address.is_ipv6(), mark)?;
        sys::set_reset_on_close(&socket, true)?;
        sys::connect(&socket, address)?;
        Ok(Self(socket))
    }

    /// How long the handshake took, as measured by the kernel; `None` while it is under way.
    ///
    /// # Errors
    /// The handshake failed.
    pub fn outcome(&self) -> io::Result<Option<Duration>> {
        if let Some(error) = self.0.take_error()? {
            return Err(error);
        }
        let info = sys::tcp_info(&self.0)?;
        let is_open = info.state == "ESTABLISHED";
        Ok(is_open.then(|| Duration::from_micros(info.rtt_us.into())))
    }
}

impl AsFd for HandshakeProbe {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn handshake_takes_time_or_fails() {
        for local in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(local).unwrap();
            let address = listener.local_addr().unwrap();
            let handshake_probe = HandshakeProbe::begin(address, 0).unwrap();
            let took = loop {
                if let Some(took) = handshake_probe.outcome().unwrap() {
                    break took;
                }
            };
            assert!(
                !took.is_zero() && took < Duration::from_secs(60),
                "{took:?}"
            );
            drop(listener);
            let refused = HandshakeProbe::begin(address, 0).and_then(|handshake_probe| {
                loop {
                    if let Some(took) = handshake_probe.outcome()? {
                        return Ok(took);
                    }
                }
            });
            let kind = refused.unwrap_err().kind();
            assert_eq!(kind, io::ErrorKind::ConnectionRefused);
        }
    }
}
