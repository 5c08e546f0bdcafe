//! Random experts for tokens, and the rows that they give.

use super::inputs::{Inputs, Random};
use super::other_batch::{Lines, last_half};
use mkernel::Operand;
use std::collections::{BTreeMap, BTreeSet};

/// The expert and the row index of a choice that a token does not have.
pub const NO_CHOICE: i32 = -1;

/// The sizes that determine the rows of tokens.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub world: usize,
    pub experts: usize,
    pub top_k: usize,
    pub max_tokens: usize,
    pub max_rows: usize,
}

impl Sizes {
    /// The number of experts of a rank.
    fn local(&self) -> usize {
        self.experts / self.world
    }
}

/// The tokens of a call and their experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenLoad {
    /// Any number of tokens, any distribution of experts, and tokens with fewer choices: for checks.
    Any,
    /// All tokens, and experts that are equally likely: for times.
    Full,
}

/// The distribution of experts in a call.
#[derive(Clone, Copy, Debug)]
enum RoutingPattern {
    /// All experts are equally likely.
    Even,
    /// The probability of expert e is proportional to 1/(e + 1).
    Zipf,
    /// All tokens have expert 0 and the last experts.
    Same,
    /// The experts of a token are on one rank, unless it has too few.
    Local,
}

/// Chooses experts for the tokens of every rank, and the number of tokens of every rank. No rank gets more than `max_rows` rows.
pub fn choose(sizes: Sizes, load: TokenLoad, seed: u64, call: u32) -> (Vec<Vec<i32>>, Vec<i32>) {
    let mut random = Random(seed ^ (u64::from(call) << 32) ^ 0x746f_6b65_6e73);
    let pattern = match (load, seed.wrapping_add(call.into()) % 4) {
        (TokenLoad::Full, _) | (TokenLoad::Any, 0) => RoutingPattern::Even,
        (TokenLoad::Any, 1) => RoutingPattern::Zipf,
        (TokenLoad::Any, 2) => RoutingPattern::Local,
        (TokenLoad::Any, _) => RoutingPattern::Same,
    };
    let counts: Vec<i32> = (0..sizes.world)
        .map(|_| match random.next() % 4 {
            _ if load == TokenLoad::Full => sizes.max_tokens as i32,
            0 => random.below(sizes.max_tokens + 1) as i32,
            1 if sizes.world > 1 => 0,
            _ => sizes.max_tokens as i32,
        })
        .collect();
    let ids: Vec<Vec<i32>> = (0..sizes.world)
        .map(|_| {
            (0..sizes.max_tokens)
                .flat_map(|_| {
                    let mut experts = token(sizes, pattern, &mut random);
                    if load == TokenLoad::Any {
                        take_away(&mut experts, &mut random);
                    }
                    experts
                })
                .collect()
        })
        .collect();
    let counts = within_max_rows(sizes, &ids, &counts);
    (ids, counts)
}

/// The numbers of tokens, at most `counts`, with which no rank gets more than `max_rows` rows. The tokens of a rank end
/// before the first one that does not fit.
pub fn within_max_rows(sizes: Sizes, ids: &[Vec<i32>], counts: &[i32]) -> Vec<i32> {
    let mut rows = vec![0; sizes.world];
    let mut fitting = vec![0; sizes.world];
    for token in 0..sizes.max_tokens as i32 {
        for (source, ids) in ids.iter().enumerate() {
            // An earlier token of this rank did not fit, or the rank has no more tokens.
            if fitting[source] != token || token >= counts[source] {
                continue;
            }
            let mut with_token = rows.clone();
            let experts = &ids[token as usize * sizes.top_k..][..sizes.top_k];
            for expert in experts.iter().filter(|id| **id != NO_CHOICE) {
                with_token[*expert as usize / sizes.local()] += 1;
            }
            if with_token.iter().all(|rows| *rows <= sizes.max_rows) {
                (rows, fitting[source]) = (with_token, token + 1);
            }
        }
    }
    fitting
}

