// SPDX-License-Identifier: Apache-2.0
//! Which destinations are used how much, in fixed memory, whoever asks: what decides who is kept.
//! Pure.
//!
//! Uses are counted in a count-min sketch, which never says too few and sometimes too many. A
//! client and its neighbours count once for a destination in a while, and for a bounded number of
//! destinations, so that one of them alone is a small part of all.

use std::hash::{BuildHasher, Hash, RandomState};
use std::time::Duration;

use posthaste_control::message::Prefix;

/// Rows of the sketch, and counts in each.
const ROWS: usize = 4;
const COLUMNS: usize = 1 << 14;
/// After so many uses all count half.
const USES_MAX: u32 = 1 << 16;
/// A client counts once for a destination in so long,
const WHILE: Duration = Duration::from_secs(10);
/// and for so many destinations.
const PER_CLIENT: u8 = 32;
/// Bits that remember who was counted for what, and bits for each.
const PAIRS: usize = 1 << 17;
const PAIR_BITS: usize = 2;
/// Counts of what clients were counted for.
const CLIENTS: usize = 1 << 13;

/// What is used how much.
#[derive(Debug)]
pub(super) struct AdmissionFilter {
    /// Nobody outside knows where something is counted, so nobody can choose what collides.
    secret: RandomState,
    uses: Vec<u8>,
    counted: u32,
    pairs: Vec<u64>,
    clients: Vec<u8>,
    /// When the present while is over.
    until: Duration,
}

impl Default for AdmissionFilter {
    fn default() -> Self {
        Self {
            secret: RandomState::new(),
            uses: vec![0; ROWS * COLUMNS],
            counted: 0,
            pairs: vec![0; PAIRS / 64],
            clients: vec![0; CLIENTS],
            until: Duration::ZERO,
        }
    }
}

impl AdmissionFilter {
    /// A flow of a client, which stands for its neighbours as well, has gone to a destination.
    pub(super) fn count(&mut self, client: u64, prefix: &Prefix, now: Duration) {
        if now >= self.until {
            self.pairs.fill(0);
            self.clients.fill(0);
            self.until = now + WHILE;
        }
        if self.is_counted(client, prefix) {
            return;
        }
        let client = self.hash("client", client) % CLIENTS;
        if self.clients[client] >= PER_CLIENT {
            return;
        }
        self.clients[client] += 1;
        for row in 0..ROWS {
            let place = self.place(row, prefix);
            self.uses[place] = self.uses[place].saturating_add(1);
        }
        self.counted += 1;
        if self.counted >= USES_MAX {
            self.counted /= 2;
            self.uses.iter_mut().for_each(|uses| *uses /= 2);
        }
    }

    /// How often a destination was used of late, at the most.
    pub(super) fn uses(&self, prefix: &Prefix) -> u8 {
        let rows = 0..ROWS;
        let uses = rows.map(|row| self.uses[self.place(row, prefix)]);
        uses.min().unwrap_or(0)
    }

    /// Whether a client was counted for a destination in this while. It is from now on.
    fn is_counted(&mut self, client: u64, prefix: &Prefix) -> bool {
        let mut known = true;
        for bit in 0..PAIR_BITS {
            let bit = self.hash(bit, (client, prefix)) % PAIRS;
            let word = &mut self.pairs[bit / 64];
            known &= *word >> (bit % 64) & 1 == 1;
            *word |= 1 << (bit % 64);
        }
        known
    }

    fn place(&self, row: usize, prefix: &Prefix) -> usize {
        row * COLUMNS + self.hash(row, prefix) % COLUMNS
    }

    fn hash(&self, purpose: impl Hash, what: impl Hash) -> usize {
        let bits = self.secret.hash_one((purpose, what));
        usize::try_from(bits >> 32).unwrap_or(0)
    }
}
