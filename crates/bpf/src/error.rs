// SPDX-License-Identifier: Apache-2.0
//! What can go wrong with the programs.

use std::io;

/// A failed step, with what was attempted.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Loading the programs.
    #[error(
        "could not load the programs ({what}); needs CAP_BPF, CAP_NET_ADMIN and a kernel \
         from 6.1: {source}{verifier}"
    )]
    Load {
        /// Which of them, or what belongs to them.
        what: &'static str,
        /// Why.
        source: io::Error,
        /// The end of what the verifier said, if it said anything.
        verifier: String,
    },
    /// Attaching to an interface.
    #[error("could not attach the redirect program to interface {ifindex}: {source}")]
    Attach {
        /// Which.
        ifindex: u32,
        /// Why.
        source: io::Error,
    },
    /// Attaching the socket look-up program.
    #[error("could not attach the socket look-up program to this network namespace: {source}")]
    AttachLookup {
        /// Why.
        source: io::Error,
    },
    /// Finding the cgroup that the window program is for.
    #[error(
        "`initial_window` needs the cgroup v2 of this process, which cannot be opened: {reason}"
    )]
    Cgroup {
        /// Why.
        reason: String,
    },
    /// Rules with windows came after a start without.
    #[error("`initial_window` takes effect at start only: restart the node")]
    InitialCwndAtStart,
    /// Attaching the window program.
    #[error(
        "could not attach the `initial_window` program to the cgroup of this process: {source}"
    )]
    AttachWindows {
        /// Why.
        source: io::Error,
    },
    /// Finding the cgroup that SYN options are sent from.
    #[error("`header_in` needs the cgroup v2 of this process, which cannot be opened: {reason}")]
    SynOptionCgroup {
        /// Why.
        reason: String,
    },
    /// SYN options came after a start without peers.
    #[error(
        "`header_in = \"syn-option\"` takes effect at start only when there was no peer: restart the node"
    )]
    SynOptionsAtStart,
    /// Attaching a program to a cgroup.
    #[error("could not attach the program `{program}` to a cgroup: {source}")]
    AttachCgroup {
        /// Which.
        program: &'static str,
        /// Why.
        source: io::Error,
    },
    /// Writing or reading a map.
    #[error("could not {verb} the map `{map}`: {source}")]
    Map {
        /// What was attempted.
        verb: &'static str,
        /// On which map.
        map: &'static str,
        /// Why.
        source: io::Error,
    },
    /// More rules apply to one destination than the program looks at.
    #[error(
        "{count} rules apply to destinations in {prefix}, more than the {most} the program \
         compares; merge their ports or sources"
    )]
    TooManyCandidates {
        /// The destination prefix.
        prefix: String,
        /// How many apply.
        count: usize,
        /// How many may.
        most: usize,
    },
    /// The rules name more destination prefixes than fit.
    #[error("the rules name {count} destination prefixes, more than the {most} that fit")]
    TooManyPrefixes {
        /// How many they name.
        count: usize,
        /// How many may.
        most: usize,
    },
    /// Asking for what is there once the node has settled.
    #[error("the programs of this node are not all loaded yet")]
    Unsettled,
    /// Sending a frame by running the inject program.
    #[error("could not put a frame on interface {ifindex}: {source}")]
    Inject {
        /// Which.
        ifindex: u32,
        /// Why.
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn map(verb: &'static str, map: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Map { verb, map, source }
    }

    pub(crate) fn load(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Load {
            what,
            source,
            verifier: String::new(),
        }
    }
}
