//! Tests of `gemm_combine`: layers of `dispatch_gemm` and `gemm_combine` with exactly known results, and invalid operands.

use crate::layers::check;
use mkernel::half::bf16;
use mkernel::spec::{DispatchConfig, DispatchOp, DispatchShape, Dtype, Scales};
use mkernel::{Error, KernelConfig, Operand};
use mkernel_testing::jobs::attention::CallPattern;
use mkernel_testing::jobs::experts::Layer;
use mkernel_testing::jobs::prepared::{Prepared, on_ranks};
use mkernel_testing::jobs::{WRAPPING_CALL_COUNTS, share};
use std::sync::Mutex;

/// Returns a layer with several stages and several column tiles in both products.
fn layer(world: u32, experts: u64, top_k: u64, max_tokens: u64) -> Layer {
    let mut layer = Layer::new(world, experts, top_k, max_tokens);
    (layer.swiglu, layer.tile) = (true, Some((64, 256)));
    (layer.hidden, layer.intermediate) = (456, 200);
    layer
}

#[test]
fn rows_return_to_their_tokens_in_every_world() {
    let one = layer(1, 7, 3, 40).mixed([&[40], &[0], &[33]]);
    let two = layer(2, 10, 4, 20).mixed([&[20, 20], &[20, 3], &[0, 20]]);
    let four = layer(4, 12, 3, 12).mixed([&[12, 0, 5, 12], &[0, 0, 12, 1], &[12; 4]]);
    let eight = layer(8, 16, 2, 4).mixed([&[4; 8], &[0, 1, 2, 3, 4, 0, 0, 1], &[4; 8]]);
    for layer in share(vec![one, two, four, eight], "", (0, 4)) {
        check(&format!("{} ranks", layer.world), &layer.apart(), 2);
    }
}

/// The hidden rows, the results and the order of sums are those of `moe_layer`.
#[test]
fn both_operators_have_the_bits_of_one() {
    for scales in share(vec![Scales::None, Scales::Block], "", (0, 2)) {
        let mut layer = layer(2, 6, 3, 24);
        if scales != Scales::None {
            layer = layer.scaled(scales);
            (layer.hidden, layer.intermediate, layer.tile) = (464, 256, None);
        }
        let mut whole = layer.clone().whole();
        whole.tile = layer.tile;
        let counts: [&[usize]; 3] = [&[24, 5], &[3, 24], &[24, 24]];
        let [apart, whole] = [layer.apart(), whole].map(|of| of.mixed(counts).run_ranks(0));
        assert_eq!(apart, whole, "{scales}");
        assert!(apart.iter().all(Result::is_ok), "{apart:?}");
    }
}

#[test]
fn every_tile_layout_and_type_is_right() {
    let kernels = vec![
        ((128, 256), true, Dtype::Bf16),
        ((128, 128), false, Dtype::Fp16),
        ((64, 256), false, Dtype::Bf16),
    ];
    for (tile, nk, dtype) in share(kernels, "", (1, 3)) {
        let mut layer = layer(2, 4, 2, 70).apart();
        (layer.tile, layer.nk, layer.dtype) = (Some(tile), nk, dtype);
        let layer = layer.mixed([&[70, 70], &[1, 70], &[70, 0]]);
        check(&format!("{tile:?}, nk {nk}, {dtype}"), &layer, 1);
    }
}

#[test]
fn rows_of_e4m3_are_right() {
    for (world, intermediate) in share(vec![(1, 128), (2, 384), (4, 128)], "", (0, 3)) {
        let mut layer = layer(world, 8, 3, 24).scaled(Scales::Block).apart();
        (layer.hidden, layer.intermediate, layer.tile) = (464, intermediate, None);
        let counts = [[24, 5, 6, 0], [3, 24, 24, 5], [5, 1, 24, 24]];
        let counts = counts.each_ref().map(|counts| &counts[..world as usize]);
        let mut layer = layer.mixed(counts).padded();
        for pattern in [CallPattern::BackToBack, CallPattern::Graph] {
            layer.pattern = pattern;
            check(&format!("{world} ranks, {pattern:?}"), &layer, 1);
        }
    }
}

#[test]
fn any_number_of_ctas_is_right() {
    for sms in share(vec![1, 2, 9], "", (0, 3)) {
        let mut layer = layer(2, 4, 2, 30).apart();
        layer.sms = sms;
        let layer = layer.mixed([&[30, 30], &[0, 0], &[30, 7]]);
        check(&format!("{sms} SMs"), &layer, 1);
    }
}

