//! [`Random`]: the generator of the elements of operands.

/// A linear congruential generator. The seed is usually the number of a call.
pub struct Random(pub u64);

impl Random {
    /// Returns 24 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 40
    }

    /// Returns a number between -1 and 1.
    pub fn next(&mut self) -> f32 {
        self.bits() as f32 / (1 << 23) as f32 - 1.0
    }
}
