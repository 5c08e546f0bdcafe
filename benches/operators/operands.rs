//! [`Operands`]: the matrices of one rank in the benchmark of GEMM operators.

use crate::Bench;
use mkernel::Operand;
use mkernel::{
    KernelPlan,
    operands::RawOperand,
    spec::{BLayout, Dtype, Epilogue, GemmOp, GemmShape},
};
use mkernel_testing::lab::{Failure, Matrix, SymmetricMatrix, View};
use std::ops::Range;

/// The operands of one rank.
pub struct Operands {
    /// The factors of the plain GEMMs.
    pub a: Matrix,
    pub b: Matrix,
    pub c: Matrix,
    /// The operands of epilogues, and C in fp32 if an epilogue has an fp32 output. All have the rows of `c`.
    pub bias: Matrix,
    pub residual: Matrix,
    /// The result of kernels that normalise rows. `c` holds their new residual.
    pub normalised: Matrix,
    pub c_fp32: Option<Matrix>,
    /// C in symmetric memory, in bf16 and in fp32, for plans with a symmetric C.
    pub symmetric_c: Vec<SymmetricMatrix>,
    /// A copy of `a` in symmetric memory, for plans with a symmetric A.
    pub symmetric_a: Option<SymmetricMatrix>,
    /// The rows of `a` and `c` that the fused kernel uses.
    pub rows_a: Range<u64>,
    pub rows_c: Range<u64>,
    /// For operators that reduce: the A of all ranks side by side, and the B of all ranks below each other. Their product
    /// is the sum over all ranks.
    pub of_all: Option<(Matrix, Matrix)>,
    pub transposed: bool,
}

impl Operands {
    /// Creates random operands, equal on all ranks if the reference requires equal operands.
    pub fn new(
        bench: &Bench,
        op: GemmOp,
        shape: GemmShape,
        layout: BLayout,
    ) -> Result<Self, Failure> {
        let GemmShape { m, n, k } = shape;
        let (rank, world) = (
            u64::from(bench.ranks.rank()),
            u64::from(bench.ranks.world()),
        );
        let transposed = layout == BLayout::Nk;
        let (b_rows, b_cols) = if transposed { (n, k) } else { (k, n) };
        let shard_rows = m.div_ceil(world);
        let shard = (rank * shard_rows).min(m)..((rank + 1) * shard_rows).min(m);
        let c_fp32 = Self::wants_fp32(bench);
        let c_fp32 = c_fp32.then(|| bench.lab.matrix_of(Dtype::Fp32, m, n, 0));
        let symmetric = bench.flags.in_symmetric_memory(op);
        let in_symmetric = |dtype, cols| bench.lab.symmetric_matrix(bench.ranks, dtype, m, cols);
        let symmetric_c = match symmetric {
            Some(Operand::C) if c_fp32.is_some() => [Dtype::Bf16, Dtype::Fp32].as_slice(),
            Some(Operand::C) => &[Dtype::Bf16],
            _ => &[],
        };
        let symmetric_c = symmetric_c.iter().map(|dtype| in_symmetric(*dtype, n));
        let symmetric_a = (symmetric == Some(Operand::A)).then(|| in_symmetric(Dtype::Bf16, k));
        let mut operands = Self {
            symmetric_c: symmetric_c.collect::<Result<_, _>>()?,
            symmetric_a: symmetric_a.transpose()?,
            bias: bench.lab.matrix(1, n, 0)?,
            residual: bench.lab.matrix(m, n, 0)?,
            normalised: bench.lab.matrix(m, n, 0)?,
            c_fp32: c_fp32.transpose()?,
            a: bench.lab.matrix(m, k, 0)?,
            b: bench.lab.matrix(b_rows, b_cols, 0)?,
            c: bench.lab.matrix(m, n, 0)?,
            rows_a: if op == GemmOp::AgGemm {
                shard.clone()
            } else {
                0..m
            },
            rows_c: if op == GemmOp::GemmRs { shard } else { 0..m },
            of_all: None,
            transposed,
        };
        // Operators that reduce require equal operands on all ranks.
        bench.lab.fill(&operands.bias, 0, bench.seed + 100)?;
        bench.lab.fill(&operands.residual, 0, bench.seed + 101)?;
        if !op.reduces() {
            bench.lab.fill(&operands.a, 0, bench.seed)?;
            bench.lab.fill(&operands.b, 0, bench.seed + 1 + rank)?;
            if let Some(a) = &operands.symmetric_a {
                bench.lab.copy(&operands.a, &a.view)?;
            }
            return Ok(operands);
        }
        operands.of_all = Some(operands.of_all_ranks(bench, shape)?);
        Ok(operands)
    }

