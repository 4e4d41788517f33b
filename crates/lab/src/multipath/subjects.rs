// SPDX-License-Identifier: Apache-2.0
//! The subjects: who has two paths, and how the client reaches the server through the node.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use socket2::Protocol;

use super::site::{Ends, SERVER};
use crate::load::{answer_bytes, request_for};
use crate::names;

/// The node's listeners for clients that address it.
const FIXED: &str = "10.31.1.1:8000";
const EXPLICIT: &str = "10.31.1.1:4480";

/// A way to the server, and what is sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Subject {
    pub(super) name: &'static str,
    /// The configuration of the node, if there is one.
    pub(super) config: Option<&'static str>,
    /// That of a node on the server's host, if there is one.
    pub(super) far: Option<&'static str>,
    /// Who has two paths.
    pub(super) ends: Ends,
    pub(super) target: Target,
    /// Of their sockets.
    pub(super) client: Protocol,
    pub(super) server: Protocol,
    pub(super) is_upload: bool,
}

/// Whom the client addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Server,
    /// A listener of the node with a destination.
    Fixed,
    /// One that gets the destination with the request (RFC 8803).
    Explicit,
}

macro_rules! peer_key {
    () => {
        "key = \"000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\"\npool_min = 1\n"
    };
}

// BBR without fq uses several paths less well, and is the default of some hosts.
macro_rules! transparent {
    ($accept:literal, $more:literal) => {
        concat!(
            "[defaults]\naccept = \"",
            $accept,
            "\"\n",
            $more,
            "[defaults.downstream]\ncongestion = \"cubic\"\n",
            "[defaults.upstream]\ncongestion = \"cubic\"\n"
        )
    };
}

/// Early, with Multipath TCP on the side of the client.
pub(super) const EARLY: &str = transparent!("early", "multipath = \"convert\"\n");
const STRICT: &str = transparent!("strict", "multipath = \"convert\"\n");
const LATE: &str = transparent!("late", "multipath = \"convert\"\n");
const UPSTREAM: &str = transparent!("early", "upstream_multipath = true\n");
const BOTH: &str = transparent!(
    "early",
    "multipath = \"convert\"\nupstream_multipath = true\n"
);
const ADDRESSED: &str = "[node]\nid = 1\n\
    [transparent]\nenabled = false\n\
    [access]\nclients = [\"10.0.0.0/8\"]\ndestinations = [\"10.0.0.0/8\"]\n\
    [defaults.downstream]\ncongestion = \"cubic\"\n\
    [[listener]]\nmode = \"fixed\"\naddress = \"10.31.1.1:8000\"\ndestination = \"10.31.3.2:80\"\n\
    multipath = true\n\
    [[listener]]\nmode = \"explicit\"\naddress = \"10.31.1.1:4480\"\nmultipath = true\n";

/// Hops over both paths to a node on the server's host.
const NEAR: &str = concat!(
    "[node]\nid = 1\n[defaults]\naccept = \"early\"\n[measure]\nenabled = false\n",
    "[[peer]]\nname = \"far\"\nid = 2\naddress = \"10.31.3.2:4480\"\ntransport = \"mptcp\"\n",
    peer_key!(),
    "[[chain]]\nname = \"far\"\nnodes = [\"far\"]\n[[route]]\nchains = [\"far\"]\ndirect = false\n"
);
const FAR: &str = concat!(
    "[node]\nid = 2\n[transparent]\nenabled = false\n[measure]\nenabled = false\n",
    "[access]\ndestinations = [\"10.31.3.2/32\"]\n",
    "[[listener]]\nmode = \"explicit\"\naddress = \"10.31.3.2:4480\"\nmultipath = true\n",
    "[[peer]]\nname = \"near\"\nid = 1\naddress = \"10.31.3.1:4480\"\ntransport = \"mptcp\"\n",
    peer_key!()
);

const ALL: [Subject; 21] = [
    subject("no node", None),
    subject("no node, both ends with Multipath TCP", None).end_to_end(),
    subject("no node, both ends with it, upload", None)
        .end_to_end()
        .upload(),
    subject("early", Some(EARLY)),
    subject("strict", Some(STRICT)),
    subject("late", Some(LATE)),
    subject("early, upload", Some(EARLY)).upload(),
    subject("fixed", Some(ADDRESSED)).to(Target::Fixed),
    subject("explicit", Some(ADDRESSED)).to(Target::Explicit),
    subject("early, client with TCP", Some(EARLY)).by_tcp(),
    subject("no node, paths of the server", None).of_server(),
    subject("no node, paths of the server, both ends with it", None)
        .end_to_end()
        .at(Ends::Server),
    subject(
        "no node, paths of the server, both ends with it, upload",
        None,
    )
    .end_to_end()
    .at(Ends::Server)
    .upload(),
    subject("upstream", Some(UPSTREAM)).of_server(),
    subject("upstream, upload", Some(UPSTREAM))
        .of_server()
        .upload(),
    subject("no node, both ends with it, paths of both", None)
        .end_to_end()
        .at(Ends::Both),
    subject("both sides", Some(BOTH))
        .end_to_end()
        .at(Ends::Both),
    subject("both sides, upload", Some(BOTH))
        .end_to_end()
        .at(Ends::Both)
        .upload(),
    subject("no node, paths to the server's node", None).by_hops(),
    subject("hops", Some(NEAR)).by_hops(),
    subject("hops, upload", Some(NEAR)).by_hops().upload(),
];

