//! Times `combine`, and checks the sums of some tokens.

use super::tokens::fraction;
use super::{Case, operand};
use mkernel::half::bf16;
use mkernel::spec::{CombineConfig, CombineOp, CombineShape, Dim};
use mkernel_testing::lab::{Failure, Matrix, Random};

/// The number of checked tokens of a rank.
const CHECKED_TOKENS: u64 = 5;
const ROW_SEED: u64 = 0x726f;

impl Case<'_> {
    pub fn combine(&self) -> Result<(), Failure> {
        let (flags, lab, tokens) = (self.flags, self.lab, self.tokens);
        let mut operators = Vec::new();
        for (max_tokens, low_latency_tokens) in self.variants(&flags.low_latency_tokens) {
            let shape = CombineShape {
                experts: self.experts,
                top_k: flags.top_k,
                max_tokens,
                hidden: flags.hidden,
            };
            let config = CombineConfig {
                experts: Dim::Static(shape.experts),
                top_k: Dim::Static(shape.top_k),
                max_tokens: Dim::Static(shape.max_tokens),
                hidden: Dim::Static(shape.hidden),
                max_rows: Some(self.max_rows as u32),
                low_latency_tokens,
                ..CombineConfig::new(CombineOp::Combine)
            };
            operators.push(self.prepare(config, shape, &flags.combine_edit)?);
        }
        let rows = lab.matrix(self.max_rows, flags.hidden, 0)?;
        lab.fill(&rows, self.rank() * self.max_rows, ROW_SEED)?;
        let c = lab.matrix(tokens.per_rank, flags.hidden, 0)?;
        let mut random = Random(self.rank());
        let gates: Vec<f32> = tokens.ids[0]
            .iter()
            .map(|_| fraction(&mut random) as f32)
            .collect();
        let on_gpu = lab.stream.clone_htod(&gates)?;
        let raw = [
            rows.operand(),
            operand(&self.count),
            operand(&self.places),
            operand(&on_gpu),
            c.operand(),
        ];
        let plan = operators[0].plan();
        let moved_us = plan.body().bound.memory_us.max(plan.body().bound.nic_us);
        let bound_us = self.link_us(plan).max(moved_us);
        for (operator, times) in operators.iter().zip(self.times(&operators, &raw)?) {
            lab.poison(&c)?;
            self.call(operator, &raw)?;
            let error = self.check_combine(&gates, &c)?;
            self.print(operator, &times, error, bound_us)?;
        }
        Ok(())
    }

    /// Checks the sums of some tokens against a reference in fp64.
    fn check_combine(&self, gates: &[f32], c: &Matrix) -> Result<f64, Failure> {
        let (lab, hidden, top_k) = (self.lab, self.flags.hidden, self.flags.top_k);
        let places = lab.stream.clone_dtoh(&self.places)?;
        let found = lab.stream.clone_dtoh(&c.memory)?;
        let (mut error2, mut sum2) = (0.0, 0.0);
        let step = (self.tokens.per_rank / CHECKED_TOKENS).max(1) as usize;
        for token in (0..self.tokens.per_rank).step_by(step) {
            let choices = (token * top_k) as usize..((token + 1) * top_k) as usize;
            let mut sums = vec![0.0; hidden as usize];
            for (place, gate) in places[choices.clone()].iter().zip(&gates[choices]) {
                let row = lab.matrix(1, hidden, 0)?;
                lab.fill(&row, *place as u64, ROW_SEED)?;
                let row: Vec<bf16> = lab.stream.clone_dtoh(&row.memory)?;
                for (sum, x) in sums.iter_mut().zip(row) {
                    *sum += f64::from(*gate) * x.to_f64();
                }
            }
            let at = (token * hidden) as usize;
            for (found, sum) in found[at..at + hidden as usize].iter().zip(sums) {
                error2 += (found.to_f64() - sum).powi(2);
                sum2 += sum * sum;
            }
        }
        Ok((error2 / sum2).sqrt())
    }
}
