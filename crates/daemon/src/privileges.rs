// SPDX-License-Identifier: Apache-2.0
//! The capabilities of the process: checked at start, then reduced to the needed ones.

use anyhow::{Context, bail};
use caps::{CapSet, Capability, CapsHashSet};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// The capabilities that a node needs, with their purposes.
pub const NODE: [(Capability, &str); 4] = [
    (
        Capability::CAP_NET_ADMIN,
        "to install routing rules, to mark sockets and to attach to interfaces",
    ),
    (
        Capability::CAP_NET_RAW,
        "to open sockets with a client's address",
    ),
    (Capability::CAP_BPF, "to load and run the redirect program"),
    (
        Capability::CAP_PERFMON,
        "to have the redirect program checked and compiled as trusted code",
    ),
];

/// The capabilities that `posthaste run` needs.
pub const RUN: [(Capability, &str); 5] = [
    (
        Capability::CAP_NET_ADMIN,
        "to load and attach the programs that lead connections away",
    ),
    (
        Capability::CAP_NET_RAW,
        "to open listeners as those of nodes are",
    ),
    (Capability::CAP_BPF, "to load those programs"),
    NODE[3],
    (
        Capability::CAP_SYS_ADMIN,
        "to find and make cgroups without a mount point",
    ),
];

/// The capabilities that a guard keeps: to clean up, and to look after flows of the packet path.
pub const GUARD: [Capability; 2] = [Capability::CAP_NET_ADMIN, Capability::CAP_BPF];

/// The capabilities that `setup` and `teardown` need.
pub const HOST: [(Capability, &str); 1] = [NODE[0]];

/// The capabilities that a node keeps once its programs are loaded. The last two are optional: for
/// clients with privileged ports (rsh, NFS), and for pipes beyond the limit of ordinary users.
pub const RUNNING: [Capability; 5] = [
    Capability::CAP_NET_ADMIN,
    Capability::CAP_NET_RAW,
    Capability::CAP_BPF,
    Capability::CAP_NET_BIND_SERVICE,
    Capability::CAP_SYS_RESOURCE,
];

/// The default of the first unprivileged port.
const UNPRIVILEGED_PORT: u16 = 1024;

/// The lowest port that this process may bind to, in the network namespace of this thread.
pub fn least_port() -> u16 {
    let held = caps::has_cap(None, CapSet::Effective, Capability::CAP_NET_BIND_SERVICE);
    if held.unwrap_or(false) {
        return 0;
    }
    // A setting of each network namespace, which an operator may have changed.
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start");
    let start = text.ok().and_then(|text| text.trim().parse().ok());
    start.unwrap_or(UNPRIVILEGED_PORT)
}

/// Fails with the missing capabilities, and how to grant them.
pub fn require(needed: &[(Capability, &str)]) -> anyhow::Result<()> {
    let held =
        caps::read(None, CapSet::Effective).context("read the capabilities of this process")?;
    let lacking: Vec<_> = needed
        .iter()
        .filter(|(capability, _)| !may(&held, *capability))
        .collect();
    if lacking.is_empty() {
        return Ok(());
    }
    let each: Vec<String> = lacking
        .iter()
        .map(|(capability, why)| format!("{capability} is missing ({why})"))
        .collect();
    let names: Vec<String> = needed
        .iter()
        .map(|(capability, _)| capability.to_string())
        .collect();
    bail!(
        "{}: run as root, or grant it: in a systemd unit AmbientCapabilities={}, elsewhere setcap {}+ep on the binary",
        each.join("; "),
        names.join(" "),
        names.join(",").to_lowercase()
    )
}

/// Whether `held` includes `capability`. CAP_SYS_ADMIN implies CAP_BPF and CAP_PERFMON, which were
/// split off in Linux 5.8.
fn may(held: &CapsHashSet, capability: Capability) -> bool {
    let split_off = [Capability::CAP_BPF, Capability::CAP_PERFMON].contains(&capability);
    held.contains(&capability) || split_off && held.contains(&Capability::CAP_SYS_ADMIN)
}

