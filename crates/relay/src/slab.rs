// SPDX-License-Identifier: Apache-2.0
//! A table whose keys are never reused for another entry.

use std::cell::Cell;
use std::mem;

/// Bits of a key for the slot; the generation is above.
const SLOT_BITS: u32 = 24;
/// Total bits of a key; the generation wraps within them.
pub(crate) const KEY_BITS: u32 = 48;

/// Entries in numbered slots. A key is slot and generation, so a late event for a removed entry
/// finds nothing.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    slots: Vec<Slot<T>>,
    /// Head of the list of free slots.
    free: Option<u32>,
    len: usize,
    /// Failed look-ups of entries that had to exist.
    missed: Cell<u64>,
}

#[derive(Debug)]
enum Slot<T> {
    Taken { generation: u32, entry: T },
    Free { generation: u32, next: Option<u32> },
}

impl<T> Slab<T> {
    pub(crate) fn new() -> Self {
        Self {
            slots: Vec::new(),
            free: None,
            len: 0,
            missed: Cell::new(0),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Inserts an entry and returns its key.
    pub(crate) fn insert(&mut self, entry: T) -> u64 {
        self.len += 1;
        let Some(index) = self.free else {
            let index = self.slots.len();
            self.slots.push(Slot::Taken {
                generation: 0,
                entry,
            });
            return index as u64;
        };
        let slot = &mut self.slots[index as usize];
        let Slot::Free { generation, next } = *slot else {
            unreachable!("the free list holds free slots only")
        };
        self.free = next;
        *slot = Slot::Taken { generation, entry };
        key(index, generation)
    }

    pub(crate) fn get(&self, key: u64) -> Option<&T> {
        match self.slots.get(slot_of(key))? {
            Slot::Taken { generation, entry } if *generation == generation_of(key) => Some(entry),
            _ => None,
        }
    }

    pub(crate) fn get_mut(&mut self, key: u64) -> Option<&mut T> {
        match self.slots.get_mut(slot_of(key))? {
            Slot::Taken { generation, entry } if *generation == generation_of(key) => Some(entry),
            _ => None,
        }
    }

    /// The entry of a key that did not come from a late event. A missing entry is a defect, and is
    /// counted.
    pub(crate) fn live(&self, key: u64) -> Option<&T> {
        let found = self.get(key);
        if found.is_none() {
            self.missed.set(self.missed.get() + 1);
        }
        found
    }

    /// As [`Self::live`].
    pub(crate) fn live_mut(&mut self, key: u64) -> Option<&mut T> {
        self.live(key)?;
        self.get_mut(key)
    }

    /// Number of failed look-ups of live entries since the last call.
    pub(crate) fn take_missed(&self) -> u64 {
        self.missed.take()
    }

    pub(crate) fn remove(&mut self, key: u64) -> Option<T> {
        self.get(key)?;
        // 24 bits: a late event finds another entry only after 16 million reuses of its slot.
        let mask = (1 << (KEY_BITS - SLOT_BITS)) - 1;
        let freed = Slot::Free {
            generation: generation_of(key).wrapping_add(1) & mask,
            next: self.free,
        };
        let Slot::Taken { entry, .. } = mem::replace(&mut self.slots[slot_of(key)], freed) else {
            return None;
        };
        self.free = u32::try_from(slot_of(key)).ok();
        self.len -= 1;
        Some(entry)
    }

    /// Number of slots, taken or free.
    pub(crate) fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// The entries in `count` slots from slot `from` on.
    pub(crate) fn window(&self, from: usize, count: usize) -> impl Iterator<Item = (u64, &T)> {
        self.iter_from(from)
            .take_while(move |(key, _)| slot_of(*key) < from + count)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        self.iter_from(0)
    }

    fn iter_from(&self, from: usize) -> impl Iterator<Item = (u64, &T)> {
        let slots = self.slots.iter().enumerate().skip(from);
        slots.filter_map(|(index, slot)| match slot {
            Slot::Taken { generation, entry } => {
                Some((key(u32::try_from(index).ok()?, *generation), entry))
            }
            Slot::Free { .. } => None,
        })
    }
}

fn key(slot: u32, generation: u32) -> u64 {
    u64::from(generation) << SLOT_BITS | u64::from(slot)
}

fn slot_of(key: u64) -> usize {
    usize::try_from(key & ((1 << SLOT_BITS) - 1)).expect("24 bits")
}

fn generation_of(key: u64) -> u32 {
    u32::try_from(key >> SLOT_BITS).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use posthaste_testkit::simulate;

    #[test]
    fn reused_slot_new_key() {
        let mut slots = Slab::new();
        let first = slots.insert("first");
        assert_eq!(slots.remove(first), Some("first"));
        let second = slots.insert("second");
        assert_ne!(first, second);
        assert_eq!(slots.get(first), None);
        assert_eq!(slots.remove(first), None);
        assert_eq!(slots.get(second), Some(&"second"));
        assert_eq!(slots.iter().collect::<Vec<_>>(), [(second, &"second")]);
        assert_eq!(slots.len(), 1);
    }

    #[test]
    fn generations_wrap_within_bits() {
        let mut slots = Slab::new();
        let first = slots.insert(());
        let last = (1 << (KEY_BITS - SLOT_BITS)) - 1;
        slots.slots[0] = Slot::Taken {
            generation: last,
            entry: (),
        };
        let key = key(0, last);
        assert_eq!(key >> KEY_BITS, 0);
        assert_eq!(slots.remove(key), Some(()));
        assert_eq!(slots.insert(()), first);
    }

    #[test]
    fn unknown_key_finds_nothing() {
        let mut slots = Slab::new();
        slots.insert("only");
        for key in [key(1, 0), key(0, 1), u64::MAX] {
            assert_eq!(slots.get(key), None);
            assert_eq!(slots.get_mut(key), None);
            assert_eq!(slots.remove(key), None);
        }
    }

    #[test]
    fn windows_show_each_once() {
        let mut slots = Slab::new();
        let keys: Vec<u64> = (0..10).map(|number| slots.insert(number)).collect();
        for freed in [0, 4, 5, 9] {
            slots.remove(keys[freed]);
        }
        let windows = (0..slots.capacity()).step_by(3);
        let seen: Vec<i32> = windows
            .flat_map(|from| slots.window(from, 3).map(|(_, number)| *number))
            .collect();
        assert_eq!(seen, [1, 2, 3, 6, 7, 8]);
        assert_eq!(slots.window(10, 3).count(), 0);
    }

    /// Compares it with a map that never forgets a key, over many random changes.
    #[test]
    fn keys_are_unique() {
        simulate(200, |mut rng| {
            let mut slots = Slab::new();
            let mut taken = BTreeMap::new();
            let mut gone = Vec::new();
            for number in 0..100 {
                let keys: Vec<u64> = taken.keys().copied().collect();
                if keys.is_empty() || rng.once_in(2) {
                    let key = slots.insert(number);
                    assert_eq!(taken.insert(key, number), None, "a key in use");
                    assert!(!gone.contains(&key), "a key comes back");
                } else {
                    let key = rng.pick(&keys);
                    assert_eq!(slots.remove(key), taken.remove(&key));
                    gone.push(key);
                }
                assert_eq!(slots.len(), taken.len());
            }
            assert!(gone.iter().all(|key| slots.get(*key).is_none()));
            let found: BTreeMap<u64, i32> = slots.iter().map(|(key, n)| (key, *n)).collect();
            assert_eq!(found, taken);
            for (key, number) in &mut taken {
                assert_eq!(slots.get_mut(*key), Some(number));
            }
        });
    }
}