#[test]
fn uneven_experts_and_absent_choices_are_right() {
    let one_pair = layer(4, 8, 2, 20).call(&[20; 4], |_, _| vec![5, 4]);
    let one_pair = one_pair.call(&[0; 4], |_, _| vec![0, 1]);
    let skewed = layer(2, 16, 4, 24).random(&[24, 24], true);
    let padded = layer(2, 26, 9, 12).mixed([&[12, 5], &[5, 12], &[12, 1]]);
    let none = layer(2, 6, 2, 12).call(&[12, 5], |_, _| vec![-1, -1]);
    let layers = vec![
        ("one pair", one_pair),
        ("skewed", skewed),
        ("padded", padded.padded()),
        ("no choices", none),
    ];
    for (name, layer) in share(layers, "", (0, 4)) {
        check(name, &layer.apart(), 1);
    }
}

#[test]
fn calls_out_of_step_and_in_graphs_are_right() {
    // All calls have the same kernels.
    for pattern in [CallPattern::OutOfStep, CallPattern::Graph] {
        let mut layer = layer(2, 6, 2, 16).apart();
        (layer.pattern, layer.skew) = (pattern, 100);
        let layer = layer.mixed([&[16, 16], &[0, 5], &[16, 1]]);
        check(&format!("{pattern:?}"), &layer, 1);
    }
    for calls in WRAPPING_CALL_COUNTS {
        let layer = layer(2, 6, 2, 16).apart().with_call_count(calls);
        check(&format!("{calls} calls"), &layer, 1);
    }
}

const COLS: usize = 64;
const MAX_TOKENS: usize = 3;
const MAX_ROWS: i32 = 12;

/// The int32 operands of a call on one rank.
#[derive(Clone, Debug)]
struct Numbers {
    offsets: Vec<i32>,
    tokens: i32,
    indices: Vec<i32>,
}

impl Numbers {
    /// Token t has rows of experts t mod 2 of both ranks. An expert has the rows of rank 0 first.
    fn valid(rank: i32) -> Self {
        let row = |token: i32| match token {
            1 => 4 + rank,
            token => 2 * rank + token / 2,
        };
        Self {
            offsets: vec![0, 4, 6],
            tokens: MAX_TOKENS as i32,
            indices: (0..MAX_TOKENS as i32)
                .flat_map(|token| [row(token), MAX_ROWS + row(token)])
                .collect(),
        }
    }

    /// The sum of a token: a row of rank r is 1 + row + 10 r, and the weights are 1 and 2.
    fn sum(&self, token: usize) -> f32 {
        let value = |index: i32| (1 + index % MAX_ROWS + index / MAX_ROWS * 10) as f32;
        value(self.indices[2 * token]) + 2.0 * value(self.indices[2 * token + 1])
    }
}

fn config() -> (KernelConfig, DispatchShape) {
    let shape = DispatchShape {
        experts: 4,
        top_k: 2,
        max_tokens: MAX_TOKENS as u64,
        hidden: COLS as u64,
        intermediate: COLS as u64,
    };
    let config = DispatchConfig {
        op: DispatchOp::GemmCombine,
        swiglu: false,
        ..crate::layer_of(shape)
    };
    (KernelConfig::new(2, config), shape)
}

/// Makes a call, and returns the first column of C. All columns of C must be equal.
fn call(prepared: &Prepared<'_>, numbers: &Numbers) -> Result<Vec<f32>, Error> {
    let (stream, rank) = (&prepared.stream, prepared.ranks.rank() as usize);
    let a = (0..MAX_ROWS as usize * COLS).map(|i| match i % COLS {
        0 => bf16::from_f32((1 + i / COLS + 10 * rank) as f32),
        _ => bf16::ZERO,
    });
    let upload = "memory";
    let a = stream.clone_htod(&a.collect::<Vec<_>>()).expect(upload);
    let b = stream.clone_htod(&vec![bf16::ONE; 2 * COLS * COLS]);
    let b = b.expect(upload);
    let [offsets, tokens, indices] = [&numbers.offsets, &vec![numbers.tokens], &numbers.indices]
        .map(|values| stream.clone_htod(values).expect(upload));
    let weights = stream.clone_htod(&[1f32, 2.0].repeat(MAX_TOKENS));
    let weights = weights.expect(upload);
    let c = stream.clone_htod(&vec![bf16::NEG_ONE; MAX_TOKENS * COLS]);
    let mut c = c.expect(upload);
    let call = prepared.operator.call(stream);
    let call = call.read(Operand::A, &a).read(Operand::B, &b);
    let call = call.read(Operand::ExpertOffsets, &offsets);
    let call = call.read(Operand::NumTokens, &tokens);
    let call = call.read(Operand::RowIndices, &indices);
    let call = call.read(Operand::TopkWeights, &weights);
    call.write(Operand::C, &mut c).launch()?;
    prepared.ranks.synchronize(stream)?;
    let found = stream.clone_dtoh(&c).expect("results");
    let rows = found.chunks(COLS).map(|row| {
        assert!(row.iter().all(|x| *x == row[0]), "{row:?}");
        row[0].to_f32()
    });
    Ok(rows.collect())
}

