//! Times `moe_layer` beside the products alone, and checks the sums of some tokens.

use super::factor::{Factor, Place};
use super::tokens::fraction;
use super::{BLOCK_US, Case, operand};
use mkernel::cudarc::driver::CudaSlice;
use mkernel::cudarc::driver::sys::CUstream;
use mkernel::operands::RawOperand;
use mkernel::spec::{BLayout, Dim, DispatchConfig, DispatchOp, DispatchShape};
use mkernel::{Communicator, KernelConfig, Operator};
use mkernel_testing::blocks::{MAX_ITERATIONS, in_turns, median};
use mkernel_testing::lab::{Failure, Matrix, Random};

/// The number of checked tokens of a rank.
const CHECKED_TOKENS: u64 = 2;
const TOKEN_SEED: u64 = 0x746f;
const UP_SEED: u64 = 1;
const DOWN_SEED: u64 = 101;

impl Case<'_> {
    pub fn layer(&self) -> Result<(), Failure> {
        let (flags, lab, tokens) = (self.flags, self.lab, self.tokens);
        let (hidden, cols) = (flags.hidden, flags.intermediate);
        let operators = self.layers()?;
        let local = tokens.local_experts();
        let place = |rows, cols, first_row, seed| Place {
            rows,
            cols,
            first_row,
            seed,
        };
        let first_row = self.rank() * tokens.per_rank;
        let x = self.factor(place(tokens.per_rank, hidden, first_row, TOKEN_SEED), false)?;
        let up = place(local * 2 * cols, hidden, 0, UP_SEED + self.rank());
        let up = self.factor(up, true)?;
        let down = place(local * hidden, cols, 0, DOWN_SEED + self.rank());
        let down = self.factor(down, true)?;
        let c = lab.matrix(tokens.per_rank, hidden, 0)?;
        let ids = lab.stream.clone_htod(&tokens.ids[self.rank() as usize])?;
        let mut random = Random(self.rank());
        let gates: Vec<f32> = (0..tokens.ids[0].len())
            .map(|_| fraction(&mut random) as f32)
            .collect();
        let gates_on_gpu = lab.stream.clone_htod(&gates)?;
        let mut raw = vec![
            x.operand(),
            operand(&self.count),
            operand(&ids),
            operand(&gates_on_gpu),
            up.operand(),
            down.operand(),
            c.operand(),
        ];
        raw.extend([&x, &up, &down].into_iter().filter_map(Factor::scales));
        let plan = operators[0].plan();
        let rows = tokens.rows().into_iter().max().unwrap_or(0);
        let alone = self.products_alone((&up, &down))?;
        let (dtype, _) = self.factor_type();
        let compute_us = (6 * rows * hidden * cols) as f64 / plan.device.tflops(dtype) / 1e6;
        let bound_us = compute_us.max(plan.body().bound.memory_us);
        let stream = lab.stream.cu_stream();
        let call = |index: usize| match operators.get(index) {
            // SAFETY: the operands are in the order of the plan, for the tokens of the call, and live until the block has ended.
            Some(layer) => Ok(unsafe { layer.launch_raw(stream, &raw) }?),
            None => alone.launch(stream),
        };
        let first = self.blocks.time(2, &|| call(0))?;
        let iterations = (BLOCK_US / median(&first)).clamp(3.0, f64::from(MAX_ITERATIONS)) as u32;
        let times = in_turns(flags.rounds, operators.len() + 1, |index| {
            self.blocks.time(iterations, &|| call(index))
        })?;
        if let (0, Some(times)) = (self.rank(), times.last()) {
            let (per_rank, us) = (tokens.per_rank, median(times));
            println!("products       {per_rank:>11} {rows:>10} {us:>7.1} {compute_us:>9.1}");
        }
        for (operator, times) in operators.iter().zip(times) {
            lab.poison(&c)?;
            self.call(operator, &raw)?;
            let error = self.check_layer(&gates, &c)?;
            self.print(operator, &times, error, bound_us)?;
        }
        Ok(())
    }

    /// The layer, prepared for each measured number of tokens.
    fn layers(&self) -> Result<Vec<Operator>, Failure> {
        let flags = self.flags;
        let (hidden, cols) = (flags.hidden, flags.intermediate);
        let (dtype, scales) = self.factor_type();
        let mut operators = Vec::new();
        for max_tokens in self.most_tokens() {
            let shape = DispatchShape {
                experts: self.experts,
                top_k: flags.top_k,
                max_tokens,
                hidden,
                intermediate: cols,
            };
            let config = DispatchConfig {
                experts: Dim::Static(shape.experts),
                top_k: Dim::Static(shape.top_k),
                max_tokens: Dim::Static(shape.max_tokens),
                hidden: Dim::Static(hidden),
                intermediate: Dim::Static(cols),
                b_layout: BLayout::Nk,
                dtype,
                scales,
                swiglu: true,
                max_rows: Some(self.max_rows as u32),
                tile_m: flags.tile_m,
                tile_n: flags.tile_n,
                comm_ctas: flags.comm_ctas,
                ..DispatchConfig::new(DispatchOp::MoeLayer)
            };
            operators.push(self.prepare(config, shape, &flags.dispatch_edit)?);
        }
        Ok(operators)
    }

    /// Both products of this rank's rows by operators of one rank. Each row is a token with one expert.
    fn products_alone(&self, (up, down): (&Factor, &Factor)) -> Result<ProductsAlone, Failure> {
        let (flags, lab, tokens) = (self.flags, self.lab, self.tokens);
        let alone = self.ranks.split(Some(self.ranks.rank()), 0)?;
        let alone = alone.ok_or("every rank is in a group")?;
        let local = tokens.local_experts();
        let ids = tokens.ids.iter().flatten().map(|id| *id as u64);
        let ids = ids.filter(|id| id / local == self.rank());
        let ids: Vec<i32> = ids.map(|id| (id % local) as i32).collect();
        let rows = ids.len() as u64;
        let factor = |cols, seed| {
            let place = Place {
                rows,
                cols,
                first_row: 0,
                seed,
            };
            self.factor(place, false)
        };
        let x = factor(flags.hidden, TOKEN_SEED)?;
        // The second product of e4m3 has separate hidden rows, since the first product gives bf16.
        let of_second = factor(flags.intermediate, TOKEN_SEED)?;
        let h = lab.matrix(rows, flags.intermediate, 0)?;
        let y = lab.matrix(rows, flags.hidden, 0)?;
        let count = lab.stream.clone_htod(&[rows as i32])?;
        let places = lab.stream.clone_htod(&vec![-1; rows as usize])?;
        let offsets = lab.stream.clone_htod(&vec![-1; local as usize + 1])?;
        let ids = lab.stream.clone_htod(&ids)?;
        let operands = |from: &Factor, weights: &Factor, to: &Matrix| {
            let mut operands = vec![
                from.operand(),
                operand(&count),
                operand(&ids),
                weights.operand(),
                to.operand(),
                operand(&offsets),
                operand(&places),
            ];
            operands.extend([from, weights].into_iter().filter_map(Factor::scales));
            operands
        };
        Ok(ProductsAlone {
            first: self.product_alone(&alone, rows, (flags.hidden, flags.intermediate), true)?,
            of_first: operands(&x, up, &h),
            second: self.product_alone(&alone, rows, (flags.intermediate, flags.hidden), false)?,
            of_second: operands(&of_second, down, &y),
            _factors: [x, of_second],
            _results: [h, y],
            _numbers: [count, places, offsets, ids],
        })
    }

    /// A product of `rows` rows with this rank's experts, by an operator of one rank.
    fn product_alone(
        &self,
        alone: &Communicator,
        rows: u64,
        (hidden, intermediate): (u64, u64),
        swiglu: bool,
    ) -> Result<Operator, Failure> {
        let shape = DispatchShape {
            experts: self.tokens.local_experts(),
            top_k: 1,
            max_tokens: rows,
            hidden,
            intermediate,
        };
        let (dtype, scales) = self.factor_type();
        let config = DispatchConfig {
            experts: Dim::Static(shape.experts),
            top_k: Dim::Static(1),
            max_tokens: Dim::Static(rows),
            hidden: Dim::Static(hidden),
            intermediate: Dim::Static(intermediate),
            b_layout: BLayout::Nk,
            dtype,
            scales,
            swiglu,
            ..DispatchConfig::new(DispatchOp::DispatchGemm)
        };
        Ok(alone.prepare(&KernelConfig::new(1, config), shape)?)
    }

    /// Checks the sums of some tokens against a reference in fp64.
    fn check_layer(&self, gates: &[f32], c: &Matrix) -> Result<f64, Failure> {
        let (lab, top_k, hidden) = (self.lab, self.flags.top_k, self.flags.hidden as usize);
        let found = lab.stream.clone_dtoh(&c.memory)?;
        let (mut error2, mut sum2) = (0.0, 0.0);
        let step = (self.tokens.per_rank / CHECKED_TOKENS).max(1) as usize;
        for token in (0..self.tokens.per_rank).step_by(step) {
            let choices = (token * top_k) as usize..((token + 1) * top_k) as usize;
            let first_row = self.rank() * self.tokens.per_rank + token;
            let x = self.drawn(1, hidden as u64, first_row, TOKEN_SEED)?;
            let ids = &self.tokens.ids[self.rank() as usize][choices.clone()];
            let mut sums = vec![0.0; hidden];
            for (expert, gate) in ids.iter().zip(&gates[choices]) {
                let of_expert = self.result(*expert as u64, &x)?;
                for (sum, y) in sums.iter_mut().zip(of_expert) {
                    *sum += f64::from(*gate) * y;
                }
            }
            let at = token as usize * hidden;
            for (found, sum) in found[at..at + hidden].iter().zip(sums) {
                error2 += (found.to_f64() - sum).powi(2);
                sum2 += sum * sum;
            }
        }
        Ok((error2 / sum2).sqrt())
    }

    /// The result of an expert of any rank for a token.
    fn result(&self, expert: u64, x: &[f32]) -> Result<Vec<f64>, Failure> {
        let (hidden, cols) = (self.flags.hidden, self.flags.intermediate);
        let (owner, expert) = (
            expert / self.tokens.local_experts(),
            expert % self.tokens.local_experts(),
        );
        let up = self.drawn(2 * cols, hidden, expert * 2 * cols, UP_SEED + owner)?;
        let down = self.drawn(hidden, cols, expert * hidden, DOWN_SEED + owner)?;
        let sums = products(&up, x);
        let (gate, up) = sums.split_at(cols as usize);
        let rows: Vec<f32> = gate
            .iter()
            .zip(up)
            .map(|(gate, up)| (gate / (1.0 + (-gate).exp()) * up) as f32)
            .collect();
        Ok(products(&down, &self.as_factor(rows)))
    }

    /// Rows of a random factor.
    fn drawn(&self, rows: u64, cols: u64, first_row: u64, seed: u64) -> Result<Vec<f32>, Failure> {
        let place = Place {
            rows,
            cols,
            first_row,
            seed,
        };
        self.on_host(place, seed != TOKEN_SEED)
    }
}

/// Both products of a layer without communication.
struct ProductsAlone {
    first: Operator,
    of_first: Vec<RawOperand>,
    second: Operator,
    of_second: Vec<RawOperand>,
    _factors: [Factor; 2],
    _results: [Matrix; 2],
    _numbers: [CudaSlice<i32>; 4],
}

impl ProductsAlone {
    fn launch(&self, stream: CUstream) -> Result<(), Failure> {
        // SAFETY: the operands are in the order of the plans, and live as long as this struct.
        unsafe { self.first.launch_raw(stream, &self.of_first) }?;
        // SAFETY: as above.
        Ok(unsafe { self.second.launch_raw(stream, &self.of_second) }?)
    }
}

/// The product of a matrix and a vector.
fn products(matrix: &[f32], vector: &[f32]) -> Vec<f64> {
    let rows = matrix.chunks(vector.len());
    rows.map(|row| row.iter().zip(vector).map(|(a, b)| f64::from(a * b)).sum())
        .collect()
}
