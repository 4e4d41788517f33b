// SPDX-License-Identifier: Apache-2.0
//! Errors of the programs and their loader.

use std::io;

/// A failed operation.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Loading the programs.
    #[error(
        "could not load the programs ({what}); needs CAP_BPF, CAP_NET_ADMIN and a kernel \
         from 6.1: {source}{verifier}"
    )]
    Load {
        /// The program or resource.
        what: &'static str,
        /// The cause.
        source: io::Error,
        /// The end of the verifier's log, possibly empty.
        verifier: String,
    },
    /// Attaching to an interface.
    #[error("could not attach the redirect program to interface {ifindex}: {source}")]
    Attach {
        /// Index of the interface.
        ifindex: u32,
        /// The cause.
        source: io::Error,
    },
    /// Attaching the socket look-up program.
    #[error("could not attach the socket look-up program to this network namespace: {source}")]
    AttachLookup {
        /// The cause.
        source: io::Error,
    },
    /// Opening the cgroup for the window program.
    #[error(
        "`initial_window` needs the cgroup v2 of this process, which cannot be opened: {reason}"
    )]
    Cgroup {
        /// The cause.
        reason: String,
    },
    /// Rules with windows, although the node was started without.
    #[error("`initial_window` takes effect at start only: restart the node")]
    InitialCwndAtStart,
    /// Attaching the window program.
    #[error(
        "could not attach the `initial_window` program to the cgroup of this process: {source}"
    )]
    AttachWindows {
        /// The cause.
        source: io::Error,
    },
    /// Opening the cgroup for SYN options.
    #[error("`header_in` needs the cgroup v2 of this process, which cannot be opened: {reason}")]
    SynOptionCgroup {
        /// The cause.
        reason: String,
    },
    /// SYN options, although the node was started without peers.
    #[error(
        "`header_in = \"syn-option\"` takes effect at start only when there was no peer: restart the node"
    )]
    SynOptionsAtStart,
    /// Attaching a program to a cgroup.
    #[error("could not attach the program `{program}` to a cgroup: {source}")]
    AttachCgroup {
        /// Name of the program.
        program: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// Pinning the packet path, where only flows that outlive the process may take it.
    #[error("its flows would end with this process: {source}")]
    Unpinned {
        /// The cause.
        source: io::Error,
    },
    /// Writing or reading a map.
    #[error("could not {verb} the map `{map}`: {source}")]
    Map {
        /// The operation.
        verb: &'static str,
        /// Name of the map.
        map: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// The host has more interfaces than the programs can know.
    #[error(
        "this host has more than the {most} interfaces that a node intercepts on: set \
         transparent.interfaces"
    )]
    TooManyInterfaces {
        /// Largest number supported.
        most: u32,
    },
    /// More rules apply to one destination than the program compares.
    #[error(
        "{count} rules apply to destinations in {prefix}, more than the {most} the program \
         compares; merge their ports or sources"
    )]
    TooManyCandidates {
        /// The destination prefix.
        prefix: String,
        /// Number of rules that apply.
        count: usize,
        /// Largest number supported.
        most: usize,
    },
    /// The rules name more destination prefixes than fit.
    #[error("the rules name {count} destination prefixes, more than the {most} that fit")]
    TooManyPrefixes {
        /// Number of prefixes.
        count: usize,
        /// Largest number supported.
        most: usize,
    },
    /// Requires programs that are loaded after the start.
    #[error("the programs of this node are not all loaded yet")]
    Unsettled,
    /// Reading the running kernel's type information.
    #[error("the kernel's type information lacks {what}: {source}")]
    KernelTypes {
        /// The file, structure or field.
        what: String,
        /// The cause.
        source: io::Error,
    },
    /// Registering the congestion control of hops.
    #[error("could not register the congestion control: {source}")]
    Register {
        /// The cause.
        source: io::Error,
    },
    /// Sending a frame by running the inject program.
    #[error("could not put a frame on interface {ifindex}: {source}")]
    Inject {
        /// Index of the device.
        ifindex: u32,
        /// The cause.
        source: io::Error,
    },
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        Self::other(error)
    }
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