/// The subjects of these names; all if there are none.
pub(super) fn named(names: &[String]) -> Result<Vec<Subject>> {
    names::chosen(&ALL, |subject| subject.name, names, "subject")
}

const fn subject(name: &'static str, config: Option<&'static str>) -> Subject {
    Subject {
        name,
        config,
        far: None,
        ends: Ends::Client,
        target: Target::Server,
        client: Protocol::MPTCP,
        server: Protocol::TCP,
        is_upload: false,
    }
}

impl Subject {
    const fn upload(mut self) -> Self {
        self.is_upload = true;
        self
    }

    const fn to(mut self, target: Target) -> Self {
        self.target = target;
        self
    }

    const fn by_tcp(mut self) -> Self {
        self.client = Protocol::TCP;
        self
    }

    const fn end_to_end(mut self) -> Self {
        self.server = Protocol::MPTCP;
        self
    }

    /// The server has the paths, and the client TCP.
    const fn of_server(self) -> Self {
        self.at(Ends::Server).end_to_end().by_tcp()
    }

    /// Between two nodes are two paths, and both ends have TCP.
    const fn by_hops(mut self) -> Self {
        self.ends = Ends::Server;
        if self.config.is_some() {
            self.far = Some(FAR);
        }
        self.by_tcp()
    }

    /// Who has two paths.
    const fn at(mut self, ends: Ends) -> Self {
        self.ends = ends;
        self
    }

    /// Whether the node uses both paths.
    pub(super) fn has_goal(&self) -> bool {
        let uses_paths = self.client == Protocol::MPTCP || self.ends != Ends::Client;
        self.config.is_some() && uses_paths
    }
}

impl Target {
    /// The address that the client connects to.
    pub(super) fn address(self) -> SocketAddr {
        let listener = |text: &str| text.parse().expect("an address and a port");
        match self {
            Self::Server => SERVER,
            Self::Fixed => listener(FIXED),
            Self::Explicit => listener(EXPLICIT),
        }
    }

    /// What the client sends before its request.
    pub(super) fn preface(self) -> Vec<u8> {
        match self {
            Self::Explicit => request_for(SERVER),
            Self::Server | Self::Fixed => Vec::new(),
        }
    }

    /// What precedes the server's answer.
    pub(super) fn answer(self) -> Answer {
        match self {
            Self::Explicit => Answer::Expected(Vec::new()),
            Self::Server | Self::Fixed => Answer::Left(0),
        }
    }
}

/// A converter's answer, which precedes what the server sends.
#[derive(Debug)]
pub(super) enum Answer {
    /// Fewer bytes of it have arrived than show its length.
    Expected(Vec<u8>),
    /// So many bytes are left.
    Left(usize),
}

impl Answer {
    /// Returns what follows the answer in the next part of a stream.
    pub(super) fn strip<'a>(&mut self, mut part: &'a [u8]) -> Result<&'a [u8]> {
        if let Self::Expected(front) = self {
            let (missing, rest) = part.split_at(part.len().min(2 - front.len()));
            front.extend(missing);
            part = rest;
            if let [version, words] = front[..] {
                let bytes = answer_bytes([version, words]).context("no answer of a converter")?;
                *self = Self::Left(bytes - 2);
            }
        }
        if let Self::Left(left) = self {
            let now = part.len().min(*left);
            *left -= now;
            part = &part[now..];
        }
        Ok(part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_in_parts() {
        let mut answer = Target::Explicit.answer();
        for part in [&[1][..], &[2, 9], &[9, 9, 9, 9]] {
            assert_eq!(answer.strip(part).unwrap(), b"");
        }
        assert_eq!(answer.strip(b"\x09content").unwrap(), b"content");
        assert_eq!(answer.strip(b" and more").unwrap(), b" and more");
        assert!(Target::Explicit.answer().strip(b"HTTP").is_err());
        assert_eq!(Target::Server.answer().strip(b"HTTP").unwrap(), b"HTTP");
    }
}
