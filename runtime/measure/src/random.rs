//! Random numbers for operands and for decisions of tests.

use std::time::SystemTime;

/// Returns a seed from the current time, so that every run has another seed.
pub fn seed_from_clock() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(0, |time| time.as_nanos() as u64)
}

/// The random number generator splitmix64. Seeds that differ little give different numbers.
pub struct Random(
    /// The seed, and after draws the state.
    pub u64,
);

impl Random {
    /// Returns the next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// Returns the next number, reduced to the range from 0 to `end` - 1.
    pub fn below(&mut self, end: u64) -> u64 {
        self.draw() % end
    }
}
