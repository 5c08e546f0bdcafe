//! Kernels that choose the experts of tokens from logits: whole layers with exact weights, and logits that are tied or not finite.

use crate::layer_of;
use crate::layers::check;
use mkernel::half::bf16;
use mkernel::spec::{DispatchConfig, DispatchShape, Dtype, Router, Scale, Scores};
use mkernel::{Error, KernelConfig, Operand};
use mkernel_testing::jobs::experts::Layer;
use mkernel_testing::jobs::prepared::{Prepared, on_ranks};

#[test]
fn layers_from_logits_are_right() {
    let sigmoid = Router {
        scores: Scores::Sigmoid,
        score_scale: Some(Scale::new(2.0)),
        ..Router::default()
    };
    let mut whole = Layer::new(2, 10, 4, 20).whole();
    whole.intermediate = 72;
    let whole = whole.mixed([&[20, 20], &[20, 3], &[0, 20]]);
    check("moe_layer, two ranks", &whole.routed(sigmoid), 1);
    let softmax = Router {
        scores: Scores::Softmax,
        renormalise: true,
        ..Router::default()
    };
    let parts = Layer::new(4, 36, 2, 12);
    let parts = parts.mixed([&[12, 0, 5, 12], &[0, 0, 12, 1], &[12, 12, 12, 12]]);
    check("dispatch_gemm, four ranks", &parts.routed(softmax), 1);
}

const EXPERTS: usize = 8;
const SIZE: usize = 128;
const NAN: f32 = f32::NAN;
const INF: f32 = f32::INFINITY;

/// The logits of a token, its two experts, and their weights.
type Case = ([f32; EXPERTS], [i32; 2], [f32; 2]);

/// Experts are ranked by logits. A logit that is NaN or infinite makes all scores of a token NaN.
const OF_SOFTMAX: [Case; 8] = [
    ([NAN; 8], [0, 1], [NAN; 2]),
    ([NAN, 7., 6., 5., 4., 3., 2., 1.], [1, 2], [NAN; 2]),
    ([NAN, -INF, NAN, NAN, NAN, NAN, NAN, NAN], [1, 0], [NAN; 2]),
    ([-INF; 8], [0, 1], [NAN; 2]),
    ([0., 0., 0., INF, 0., 0., 0., 0.], [3, 0], [NAN; 2]),
    (
        [-INF, -INF, -INF, 0., -INF, -INF, -INF, -INF],
        [3, 0],
        [1., 0.],
    ),
    (
        [-0., 0., -90., -90., -90., -90., -90., -90.],
        [0, 1],
        [0.5; 2],
    ),
    ([3.; 8], [0, 1], [0.125; 2]),
];

/// Each two experts are a group, and the experts of a token are from one group. A group with a NaN is ranked last.
const OF_GROUPS: [Case; 8] = [
    ([NAN; 8], [0, 1], [NAN; 2]),
    ([NAN, 0., 0., 0., 0., 0., 0., 0.], [2, 3], [0.5; 2]),
    ([0., 0., 0., 0., 0., 0., NAN, 90.], [0, 1], [0.5; 2]),
    ([NAN, 90., NAN, 0., NAN, 0., NAN, 0.], [1, 0], [1., NAN]),
    ([-INF; 8], [0, 1], [0.; 2]),
    ([0., 0., 0., 0., 0., INF, 0., 0.], [5, 4], [1., 0.5]),
    ([0., 90., -90., 90., 0., 90., 90., 90.], [6, 7], [1.; 2]),
    ([0.; 8], [0, 1], [0.5; 2]),
];

/// The kernel is a layer on one rank, whose tokens and weights are finite.
fn config(router: Router) -> (KernelConfig, DispatchShape) {
    let shape = DispatchShape {
        experts: EXPERTS as u64,
        top_k: 2,
        max_tokens: OF_SOFTMAX.len() as u64,
        hidden: SIZE as u64,
        intermediate: SIZE as u64,
    };
    let layer = DispatchConfig {
        router,
        ..layer_of(shape)
    };
    (KernelConfig::new(1, layer), shape)
}

