//! Tests of handles of declared kernels whose options or sizes are known at run time only, on simulated GPUs.

#![cfg(all(feature = "simulator", feature = "macros"))]

use mkernel::spec::{CollectiveConfig, Dim, Dtype, Eps, Field, GemmShape, Problem};
use mkernel::{Communicator, Error, FusedKernel, Simulation, fused_kernel};

#[fused_kernel(op = gemm_rs, m = 16, n = dynamic, k = dynamic, b_layout = nk)]
struct Down;

#[fused_kernel(op = all_reduce, m = dynamic, n = 64, norm = rms)]
struct Normalised;

/// Runs `body` on two simulated GPUs.
fn on_ranks(body: impl Fn(&Communicator) -> Result<(), Error> + Sync) {
    let simulation = Simulation {
        ranks: 2,
        ..Simulation::default()
    };
    let simulated = Communicator::simulated(&simulation).expect("simulated GPUs");
    mkernel::run(simulated, |ranks| body(&ranks)).expect("no error");
}

fn sum(config: &Problem) -> CollectiveConfig {
    let Problem::Collective(sum) = config else {
        panic!("no collective")
    };
    *sum
}

#[test]
fn sizes_have_names() {
    on_ranks(|ranks| {
        let down = Down::prepare(ranks, DownSizes { k: 64, n: 128 })?;
        let shape = GemmShape {
            m: 16,
            n: 128,
            k: 64,
        };
        assert_eq!(down.plan().spec.shape(), shape.into());
        let mut config = Down::config(2, 1);
        let gemm = config.problem.gemm_mut().expect("a GEMM");
        gemm.n = Dim::Static(128);
        let again = Down::try_from(ranks.prepare(&config, [(Field::K, 64)])?)?;
        assert_eq!(again.plan().id, down.plan().id);
        Ok(())
    });
}

#[test]
fn options_of_a_model_are_given_when_its_kernels_are_prepared() {
    on_ranks(|ranks| {
        let eps = Eps::new(0.25);
        let known = Normalised::prepare_with(ranks, 8, |options| options.epilogue.eps = eps)?;
        let config = known.plan().spec.config();
        assert_eq!(sum(&config.problem).epilogue.eps, eps);
        let limited: Normalised =
            ranks.prepare_fused_with([(Field::M, 8)], |config| config.max_sms = Some(2))?;
        assert_eq!(limited.plan().spec.config().max_sms, Some(2));
        Ok(())
    });
}

#[test]
fn a_handle_refuses_other_operands() {
    on_ranks(|ranks| {
        let given = |prepared: Result<Normalised, Error>| {
            let error = prepared.map(drop).expect_err("other operands");
            assert!(matches!(error, Error::Kernel(_)), "{error}");
            error.to_string()
        };
        let types = |options: &mut CollectiveConfig| options.dtype = Dtype::Fp32;
        let text = given(Normalised::prepare_with(ranks, 8, types));
        let operands = |dtype| {
            format!(
                "all_reduce(x: {dtype}, mut y: {dtype}, weight: {dtype}, mut residual_out: {dtype})"
            )
        };
        let (declared, wrong) = (operands("bf16"), operands("fp32"));
        let expected = format!("Normalised is declared as {declared}, but the operator is {wrong}");
        assert!(text.starts_with(&expected), "{text}");
        let more = |options: &mut CollectiveConfig| options.epilogue.residual = true;
        let text = given(Normalised::prepare_with(ranks, 8, more));
        assert!(text.contains(", residual: bf16"), "{text}");
        let sizes = DownSizes { n: 64, k: 64 };
        let gemm = ranks.prepare(
            &Down::config(2, 1),
            [(Field::N, sizes.n), (Field::K, sizes.k)],
        );
        let text = given(gemm.and_then(Normalised::try_from));
        assert!(text.contains("but the operator is gemm_rs("), "{text}");
        Ok(())
    });
}
