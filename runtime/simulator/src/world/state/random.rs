//! [`Random`]: the generator that decides every choice of the simulator.

/// A SplitMix64 generator, also for tests. Equal seeds give equal runs on every machine and in every version.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// Returns the next 64 random bits.
    #[inline]
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `end`. `end` must not be 0.
    #[inline]
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// Returns true with a probability of `percent`.
    #[inline]
    pub fn chance(&mut self, percent: u32) -> bool {
        self.below(100) < percent as usize
    }
}