/// Makes the weight of each choice that a token does not have NaN. `choices` are expert ids or row indices.
pub fn forget_weights(inputs: &mut Inputs, choices: &[Vec<i32>]) {
    let weights = inputs.floats.iter_mut();
    let weights = weights.filter(|(operand, _)| *operand == Operand::TopkWeights);
    for (weights, choices) in weights.flat_map(|(_, ranks)| ranks.iter_mut().zip(choices)) {
        let choices = weights.iter_mut().zip(choices);
        for (weight, _) in choices.filter(|(_, choice)| **choice == NO_CHOICE) {
            *weight = f32::NAN;
        }
    }
}

/// Chooses the experts of one token.
fn token(sizes: Sizes, pattern: RoutingPattern, random: &mut Random) -> Vec<i32> {
    let mut chosen: Vec<usize> = Vec::with_capacity(sizes.top_k);
    let rank = random.below(sizes.world);
    while chosen.len() < sizes.top_k {
        let expert = match pattern {
            RoutingPattern::Even => random.below(sizes.experts),
            RoutingPattern::Zipf => {
                let most = (sizes.experts as f64 + 1.0).ln();
                let x = (random.next() >> 11) as f64 / (1u64 << 53) as f64;
                ((x * most).exp() as usize - 1).min(sizes.experts - 1)
            }
            RoutingPattern::Same if chosen.is_empty() => 0,
            RoutingPattern::Same => sizes.experts - chosen.len(),
            RoutingPattern::Local if chosen.len() < sizes.local() => {
                rank * sizes.local() + random.below(sizes.local())
            }
            RoutingPattern::Local => random.below(sizes.experts),
        };
        if !chosen.contains(&expert) {
            chosen.push(expert);
        }
    }
    let first = random.below(sizes.top_k);
    chosen.rotate_left(first);
    chosen.into_iter().map(|expert| expert as i32).collect()
}

/// Takes away all choices of some tokens, and some choices of others.
fn take_away(experts: &mut [i32], random: &mut Random) {
    let one_in = match random.below(16) {
        0 => 1,
        1..4 => 2,
        _ => return,
    };
    for expert in experts {
        if random.below(one_in) == 0 {
            *expert = NO_CHOICE;
        }
    }
}

/// The assignment of tokens to rows.
pub struct Routing {
    /// For each rank and each of its experts, the source rank and the token of each row.
    pub rows: Vec<Vec<Vec<(usize, usize)>>>,
    /// For each rank, the row index of each entry of its tokens, or [`NO_CHOICE`].
    pub row_indices: Vec<Vec<i32>>,
}

impl Routing {
    /// Orders rows by expert, then by source rank and token.
    pub fn new(sizes: Sizes, ids: &[Vec<i32>], counts: &[i32]) -> Self {
        let local = sizes.local();
        let mut rows = vec![vec![Vec::new(); local]; sizes.world];
        for (source, (ids, count)) in ids.iter().zip(counts).enumerate() {
            for (token, entries) in ids.chunks(sizes.top_k).enumerate().take(*count as usize) {
                let experts = entries.iter().filter(|id| **id != NO_CHOICE);
                for expert in experts.map(|id| *id as usize) {
                    rows[expert / local][expert % local].push((source, token));
                }
            }
        }
        let row_index = |source: usize, token: usize, expert: usize| {
            let of_rank: &Vec<Vec<_>> = &rows[expert / local];
            let before: usize = of_rank[..expert % local].iter().map(Vec::len).sum();
            let within = of_rank[expert % local].binary_search(&(source, token));
            (expert / local * sizes.max_rows + before + within.unwrap_or(0)) as i32
        };
        let row_indices = (0..sizes.world)
            .map(|source| {
                let there = ids[source]
                    .iter()
                    .take(counts[source] as usize * sizes.top_k);
                there
                    .enumerate()
                    .map(|(i, id)| match *id {
                        NO_CHOICE => NO_CHOICE,
                        id => row_index(source, i / sizes.top_k, id as usize),
                    })
                    .collect()
            })
            .collect();
        Self { rows, row_indices }
    }

