//! Calls of a layer of experts: the numbers of tokens of ranks, and the experts that tokens choose.

use super::layer::{Layer, NO_CHOICE};

impl Layer {
    /// Adds three calls with these numbers of tokens by rank. With three calls, the buffer of the first call is used
    /// again.
    #[must_use]
    pub fn mixed(self, counts: [&[usize]; 3]) -> Self {
        let (experts, top_k) = (self.experts as usize, self.top_k as usize);
        counts
            .into_iter()
            .enumerate()
            .fold(self, |layer, (salt, counts)| {
                layer.call(counts, |rank, token| {
                    let first = (rank * 5 + token * 3 + salt) % experts;
                    (0..top_k)
                        .map(|j| ((first + j * (1 + token % 2)) % experts) as i32)
                        .collect()
                })
            })
    }

    /// Adds six calls, and sets the call count to `call_count` after the second call.
    ///
    /// The first calls have few tokens, and later calls have the most tokens. The first call with the most tokens reads
    /// words that no call has written. Its number is chosen so that a kernel would take 0 for the mark of a call that
    /// it awaits, if it compared marks by a window or took 0 for a mark.
    #[must_use]
    pub fn with_call_count(mut self, call_count: u32) -> Self {
        self.call_count = Some(call_count);
        let (experts, top_k) = (self.experts as usize, self.top_k as usize);
        let (most, world) = (self.max_tokens as usize, self.world as usize);
        let first_of_all = if call_count < 1 << 31 { 4 } else { 3 };
        (0..6).fold(self, |layer, salt| {
            let few = [1 + salt % 2, salt % 3];
            let count = |rank: usize| {
                if salt < first_of_all {
                    few[rank % 2].min(most)
                } else {
                    most
                }
            };
            let counts: Vec<usize> = (0..world).map(count).collect();
            layer.call(&counts, |rank, token| {
                let first = (rank * 5 + token * 3 + salt) % experts;
                (0..top_k)
                    .map(|j| ((first + j * (1 + token % 2)) % experts) as i32)
                    .collect()
            })
        })
    }

    /// Adds a call with random experts. If `skewed`, the frequency of expert e is proportional to 1 / (e + 1).
    #[must_use]
    pub fn random(self, counts: &[usize], skewed: bool) -> Self {
        let (experts, top_k) = (self.experts, self.top_k as usize);
        let salt = self.calls.len();
        self.call(counts, |rank, token| {
            let mut state = (salt << 40 | rank << 32 | token) as u64;
            let mut chosen = Vec::with_capacity(top_k);
            while chosen.len() < top_k {
                let x = fraction(&mut state);
                let expert = match skewed {
                    true => (experts as f64 + 1.0).powf(x) as u64 - 1,
                    false => (x * experts as f64) as u64,
                };
                let expert = expert.min(experts - 1) as i32;
                if !chosen.contains(&expert) {
                    chosen.push(expert);
                }
            }
            chosen
        })
    }

    /// Takes away about a third of the choices of all calls, all choices of every fourth token, and in every second call
    /// all choices of one rank. Their ids become -1.
    #[must_use]
    pub fn padded(mut self) -> Self {
        let world = self.world as usize;
        for (index, call) in self.calls.iter_mut().enumerate() {
            for (rank, tokens) in call.iter_mut().enumerate() {
                let has_none = index % 2 == 1 && rank == index / 2 % world;
                for (token, ids) in tokens.iter_mut().enumerate() {
                    let mut state = (index << 40 | rank << 32 | token) as u64;
                    for id in ids {
                        if has_none || token % 4 == 3 || fraction(&mut state) < 1.0 / 3.0 {
                            *id = NO_CHOICE;
                        }
                    }
                }
            }
        }
        self
    }
}

/// Returns a random number between 0 and 1, by splitmix64.
pub(super) fn fraction(state: &mut u64) -> f64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut x = *state;
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((x ^ (x >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}
