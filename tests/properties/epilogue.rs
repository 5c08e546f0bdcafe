//! What becomes of the sum: operands, results, and where C ends.

use crate::cases;
use crate::configs::{gemm, gemm_config, plans, plans_of_parts};
use crate::kernel::Kernel;
use mkernel_compile::render;
use mkernel_spec::abi::{ArgKind, Operand};
use mkernel_spec::{Dtype, KernelPlan, KernelSpec};
use proptest::prelude::*;

/// Rows of C that a tile would have if it lay within C, and those that there are, for each tile that somebody finishes.
fn rows_of_tiles(kernel: &Kernel, plan: &KernelPlan) -> Vec<(u64, u64)> {
    let gemm = gemm(plan);
    let tile_m = u64::from(gemm.tile.m);
    let rows = plan.operands.iter().find(|o| o.operand == Operand::C);
    let rows = rows.expect("C").rows;
    let Some(r) = gemm.reduction.as_ref().filter(|r| r.shots == 2) else {
        let end = |tile: u64| ((tile + 1) * tile_m, gemm.shape.m);
        return (0..u64::from(gemm.order.row_tiles)).map(end).collect();
    };
    let tiles = (0..r.owners).flat_map(|owner| (0..r.owner_tiles).map(move |i| (owner, i)));
    tiles
        .map(|(owner, index)| (kernel.tile_of(owner, index), rows.on(owner)))
        .filter(|(tile, _)| tile.row < kernel.get("kRowTiles"))
        .map(|(tile, rows)| ((u64::from(tile.row) + 1) * tile_m, rows))
        .collect()
}

proptest! {
    #![proptest_config(cases())]

    /// Bias and residual are as large as C's columns and C, and lie where the kernel looks.
    #[test]
    fn addends_are_operands(plan in plans()) {
        let Some(plan) = plan else { return Ok(()) };
        let gemm = gemm(&plan);
        let epilogue = gemm.config.epilogue;
        let operand = |wanted| plan.operands.iter().find(|o| o.operand == wanted);
        let c = operand(Operand::C).expect("C");
        prop_assert!(c.written && c.dtype == epilogue.output);
        prop_assert_eq!(operand(Operand::Bias).map(|o| (o.rows.on(0), o.cols)), epilogue.bias.then_some((1, gemm.shape.n)));
        prop_assert_eq!(operand(Operand::Residual).map(|o| (o.rows, o.cols)), epilogue.residual.then_some((c.rows, c.cols)));
        for (wanted, given) in [(Operand::Bias, epilogue.bias), (Operand::Residual, epilogue.residual)] {
            let args = plan.args.args.iter();
            let pointers = args.filter(|arg| arg.kind == ArgKind::Pointer(wanted)).count();
            prop_assert_eq!(pointers, usize::from(given));
        }
        for operand in &plan.operands {
            let reads_bf16 = operand.written || operand.dtype == Dtype::Bf16;
            prop_assert!(reads_bf16, "{operand:?}");
        }
    }

    /// Where nothing is rendered that asks for the end of C, no tile goes beyond it.
    #[test]
    fn nothing_is_read_beyond_the_addends(plan in plans_of_parts()) {
        let Some(plan) = plan else { return Ok(()) };
        let gemm = gemm(&plan);
        let epilogue = gemm.config.epilogue;
        let source = render(&plan).expect("a plan renders");
        let kernel = Kernel::read(&source, 0);
        let one_shot = gemm.reduction.as_ref().is_some_and(|r| r.shots == 1);
        let asks = |text: &str| source.text.contains(text);
        if epilogue.residual && !one_shot {
            let goes_beyond = rows_of_tiles(&kernel, &plan).iter().any(|(end, rows)| end > rows);
            prop_assert!(asks("!inside ? 0 : residual_at") || !goes_beyond);
        }
        if epilogue.bias || epilogue.residual {
            let cols = u64::from(gemm.order.col_tiles) * u64::from(gemm.tile.n);
            prop_assert!(asks("if (col >= cfg::kN) return 0;") || cols == gemm.shape.n);
        }
    }

    /// Without an epilogue, and with one that is none, the kernel is the same; with one, its name says so.
    #[test]
    fn a_kernels_name_tells_its_epilogue(plan in plans_of_parts()) {
        let Some(plan) = plan else { return Ok(()) };
        let epilogue = gemm(&plan).config.epilogue;
        let mut config = plan.spec.config().clone();
        gemm_config(&mut config).epilogue = mkernel_spec::Epilogue::default();
        let plain = KernelSpec::validate(config).and_then(|spec| KernelPlan::new(&spec, &plan.device));
        let Ok(plain) = plain else { return Ok(()) };
        prop_assert_eq!(plain.id == plan.id, epilogue == mkernel_spec::Epilogue::default());
        let text = render(&plain).expect("a plan renders").text;
        for word in ["void finish(float", "bias", "residual", "activation"] {
            prop_assert!(!text.contains(word), "{word}");
        }
        // What is read or written more takes longer.
        prop_assert!(plan.traffic.memory_bytes >= plain.traffic.memory_bytes);
        prop_assert!(plan.bound.us() >= plain.bound.us());
    }
}
