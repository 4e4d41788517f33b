// SPDX-License-Identifier: Apache-2.0
//! Lists whose members are found by their numbers.

use std::ops::{Deref, DerefMut};

/// Something with a number of its own.
pub trait Numbering {
    /// The number. It stays while the thing is in a list.
    fn number(&self) -> u64;
}

/// A list, in the order that it was made in, of which a member is found by its number without a
/// search through all. Of members with the same number the first is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexById<T> {
    all: Vec<T>,
    /// Numbers and their places, in order.
    places: Box<[(u64, usize)]>,
}

impl<T> IndexById<T> {
    /// Where in the list the member of this number is.
    pub fn place(&self, number: u64) -> Option<usize> {
        let at = self.places.partition_point(|(known, _)| *known < number);
        let (known, place) = *self.places.get(at)?;
        (known == number).then_some(place)
    }
}

impl<T: Numbering> From<Vec<T>> for IndexById<T> {
    fn from(all: Vec<T>) -> Self {
        let places = all.iter().enumerate();
        let mut places: Box<[_]> = places.map(|(place, one)| (one.number(), place)).collect();
        places.sort_unstable();
        Self { all, places }
    }
}

impl<T: Numbering> FromIterator<T> for IndexById<T> {
    fn from_iter<I: IntoIterator<Item = T>>(all: I) -> Self {
        all.into_iter().collect::<Vec<_>>().into()
    }
}

impl<T> Default for IndexById<T> {
    fn default() -> Self {
        Self {
            all: Vec::new(),
            places: Box::default(),
        }
    }
}

impl<T> Deref for IndexById<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.all
    }
}

/// Whatever is changed, numbers are not.
impl<T> DerefMut for IndexById<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Numbering for (u64, char) {
        fn number(&self) -> u64 {
            self.0
        }
    }

    #[test]
    fn first_member_per_number() {
        let list = IndexById::from(vec![(7, 'a'), (3, 'b'), (7, 'c'), (u64::MAX, 'd')]);
        let found = |number| list.place(number).map(|place| list[place].1);
        assert_eq!(found(7), Some('a'));
        assert_eq!(found(3), Some('b'));
        assert_eq!(found(u64::MAX), Some('d'));
        assert_eq!((found(0), found(5), found(8)), (None, None, None));
        assert_eq!(IndexById::<(u64, char)>::default().place(0), None);
    }
}
