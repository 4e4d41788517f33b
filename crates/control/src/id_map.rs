// SPDX-License-Identifier: Apache-2.0
//! Maps by numbers that no attacker chooses: those of nodes and of chains come from the
//! controller's configuration and from the controller.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map by numbers of nodes. Its order means nothing.
pub(crate) type IdMap<K, V> = HashMap<K, V, BuildHasherDefault<Mixer>>;

/// One multiplication, and what it carried up brought down again.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Mixer(u64);

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        // Only for the trait: the keys here are integers, which have methods of their own.
        for byte in bytes {
            self.write_u64((*byte).into());
        }
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }

    fn write_u64(&mut self, number: u64) {
        // Multiplying by an odd number spreads upwards only; the map takes its bucket from the low bits.
        let product = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product ^ (product >> 32);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn adjacent_numbers_spread() {
        let hash = |number| {
            let mut mixer = Mixer::default();
            mixer.write_u64(number);
            mixer.finish()
        };
        let low: BTreeSet<u64> = (0..4096).map(|number| hash(number) % 4096).collect();
        let high: BTreeSet<u64> = (0..128).map(|number| hash(number) >> 57).collect();
        assert!(
            low.len() > 2400 && high.len() > 70,
            "{} {}",
            low.len(),
            high.len()
        );
    }
}
