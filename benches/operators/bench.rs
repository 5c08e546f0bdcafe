//! [`Bench`]: measures the plans of one size on one rank, and checks their results.

use crate::flags::Flags;
use crate::operands::{Operands, epilogue_of};
use crate::report::{self, Baseline, Row, Unfused};
use mkernel::Operand;
use mkernel::spec::plan::GemmPlan;
use mkernel::{
    Call, Communicator, KernelConfig, KernelPlan, Operator,
    half::bf16,
    operands::{Addends, Rows},
    spec::{BLayout, Dim, Epilogue, GemmConfig, GemmOp, GemmShape, Tuning},
};
use mkernel_testing::blocks::{Blocks, MAX_ITERATIONS, in_turns, median};
use mkernel_testing::cublas::Cublas;
use mkernel_testing::lab::{Failure, Finish, Lab, View};
use mkernel_testing::options::Tune;
use mkernel_testing::unfused::nics_us;
use std::iter;
use std::ops::Range;
use std::time::Instant;

/// The time of a block of calls.
const BLOCK_US: f64 = 20_000.0;
/// The number of checked rows of C.
const CHECKED_ROWS: u64 = 64;
/// The most GPU time, in µs, of the successive calls whose host time is measured.
const LAUNCHES_US: f64 = 20_000.0;
/// The most successive calls whose host time is measured.
const MAX_LAUNCHES: f64 = 64.0;

/// A rank, which runs on its own thread.
pub struct Bench<'a> {
    pub flags: &'a Flags,
    pub ranks: &'a Communicator,
    /// A communicator of one rank on the same GPU.
    pub alone: &'a Communicator,
    pub lab: &'a Lab,
    pub cublas: Cublas,
    pub blocks: Blocks<'a>,
    pub baselines: &'a [Baseline],
    pub seed: u64,
}

/// The measured candidates: cuBLAS, the core, and plans.
struct Candidates {
    core: Operator,
    plans: Vec<(Tune, Operator)>,
}