    /// The expert offsets of `rank`.
    pub fn offsets(&self, rank: usize) -> Vec<i32> {
        let mut end = 0;
        let ends = self.rows[rank].iter().map(|rows| {
            end += rows.len() as i32;
            end
        });
        [0].into_iter().chain(ends).collect()
    }
}

/// The tokens of another batch: of each rank, the last half of its tokens of the first call, in reverse order.
pub struct OtherTokens(pub Vec<Vec<usize>>);

impl OtherTokens {
    pub fn of(first: &Inputs) -> Self {
        let counts = first.numbers(Operand::NumTokens).iter();
        Self(counts.map(|count| last_half(count[0] as usize)).collect())
    }

    /// The largest number of tokens of a rank, or 1 if no rank has tokens.
    pub fn most(&self) -> usize {
        self.0.iter().map(Vec::len).fold(1, usize::max)
    }

    /// The numbers of tokens.
    pub fn counts(&self) -> (Operand, Vec<Vec<i32>>) {
        let counts = self.0.iter().map(|tokens| vec![tokens.len() as i32]);
        (Operand::NumTokens, counts.collect())
    }

    /// The lines of an operand that has a line of `cols` elements for each token.
    pub fn lines(&self, cols: usize) -> Lines {
        let of_rank = |(rank, tokens): (usize, &Vec<usize>)| {
            let pairs = tokens.iter().enumerate();
            pairs
                .map(|(to, from)| [(rank, to), (rank, *from)])
                .collect::<Vec<_>>()
        };
        Lines {
            cols,
            places: self.0.iter().enumerate().flat_map(of_rank).collect(),
        }
    }

    /// The elements of an int32 operand with `top_k` elements for each token.
    pub fn choices(&self, first: &[Vec<i32>], top_k: usize) -> Vec<Vec<i32>> {
        let sizes = first.iter().map(|_| self.most() * top_k);
        self.lines(top_k).copied(first, sizes)
    }
}

/// The rows of some tokens in another batch. Every rank has these rows in the order of the first call, without the other rows between
/// them.
pub struct KeptRows {
    /// The row indices of the other batch.
    pub row_indices: Vec<Vec<i32>>,
    /// The place of each row in the other batch, and its place in the first call: the rank and the row.
    pub places: Vec<[(usize, usize); 2]>,
}

impl KeptRows {
    /// Renames the rows of `tokens`. `sizes` are the sizes of the first call and of the other batch.
    pub fn of(tokens: &OtherTokens, first: &Inputs, [before, after]: [Sizes; 2]) -> Self {
        let mut row_indices = tokens.choices(first.numbers(Operand::RowIndices), before.top_k);
        let of_tokens = row_indices.iter().zip(&tokens.0);
        let kept: BTreeSet<i32> = of_tokens
            .flat_map(|(indices, tokens)| &indices[..tokens.len() * before.top_k])
            .copied()
            .filter(|index| *index != NO_CHOICE)
            .collect();
        let (mut ends, mut renamed) = (vec![0; before.world], BTreeMap::new());
        let mut places = Vec::new();
        for index in kept {
            let index_of = index as usize;
            let from = (index_of / before.max_rows, index_of % before.max_rows);
            let to = (from.0, ends[from.0]);
            ends[to.0] += 1;
            renamed.insert(index, (to.0 * after.max_rows + to.1) as i32);
            places.push([to, from]);
        }
        for index in row_indices.iter_mut().flatten() {
            *index = renamed.get(index).copied().unwrap_or(*index);
        }
        Self {
            row_indices,
            places,
        }
    }

