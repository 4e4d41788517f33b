// SPDX-License-Identifier: Apache-2.0
//! How a node carries connections. One node has several ways, each under a rule of its own for ports of its own.

/// The ports of services in rows: the first way's.
const PORTS: [u16; 6] = [22, 80, 81, 82, 3128, 8080];
/// By so much the ports of one way exceed those of the way before.
const STRIDE: u16 = 1000;

/// A way to carry connections: the accept modes of relays, the packet path, and the default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Early,
    Strict,
    Late,
    Packet,
    Auto,
}

impl Way {
    /// All of them, in the order of their ports.
    pub(super) const ALL: [Self; 5] = [
        Self::Early,
        Self::Strict,
        Self::Late,
        Self::Packet,
        Self::Auto,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Early => "early",
            Self::Strict => "strict",
            Self::Late => "late",
            Self::Packet => "packet",
            Self::Auto => "auto",
        }
    }

    /// Its port for a service that a row names by the first way's.
    pub(super) fn port(self, of_first: u16) -> u16 {
        of_first + self.shift()
    }

    /// The port by which a row names the service that has this port.
    pub(super) fn named(self, port: u16) -> u16 {
        port.wrapping_sub(self.shift())
    }

    /// Whether one of its services has this port.
    pub(super) fn has(self, port: u16) -> bool {
        PORTS.contains(&self.named(port))
    }

    fn shift(self) -> u16 {
        let place = Self::ALL.iter().position(|way| *way == self);
        STRIDE * u16::try_from(place.expect("it is one of all")).expect("a few")
    }

    /// The rule of a node for its connections.
    pub(super) fn rule(self) -> String {
        let keys = match self {
            Self::Packet | Self::Auto => format!("data_path = {:?}", self.name()),
            mode => format!("accept = {:?}\ndata_path = \"socket\"", mode.name()),
        };
        let (name, ports) = (self.name(), PORTS.map(|port| self.port(port)));
        format!("[[rule]]\nname = {name:?}\nports = {ports:?}\n{keys}\n")
    }
}
