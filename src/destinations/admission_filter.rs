// SPDX-License-Identifier: Apache-2.0
//! Estimates how much each destination is used, in fixed memory, to decide which are stored. Pure.
//!
//! Uses are counted in a count-min sketch, which never underestimates and sometimes overestimates.
//! A client and its neighbours count once per destination and period, and for a bounded number of
//! destinations, so that one of them alone has little weight.

use std::hash::{BuildHasher, Hash, RandomState};
use std::time::Duration;

use posthaste_control::message::Prefix;

/// Rows of the sketch, and counters per row.
const ROWS: usize = 4;
const COLUMNS: usize = 1 << 14;
/// After so many uses all counters are halved.
const USES_MAX: u32 = 1 << 16;
/// A client counts once per destination in this period,
const WHILE: Duration = Duration::from_secs(10);
/// and for at most so many destinations.
const PER_CLIENT: u8 = 32;
/// Bits of the filter of counted pairs of client and destination, and bits per pair.
const PAIRS: usize = 1 << 17;
const PAIR_BITS: usize = 2;
/// Number of counters of clients' destinations.
const CLIENTS: usize = 1 << 13;

/// Usage of destinations.
#[derive(Debug)]
pub(super) struct AdmissionFilter {
    /// A secret hash, so that no client can choose destinations that collide.
    secret: RandomState,
    uses: Vec<u8>,
    counted: u32,
    pairs: Vec<u64>,
    clients: Vec<u8>,
    /// End of the current period.
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
    /// Counts a flow of a client, which represents its neighbours as well.
    pub(super) fn count(&mut self, client: u64, prefix: &Prefix, now: Duration) {
        if now >= self.until {
            self.pairs.fill(0);
            self.clients.fill(0);
            self.until = now + WHILE;
        }
        if self.is_counted(client, prefix) {
            return;
        }
        // Clients that collide share a bound, which costs samples and never memory.
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

    /// Upper bound of the recent uses of a destination.
    pub(super) fn uses(&self, prefix: &Prefix) -> u8 {
        let rows = 0..ROWS;
        let uses = rows.map(|row| self.uses[self.place(row, prefix)]);
        uses.min().unwrap_or(0)
    }

    /// Whether a client was counted for a destination in this period. Marks it as counted.
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
