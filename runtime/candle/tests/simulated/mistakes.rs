//! Mistakes of programs, which are errors with a remedy.

use crate::ranks::{on_ranks, random};
use candle_core::{DType, Device, Module, Result, Tensor};
use mkernel::ErrorKind;
use mkernel::spec::Scales;
use mkernel_candle::{
    AttentionOptions, ColumnParallel, Experts, ExpertsSizes, Factor, RowParallel, all_gather,
    all_reduce, all_reduce_rms_norm_e4m3, all_to_all, cause, device_for_graphs, ring_attention,
};

/// The kind of errors of shapes and types.
const OPERANDS: Option<ErrorKind> = Some(ErrorKind::Operands);

/// Runs `mistake` on one rank, and checks that the message of its error has these parts.
fn expect_error<T>(
    parts: &[&str],
    kind: Option<ErrorKind>,
    mistake: impl Fn(&mkernel_candle::Ranks) -> Result<T> + Sync,
) {
    expect_error_of(1, parts, kind, mistake);
}

/// Runs `mistake` on `world` ranks, and checks that the message of each error has these parts.
fn expect_error_of<T>(
    world: u32,
    parts: &[&str],
    kind: Option<ErrorKind>,
    mistake: impl Fn(&mkernel_candle::Ranks) -> Result<T> + Sync,
) {
    on_ranks(world, |ranks| {
        let error = mistake(ranks).err().expect("a mistake");
        let text = error.to_string();
        for part in parts {
            assert!(text.contains(part), "{part:?} in {text:?}");
        }
        assert_eq!(cause(&error).map(mkernel::Error::kind), kind, "{text}");
        Ok(())
    });
}

#[test]
fn tensors_that_are_not_contiguous_are_refused() {
    let parts = ["a has the shape [2, 16]", "strides [1, 2]", "contiguous()"];
    expect_error_of(2, &parts, OPERANDS, |ranks| {
        let layer = RowParallel::new(ranks, random(1, &[8, 16])?, None)?;
        layer.forward_scattered(&random(2, &[16, 2])?.t()?)
    });
}

#[test]
fn attention_to_other_rows_than_those_of_the_queries_is_refused() {
    let attend = |ranks: &mkernel_candle::Ranks, of_q, of_k, of_v| {
        let rows = |rows| random(1, &[1, rows, 2, 64]);
        let (q, k, v) = (rows(of_q)?, rows(of_k)?, rows(of_v)?);
        ring_attention(ranks, (&q, &k, &v), 16, AttentionOptions::default())
    };
    // A step of decoding passes more keys than queries, and cross attention fewer.
    let parts = [
        "k has the shape [1, 24, 2, 64]",
        "q has [1, 8, 2, 64]",
        "cache",
    ];
    expect_error_of(2, &parts, OPERANDS, |ranks| attend(ranks, 8, 24, 24));
    let parts = [
        "v has the shape [1, 4, 2, 64]",
        "q has [1, 8, 2, 64]",
        "cache",
    ];
    expect_error_of(2, &parts, OPERANDS, |ranks| attend(ranks, 8, 8, 4));
    let parts = ["q has the shape [1, 24, 2, 64]", "has 8 of the 16 rows"];
    expect_error_of(2, &parts, OPERANDS, |ranks| attend(ranks, 24, 24, 24));
}

#[test]
fn wrong_sizes_and_types_are_refused() {
    expect_error(&["24 columns", "has 16"], OPERANDS, |ranks| {
        let layer = RowParallel::new(ranks, random(1, &[8, 16])?, None)?;
        layer.forward(&random(2, &[2, 24])?)
    });
    expect_error_of(
        2,
        &["x has the shape [5, 8]", "part is"],
        OPERANDS,
        |ranks| all_gather(ranks, &random(1, &[5, 8])?, 8),
    );
    expect_error_of(2, &["2 ranks", "x has 5"], OPERANDS, |ranks| {
        all_to_all(ranks, &random(1, &[5, 8])?)
    });
    expect_error(&["weight", "F32", "to_dtype"], OPERANDS, |ranks| {
        ColumnParallel::new(ranks, random(1, &[8, 16])?.to_dtype(DType::F32)?, None)
    });
    expect_error(&["bias", "[7]", "[8]"], OPERANDS, |ranks| {
        ColumnParallel::new(ranks, random(1, &[8, 16])?, Some(random(2, &[7])?))
    });
    expect_error(&["multiple of 8", "[3]"], OPERANDS, |ranks| {
        all_reduce(ranks, &random(1, &[3])?)
    });
    expect_error(&["U32", "to_dtype"], OPERANDS, |ranks| {
        all_reduce(ranks, &Tensor::zeros(8, DType::U32, &Device::Cpu)?)
    });
    expect_error_of(
        2,
        &["n: 12", "multiple of 8"],
        Some(ErrorKind::Configuration),
        |ranks| {
            RowParallel::new(ranks, random(1, &[12, 16])?, None)?.forward(&random(2, &[2, 16])?)
        },
    );
}

