// SPDX-License-Identifier: Apache-2.0
//! A node's part of a plan: the chain for each other node, size and access link, with two
//! fall-backs.
//!
//! The fall-backs are the neighbours on the front: first the one that is slightly shorter with a
//! longer hop, then the one that is slightly longer with shorter hops. A node skips chains with a
//! failed node, and connects directly when none is left.
//!
//! Look-ups allocate nothing and touch a handful of cache lines. Each chain is stored once per
//! egress, however many classes use it, and so is every distinct assignment of choices to classes.

mod build;
mod interner;

pub(crate) use build::build_all;

/// Bound on classes: sizes times access links. It keeps indexes of an egress's chains within a
/// byte.
pub const CLASSES_MAX: usize = 64;

/// Chains of a look-up: the best and its fall-backs.
pub const CHOICES: usize = 3;

/// No chain.
const NONE: u8 = u8::MAX;

/// Indexes of an egress's chains, [`NONE`] after the last.
type Choices = [u8; CHOICES];

/// The classes of transfers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Classes {
    /// The largest transfer of each size class, in bytes, ascending. Chains are chosen for these.
    /// Larger transfers belong to the last class.
    sizes: Vec<u64>,
    /// The slowest access link of each class, as a round-trip time in microseconds, ascending.
    access_us: Vec<u32>,
}

/// There are no classes, or more than [`CLASSES_MAX`], or they do not ascend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "sizes and access links must ascend, and there must be 1 to {CLASSES_MAX} combinations of them"
)]
pub struct WrongClasses;

impl Classes {
    /// Classes with these bounds: bytes, and round-trip times in microseconds.
    pub fn new(sizes: &[u64], access_us: &[u32]) -> Result<Self, WrongClasses> {
        let ascend = sizes.is_sorted_by(|a, b| a < b) && access_us.is_sorted_by(|a, b| a < b);
        let count = sizes.len().saturating_mul(access_us.len());
        if !ascend || !(1..=CLASSES_MAX).contains(&count) {
            return Err(WrongClasses);
        }
        Ok(Self {
            sizes: sizes.to_vec(),
            access_us: access_us.to_vec(),
        })
    }

    /// A size class for each number of rounds of slow start on a cold hop, up to ten, and access
    /// links of 0, 10, 20 and 40 ms.
    pub fn by_rounds(model: &crate::Model) -> Self {
        let sizes: Vec<u64> = (1..=10).map(|rounds| model.bytes_in(rounds)).collect();
        Self {
            sizes,
            access_us: vec![0, 10_000, 20_000, 40_000],
        }
    }

    /// The largest transfers of the size classes, in bytes.
    pub fn sizes(&self) -> &[u64] {
        &self.sizes
    }

    /// The slowest access links of their classes, in microseconds.
    pub fn access_us(&self) -> &[u32] {
        &self.access_us
    }

    /// The class of a transfer of `bytes` over an access link of this round-trip time.
    ///
    /// An access link belongs to the class below: a chain that is too good for it costs a node, one
    /// that is not good enough costs time.
    pub fn of(&self, bytes: u64, access_us: u32) -> Class {
        let size = self.sizes.partition_point(|largest| *largest < bytes);
        let size = size.min(self.sizes.len() - 1);
        let access = self.access_us.partition_point(|link| *link <= access_us);
        Class(size * self.access_us.len() + access.saturating_sub(1))
    }

    fn count(&self) -> usize {
        self.sizes.len() * self.access_us.len()
    }
}

/// A class of transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Class(usize);

/// The chains from one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Index of each egress's first chain in `chains`.
    starts: Box<[u32]>,
    /// For each chain the number of its inner nodes, and these.
    chains: Box<[u16]>,
    /// The pattern of each egress.
    pattern_of: Box<[u16]>,
    /// For each pattern and class, the index of the choices.
    patterns: Box<[u16]>,
    /// Indexes of an egress's chains, the best first.
    choices: Box<[Choices]>,
    /// Number of classes per pattern.
    classes: usize,
}

impl Table {
    /// The chains to a node, the best first, as the nodes between this one and it. The direct
    /// connection is the empty chain. There is none for this node itself, nor for an unreachable
    /// one.
    ///
    /// Panics for a node that does not exist.
    pub fn chains(&self, egress: usize, class: Class) -> impl Iterator<Item = &[u16]> {
        self.chains_of(egress, self.choices(egress, class))
    }

    fn choices(&self, egress: usize, class: Class) -> Choices {
        assert!(class.0 < self.classes, "a class of other classes");
        let pattern = usize::from(self.pattern_of[egress]);
        let number = self.patterns[pattern * self.classes + class.0];
        self.choices[usize::from(number)]
    }

    fn chains_of(&self, egress: usize, choices: Choices) -> impl Iterator<Item = &[u16]> {
        let chains = &self.chains[self.starts[egress] as usize..];
        let kept = choices.into_iter().take_while(|choice| *choice != NONE);
        kept.map(|choice| nth(chains, choice))
    }

