// SPDX-License-Identifier: Apache-2.0
//! Arithmetic in GF(2^8), with the polynomial of RFC 5510 §8.1: x^8 + x^4 + x^3 + x^2 + 1.

const POLYNOMIAL: u16 = 0x11d;
/// The same without x^8.
const REDUCED: u8 = 0x1d;
/// Elements other than 0: the powers of 2.
const ORDER: usize = 255;

/// Powers of 2, twice in a row so that a sum of two logarithms is an index.
const POWERS: [u8; 2 * ORDER] = powers();
const LOGARITHMS: [u8; 256] = logarithms();

#[expect(clippy::cast_possible_truncation, reason = "it is below 256")]
const fn powers() -> [u8; 2 * ORDER] {
    let mut powers = [0; 2 * ORDER];
    let (mut element, mut at) = (1_u16, 0);
    while at < 2 * ORDER {
        powers[at] = element as u8;
        element <<= 1;
        if element > 255 {
            element ^= POLYNOMIAL;
        }
        at += 1;
    }
    powers
}

#[expect(clippy::cast_possible_truncation, reason = "it is below 255")]
const fn logarithms() -> [u8; 256] {
    let mut logarithms = [0; 256];
    let mut at = 0;
    while at < ORDER {
        logarithms[POWERS[at] as usize] = at as u8;
        at += 1;
    }
    logarithms
}

pub(super) fn multiply(one: u8, other: u8) -> u8 {
    if one == 0 || other == 0 {
        return 0;
    }
    let log = |element: u8| usize::from(LOGARITHMS[usize::from(element)]);
    POWERS[log(one) + log(other)]
}

/// 1 / `element`, which is not 0.
pub(super) fn inverse(element: u8) -> u8 {
    debug_assert_ne!(element, 0);
    POWERS[ORDER - usize::from(LOGARITHMS[usize::from(element)])]
}

/// Adds `factor` times `from` to `to`, byte by byte. Bit by bit and without a branch or a table, the compiler
/// makes vectors of it.
pub(super) fn add_product(to: &mut [u8], factor: u8, from: &[u8]) {
    let bits: [u8; 8] = std::array::from_fn(|bit| 0_u8.wrapping_sub(factor >> bit & 1));
    for (to, from) in to.iter_mut().zip(from) {
        let mut power = *from;
        for bit in bits {
            *to ^= power & bit;
            power = power << 1 ^ REDUCED & 0_u8.wrapping_sub(power >> 7);
        }
    }
}

/// Solves linear equations: row by row their factors, and beside them the sums, which become the
/// unknowns. Each of the latter is as long as a row of `sums`.
/// Returns whether there is one solution.
pub(super) fn solve(factors: &mut [Vec<u8>], sums: &mut [Vec<u8>]) -> bool {
    for pivot in 0..factors.len() {
        let Some(found) = (pivot..factors.len()).find(|row| factors[*row][pivot] != 0) else {
            return false;
        };
        factors.swap(pivot, found);
        sums.swap(pivot, found);
        let scale = inverse(factors[pivot][pivot]);
        scale_by(&mut factors[pivot], scale);
        scale_by(&mut sums[pivot], scale);
        let (row, sum) = (factors[pivot].clone(), sums[pivot].clone());
        for other in (0..factors.len()).filter(|other| *other != pivot) {
            let factor = factors[other][pivot];
            add_product(&mut factors[other], factor, &row);
            add_product(&mut sums[other], factor, &sum);
        }
    }
    true
}

fn scale_by(row: &mut [u8], factor: u8) {
    for element in row {
        *element = multiply(*element, factor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As polynomials, bit by bit.
    fn product(one: u8, other: u8) -> u8 {
        let mut product = 0_u16;
        for bit in 0..8 {
            if other >> bit & 1 == 1 {
                product ^= u16::from(one) << bit;
            }
        }
        for bit in (8..16).rev() {
            if product >> bit & 1 == 1 {
                product ^= POLYNOMIAL << (bit - 8);
            }
        }
        u8::try_from(product).unwrap()
    }

    #[test]
    fn products_are_those_of_polynomials() {
        for one in 0..=255 {
            for other in 0..=255 {
                assert_eq!(multiply(one, other), product(one, other));
            }
        }
    }

    #[test]
    fn products_of_many() {
        let from: Vec<u8> = (0..=255).collect();
        for factor in 0..=255 {
            let mut to = vec![7; 256];
            add_product(&mut to, factor, &from);
            let expected = from.iter().map(|element| 7 ^ product(factor, *element));
            assert!(to.into_iter().eq(expected));
        }
    }

    #[test]
    fn inverses_multiply_to_one() {
        for element in 1..=255 {
            assert_eq!(multiply(element, inverse(element)), 1);
        }
    }

    #[test]
    fn equations_are_solved() {
        // The first has no first unknown, so rows change places.
        let factors = vec![vec![0, 2, 3], vec![1, 1, 1], vec![7, 0, 9]];
        let unknowns: [[u8; 2]; 3] = [[10, 11], [20, 21], [30, 31]];
        let mut sums: Vec<Vec<u8>> = vec![vec![0; 2]; 3];
        for (sum, row) in sums.iter_mut().zip(&factors) {
            for (factor, unknown) in row.iter().zip(&unknowns) {
                add_product(sum, *factor, unknown);
            }
        }
        assert!(solve(&mut factors.clone(), &mut sums));
        assert_eq!(sums, unknowns);
    }

    #[test]
    fn dependent_equations_have_no_solution() {
        let mut factors = vec![vec![1, 2], vec![1, 2]];
        assert!(!solve(&mut factors, &mut [vec![1], vec![1]]));
    }
}
