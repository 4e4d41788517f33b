// SPDX-License-Identifier: Apache-2.0
//! The rest of a flow's route, in the manner of a segment list (RFC 8402 §2): the first
//! node chooses all nodes of the chain, and the header names those that are still to come.

use std::fmt;

use crate::header::NodeId;

/// The most segments that a header has room for.
pub const SEGMENTS_MAX: usize = 7;

/// The segment [`Segment::Resolve`] as it is sent. No node has this number.
pub(crate) const RESOLVE: u16 = u16::MAX;

/// One step of the rest of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segment {
    /// The flow goes to this node.
    Node(NodeId),
    /// The node that reads this looks up the route, as if the flow began there.
    Resolve,
}

/// The steps of a route behind the node that reads the header, in order; empty at the last
/// node of a chain. A [`Segment::Resolve`] is always alone.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SegmentList([u16; SEGMENTS_MAX]);

impl SegmentList {
    /// No segment: the node that reads the header connects to the destination.
    pub const EMPTY: Self = Self([0; SEGMENTS_MAX]);

    /// Only [`Segment::Resolve`].
    pub const RESOLVE: Self = {
        let mut numbers = [0; SEGMENTS_MAX];
        numbers[0] = RESOLVE;
        Self(numbers)
    };

    /// These nodes in order. `None` if there are more than [`SEGMENTS_MAX`].
    pub fn of(nodes: impl IntoIterator<Item = NodeId>) -> Option<Self> {
        let mut numbers = [0; SEGMENTS_MAX];
        for (place, node) in nodes.into_iter().enumerate() {
            *numbers.get_mut(place)? = node.to_bits();
        }
        Some(Self(numbers))
    }

    /// Reads numbers of 2 bytes each, in network byte order. Zeros stand for no segment and
    /// may only be at the end.
    pub(crate) fn from_numbers(numbers: &[u16]) -> Result<Self, SegmentError> {
        let mut whole = [0; SEGMENTS_MAX];
        let room = whole.get_mut(..numbers.len()).ok_or(SegmentError::Gap)?;
        room.copy_from_slice(numbers);
        for pair in whole.windows(2) {
            // Equal lists have equal numbers, as comparing and hashing rely on.
            if pair[0] == 0 && pair[1] != 0 {
                return Err(SegmentError::Gap);
            }
        }
        // A node that passes a look-up on would make it in its own name.
        if whole.contains(&RESOLVE) && whole[1] != 0 {
            return Err(SegmentError::ResolveNotAlone);
        }
        Ok(Self(whole))
    }

    /// The numbers as they are sent, zeros at the end.
    pub(crate) fn numbers(self) -> [u16; SEGMENTS_MAX] {
        self.0
    }

    /// The number of segments.
    pub fn len(self) -> usize {
        let used = self.0.iter().take_while(|number| **number != 0);
        used.count()
    }

    /// Whether the node that reads the header is the last of the chain.
    pub fn is_empty(self) -> bool {
        self == Self::EMPTY
    }

    /// The segments in order.
    pub fn iter(self) -> impl Iterator<Item = Segment> {
        self.0.into_iter().map_while(segment)
    }

    /// The next segment, and those behind it.
    pub fn split_first(self) -> Option<(Segment, Self)> {
        let first = segment(self.0[0])?;
        let mut rest = self.0;
        rest.rotate_left(1);
        // The segment that was taken has moved here, where zeros must be.
        rest[SEGMENTS_MAX - 1] = 0;
        Some((first, Self(rest)))
    }
}

fn segment(number: u16) -> Option<Segment> {
    match number {
        RESOLVE => Some(Segment::Resolve),
        number => NodeId::new(number.into()).map(Segment::Node),
    }
}

impl fmt::Display for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(node) => write!(f, "{node}"),
            Self::Resolve => f.write_str("?"),
        }
    }
}

impl fmt::Debug for SegmentList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// Why bytes are not a [`SegmentList`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.what())]
pub enum SegmentError {
    /// A segment follows a zero.
    Gap,
    /// There are a look-up and other segments.
    ResolveNotAlone,
}

impl SegmentError {
    /// What is wrong.
    pub(crate) fn what(self) -> &'static str {
        match self {
            Self::Gap => "a segment list with a gap",
            Self::ResolveNotAlone => "a look-up beside other segments",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(ids: &[u64]) -> Option<SegmentList> {
        SegmentList::of(ids.iter().map(|id| NodeId::new(*id).unwrap()))
    }

    // promise: B9
    #[test]
    fn nodes_split_in_order() {
        let mut rest = nodes(&[3, 65_534, 5]).unwrap();
        assert_eq!((rest.len(), rest.is_empty()), (3, false));
        for id in [3, 65_534, 5] {
            let (first, behind) = rest.split_first().unwrap();
            assert_eq!(first, Segment::Node(NodeId::new(id).unwrap()));
            rest = behind;
        }
        assert_eq!(rest, SegmentList::EMPTY);
        assert_eq!(rest.split_first(), None);
    }

    // promise: B9
    #[test]
    fn list_is_bounded() {
        let full = nodes(&[1, 2, 3, 4, 5, 6, 7]).unwrap();
        assert_eq!(full.len(), SEGMENTS_MAX);
        assert_eq!(
            full.split_first().unwrap().1,
            nodes(&[2, 3, 4, 5, 6, 7]).unwrap()
        );
        assert_eq!(nodes(&[1, 2, 3, 4, 5, 6, 7, 8]), None);
    }

    // promise: B9
    #[test]
    fn invalid_lists_rejected() {
        let read = SegmentList::from_numbers;
        assert_eq!(read(&[4, 9, 0, 0]), Ok(nodes(&[4, 9]).unwrap()));
        assert_eq!(read(&[RESOLVE, 0]), Ok(SegmentList::RESOLVE));
        assert_eq!(read(&[0, 9]), Err(SegmentError::Gap));
        assert_eq!(read(&[4, 0, 9]), Err(SegmentError::Gap));
        assert_eq!(read(&[RESOLVE, 9]), Err(SegmentError::ResolveNotAlone));
        assert_eq!(read(&[4, RESOLVE]), Err(SegmentError::ResolveNotAlone));
        assert_eq!(read(&[1; 8]), Err(SegmentError::Gap));
    }
}
