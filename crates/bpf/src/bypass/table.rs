// SPDX-License-Identifier: Apache-2.0
//! The pairs, and whether there may be any: segments pass the programs without a look-up while there is
//! none, which is nearly always.

use std::fs::File;
use std::sync::Arc;

use crate::error::Error;
use crate::layout::bytes;
use crate::object::Map;
use crate::objects::bypass::{OBJECT, map};
use crate::objects::types;
use crate::packet::pins::Pins;
use crate::sys;

/// The only key of `bypass_present`.
const ONLY: [u8; 4] = [0; 4];

/// The pairs of one network namespace, which the processes of a node share.
#[derive(Debug)]
pub(super) struct Table {
    pairs: Arc<Map>,
    present: Arc<Map>,
    /// Where they are pinned. Without pins no other process has them.
    pins: Option<Pins>,
}

impl Table {
    pub(super) fn new(maps: &[Arc<Map>], pins: Option<&Pins>) -> Self {
        Self {
            pairs: Arc::clone(&maps[map::BYPASS_PAIRS]),
            present: Arc::clone(&maps[map::BYPASS_PRESENT]),
            pins: pins.cloned(),
        }
    }

    /// What an earlier process pinned.
    pub(super) fn pinned(pins: &Pins) -> Option<Self> {
        let adopt = |number: usize| {
            let pinned = sys::pinned(&pins.path(OBJECT.maps[number].name));
            Some(OBJECT.adopt(number, pinned.ok()?))
        };
        Some(Self {
            pairs: adopt(map::BYPASS_PAIRS)?,
            present: adopt(map::BYPASS_PRESENT)?,
            pins: Some(pins.clone()),
        })
    }

    /// Writes a pair.
    ///
    /// # Errors
    /// The table is full.
    pub(super) fn write(&self, key: &[u8], pair: &types::bypass_pair) -> Result<(), Error> {
        let _lock = self.lock()?;
        self.present.update(&ONLY, &1_u32.to_ne_bytes())?;
        self.pairs.update(key, bytes(pair))
    }

    /// Removes a pair; it need not be there.
    pub(super) fn remove(&self, key: &[u8]) -> Result<(), Error> {
        self.pairs.delete(key)
    }

    /// Reads a pair.
    #[cfg(test)]
    pub(super) fn read(&self, key: &[u8]) -> Option<types::bypass_pair> {
        let mut raw = vec![0; size_of::<types::bypass_pair>()];
        let found = self.pairs.look_up(key, &mut raw).unwrap();
        found.then(|| crate::layout::whole(&raw).unwrap())
    }

    /// Whether segments pass without a look-up.
    #[cfg(test)]
    pub(super) fn is_at_rest(&self) -> bool {
        let mut present = [0; 4];
        self.present.look_up(&ONLY, &mut present).unwrap() && present == [0; 4]
    }

    /// Calls `one` for the key and value of each pair until it returns false.
    pub(super) fn each(&self, one: impl FnMut(&[u8], &[u8]) -> bool) -> Result<(), Error> {
        self.pairs.each(one)
    }

    /// Has segments pass without a look-up if there is no pair.
    pub(super) fn rest(&self) -> Result<(), Error> {
        let mut present = [0; 4];
        self.present.look_up(&ONLY, &mut present)?;
        if present == [0; 4] {
            return Ok(());
        }
        let _lock = self.lock()?;
        if self.pairs.is_empty()? {
            self.present.update(&ONLY, &[0; 4])?;
        }
        Ok(())
    }

    /// Excludes other threads and processes that write pairs, or find that there is none.
    fn lock(&self) -> Result<Option<File>, Error> {
        let lock = self.pins.as_ref().map(Pins::lock).transpose();
        lock.map_err(Error::map("lock", self.present.name()))
    }
}
