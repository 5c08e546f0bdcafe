//! Hidden rows of `moe_layer` of e4m3 that are not finite, or zero.

use crate::layer_of;
use mkernel::float8::F8E4M3;
use mkernel::half::bf16;
use mkernel::spec::{DispatchConfig, DispatchShape, Dtype, Scales};
use mkernel::{Error, KernelConfig, Operand};
use mkernel_testing::jobs::prepared::{Prepared, on_ranks};

const SIZE: usize = 128;
/// A check of an element of a sum.
type IsRight = fn(f32) -> bool;
/// The elements of each token, their scale, and the elements of the token's sum.
const TOKENS: [(f32, f32, IsRight); 6] = [
    (1.0, 1.0, |y| y > 0.0 && y.is_finite()),
    (0.0, 1.0, |y| y == 0.0),
    (f32::NAN, 1.0, f32::is_nan),
    (1.0, 1e30, f32::is_nan),
    (1.0, 1e-30, |y| y == 0.0),
    (-1.0, 1.0, |y| y.is_finite()),
];

/// The kernel has one expert, whose weights are ones.
fn config() -> (KernelConfig, DispatchShape) {
    let shape = DispatchShape {
        experts: 1,
        top_k: 1,
        max_tokens: TOKENS.len() as u64,
        hidden: SIZE as u64,
        intermediate: SIZE as u64,
    };
    let layer = DispatchConfig {
        dtype: Dtype::E4m3,
        scales: Scales::Block,
        ..layer_of(shape)
    };
    (KernelConfig::new(1, layer), shape)
}

/// Returns the sums of the tokens.
fn sums(prepared: &Prepared) -> Result<Vec<f32>, Error> {
    let stream = &prepared.stream;
    let count = TOKENS.len();
    let elements = TOKENS
        .iter()
        .flat_map(|(x, ..)| [F8E4M3::from_f32(*x); SIZE]);
    let elements: Vec<F8E4M3> = elements.collect();
    let scales: Vec<f32> = TOKENS.iter().map(|(_, scale, _)| *scale).collect();
    let ones = |count: usize| vec![F8E4M3::from_f32(1.0); count];
    let upload = "memory";
    let tokens = stream.clone_htod(&elements).expect(upload);
    let num_tokens = stream.clone_htod(&[count as i32]).expect(upload);
    let ids = stream.clone_htod(&vec![0i32; count]).expect(upload);
    let weights = stream.clone_htod(&vec![1f32; count]).expect(upload);
    let up = stream.clone_htod(&ones(2 * SIZE * SIZE)).expect(upload);
    let down = stream.clone_htod(&ones(SIZE * SIZE)).expect(upload);
    let of_tokens = stream.clone_htod(&scales).expect(upload);
    let of_up = stream.clone_htod(&[1f32; 2]).expect(upload);
    let of_down = stream.clone_htod(&[1f32]).expect(upload);
    let mut c = stream
        .clone_htod(&vec![bf16::ONE; count * SIZE])
        .expect(upload);
    let call = prepared.operator.call(stream);
    let call = call.read(Operand::Tokens, &tokens);
    let call = call.read(Operand::NumTokens, &num_tokens);
    let call = call.read(Operand::TopkIds, &ids);
    let call = call.read(Operand::TopkWeights, &weights);
    let call = call.read(Operand::B, &up).read(Operand::Down, &down);
    let call = call.read(Operand::AScales, &of_tokens);
    let call = call.read(Operand::BScales, &of_up);
    let call = call.read(Operand::DownScales, &of_down);
    call.write(Operand::C, &mut c).launch()?;
    prepared.ranks.synchronize(stream)?;
    let found = stream.clone_dtoh(&c).expect("results");
    Ok(found.into_iter().map(bf16::to_f32).collect())
}

/// A row that is not finite changes no other row. Zeros stay zeros, and so do products that are too small for fp32.
#[test]
fn hidden_rows_of_e4m3_that_are_not_finite_give_nan() {
    let (config, shape) = config();
    let outcomes = on_ranks(&config, shape, (8, 7), |prepared| {
        let found = sums(prepared)?;
        for (token, (row, (x, scale, is_right))) in found.chunks(SIZE).zip(TOKENS).enumerate() {
            let wrong = row.iter().find(|y| !is_right(**y));
            assert_eq!(wrong, None, "token {token} of {x} times {scale}");
        }
        Ok(())
    });
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
}