    /// The expert offsets of the other batch. `first` are the offsets of the first call.
    pub fn expert_offsets(&self, first: &[Vec<i32>]) -> Vec<Vec<i32>> {
        let of_rank = |(rank, offsets): (usize, &Vec<i32>)| {
            let before = |offset: &i32| {
                let rows = self.places.iter().map(|[_, from]| from);
                rows.filter(|from| from.0 == rank && (from.1 as i32) < *offset)
                    .count() as i32
            };
            offsets.iter().map(before).collect()
        };
        first.iter().enumerate().map(of_rank).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: Sizes = Sizes {
        world: 2,
        experts: 4,
        top_k: 2,
        max_tokens: 3,
        max_rows: 100,
    };

    #[test]
    fn rows_of_an_expert_are_in_the_order_of_source_and_token() {
        let ids = [vec![3, 0, 0, 1, 2, 3], vec![0, 2, 1, 0, 3, 3]];
        let routing = Routing::new(SIZES, &ids, &[3, 2]);
        assert_eq!(routing.offsets(0), [0, 4, 6]);
        assert_eq!(routing.offsets(1), [0, 2, 4]);
        assert_eq!(routing.row_indices[0], [102, 0, 1, 4, 100, 103]);
        assert_eq!(routing.row_indices[1], [2, 101, 5, 3]);
    }

    #[test]
    fn no_rank_gets_more_rows_than_it_has_room_for() {
        let mut is_bounded = false;
        for seed in 0..40 {
            for max_rows in [0, 1, 5, 100] {
                let sizes = Sizes { max_rows, ..SIZES };
                let (ids, counts) = choose(sizes, TokenLoad::Any, seed, 0);
                let routing = Routing::new(sizes, &ids, &counts);
                for rank in 0..2 {
                    let rows = routing.offsets(rank)[2] as usize;
                    assert!(rows <= max_rows, "{rows} of {max_rows}");
                    is_bounded |= rows == max_rows && max_rows == 5;
                }
                let all = choose(SIZES, TokenLoad::Any, seed, 0).1;
                assert!(counts.iter().zip(&all).all(|(count, all)| count <= all));
                assert!(max_rows < 100 || counts == all, "all of them fit");
            }
        }
        assert!(is_bounded, "tokens that fit are kept");
    }

    #[test]
    fn the_experts_of_a_token_differ() {
        for seed in 0..40 {
            let (ids, counts) = choose(SIZES, TokenLoad::Any, seed, 1);
            assert_eq!((ids.len(), counts.len()), (2, 2));
            for token in ids.iter().flat_map(|ids| ids.chunks(2)) {
                assert!(token[0] != token[1] || token[0] == NO_CHOICE);
                assert!(token.iter().all(|id| (NO_CHOICE..4).contains(id)));
            }
        }
    }

    #[test]
    fn a_full_load_has_all_tokens_and_all_choices() {
        for seed in 0..8 {
            let (ids, counts) = choose(SIZES, TokenLoad::Full, seed, 0);
            assert_eq!(counts, [SIZES.max_tokens as i32; 2]);
            assert!(ids.iter().flatten().all(|id| (0..4).contains(id)));
        }
    }

    #[test]
    fn a_choice_that_a_token_does_not_have_makes_no_row() {
        let ids = [vec![3, -1, -1, -1, 2, 3], vec![-1, 2, 1, 0, 3, 3]];
        let routing = Routing::new(SIZES, &ids, &[3, 2]);
        assert_eq!(routing.offsets(0), [0, 1, 2]);
        assert_eq!(routing.offsets(1), [0, 2, 4]);
        assert_eq!(routing.row_indices[0], [102, -1, -1, -1, 100, 103]);
        assert_eq!(routing.row_indices[1], [-1, 101, 1, 0]);
    }

    #[test]
    fn some_tokens_have_fewer_choices_and_some_have_none() {
        let (mut some, mut none) = (0, 0);
        for seed in 0..40 {
            let (ids, _) = choose(SIZES, TokenLoad::Any, seed, 1);
            for token in ids.iter().flat_map(|ids| ids.chunks(2)) {
                let missing = token.iter().filter(|id| **id == NO_CHOICE).count();
                some += usize::from(missing == 1);
                none += usize::from(missing == 2);
            }
        }
        assert!(some > 5 && none > 5, "{some}, {none}");
    }
}
