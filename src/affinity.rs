// SPDX-License-Identifier: Apache-2.0
//! Pins each worker to the CPU whose packets it gets.
//!
//! The redirect program assigns a flow to the worker with the number of the CPU on which the SYN
//! arrived, modulo the number of workers (`this_worker`), unless that CPU is full. A worker that runs on that CPU finds its
//! sockets in the cache, and no other CPU has to be woken.

use nix::errno::Errno;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

/// The calling thread.
const MYSELF: Pid = Pid::from_raw(0);

/// The CPU of each worker. `None` unless each has exactly one: with fewer workers than CPUs each
/// serves several, and the scheduler decides.
pub(crate) fn homes(workers: usize, cpus: &[usize]) -> Option<Vec<usize>> {
    let mut homes = vec![None; workers];
    for cpu in cpus {
        if homes[cpu % workers].replace(*cpu).is_some() {
            return None;
        }
    }
    homes.into_iter().collect()
}

/// Pins the calling thread to a CPU.
///
/// # Errors
/// The CPU is gone, or the process may not use it any more.
pub(crate) fn stay_on(cpu: usize) -> Result<(), Errno> {
    let mut mask = CpuSet::new();
    mask.set(cpu)?;
    sched_setaffinity(MYSELF, &mask)
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: H10
    #[test]
    fn worker_on_its_cpu() {
        assert_eq!(homes(2, &[0, 1]), Some(vec![0, 1]));
        assert_eq!(homes(4, &[6, 7, 8, 9]), Some(vec![8, 9, 6, 7]));
        assert_eq!(homes(1, &[3]), Some(vec![3]));
    }

    // promise: H10
    #[test]
    fn unpinned_workers_stay_free() {
        assert_eq!(homes(1, &[0, 1]), None);
        assert_eq!(homes(2, &[1, 3]), None);
        assert_eq!(homes(3, &[0, 1]), None);
        assert_eq!(homes(2, &[]), None);
    }
}
