//! Times `dispatch_gemm`, and checks the products of some experts.

use super::{Case, operand};
use mkernel::{
    KernelPlan,
    spec::{BLayout, Dim, DispatchConfig, DispatchOp, DispatchShape},
};
use mkernel_testing::lab::{Failure, Finish, Matrix};

/// The number of experts of a rank with checked rows.
const CHECKED_EXPERTS: u64 = 3;
const TOKEN_SEED: u64 = 0x746f;

impl Case<'_> {
    pub fn dispatch(&self) -> Result<(), Failure> {
        let (flags, lab, tokens) = (self.flags, self.lab, self.tokens);
        let mut operators = Vec::new();
        for (max_tokens, split_k) in self.variants(&flags.split_k) {
            let shape = DispatchShape {
                experts: self.experts,
                top_k: flags.top_k,
                max_tokens,
                hidden: flags.hidden,
                intermediate: flags.intermediate,
            };
            let config = DispatchConfig {
                experts: Dim::Static(shape.experts),
                top_k: Dim::Static(shape.top_k),
                max_tokens: Dim::Static(shape.max_tokens),
                hidden: Dim::Static(shape.hidden),
                intermediate: Dim::Static(shape.intermediate),
                b_layout: if flags.nk { BLayout::Nk } else { BLayout::Kn },
                max_rows: Some(self.max_rows as u32),
                tile_m: flags.tile_m,
                tile_n: flags.tile_n,
                split_k,
                comm_ctas: flags.comm_ctas,
                ..DispatchConfig::new(DispatchOp::DispatchGemm)
            };
            operators.push(self.prepare(config, shape, &flags.dispatch_edit)?);
        }
        let local = tokens.local_experts();
        let (rows, cols) = match flags.nk {
            true => (local * flags.intermediate, flags.hidden),
            false => (local * flags.hidden, flags.intermediate),
        };
        let x = lab.matrix(tokens.per_rank, flags.hidden, 0)?;
        lab.fill(&x, self.rank() * tokens.per_rank, TOKEN_SEED)?;
        let w = lab.matrix(rows, cols, 0)?;
        lab.fill(&w, 0, self.rank() + 1)?;
        let c = lab.matrix(self.max_rows, flags.intermediate, 0)?;
        let ids = lab.stream.clone_htod(&tokens.ids[self.rank() as usize])?;
        let offsets = lab.stream.clone_htod(&vec![-1; local as usize + 1])?;
        let raw = [
            x.operand(),
            operand(&self.count),
            operand(&ids),
            w.operand(),
            c.operand(),
            operand(&offsets),
            operand(&self.places),
        ];
        let bound_us = self.dispatch_bound_us(operators[0].plan());
        for (operator, times) in operators.iter().zip(self.times(&operators, &raw)?) {
            lab.poison(&c)?;
            self.call(operator, &raw)?;
            let error = self.check_dispatch(&w, &c)?;
            self.print(operator, &times, error, bound_us)?;
        }
        Ok(())
    }

    /// Checks the products of some experts, row by row.
    fn check_dispatch(&self, w: &Matrix, c: &Matrix) -> Result<f64, Failure> {
        let (flags, lab) = (self.flags, self.lab);
        let local = self.tokens.local_experts();
        let first = self.rank() * local;
        let rows: Vec<_> = (first..first + local)
            .map(|e| self.tokens.rows_of(e))
            .collect();
        let begin = |e: u64| rows[..e as usize].iter().map(Vec::len).sum::<usize>() as u64;
        let verdicts = lab.verdicts(local as usize)?;
        for expert in (0..local).step_by((local / CHECKED_EXPERTS).max(1) as usize) {
            let rows = &rows[expert as usize];
            let a = lab.matrix(rows.len() as u64, flags.hidden, 0)?;
            for (row, token) in (0..).zip(rows) {
                lab.fill(&a.part(row..row + 1, 0..flags.hidden), *token, TOKEN_SEED)?;
            }
            let (per_expert, cols) = match flags.nk {
                true => (flags.intermediate, flags.hidden),
                false => (flags.hidden, flags.intermediate),
            };
            let b = w.part(expert * per_expert..(expert + 1) * per_expert, 0..cols);
            let at = begin(expert);
            let found = c.part(at..at + rows.len() as u64, 0..flags.intermediate);
            let views = (&a.view, &b, &found);
            lab.check(
                views,
                flags.nk,
                (1, 1),
                Finish::default(),
                &verdicts,
                expert as usize,
            )?;
            self.ranks.synchronize(&lab.stream)?;
        }
        let verdicts = lab.read_verdicts(&verdicts)?;
        let wrong: u64 = verdicts.iter().map(|verdict| verdict.wrong).sum();
        if wrong > 0 {
            return Err(format!("{wrong} elements of experts are wrong").into());
        }
        Ok(verdicts
            .iter()
            .map(|verdict| verdict.relative_error)
            .fold(0.0, f64::max))
    }

    /// Returns the bound of the busiest rank: the larger of the time of its products at the rate of the plan's bound, and
    /// the time of its tokens on the link.
    fn dispatch_bound_us(&self, plan: &KernelPlan) -> f64 {
        let flags = self.flags;
        let rows = self.tokens.rows().into_iter().max().unwrap_or(0);
        let flops = 2 * rows * flags.hidden * flags.intermediate;
        let compute_us = flops as f64 / plan.device.gemm_tflops / 1e6;
        let moved_us = plan.body().bound.memory_us.max(plan.body().bound.nic_us);
        compute_us.max(moved_us).max(self.link_us(plan))
    }
}
