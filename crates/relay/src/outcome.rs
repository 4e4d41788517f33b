// SPDX-License-Identifier: Apache-2.0
//! How a relay ended. Every relay ends in exactly one [`Outcome`].

use crate::named::named;

named! {
    /// Why a relay ended, naming the side at fault.
    ///
    /// Each maps one to one to a metric label ([`Outcome::label`]) and to a
    /// two-letter termination code in the log ([`Outcome::code`]): first who ended
    /// it (`C`lient, `S`erver, `c`/`s` = that side timed out, `P` = this node,
    /// `K` = an operator, `N` = the network, `H` = another node, `-` = both ends agreed), then the phase (`H`andshake of
    /// the client, `C`onnecting to the server, `D`ata, `F`in, `-` = all done).
    pub enum Outcome: (&'static str, &'static str) {
        /// Both directions saw FIN and every byte was handed over.
        Finished = ("finished", "--"),
        /// The client sent RST, or its stack gave the connection up.
        DownstreamReset = ("downstream_reset", "CD"),
        /// The server sent RST after the connection was open.
        UpstreamReset = ("upstream_reset", "SD"),
        /// The client stopped acknowledging (keepalive, retry limits or TCP_USER_TIMEOUT).
        DownstreamTimeout = ("downstream_timeout", "cD"),
        /// The server stopped acknowledging (keepalive, retry limits or TCP_USER_TIMEOUT).
        UpstreamTimeout = ("upstream_timeout", "sD"),
        /// The server answered the SYN with RST.
        UpstreamRefused = ("upstream_refused", "SC"),
        /// The network answered the SYN with an ICMP error, or the SYN could not
        /// leave this host.
        UpstreamUnreachable = ("upstream_unreachable", "NC"),
        /// Nothing answered the SYN within the connect timeout.
        ConnectTimeout = ("connect_timeout", "sC"),
        /// No node carried the flow on.
        HopFailed = ("hop_failed", "HC"),
        /// The client never completed its handshake.
        ClientAbsent = ("client_absent", "cH"),
        /// No byte moved for the idle timeout.
        IdleTimeout = ("idle_timeout", "PD"),
        /// The client sent FIN; the server did not within the client-fin timeout.
        ClientFinTimeout = ("client_fin_timeout", "sF"),
        /// The server sent FIN; the client did not within the server-fin timeout.
        ServerFinTimeout = ("server_fin_timeout", "cF"),
        /// The node left the flow to its packet path, which carries it on.
        Bypassed = ("bypassed", "PB"),
        /// An operator killed the relay.
        Killed = ("killed", "KD"),
        /// The drain deadline passed.
        Drained = ("drained", "KF"),
        /// This node could not carry on: out of descriptors, memory, or a bug.
        Internal = ("internal", "PI"),
    }
}

impl Outcome {
    /// The metric label, `snake_case`.
    pub fn label(self) -> &'static str {
        self.names().0
    }

    /// The two-letter termination code of the log line.
    pub fn code(self) -> &'static str {
        self.names().1
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