#[test]
fn wrong_scales_are_refused() {
    let e4m3 = |shape: &[usize]| random(1, shape)?.to_dtype(DType::F8E4M3);
    let ones = |shape: &[usize]| Tensor::ones(shape, DType::F32, &Device::Cpu);
    let weight = |scales: &[usize]| Factor::scaled(e4m3(&[24, 144])?, ones(scales)?);
    expect_error(&["elements", "BF16", "F8E4M3"], OPERANDS, |_| {
        Factor::scaled(random(1, &[24, 144])?, ones(&[24])?)
    });
    expect_error(&["scales", "BF16", "F32"], OPERANDS, |_| {
        Factor::scaled(e4m3(&[24, 144])?, random(1, &[24])?)
    });
    let parts = ["[3, 2]", "[24]", "[1, 2]"];
    expect_error(&parts, OPERANDS, |ranks| {
        ColumnParallel::new(ranks, weight(&[3, 2])?, None)
    });
    let parts = ["without scales", "Factor::scaled"];
    expect_error(&parts, OPERANDS, |ranks| {
        RowParallel::new(ranks, e4m3(&[24, 144])?, None)
    });
    expect_error(&["bias", "F32", "bf16"], OPERANDS, |ranks| {
        ColumnParallel::new(ranks, weight(&[24])?, Some(ones(&[24])?))
    });
    let parts = ["weight is F8E4M3", "forward_scaled"];
    expect_error(&parts, OPERANDS, |ranks| {
        ColumnParallel::new(ranks, weight(&[24])?, None)?.forward(&random(1, &[2, 144])?)
    });
    let parts = ["BF16", "F8E4M3", "both must have scales"];
    expect_error(&parts, OPERANDS, |ranks| {
        RowParallel::new(ranks, weight(&[24])?, None)?.forward_scaled(random(1, &[2, 144])?)
    });
    let parts = ["a_scales has the shape [3]", "2 rows of 1 elements"];
    expect_error(&parts, OPERANDS, |ranks| {
        let x = Factor::scaled(e4m3(&[2, 144])?, ones(&[3])?)?;
        ColumnParallel::new(ranks, weight(&[24])?, None)?.forward_scaled(x)
    });
    let parts = ["144 elements", "blocks of 128", "pad it to 256"];
    expect_error_of(2, &parts, OPERANDS, |ranks| {
        RowParallel::shard(ranks, weight(&[1, 2])?, None)
    });
    let parts = ["scales of tensor", "Scales::Row or Scales::Block"];
    expect_error(&parts, OPERANDS, |ranks| {
        let (x, weight) = (random(1, &[2, 16])?, random(2, &[16])?);
        all_reduce_rms_norm_e4m3(ranks, &x, (&x, &weight), (1e-6, Scales::Tensor))
    });
}

#[test]
fn experts_that_do_not_fit_are_refused() {
    let sizes = ExpertsSizes {
        experts: 4,
        top_k: 1,
        max_tokens: 2,
        max_rows: None,
    };
    expect_error(
        &["3 experts on this rank", "are 4 for each"],
        OPERANDS,
        |ranks| Experts::new(ranks, sizes, random(1, &[3, 64, 64])?, false),
    );
    expect_error(&["3 tokens", "max_tokens = 2"], OPERANDS, |ranks| {
        let experts = Experts::new(ranks, sizes, random(1, &[4, 64, 64])?, false)?;
        let ids = Tensor::zeros((3, 1), DType::I32, &Device::Cpu)?;
        experts.dispatch(&random(2, &[3, 64])?, &ids)
    });
}

#[test]
fn wrong_experts_are_an_error_of_their_call_only() {
    on_ranks(1, |ranks| {
        let sizes = ExpertsSizes {
            experts: 4,
            top_k: 1,
            max_tokens: 2,
            max_rows: None,
        };
        let experts = Experts::new(ranks, sizes, random(1, &[4, 64, 64])?, false)?;
        let dispatch = |id: i32| {
            let ids = Tensor::from_vec(vec![0, id], (2, 1), &Device::Cpu)?;
            experts.dispatch(&random(2, &[2, 64])?, &ids)
        };
        let error = dispatch(4).expect_err("there are 4 experts");
        let kind = cause(&error).map(mkernel::Error::kind);
        assert_eq!(kind, Some(ErrorKind::Values), "{error}");
        let offsets = dispatch(3)?.expert_offsets.to_vec1::<i32>()?;
        assert_eq!(offsets, [0, 1, 1, 1, 2]);
        Ok(())
    });
}

#[test]
fn the_cpu_has_no_graphs() {
    expect_error(&["CPU", "each step"], None, |ranks| {
        // SAFETY: nothing is captured.
        unsafe { ranks.capture(|| Ok(())) }
    });
    // SAFETY: device 99 does not exist, so no tensor is created.
    let device = unsafe { device_for_graphs(99) };
    assert!(device.is_err());
}