/// Drops all other capabilities of this thread permanently, also for programs it starts. Missing
/// ones are not added.
pub fn keep_only(kept: &[Capability]) -> anyhow::Result<()> {
    let permitted =
        caps::read(None, CapSet::Permitted).context("read the capabilities of this process")?;
    // Of the permitted ones alone: capset(2) refuses to add others.
    let left: CapsHashSet = permitted
        .iter()
        .copied()
        .filter(|capability| kept.contains(capability))
        .collect();
    // The bounding set cannot be changed without CAP_SETPCAP; without it there are no capabilities
    // to bound.
    if permitted.contains(&Capability::CAP_SETPCAP) {
        let bounding =
            caps::read(None, CapSet::Bounding).context("read the capability bounding set")?;
        // Or an executed file could bring them back by its own capabilities (capabilities(7)).
        for capability in bounding.difference(&left) {
            caps::drop(None, CapSet::Bounding, *capability)
                .context("drop from the capability bounding set")?;
        }
    }
    caps::clear(None, CapSet::Ambient).context("clear the ambient capabilities")?;
    caps::clear(None, CapSet::Inheritable).context("clear the inheritable capabilities")?;
    // Before the permitted set, of which it must be a part (capset(2)).
    caps::set(None, CapSet::Effective, &left).context("drop effective capabilities")?;
    caps::set(None, CapSet::Permitted, &left).context("drop permitted capabilities")?;
    // A set-user-ID program that is started must not gain what was dropped (execve(2)).
    nix::sys::prctl::set_no_new_privs().context("set no_new_privs")
}

/// Makes programs that this thread executes keep these capabilities, whatever the user.
pub fn pass_on(passed: &[Capability]) -> anyhow::Result<()> {
    for capability in passed {
        // In this order: only what is inheritable can become ambient (capabilities(7)).
        for set in [CapSet::Inheritable, CapSet::Ambient] {
            caps::raise(None, set, *capability).with_context(|| format!("pass on {capability}"))?;
        }
    }
    Ok(())
}

/// Raises the limit of open files to its hard limit. Returns it.
pub fn raise_open_files() -> anyhow::Result<u64> {
    // Not beyond the hard limit, which would need CAP_SYS_RESOURCE (setrlimit(2)).
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).context("read RLIMIT_NOFILE")?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most).context("raise RLIMIT_NOFILE")?;
    Ok(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `test` on a separate thread, since dropped capabilities do not return.
    fn on_a_thread(test: impl FnOnce() + Send + 'static) {
        if let Err(panic) = std::thread::spawn(test).join() {
            std::panic::resume_unwind(panic);
        }
    }

    #[test]
    fn lost_capability_is_named() {
        on_a_thread(|| {
            require(&NODE).expect("these tests need root");
            keep_only(&[Capability::CAP_NET_ADMIN, Capability::CAP_BPF]).unwrap();
            let left = caps::read(None, CapSet::Permitted).unwrap();
            assert_eq!(
                left,
                CapsHashSet::from([Capability::CAP_NET_ADMIN, Capability::CAP_BPF])
            );
            assert!(!caps::has_cap(None, CapSet::Bounding, Capability::CAP_SYS_ADMIN).unwrap());
            let error = require(&NODE).unwrap_err().to_string();
            assert!(
                error.starts_with("CAP_NET_RAW is missing (to open sockets"),
                "{error}"
            );
            assert!(
                error.contains("setcap cap_net_admin,cap_net_raw,cap_bpf,cap_perfmon+ep"),
                "{error}"
            );
        });
    }

    #[test]
    fn giving_up_twice_is_allowed() {
        on_a_thread(|| {
            keep_only(&[]).unwrap();
            keep_only(&[]).unwrap();
        });
    }
}
