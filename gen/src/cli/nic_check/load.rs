//! [`Load`]: the sizes, the slots and the contents of puts, which sender and receiver derive from a seed.

/// The puts to a peer that are in flight at once, each with a slot of its own.
pub const SLOTS: u32 = 4;

/// The puts that every rank makes to each of its peers.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub puts: u32,
    /// The length of the longest put, a multiple of 8.
    pub most_bytes: u32,
    pub seed: u64,
}

impl Load {
    /// The words of a slot: those of the longest put, and one that must not change.
    pub fn slot_words(&self) -> usize {
        (self.most_bytes / 8) as usize + 1
    }

    /// The bytes that source and target need for this number of peers.
    pub fn region_bytes(&self, peers: usize) -> u64 {
        (self.slot_words() * SLOTS as usize * peers.max(1) * 8) as u64
    }

    pub fn slot(&self, peer: u32, put: u32) -> usize {
        (peer * SLOTS + put % SLOTS) as usize * self.slot_words()
    }

    pub fn seed(&self, from: u32, to: u32, put: u32) -> u64 {
        let of_put = u64::from(from) << 48 | u64::from(to) << 32 | u64::from(put);
        mix(self.seed ^ of_put)
    }

    /// The words of a put. Each power of two is about as likely as every other.
    pub fn words(&self, seed: u64) -> usize {
        let most = u64::from(self.most_bytes / 8);
        let scale = seed % (u64::from(most.ilog2()) + 1);
        let words = 1 + mix(seed) % (1 << (scale + 1));
        words.min(most) as usize
    }
}

/// Mixes the bits of a number, as SplitMix64 does.
fn mix(number: u64) -> u64 {
    let z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_cover_all_scales_up_to_the_limit() {
        let load = Load {
            puts: 1,
            most_bytes: 4096,
            seed: 3,
        };
        let sizes: Vec<_> = (0..4000)
            .map(|put| load.words(load.seed(0, 1, put)))
            .collect();
        assert_eq!(sizes.iter().max(), Some(&512));
        assert_eq!(sizes.iter().min(), Some(&1));
        for scale in 0..9 {
            let range = 1 << scale..2 << scale;
            assert!(sizes.iter().any(|size| range.contains(size)), "{range:?}");
        }
        let least = Load {
            most_bytes: 8,
            ..load
        };
        assert_eq!(least.words(least.seed(0, 1, 2)), 1);
    }
}
