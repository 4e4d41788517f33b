// SPDX-License-Identifier: Apache-2.0
//! How a relay ended. Every relay ends in exactly one [`Outcome`].

/// Why a relay ended, naming the side at fault.
///
/// Each maps one to one to a metric label ([`Outcome::label`]) and to a
/// two-letter termination code in the log ([`Outcome::code`]): first who ended
/// it (`C`lient, `S`erver, `c`/`s` = that side timed out, `P` = this node,
/// `K` = an operator, `N` = the network, `H` = another node, `-` = both ends agreed), then the phase (`H`andshake of
/// the client, `C`onnecting to the server, `D`ata, `F`in, `-` = all done).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Outcome {
    /// Both directions saw FIN and every byte was handed over.
    Finished,
    /// The client sent RST, or its stack gave the connection up.
    DownstreamReset,
    /// The server sent RST after the connection was open.
    UpstreamReset,
    /// The client stopped acknowledging (keepalive, retry limits or TCP_USER_TIMEOUT).
    DownstreamTimeout,
    /// The server stopped acknowledging (keepalive, retry limits or TCP_USER_TIMEOUT).
    UpstreamTimeout,
    /// The server answered the SYN with RST.
    UpstreamRefused,
    /// The network answered the SYN with an ICMP error, or the SYN could not
    /// leave this host.
    UpstreamUnreachable,
    /// Nothing answered the SYN within the connect timeout.
    ConnectTimeout,
    /// No node carried the flow on.
    HopFailed,
    /// The client never completed its handshake.
    ClientAbsent,
    /// No byte moved for the idle timeout.
    IdleTimeout,
    /// The client sent FIN; the server did not within the client-fin timeout.
    ClientFinTimeout,
    /// The server sent FIN; the client did not within the server-fin timeout.
    ServerFinTimeout,
    /// An operator killed the relay.
    Killed,
    /// The drain deadline passed.
    Drained,
    /// This node could not carry on: out of descriptors, memory, or a bug.
    Internal,
}

impl Outcome {
    /// Every outcome, in the order of its discriminant.
    pub const ALL: [Self; 16] = [
        Self::Finished,
        Self::DownstreamReset,
        Self::UpstreamReset,
        Self::DownstreamTimeout,
        Self::UpstreamTimeout,
        Self::UpstreamRefused,
        Self::UpstreamUnreachable,
        Self::ConnectTimeout,
        Self::HopFailed,
        Self::ClientAbsent,
        Self::IdleTimeout,
        Self::ClientFinTimeout,
        Self::ServerFinTimeout,
        Self::Killed,
        Self::Drained,
        Self::Internal,
    ];

    /// The metric label, `snake_case`.
    pub fn label(self) -> &'static str {
        self.names().0
    }

    /// The two-letter termination code of the log line.
    pub fn code(self) -> &'static str {
        self.names().1
    }

    fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Finished => ("finished", "--"),
            Self::DownstreamReset => ("downstream_reset", "CD"),
            Self::UpstreamReset => ("upstream_reset", "SD"),
            Self::DownstreamTimeout => ("downstream_timeout", "cD"),
            Self::UpstreamTimeout => ("upstream_timeout", "sD"),
            Self::UpstreamRefused => ("upstream_refused", "SC"),
            Self::UpstreamUnreachable => ("upstream_unreachable", "NC"),
            Self::ConnectTimeout => ("connect_timeout", "sC"),
            Self::HopFailed => ("hop_failed", "HC"),
            Self::ClientAbsent => ("client_absent", "cH"),
            Self::IdleTimeout => ("idle_timeout", "PD"),
            Self::ClientFinTimeout => ("client_fin_timeout", "sF"),
            Self::ServerFinTimeout => ("server_fin_timeout", "cF"),
            Self::Killed => ("killed", "KD"),
            Self::Drained => ("drained", "KF"),
            Self::Internal => ("internal", "PI"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    // promise: I5
    #[test]
    fn labels_and_codes_unique() {
        let labels: HashSet<_> = Outcome::ALL.iter().map(|o| o.label()).collect();
        let codes: HashSet<_> = Outcome::ALL.iter().map(|o| o.code()).collect();
        assert_eq!(labels.len(), Outcome::ALL.len());
        assert_eq!(codes.len(), Outcome::ALL.len());
        for (index, outcome) in Outcome::ALL.iter().enumerate() {
            assert_eq!(*outcome as usize, index);
        }
    }
}
