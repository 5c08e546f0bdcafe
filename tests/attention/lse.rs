//! Attention that does not write LSE.

use mkernel::cudarc::driver::CudaSlice;
use mkernel::half::bf16;
use mkernel::spec::{AttentionConfig, AttentionOp, AttentionShape, Placement};
use mkernel::{Communicator, KernelConfig, Operand};
use mkernel_testing::jobs::{Backend, Machine};
use mkernel_testing::lab::{Failure, Random};

const SHAPE: AttentionShape = AttentionShape {
    batch: 2,
    seq: 301,
    heads: 2,
    kv_heads: 1,
    head_dim: 64,
};

/// Calls an operator with or without LSE on random operands, and returns the bits of O.
fn bits_of_o(ranks: &Communicator, lse: bool, packed: bool) -> Result<Vec<u16>, Failure> {
    let config = AttentionConfig {
        causal: true,
        placement: Placement::Zigzag,
        lse,
        packed,
        ..AttentionConfig::new(AttentionOp::RingAttention)
    };
    let operator = ranks.prepare(&KernelConfig::new(ranks.world(), config), SHAPE)?;
    let stream = ranks.default_stream();
    let mut random = Random(u64::from(ranks.rank()));
    let of = |operand| {
        let mut all = operator.plan().operands().iter();
        let spec = all.find(|spec| spec.operand == operand)?;
        Some((spec.rows.on(ranks.rank()) * spec.cols) as usize)
    };
    let mut input = |operand| {
        let elems = of(operand).unwrap_or_default();
        let values: Vec<_> = (0..elems)
            .map(|_| bf16::from_f32(random.below(256) as f32 / 128.0 - 1.0))
            .collect();
        stream.clone_htod(&values)
    };
    let (q, k, v) = (input(Operand::Q)?, input(Operand::K)?, input(Operand::V)?);
    let mut o: CudaSlice<bf16> = stream.alloc_zeros(of(Operand::O).unwrap_or_default())?;
    assert_eq!(of(Operand::Lse).is_some(), lse);
    let mut memory: Option<CudaSlice<f32>> = of(Operand::Lse)
        .map(|elems| stream.alloc_zeros(elems))
        .transpose()?;
    let offsets = stream.clone_htod(&[0, 130, 301])?;
    let mut call = operator
        .call(&stream)
        .read(Operand::Q, &q)
        .read(Operand::K, &k)
        .read(Operand::V, &v)
        .write(Operand::O, &mut o);
    if let Some(memory) = &mut memory {
        call = call.write(Operand::Lse, memory);
    }
    if packed {
        call = call.read(Operand::CuSeqlens, &offsets);
    }
    call.launch()?;
    ranks.synchronize(&stream)?;
    let bits = stream.clone_dtoh(&o)?;
    Ok(bits.iter().map(|x| x.to_bits()).collect())
}

#[test]
fn output_without_lse_has_the_same_bits() {
    for (world, packed) in [(1, false), (2, false), (4, false), (2, true)] {
        let machine = Machine {
            world,
            sms: 3,
            skew: 60,
        };
        let done = machine.run(Backend::Simulated { seed: 1 }, |ranks| {
            let with = bits_of_o(ranks, true, packed)?;
            let without = bits_of_o(ranks, false, packed)?;
            assert!(with == without && with.iter().any(|bits| *bits != 0));
            Ok(())
        });
        done.unwrap_or_else(|error| panic!("{world} ranks, packed: {packed}: {error}"));
    }
}

#[test]
fn texts_name_the_option_of_lse() {
    let machine = Machine {
        world: 1,
        sms: 3,
        skew: 0,
    };
    let done = machine.run(Backend::Simulated { seed: 0 }, |ranks| {
        for (lse, hint) in [
            (false, "without `lse = false`"),
            (true, "with `lse = false`"),
        ] {
            let config = AttentionConfig {
                lse,
                ..AttentionConfig::new(AttentionOp::RingAttention)
            };
            let operator = ranks.prepare(&KernelConfig::new(1, config), SHAPE)?;
            let stream = ranks.default_stream();
            let (q, mut o, mut other) = (
                stream.alloc_zeros::<bf16>(2 * 301 * 2 * 64)?,
                stream.alloc_zeros::<bf16>(2 * 301 * 2 * 64)?,
                stream.alloc_zeros::<f32>(2 * 301 * 2)?,
            );
            let mut call = operator
                .call(&stream)
                .read(Operand::Q, &q)
                .read(Operand::K, &q)
                .read(Operand::V, &q)
                .write(Operand::O, &mut o);
            if !lse {
                call = call.write(Operand::Lse, &mut other);
            }
            let error = call.launch().expect_err("an extra or a missing operand");
            let text = error.to_string();
            assert!(
                text.starts_with("operand lse: ") && text.contains(hint),
                "{text}"
            );
        }
        Ok(())
    });
    done.expect("refused");
}
