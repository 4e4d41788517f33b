// SPDX-License-Identifier: Apache-2.0
//! The two sides of a relay.

use std::ops::{Index, IndexMut, Not};

/// One side of a relay; `!side` is the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Side {
    /// Toward the client.
    Downstream,
    /// Toward the server.
    Upstream,
}

impl Side {
    /// Both.
    pub const BOTH: [Self; 2] = [Self::Downstream, Self::Upstream];
}

impl Not for Side {
    type Output = Self;

    fn not(self) -> Self {
        match self {
            Self::Downstream => Self::Upstream,
            Self::Upstream => Self::Downstream,
        }
    }
}

/// One value for each side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sides<T>(pub(crate) [T; 2]);

impl<T> Index<Side> for Sides<T> {
    type Output = T;

    fn index(&self, side: Side) -> &T {
        &self.0[side as usize]
    }
}

impl<T> IndexMut<Side> for Sides<T> {
    fn index_mut(&mut self, side: Side) -> &mut T {
        &mut self.0[side as usize]
    }
}