/// Makes a call with the mistake, whose errors by rank it returns, and, unless the mistake ends all calls, a valid call.
fn errors(ends_all: bool, mistake: impl Fn(usize, &mut Numbers) + Sync) -> [Option<String>; 2] {
    let (config, shape) = config();
    let errors = Mutex::new([None, None]);
    let outcomes = on_ranks(&config, shape, (3, 1), |prepared| {
        let rank = prepared.ranks.rank() as usize;
        let valid = Numbers::valid(rank as i32);
        let mut wrong = valid.clone();
        mistake(rank, &mut wrong);
        if let Err(error) = call(prepared, &wrong) {
            errors.lock().expect("a rank panicked")[rank] = Some(error.to_string());
        }
        prepared.ranks.barrier()?;
        if !ends_all {
            let expected: Vec<f32> = (0..MAX_TOKENS).map(|token| valid.sum(token)).collect();
            assert_eq!(call(prepared, &valid)?, expected);
        }
        Ok(())
    });
    assert!(
        ends_all || outcomes.iter().all(Result::is_ok),
        "{outcomes:?}"
    );
    errors.into_inner().expect("a rank panicked")
}

fn assert_parts(error: &Option<String>, parts: &[&str]) {
    let error = error.as_deref().expect("an error");
    for part in parts {
        assert!(error.contains(part), "{part:?} in {error:?}");
    }
}

#[test]
fn an_invalid_row_index_is_an_error_of_its_rank() {
    for (index, parts) in [
        (
            2 * MAX_ROWS,
            ["choice 1 of token 2", "row index 24", "24 rows"],
        ),
        (-2, ["choice 1 of token 2", "row index -2", "24 rows"]),
        (
            MAX_ROWS + 7,
            ["choice 1 of token 2", "row index 19", "6 rows"],
        ),
    ] {
        let [of_0, of_1] = errors(false, |rank, numbers| {
            if rank == 1 {
                numbers.indices[5] = index;
            }
        });
        assert_eq!(of_0, None);
        assert_parts(&of_1, &parts);
        assert_parts(&of_1, &["rank 1, call 1"]);
    }
}

#[test]
fn invalid_expert_offsets_are_an_error_of_ranks_that_need_the_rows() {
    for (offsets, part) in [
        ([1, 4, 6], "offset 0 of `expert_offsets` is 1, but 0 to 0"),
        ([0, 7, 6], "offset 2 of `expert_offsets` is 6, but 7 to 12"),
        (
            [0, 4, 13],
            "offset 2 of `expert_offsets` is 13, but 4 to 12",
        ),
        (
            [0, -4, 6],
            "offset 1 of `expert_offsets` is -4, but 0 to 12",
        ),
    ] {
        let [of_0, of_1] = errors(false, |rank, numbers| {
            if rank == 1 {
                numbers.offsets = offsets.to_vec();
            }
        });
        assert_parts(&of_0, &["choice 1 of token", "has 0 rows"]);
        assert_parts(&of_1, &[part]);
    }
}

#[test]
fn a_number_of_tokens_out_of_range_is_an_error() {
    for count in [4, -1] {
        let [of_0, of_1] = errors(false, |rank, numbers| {
            if rank == 0 {
                numbers.tokens = count;
            }
        });
        assert_parts(
            &of_0,
            &[&format!("the number of tokens is {count}"), "0 to 3"],
        );
        assert_eq!(of_1, None);
    }
}

/// The other rows of the experts have no place.
#[test]
fn tokens_may_be_fewer_than_rows_have() {
    let found = errors(false, |rank, numbers| {
        numbers.tokens = rank as i32;
        numbers.indices[0] = -1;
    });
    assert_eq!(found, [None, None]);
}

#[test]
fn a_row_of_two_tokens_is_an_error_of_all_ranks() {
    let found = errors(true, |rank, numbers| {
        if rank == 1 {
            numbers.indices[4] = numbers.indices[0];
        }
    });
    assert_parts(&found[1], &["row index 2, and so has another token"]);
    assert!(found[0].is_some());
}

#[test]
fn an_absent_rank_is_named() {
    let mut layer = layer(2, 6, 2, 16).apart();
    layer.pattern = CallPattern::AbsentRank { rank: 1 };
    let layer = layer.mixed([&[16, 16], &[16, 16], &[16, 16]]);
    let outcomes = layer.run_ranks(0);
    let failure = outcomes[0].as_ref().expect_err("a rank is absent");
    assert!(failure.contains("rank 1"), "{failure}");
    assert!(!failure.contains("simulator found"), "{failure}");
}
