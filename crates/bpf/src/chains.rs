// SPDX-License-Identifier: Apache-2.0
//! Chains of segments with a header each, which GRO makes at interfaces with `rx-gro-list`: where the
//! programs find in a packet that it is one, and what the kernel does with one that they have joined.

use std::fs;

use crate::kernel_types::KernelTypes;

/// The first release that cuts a joined chain anew. Those from 6.10 on, which make chains of TCP
/// segments, would take the second of the chain for granted, and there is none.
const CUTS: (u32, u32) = (6, 12);

/// For the programs: offsets in bytes, all 0 where they are not known.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Chains {
    pub(crate) skb_head: u32,
    pub(crate) skb_end: u32,
    pub(crate) gso_type: u32,
    /// Whether a chain may be joined; else it is lost.
    pub(crate) cuts: bool,
}

impl Chains {
    /// Those of the running kernel. Without its type information any packet that has to be cut may be a
    /// chain, and is joined.
    pub(crate) fn of_kernel() -> Self {
        match Self::offsets() {
            Some(known) => Self {
                cuts: release().is_none_or(|release| release >= CUTS),
                ..known
            },
            None => Self {
                cuts: true,
                ..Self::default()
            },
        }
    }

    fn offsets() -> Option<Self> {
        let types = KernelTypes::of_kernel().ok()?;
        let packet = types.structure("sk_buff").ok()?;
        let shared = types.structure("skb_shared_info").ok()?;
        Some(Self {
            skb_head: packet.field("head").ok()?.offset,
            skb_end: packet.field("end").ok()?.offset,
            gso_type: shared.field("gso_type").ok()?.offset,
            cuts: false,
        })
    }
}

/// The first two numbers of the kernel's version.
fn release() -> Option<(u32, u32)> {
    let text = fs::read_to_string("/proc/sys/kernel/osrelease").ok()?;
    let mut parts = text.split(|letter: char| !letter.is_ascii_digit());
    let mut number = || parts.next()?.parse().ok();
    Some((number()?, number()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_of_this_kernel() {
        let chains = Chains::of_kernel();
        assert!(chains.skb_end < chains.skb_head, "{chains:?}");
        assert!(chains.gso_type > 0, "{chains:?}");
        assert!(release().is_some_and(|release| release >= (6, 1)));
    }
}
