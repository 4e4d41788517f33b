// SPDX-License-Identifier: Apache-2.0
//! Places on earth and the delays between them. Pure.

use std::f64::consts::TAU;

use crate::rng::Rng;

/// Radius of the earth, and the distance that light in fibre covers in a millisecond.
const RADIUS_KM: f64 = 6371.0;
const KM_PER_MS: f64 = 200.0;

/// A place on earth, in degrees.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Place {
    pub(crate) longitude: f64,
    pub(crate) latitude: f64,
}

impl Place {
    /// Random places, uniform over the area of the sphere.
    pub(crate) fn random(count: usize, seed: u64) -> Vec<Self> {
        let mut random = Rng::new(seed);
        let place = |_| Self {
            longitude: random.uniform() * 360.0 - 180.0,
            latitude: (random.uniform() * 2.0 - 1.0).asin().to_degrees(),
        };
        (0..count).map(place).collect()
    }
}

/// Round-trip times in fibre along great circles, in milliseconds. With detours each is multiplied
/// by 1.2 plus half the absolute value of a normal number, and 0.3 ms longer.
pub(crate) fn distances(places: &[Place], detours: bool, seed: u64) -> Vec<Vec<f64>> {
    let nodes = places.len();
    let mut rtts_ms = vec![vec![0.0; nodes]; nodes];
    let mut random = Rng::new(seed);
    for one in 0..nodes {
        for other in 0..one {
            let mut rtt_ms = 2.0 * great_circle_km(places[one], places[other]) / KM_PER_MS;
            if detours {
                // Box-Muller transform.
                let radius = (-2.0 * (1.0 - random.uniform()).ln()).sqrt();
                let normal = radius * (TAU * random.uniform()).cos();
                rtt_ms = rtt_ms * (1.2 + 0.5 * normal.abs()) + 0.3;
            }
            // Symmetric, as a round trip takes both directions.
            rtts_ms[one][other] = rtt_ms;
            rtts_ms[other][one] = rtt_ms;
        }
    }
    rtts_ms
}

fn great_circle_km(one: Place, other: Place) -> f64 {
    let half_sine = |degrees: f64| (degrees.to_radians() / 2.0).sin();
    let flat = half_sine(other.latitude - one.latitude).powi(2)
        + one.latitude.to_radians().cos()
            * other.latitude.to_radians().cos()
            * half_sine(other.longitude - one.longitude).powi(2);
    // Rounding may carry the sine of antipodes beyond 1.
    2.0 * RADIUS_KM * flat.sqrt().min(1.0).asin()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_slower_than_light() {
        let place = |longitude, latitude| Place {
            longitude,
            latitude,
        };
        let places = [
            place(0.0, 0.0),
            place(90.0, 0.0),
            place(0.0, 90.0),
            place(45.0, 0.0),
        ];
        let (straight, detours) = (distances(&places, false, 1), distances(&places, true, 1));
        for (straight, detours) in straight.iter().flatten().zip(detours.iter().flatten()) {
            assert!(*straight == 0.0 && *detours <= 0.3 || *detours >= straight * 1.2 + 0.3);
        }
        let quarter = great_circle_km(places[0], places[1]);
        assert!((quarter - 10_007.5).abs() < 1.0, "{quarter}");
    }
}