    /// Whether an epilogue has an output in fp32.
    fn wants_fp32(bench: &Bench) -> bool {
        let mut epilogues = bench.flags.epilogues.iter();
        epilogues.any(|epilogue| epilogue.output == Some(Dtype::Fp32))
    }

    /// Fills the A of all ranks side by side and the B of all ranks below each other, and copies the rank's parts of both.
    fn of_all_ranks(&self, bench: &Bench, shape: GemmShape) -> Result<(Matrix, Matrix), Failure> {
        let GemmShape { m, n, k } = shape;
        let (rank, world) = (
            u64::from(bench.ranks.rank()),
            u64::from(bench.ranks.world()),
        );
        let own = rank * k..(rank + 1) * k;
        let a = bench.lab.matrix(m, world * k, 0)?;
        bench.lab.fill(&a, 0, bench.seed)?;
        bench.lab.copy(&a.part(0..m, own.clone()), &self.a)?;
        let (b, own_b) = if self.transposed {
            let b = bench.lab.matrix(n, world * k, 0)?;
            let own = b.part(0..n, own);
            (b, own)
        } else {
            let b = bench.lab.matrix(world * k, n, 0)?;
            let own = b.part(own, 0..n);
            (b, own)
        };
        bench.lab.fill(&b, 0, bench.seed + 1)?;
        bench.lab.copy(&own_b, &self.b)?;
        Ok((a, b))
    }

    /// Returns the C that a plan writes. The core has no plan here.
    pub fn c(&self, plan: Option<&KernelPlan>) -> &View {
        let dtype = plan.and_then(|plan| epilogue_of(plan).output);
        let dtype = dtype.unwrap_or_default();
        if plan.is_some_and(|plan| is_symmetric(plan, Operand::C)) {
            let mut found = self.symmetric_c.iter();
            let found = found.find(|c| c.view.dtype == dtype);
            return found.map_or(&self.c.view, |c| &c.view);
        }
        match (dtype, &self.c_fp32) {
            (Dtype::Fp32, Some(c)) => &c.view,
            _ => &self.c.view,
        }
    }

    /// Returns the part of an operand that a fused kernel uses.
    pub fn fused(&self, operand: Operand, plan: Option<&KernelPlan>) -> View {
        let rows = |matrix: &View, rows: &Range<u64>| matrix.part(rows.clone(), 0..matrix.cols);
        // With SwiGLU, C has half of the columns of the product.
        let weight_cols = plan.map_or(1, |plan| epilogue_of(plan).weight_cols());
        let rows_of_c = |matrix: &View| {
            let cols = matrix.cols / u64::from(weight_cols);
            matrix.part(self.rows_c.clone(), 0..cols)
        };
        match operand {
            Operand::A => match &self.symmetric_a {
                Some(a) if plan.is_some_and(|plan| is_symmetric(plan, Operand::A)) => {
                    rows(&a.view, &self.rows_a)
                }
                _ => rows(&self.a, &self.rows_a),
            },
            Operand::C if plan.is_some_and(|plan| epilogue_of(plan).normalises()) => {
                rows_of_c(&self.normalised.view)
            }
            Operand::C | Operand::ResidualOut => rows_of_c(self.c(plan)),
            Operand::Bias | Operand::Weight => self.bias.view,
            Operand::Residual => rows_of_c(&self.residual),
            _ => self.b.view,
        }
    }

    /// Returns all operands of a fused kernel in the order of its plan.
    pub fn raw(&self, plan: &KernelPlan) -> Vec<RawOperand> {
        let view = |operand| self.fused(operand, Some(plan));
        let operands = plan.operands().iter();
        operands.map(|spec| view(spec.operand).operand()).collect()
    }
}

/// Returns whether a plan has an operand in symmetric memory.
fn is_symmetric(plan: &KernelPlan, operand: Operand) -> bool {
    let mut specs = plan.operands().iter();
    specs.any(|spec| spec.operand == operand && spec.symmetric)
}

/// Returns the epilogue of a plan.
pub fn epilogue_of(plan: &KernelPlan) -> Epilogue {
    let gemm = plan.gemm();
    gemm.map_or_else(Epilogue::default, |gemm| gemm.config.epilogue)
}
