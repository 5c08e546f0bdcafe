//! Properties of epilogues: their operands, and the names of the kernels.

use crate::cases;
use crate::configs::{gemm, gemm_config, plans};
use mkernel_compile::render;
use mkernel_spec::abi::{ArgKind, Operand};
use mkernel_spec::{KernelPlan, SizedSpec};
use proptest::prelude::*;

proptest! {
    #![proptest_config(cases())]

    /// The bias has the columns of C, the residual has the shape of C, and the kernel has a pointer to each.
    #[test]
    fn addends_are_operands(plan in plans()) {
        let Some(plan) = plan else { return Ok(()) };
        let gemm = gemm(&plan);
        let epilogue = gemm.config.epilogue;
        let operand = |wanted| plan.operands().iter().find(|o| o.operand == wanted);
        let c = operand(Operand::C).expect("C");
        prop_assert!(c.written && c.dtype == epilogue.output.unwrap_or(gemm.config.dtype));
        prop_assert_eq!(operand(Operand::Bias).map(|o| (o.rows.on(0), o.cols)), epilogue.bias.then_some((1, gemm.shape.n * u64::from(epilogue.weight_cols()))));
        prop_assert_eq!(operand(Operand::Residual).map(|o| (o.rows, o.cols)), epilogue.residual.then_some((c.rows, c.cols)));
        for (wanted, given) in [(Operand::Bias, epilogue.bias), (Operand::Residual, epilogue.residual)] {
            let args = plan.body().args.args.iter();
            let pointers = args.filter(|arg| arg.kind == ArgKind::Pointer(wanted)).count();
            prop_assert_eq!(pointers, usize::from(given));
        }
        for operand in plan.operands() {
            prop_assert!(operand.written || operand.dtype == gemm.config.dtype, "{operand:?}");
        }
    }

    /// An empty epilogue gives the kernel without an epilogue. Any other epilogue changes the name of the kernel.
    #[test]
    fn a_kernels_name_depends_on_its_epilogue(plan in plans()) {
        let Some(plan) = plan else { return Ok(()) };
        let epilogue = gemm(&plan).config.epilogue;
        let mut config = plan.spec.config().clone();
        gemm_config(&mut config).epilogue = mkernel_spec::Epilogue::default();
        let plain = SizedSpec::validate(config).and_then(|spec| KernelPlan::new(&spec, &plan.device));
        let Ok(plain) = plain else { return Ok(()) };
        prop_assert_eq!(plain.id == plan.id, epilogue == mkernel_spec::Epilogue::default());
        let text = render(&plain).expect("a plan renders").text;
        for word in ["bias", "residual", "relu", "silu", "gelu", "SwiGlu", "ElementC = mk::Fp32"] {
            prop_assert!(!text.contains(word), "{word}");
        }
        // An epilogue takes longer, since it reads or writes more bytes.
        prop_assert!(plan.body().traffic.memory_bytes >= plain.body().traffic.memory_bytes);
        prop_assert!(plan.body().bound.us() >= plain.body().bound.us());
    }
}