    /// All chains to a node.
    ///
    /// Panics for a node that does not exist.
    pub fn egress(&self, egress: usize) -> Egress<'_> {
        assert!(egress < self.nodes(), "there is no node {egress}");
        Egress {
            table: self,
            egress,
        }
    }

    /// The number of nodes, including this one.
    pub fn nodes(&self) -> usize {
        self.pattern_of.len()
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.starts)
            + size_of_val(&*self.chains)
            + size_of_val(&*self.pattern_of)
            + size_of_val(&*self.patterns)
            + size_of_val(&*self.choices)
            + size_of::<Self>()
    }

    /// The number of its chains.
    pub fn chain_count(&self) -> usize {
        let (mut rest, mut count) = (&*self.chains, 0);
        while let [nodes, after @ ..] = rest {
            rest = &after[usize::from(*nodes)..];
            count += 1;
        }
        count
    }
}

/// The chains from one node to another.
#[derive(Clone, Copy, Debug)]
pub struct Egress<'a> {
    table: &'a Table,
    egress: usize,
}

impl<'a> Egress<'a> {
    /// The chains that any class uses, each once: the nodes between the ends.
    pub fn chains(&self) -> impl Iterator<Item = &'a [u16]> + use<'a> {
        let (starts, chains) = (&self.table.starts, &self.table.chains);
        let end = starts.get(self.egress + 1);
        let end = end.map_or(chains.len(), |end| *end as usize);
        let mut rest = &chains[starts[self.egress] as usize..end];
        std::iter::from_fn(move || {
            let (nodes, after) = rest.split_first()?;
            let (chain, after) = after.split_at(usize::from(*nodes));
            rest = after;
            Some(chain)
        })
    }

    /// By class, access links varying faster than sizes: the indexes of the chains to use, the best
    /// first.
    pub fn choices(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let table = self.table;
        let pattern = usize::from(table.pattern_of[self.egress]);
        let numbers = &table.patterns[pattern * table.classes..][..table.classes];
        numbers.iter().map(|number| {
            let choices = &table.choices[usize::from(*number)];
            let kept = choices.iter().position(|choice| *choice == NONE);
            &choices[..kept.unwrap_or(CHOICES)]
        })
    }
}

/// The chain with this index.
fn nth(mut chains: &[u16], place: u8) -> &[u16] {
    for _ in 0..place {
        chains = &chains[1 + usize::from(chains[0])..];
    }
    &chains[1..=usize::from(chains[0])]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfers_are_sorted_into_classes() {
        let classes = Classes::new(&[15_000, 45_000], &[0, 10_000, 20_000]).unwrap();
        let of = |bytes, access| classes.of(bytes, access).0;
        assert_eq!(of(0, 0), 0);
        assert_eq!(of(15_000, 9_999), 0);
        assert_eq!(of(15_001, 0), 3);
        assert_eq!(of(u64::MAX, 0), 3);
        assert_eq!(of(1, 10_000), 1);
        assert_eq!(of(1, u32::MAX), 2);
    }

    #[test]
    fn egress_lookup_matches() {
        let mut matrix = crate::Matrix::new(5).unwrap();
        for (from, to) in (0..5).flat_map(|from| (0..from).map(move |to| (from, to))) {
            let rtt_us = u32::try_from((from - to) * 10_000).unwrap();
            let link = Some(crate::Link::of_rtt(rtt_us));
            matrix.set_both(from, to, link).unwrap();
        }
        matrix.set(0, 3, None).unwrap();
        let limits = crate::fronts::Limits::default();
        let planner = crate::Planner::new(&matrix, crate::Model::default(), limits);
        let classes = Classes::new(&[1, 15_000, 450_000], &[0, 20_000]).unwrap();
        for table in planner.tables(&classes) {
            let mut chains = 0;
            for egress in 0..5 {
                let kept: Vec<&[u16]> = table.egress(egress).chains().collect();
                chains += kept.len();
                assert_eq!(table.egress(egress).choices().count(), 6);
                for (class, choices) in table.egress(egress).choices().enumerate() {
                    let chains = table.chains(egress, Class(class));
                    let chosen = choices.iter().map(|place| kept[usize::from(*place)]);
                    assert!(chosen.eq(chains));
                }
            }
            assert_eq!(chains, table.chain_count());
        }
    }

    #[test]
    fn classes_ascend_and_are_bounded() {
        assert!(Classes::new(&[], &[0]).is_err());
        assert!(Classes::new(&[1], &[]).is_err());
        assert!(Classes::new(&[2, 1], &[0]).is_err());
        assert!(Classes::new(&[1, 1], &[0]).is_err());
        let many: Vec<u64> = (1..=65).collect();
        assert!(Classes::new(&many, &[0]).is_err());
        assert!(Classes::new(&many[..64], &[0]).is_ok());
        let by_rounds = Classes::by_rounds(&crate::Model::default());
        assert_eq!(by_rounds.sizes()[4], 448_880);
    }
}
