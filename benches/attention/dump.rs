//! Writes the operands and results of all ranks to files, for `benches/accuracy.py`.

use mkernel::KernelPlan;
use mkernel::Operand;
use mkernel::spec::plan::AttentionPlan;
use mkernel_testing::lab::{Failure, Lab, Matrix};
use std::fs;
use std::path::Path;

/// Writes each operand of `rank` to the file `<name>.<rank>` in its memory layout. Rank 0 also writes a description of
/// the sizes.
pub fn dump(
    to: &Path,
    plan: &KernelPlan,
    op_plan: &AttentionPlan,
    rank: u32,
    operands: &[(Operand, Matrix)],
    lab: &Lab,
) -> Result<(), Failure> {
    fs::create_dir_all(to)?;
    for (operand, matrix) in operands {
        let elems = lab.stream.clone_dtoh(&matrix.memory)?;
        let bytes: Vec<u8> = elems
            .iter()
            .flat_map(|elem| elem.to_bits().to_le_bytes())
            .collect();
        let name = operand.name();
        fs::write(to.join(format!("{name}.{rank}")), bytes)?;
    }
    if rank == 0 {
        fs::write(to.join("about.json"), about(plan, op_plan))?;
    }
    Ok(())
}

/// Returns the sizes, and each rank's chunks of the sequence, as JSON.
fn about(plan: &KernelPlan, op_plan: &AttentionPlan) -> String {
    let (shape, world) = (op_plan.shape, plan.spec.world());
    let placement = op_plan.config.placement;
    let chunks = |rank| -> Vec<u32> {
        (0..placement.segments())
            .map(|segment| placement.chunk_of(world, rank, segment))
            .collect()
    };
    let chunks: Vec<_> = (0..world).map(chunks).collect();
    format!(
        r#"{{"plan": "{}", "batch": {}, "seq": {}, "heads": {}, "kv_heads": {}, "head_dim": {}, "causal": {}, "chunks": {chunks:?}}}"#,
        plan.id,
        shape.batch,
        shape.seq,
        shape.heads,
        shape.kv_heads,
        shape.head_dim,
        op_plan.config.causal
    )
}