/// The experts of tokens, their weights, and the sums of tokens.
type Results = (Vec<i32>, Vec<f32>, Vec<f32>);

/// The results of tokens with these logits.
fn results(prepared: &Prepared, cases: &[Case]) -> Result<Results, Error> {
    let stream = &prepared.stream;
    let (count, upload) = (cases.len(), "memory");
    let logits: Vec<f32> = cases.iter().flat_map(|case| case.0).collect();
    let logits = stream.clone_htod(&logits).expect(upload);
    let fill = |value: f32, count: usize| {
        let values = vec![bf16::from_f32(value); count];
        stream.clone_htod(&values).expect(upload)
    };
    let tokens = fill(1.0, count * SIZE);
    let num_tokens = stream.clone_htod(&[count as i32]).expect(upload);
    let up = fill(0.125, EXPERTS * 2 * SIZE * SIZE);
    let down = fill(0.125, EXPERTS * SIZE * SIZE);
    let mut ids = stream.clone_htod(&vec![-7i32; 2 * count]).expect(upload);
    let mut weights = stream.clone_htod(&vec![-7f32; 2 * count]).expect(upload);
    let mut c = fill(-7.0, count * SIZE);
    let call = prepared.operator.call(stream);
    let call = call.read(Operand::Tokens, &tokens);
    let call = call.read(Operand::NumTokens, &num_tokens);
    let call = call.read(Operand::Logits, &logits);
    let call = call.write(Operand::TopkIds, &mut ids);
    let call = call.write(Operand::TopkWeights, &mut weights);
    let call = call.read(Operand::B, &up).read(Operand::Down, &down);
    call.write(Operand::C, &mut c).launch()?;
    prepared.ranks.synchronize(stream)?;
    let found = "results";
    let sums = stream.clone_dtoh(&c).expect(found);
    Ok((
        stream.clone_dtoh(&ids).expect(found),
        stream.clone_dtoh(&weights).expect(found),
        sums.into_iter().map(bf16::to_f32).collect(),
    ))
}

/// Checks the experts and weights of tokens. The sum of a token is NaN if a weight is NaN, and no other sum is NaN.
fn check_cases(router: Router, cases: &[Case]) {
    let (config, shape) = config(router);
    let outcomes = on_ranks(&config, shape, (3, 7), |prepared| {
        let (ids, weights, sums) = results(prepared, cases)?;
        for (token, (_, wanted, of_wanted)) in cases.iter().enumerate() {
            let entries = 2 * token..2 * token + 2;
            assert_eq!(ids[entries.clone()], *wanted, "experts of token {token}");
            let weights = &weights[entries];
            let are_right = weights.iter().zip(of_wanted).all(|(found, wanted)| {
                (found - wanted).abs() < 1e-6 || found.is_nan() && wanted.is_nan()
            });
            assert!(are_right, "token {token}: {weights:?}");
            let has_nan = weights.iter().any(|weight| weight.is_nan());
            let sums = &sums[token * SIZE..][..SIZE];
            assert!(
                sums.iter().all(|sum| sum.is_nan() == has_nan),
                "token {token}"
            );
        }
        Ok(())
    });
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
}

#[test]
fn tied_logits_and_logits_that_are_not_finite_choose_experts() {
    let router = Router {
        logits: Some(Dtype::Fp32),
        ..Router::default()
    };
    let softmax = Router {
        scores: Scores::Softmax,
        ..router
    };
    check_cases(softmax, &OF_SOFTMAX);
    let groups = Router {
        scores: Scores::Sigmoid,
        groups: Some(4),
        top_groups: Some(1),
        ..router
    };
    check_cases(groups, &OF_GROUPS);
}