impl Bench<'_> {
    pub fn shape(&self, op: GemmOp, shape: GemmShape, layout: BLayout) -> Result<(), Failure> {
        let mut operands = Operands::new(self, op, shape, layout)?;
        let candidates = self.prepare(op, shape, layout)?;
        self.check(&operands, &candidates)?;
        let times = self.measure(&operands, &candidates)?;
        let [cublas_us, core_us, plans_us @ ..] = times.as_slice() else {
            return Err("the measurement has fewer than two times".into());
        };
        let nics_us = nics_us(
            self.ranks,
            candidates.plans[0].1.plan(),
            &self.flags.network,
        )?;
        // A second check, after the epochs have advanced.
        let errors = self.check(&operands, &candidates)?;
        let (cublas_error, errors) = (errors[0], &errors[2..]);
        for (((tune, operator), us), relative_error) in
            candidates.plans.iter().zip(plans_us).zip(errors)
        {
            let launches = (LAUNCHES_US / us).clamp(4.0, MAX_LAUNCHES) as u32;
            let launch_ns = self.launch_ns(operator, &mut operands, launches)?;
            let plan = operator.plan();
            let gemm = plan.gemm().ok_or("the plan is not one of a GEMM")?;
            let mut row = self.row(plan, (gemm, shape), [*us, *cublas_us, *core_us]);
            row.tune.clone_from(&tune.text);
            (row.launch_ns, row.launch_raw_ns) = launch_ns;
            row.relative_error = *relative_error;
            row.cublas_error = cublas_error;
            row.unfused = nics_us.map(|nics_us| Unfused::new(&row, nics_us, self.baselines, plan));
            if self.ranks.rank() == 0 {
                report::print(&row);
                let file = self.flags.json.as_deref();
                file.map_or(Ok(()), |path| report::append(path, &row))?;
            }
        }
        // Memory may be freed only while no kernel of any rank runs.
        Ok(self.ranks.barrier()?)
    }

    /// Returns the report of a plan from its time.
    fn row(
        &self,
        plan: &KernelPlan,
        (gemm, GemmShape { m, n, k }): (&GemmPlan, GemmShape),
        [us, cublas_us, core_us]: [f64; 3],
    ) -> Row {
        let (world, layout) = (plan.spec.world(), gemm.config.b_layout);
        let nic_us = self.flags.network.nic_us(plan.body().traffic.nic_bytes);
        let bound_us = cublas_us.max(plan.body().bound.link_us).max(nic_us);
        let normalised = us / cublas_us;
        Row {
            op: gemm.config.op.op().name(),
            world,
            nodes: self.flags.network.nodes,
            nic_us,
            m,
            n,
            k,
            b_layout: layout.name(),
            id: plan.id.clone(),
            us,
            cublas_us,
            core_us,
            normalised,
            core_speed: cublas_us / core_us,
            bound_us,
            of_bound: bound_us / us,
            estimate_us: plan.body().estimate_us,
            nccl_error: report::nccl_error(self.baselines, plan, world),
            baseline: report::best(self.baselines, plan, world, normalised),
            ..Row::default()
        }
    }

    fn prepare(
        &self,
        op: GemmOp,
        shape: GemmShape,
        b_layout: BLayout,
    ) -> Result<Candidates, Failure> {
        let config =
            |m, (world, nodes), max_sms, (epilogue, symmetric, batch_invariant), tuning| {
                let config = GemmConfig {
                    batch_invariant,
                    symmetric_result: symmetric == Some(Operand::C),
                    symmetric_a: symmetric == Some(Operand::A),
                    m,
                    b_layout,
                    epilogue,
                    tuning,
                    ..GemmConfig::new(op)
                };
                KernelConfig {
                    nodes,
                    max_sms,
                    ..KernelConfig::new(world, config)
                }
            };
        let tunings = match self.flags.tunings.as_slice() {
            [] => vec![Tune::default()],
            given => given.to_vec(),
        };
        let mut plans = Vec::new();
        let rows = Dim::Static(shape.m);
        let plain = Epilogue::default();
        let ranks = (self.ranks.world(), self.flags.network.nodes);
        let symmetric = self.flags.in_symmetric_memory(op);
        for tune in tunings {
            let epilogues = [plain]
                .into_iter()
                .chain(self.flags.epilogues.iter().copied());
            let results = epilogues.flat_map(|epilogue| {
                let symmetric = symmetric.map(|operand| (epilogue, Some(operand), false));
                let invariant = self.flags.batch_invariant;
                iter::once((epilogue, None, false))
                    .chain(symmetric)
                    .chain(invariant.then_some((epilogue, None, true)))
            });
            for result in results {
                // The flags give N of the product. With SwiGLU, C has half of these columns.
                let n = shape.n / u64::from(result.0.weight_cols());
                let shape = GemmShape { n, ..shape };
                for max_sms in iter::once(None).chain(self.flags.max_sms.iter().copied().map(Some))
                {
                    let config = config(rows, ranks, max_sms, result, tune.tuning);
                    plans.push((tune.clone(), self.ranks.prepare(&config, shape)?));
                }
                for most in &self.flags.max_rows {
                    let config = config(Dim::Dynamic, ranks, None, result, tune.tuning);
                    let shape = GemmShape { m: *most, ..shape };
                    plans.push((tune.clone(), self.ranks.prepare(&config, shape)?));
                }
            }
        }
        let core = config(rows, (1, 1), None, (plain, None, false), Tuning::default());
        let core = self.alone.prepare(&core, shape)?;
        Ok(Candidates { core, plans })
    }

    /// Returns functions that call cuBLAS, the core and every plan.
    fn calls<'b>(
        &'b self,
        operands: &'b Operands,
        candidates: &'b Candidates,
    ) -> Vec<Box<dyn Fn() -> Result<(), Failure> + 'b>> {
        let stream = self.lab.stream.cu_stream();
        let Operands { a, b, c, .. } = operands;
        let whole = [a.operand(), b.operand(), c.operand()];
        let mut calls: Vec<Box<dyn Fn() -> Result<(), Failure> + 'b>> = vec![
            Box::new(|| self.cublas.gemm(a, b, c, operands.transposed)),
            // SAFETY: the operands have the sizes of the shape, and outlive the calls, since `measure` waits for the calls.
            Box::new(move || Ok(unsafe { candidates.core.launch_raw(stream, &whole) }?)),
        ];
        for (_, operator) in &candidates.plans {
            let fused = operands.raw(operator.plan());
            let rows = rows_of(operator, operands);
            calls.push(Box::new(move || {
                // SAFETY: the operands are those of the plan, and outlive the calls, since `measure` waits for the calls.
                Ok(unsafe { operator.launch_raw_rows(stream, &fused, rows) }?)
            }));
        }
        calls
    }

    /// Checks sampled rows of the result of every candidate. Returns the errors of cuBLAS, the core and the plans.
    fn check(&self, operands: &Operands, candidates: &Candidates) -> Result<Vec<f64>, Failure> {
        let Operands { a, b, c, .. } = operands;
        // The factors of the C that the fused kernels compute.
        let (whole_a, whole_b) = operands.of_all.as_ref().map_or((a, b), |(a, b)| (a, b));
        let fused_a = whole_a.part(operands.rows_c.clone(), 0..whole_a.cols);
        let parts = operands.of_all.as_ref().map_or(1, |_| self.ranks.world());
        let calls = self.calls(operands, candidates);
        let verdicts = self.lab.verdicts(calls.len())?;
        for (slot, call) in calls.iter().enumerate() {
            let plan = slot.checked_sub(2).map(|index| &candidates.plans[index].1);
            let epilogue = plan.map_or(Epilogue::default(), |op| epilogue_of(op.plan()));
            let kernel = plan.map(Operator::plan);
            let fused = |operand| operands.fused(operand, kernel);
            // With a norm, the check reads the input of the norm.
            let result = match epilogue.normalises() {
                true => Operand::ResidualOut,
                false => Operand::C,
            };
            let (fused_c, residual) = (fused(result), fused(Operand::Residual));
            let (matrices, parts) = match plan {
                None => ((&a.view, &b.view, &c.view), 1),
                Some(_) => ((&fused_a, &whole_b.view, &fused_c), parts),
            };
            let finish = Finish {
                epilogue,
                bias: epilogue.bias.then_some(&operands.bias.view),
                residual: epilogue.residual.then_some(&residual),
            };
            let how = (matrices.2.rows.div_ceil(CHECKED_ROWS) | 1, parts);
            self.lab.poison(operands.c(kernel))?;
            call()?;
            let transposed = operands.transposed;
            self.lab
                .check(matrices, transposed, how, finish, &verdicts, slot)?;
        }
        self.ranks.synchronize(&self.lab.stream)?;
        self.alone.check()?;
        let verdicts = self.lab.read_verdicts(&verdicts)?;
        let names = ["cuBLAS", candidates.core.plan().id.as_str()];
        let names = names
            .into_iter()
            .chain(candidates.plans.iter().map(|(_, op)| op.plan().id.as_str()));
        for (name, verdict) in names.zip(&verdicts) {
            if !verdict.is_right() {
                return Err(
                    format!("{name} is wrong on rank {}: {verdict:?}", self.ranks.rank()).into(),
                );
            }
        }
        Ok(verdicts
            .iter()
            .map(|verdict| verdict.relative_error)
            .collect())
    }

    /// Returns the median times of cuBLAS, the core and every plan in µs. Their blocks take turns.
    fn measure(&self, operands: &Operands, candidates: &Candidates) -> Result<Vec<f64>, Failure> {
        let plan = candidates.core.plan();
        let iterations = (BLOCK_US / plan.body().bound.us()) as u32;
        let iterations = self
            .flags
            .iterations
            .unwrap_or(iterations.clamp(6, 40))
            .clamp(1, MAX_ITERATIONS);
        let calls = self.calls(operands, candidates);
        let times = in_turns(self.flags.rounds, calls.len(), |index| {
            self.blocks.time(iterations, &calls[index])
        })?;
        Ok(times.iter().map(|times| median(times)).collect())
    }

    /// Returns the host time of a call with slices and with pointers, each the smallest of several means on the slowest
    /// rank.
    fn launch_ns(
        &self,
        operator: &Operator,
        operands: &mut Operands,
        launches: u32,
    ) -> Result<(f64, f64), Failure> {
        let stream = &self.lab.stream;
        let epilogue = epilogue_of(operator.plan());
        let (raw, rows) = (operands.raw(operator.plan()), rows_of(operator, operands));
        let Operands {
            a,
            b,
            c,
            bias,
            residual,
            rows_a,
            rows_c,
            ..
        } = operands;
        // A rank without rows may pass any slice.
        let elems = |matrix: &View, rows: &Range<u64>| match rows.is_empty() {
            true => 0..8,
            false => (rows.start * matrix.stride) as usize..(rows.end * matrix.stride) as usize,
        };
        let (elems_a, elems_c) = (elems(a, rows_a), elems(c, rows_c));
        let rows_a = a.memory.slice(elems_a);
        let residual = residual.memory.slice(elems_c.clone());
        let mut rows_c = c.memory.slice_mut(elems_c);
        let addends = Addends {
            bias: epilogue.bias.then_some(&bias.memory),
            residual: epilogue.residual.then_some(&residual),
        };
        let time = |launch: &mut dyn FnMut() -> Result<(), mkernel::Error>| {
            let mut least = f64::MAX;
            for _ in 0..5 {
                self.ranks.barrier()?;
                let started = Instant::now();
                for _ in 0..launches {
                    launch()?;
                }
                least = least.min(started.elapsed().as_nanos() as f64 / f64::from(launches));
                self.ranks.synchronize(stream)?;
            }
            Ok::<f64, Failure>(least)
        };
        // Slices of fp32 and of symmetric memory would take as long as slices of bf16.
        let in_slices = operator
            .plan()
            .operands()
            .iter()
            .all(|spec| !spec.symmetric);
        let slices_ns = match epilogue.output {
            None if !epilogue.normalises() && !epilogue.swiglu && in_slices => time(&mut || {
                let call = operator.call(stream).read(Operand::A, &rows_a);
                let call = call.read(Operand::B, &b.memory);
                let call = call.write::<bf16, _>(Operand::C, &mut rows_c);
                complete(call, addends, rows).launch()
            })?,
            _ => f64::NAN,
        };
        // SAFETY: the operands are those of the plan, and outlive the calls.
        let raw_ns =
            time(&mut || unsafe { operator.launch_raw_rows(stream.cu_stream(), &raw, rows) })?;
        let slowest = self.blocks.slowest(&[slices_ns, raw_ns])?;
        Ok((slowest[0], slowest[1]))
    }
}

/// The rows of a call, if the operator takes them at run time.
fn rows_of(operator: &Operator, operands: &Operands) -> Rows {
    match operator.plan().max_rows() {
        Some(_) => Rows::Count(operands.a.rows),
        None => Rows::Most,
    }
}

/// Adds the operands of an epilogue and the number of rows to a call.
fn complete<'a>(call: Call<'a>, addends: Addends<'a>, rows: Rows) -> Call<'a> {
    let call = match addends.bias {
        Some(bias) => call.read(Operand::Bias, bias),
        None => call,
    };
    let call = match addends.residual {
        Some(residual) => call.read(Operand::Residual, residual),
        None => call,
    };
    match rows {
        Rows::Count(rows) => call.rows(rows),
        _ => call,
    }
}
