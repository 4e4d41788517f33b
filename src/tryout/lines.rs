// SPDX-License-Identifier: Apache-2.0
//! Parses a node's log lines of ended relays.

use std::net::SocketAddr;

/// A relay that ended with [`Outcome::Finished`](posthaste_relay::outcome::Outcome).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Ended {
    pub(super) server: SocketAddr,
    /// From the client's SYN to its completed handshake, in milliseconds.
    pub(super) accept_ms: f64,
    /// From the client's SYN to the first byte from the server.
    pub(super) first_byte_ms: Option<f64>,
}

/// Parses a log line of a finished relay.
pub(super) fn ended(line: &str) -> Option<Ended> {
    let value = |name: &str| {
        let mut all = line.split_ascii_whitespace();
        all.find_map(|field| field.strip_prefix(name)?.strip_prefix('='))
    };
    if value("msg")? != "relay" || value("outcome")? != "finished" {
        return None;
    }
    Some(Ended {
        server: value("server")?.parse().ok()?,
        accept_ms: value("accept_ms")?.parse().ok()?,
        first_byte_ms: value("first_byte_ms").and_then(|ms| ms.parse().ok()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "time=2026-11-22T23:09:49.717Z level=info msg=relay id=0 rule=all \
        accept=early client=10.1.0.2:54299 server=10.2.0.2:80 code=-- outcome=finished \
        bytes_up=9000 bytes_down=9021 accept_ms=8.627 connect_ms=14.254 first_byte_ms=37.210 \
        total_ms=52.414";

    #[test]
    fn finished_relays_are_read() {
        let ended = ended(LINE).unwrap();
        assert_eq!(ended.server, "10.2.0.2:80".parse().unwrap());
        assert_eq!((ended.accept_ms, ended.first_byte_ms), (8.627, Some(37.21)));
    }

    #[test]
    fn other_lines_are_not() {
        let reset = LINE.replace("outcome=finished", "outcome=client_reset");
        let lines = [
            reset.as_str(),
            "level=info msg=\"the node is ready\" workers=2",
            "",
            "msg=relay",
        ];
        assert!(lines.iter().all(|line| ended(line).is_none()));
        let silent = LINE.replace("first_byte_ms=37.210", "first_byte_ms=-");
        assert_eq!(ended(&silent).unwrap().first_byte_ms, None);
    }
}
