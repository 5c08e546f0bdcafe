//! Another batch of a batch-invariant kernel: some rows of the first call, whose results must have equal bits.

use super::inputs::Inputs;
use super::verdict::Results;
use mkernel::spec::abi::OperandSpec;
use mkernel::spec::{Device, Dim, DispatchOp, Problem, Shape, SizedSpec};
use mkernel::{KernelConfig, KernelPlan, Operand};

/// Rows of the first call of a kernel in another order, as a call of a kernel for exactly these rows.
pub struct OtherBatch {
    pub config: KernelConfig,
    pub shape: Shape,
    pub inputs: Inputs,
    rows: Rows,
}

/// The rows of the first call that a batch has, in its order.
enum Rows {
    /// Of all ranks together.
    Common(Vec<usize>),
    /// Of each rank: its tokens.
    OfRanks(Vec<Vec<usize>>),
}

/// The last half of some rows, in reverse order.
fn last_half(rows: usize) -> Vec<usize> {
    (rows / 2..rows).rev().collect()
}

impl OtherBatch {
    /// The last half of the rows of the first call, or of the tokens of each rank, in reverse order. `None` if the kernel does not
    /// promise equal bits, gives rows of tokens other places in another batch, or exchanges rows, which other ranks then get.
    pub fn of(config: &KernelConfig, plan: &KernelPlan, first: &Inputs) -> Option<Self> {
        if let Problem::Dispatch(of) = &config.problem {
            return match of.op {
                DispatchOp::MoeLayer => Self::of_tokens(config, plan, first),
                DispatchOp::DispatchGemm => None,
            };
        }
        let (mut config, mut shape) = (config.clone(), plan.shape());
        let (m, most) = match (&mut config.problem, &mut shape) {
            (Problem::Gemm(of), Shape::Gemm(shape)) if of.batch_invariant => {
                (&mut of.m, &mut shape.m)
            }
            (Problem::Collective(of), Shape::Collective(shape))
                if of.batch_invariant && !of.op.exchanges() =>
            {
                (&mut of.m, &mut shape.m)
            }
            _ => return None,
        };
        let all = first.rows.unwrap_or(*most) as usize;
        let rows = last_half(all);
        *most = rows.len() as u64;
        *m = Dim::Static(*most);
        let operands = operands(&config, shape)?;
        let rows = Rows::Common(rows);
        let mut floats = Vec::new();
        for (operand, of_ranks) in &first.floats {
            let specs = [&first.operands, &operands].map(|all| spec_of(all, *operand));
            let [Some(before), Some(after)] = specs else {
                continue;
            };
            // Operands that do not depend on M, such as weights and scales of tensors, are the same in both batches.
            let values = match before.rows == after.rows {
                true => of_ranks.clone(),
                false => taken(of_ranks, [before, after], &rows),
            };
            floats.push((*operand, values));
        }
        let inputs = Inputs {
            rows: None,
            operands,
            floats,
            numbers: Vec::new(),
        };
        Some(Self {
            config,
            shape,
            inputs,
            rows,
        })
    }

    /// The last half of the tokens of each rank, as a call of a layer of experts for at most these numbers of tokens.
    fn of_tokens(config: &KernelConfig, plan: &KernelPlan, first: &Inputs) -> Option<Self> {
        let (mut config, mut shape) = (config.clone(), plan.shape());
        let counts = first.numbers(Operand::NumTokens).iter();
        let tokens: Vec<_> = counts.map(|count| last_half(count[0] as usize)).collect();
        let most = tokens.iter().map(Vec::len).max()?.max(1);
        let (Problem::Dispatch(of), Shape::Dispatch(sizes)) = (&mut config.problem, &mut shape)
        else {
            return None;
        };
        let most_before = sizes.max_tokens as usize;
        sizes.max_tokens = most as u64;
        of.max_tokens = Dim::Static(sizes.max_tokens);
        let operands = operands(&config, shape)?;
        let num_tokens = tokens.iter().map(|rows| vec![rows.len() as i32]).collect();
        let floats = first.floats.iter().map(|(operand, of_ranks)| {
            let values = match operand {
                Operand::Tokens | Operand::TopkWeights => {
                    tokens_of(of_ranks, &tokens, [most_before, most])
                }
                _ => of_ranks.clone(),
            };
            (*operand, values)
        });
        let ids = first.numbers(Operand::TopkIds);
        let ids = tokens_of(ids, &tokens, [most_before, most]);
        let inputs = Inputs {
            rows: None,
            floats: floats.collect(),
            numbers: vec![(Operand::TopkIds, ids), (Operand::NumTokens, num_tokens)],
            operands,
        };
        Some(Self {
            config,
            shape,
            inputs,
            rows: Rows::OfRanks(tokens),
        })
    }

    /// Whether the results of all ranks have the bits that the first call has for these rows.
    pub fn agrees(&self, first: &Inputs, of_first: &[&Results], found: &[&Results]) -> bool {
        let mut results = self.inputs.operands.iter().filter(|spec| spec.written);
        results.all(|after| {
            let Some(before) = spec_of(&first.operands, after.operand) else {
                return false;
            };
            // The memory of a result may be longer than the result: a rank without rows has an element.
            let of = |all: &[&Results], inputs: &Inputs| -> Vec<Vec<f32>> {
                let of_rank = |(rank, results): (u32, &&Results)| {
                    let mut named = results.iter();
                    let (_, values) = named.find(|(name, _)| *name == after.operand.name())?;
                    values
                        .get(..inputs.elems(after.operand, rank))
                        .map(<[f32]>::to_vec)
                };
                (0..).zip(all).filter_map(of_rank).collect()
            };
            let expected = taken(&of(of_first, first), [before, after], &self.rows);
            let mut found = of(found, &self.inputs);
            if let Rows::OfRanks(_) = &self.rows {
                // A rank may have fewer tokens than the result has room for.
                let of_ranks = found.iter_mut().zip(&expected);
                of_ranks.for_each(|(found, expected)| found.truncate(expected.len()));
            }
            let bits = |all: Vec<Vec<f32>>| {
                let values = all.into_iter().flatten();
                values.map(f32::to_bits).collect::<Vec<_>>()
            };
            bits(expected) == bits(found)
        })
    }
}

/// The operands of a kernel, if a plan exists.
fn operands(config: &KernelConfig, shape: Shape) -> Option<Vec<OperandSpec>> {
    let spec = SizedSpec::for_sizes(config.clone(), shape).ok()?;
    let plan = KernelPlan::new(&spec, &Device::default()).ok()?;
    Some(plan.operands().to_vec())
}

fn spec_of(all: &[OperandSpec], operand: Operand) -> Option<&OperandSpec> {
    all.iter().find(|spec| spec.operand == operand)
}

/// The elements of these rows, which have `cols` columns.
fn lines<T: Copy>(all: &[T], cols: usize, rows: &[usize]) -> Vec<T> {
    let line = |row: &usize| &all[row * cols..][..cols];
    rows.iter().flat_map(line).copied().collect()
}

/// The elements of these tokens of an operand on each rank, which has room for `most_before` tokens, with zeros up to `most` tokens.
fn tokens_of<T: Copy + Default>(
    of_ranks: &[Vec<T>],
    tokens: &[Vec<usize>],
    [most_before, most]: [usize; 2],
) -> Vec<Vec<T>> {
    let ranks = of_ranks.iter().zip(tokens);
    ranks
        .map(|(all, rows)| {
            let cols = all.len() / most_before;
            let mut taken = lines(all, cols, rows);
            taken.resize(most * cols, T::default());
            taken
        })
        .collect()
}

/// The elements of these rows of an operand on each rank. A rank has its own rows, all common rows, or a share of the common rows.
fn taken(of_ranks: &[Vec<f32>], [before, after]: [&OperandSpec; 2], rows: &Rows) -> Vec<Vec<f32>> {
    let cols = before.cols as usize;
    let rows = match rows {
        Rows::Common(rows) => rows,
        Rows::OfRanks(rows) => {
            let ranks = of_ranks.iter().zip(rows);
            return ranks.map(|(all, rows)| lines(all, cols, rows)).collect();
        }
    };
    let ranks = 0..of_ranks.len() as u32;
    let rows_of = |spec: &OperandSpec, rank| spec.rows.on(rank) as usize;
    let are_shared = ranks
        .clone()
        .map(|rank| rows_of(after, rank))
        .sum::<usize>()
        == rows.len();
    let all = of_ranks.concat();
    let mut next = 0;
    ranks
        .map(|rank| {
            let of_rank = match are_shared {
                true => &all,
                false => &of_ranks[rank as usize],
            };
            let first = if are_shared { next } else { 0 };
            next = first + rows_of(after, rank);
            lines(of_rank, cols, &rows[first..next])
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::machine::{Machine, Simulated};
    use crate::cli::run::ranks::Job;
    use mkernel::network::Transport;
    use mkernel::spec::{
        BLayout, CollectiveConfig, CollectiveOp, DispatchConfig, Dtype, GemmConfig, GemmOp, Scales,
    };

    /// Tokens of ranks; rows that ranks share, and rows that all ranks have; a number of rows that the ranks do not divide; scales of rows, and a
    /// scale that all rows share.
    fn kernels() -> [Problem; 6] {
        let n = Dim::Static(136);
        let gemm = |op, m| GemmConfig {
            m,
            n,
            k: Dim::Static(512),
            batch_invariant: true,
            ..GemmConfig::new(op)
        };
        let scaled = |scales| GemmConfig {
            dtype: Dtype::E4m3,
            b_layout: BLayout::Nk,
            scales,
            ..gemm(GemmOp::AgGemm, Dim::Static(9))
        };
        let sum = CollectiveConfig {
            m: Dim::Static(9),
            n,
            batch_invariant: true,
            ..CollectiveConfig::new(CollectiveOp::AllReduce)
        };
        let layer = DispatchConfig {
            max_tokens: Dim::Static(9),
            experts: Dim::Static(4),
            top_k: Dim::Static(2),
            hidden: Dim::Static(136),
            intermediate: Dim::Static(128),
            b_layout: BLayout::Nk,
            swiglu: true,
            ..DispatchConfig::new(DispatchOp::MoeLayer)
        };
        [
            layer.into(),
            gemm(GemmOp::AgGemm, Dim::Static(7)).into(),
            gemm(GemmOp::GemmRs, Dim::UpTo(11)).into(),
            sum.into(),
            scaled(Scales::Tensor).into(),
            scaled(Scales::Row).into(),
        ]
    }

    #[test]
    fn rows_are_compared_with_another_batch() {
        for problem in kernels() {
            let config = KernelConfig::new(2, problem);
            let spec = SizedSpec::validate(config.clone()).expect("valid");
            let plan = KernelPlan::new(&spec, &Device::simulated(8)).expect("a plan");
            let job = Job {
                config: &config,
                plan: &plan,
                machine: Machine::Simulated(Simulated {
                    sms: 8,
                    skew: 20,
                    timeline: false,
                }),
                seed: 5, // with which ranks have tokens
                calls: 1,
                threads: 1,
                transport: Transport::default(),
            };
            let ran = job.run().result.expect("results");
            assert_eq!(ran.is_batch_invariant, Some(true), "{}", plan.id);

            let calls = job.inputs();
            let other = OtherBatch::of(&config, &plan, &calls[0]).expect("a batch");
            let name = other.inputs.operands.iter().find(|spec| spec.written);
            let result = |rank: u32, inputs: &Inputs| -> Results {
                let operand = name.expect("a result").operand;
                let elems = inputs.elems(operand, rank);
                vec![(operand.name(), vec![1.0; elems])]
            };
            let of = |inputs: &Inputs| [0, 1].map(|rank| result(rank, inputs));
            let (first, mut found) = (of(&calls[0]), of(&other.inputs));
            let agrees = |found: &[Results; 2]| {
                other.agrees(&calls[0], &[&first[0], &first[1]], &[&found[0], &found[1]])
            };
            assert!(agrees(&found), "{}", plan.id);
            // A rank may have no tokens.
            for of_rank in &mut found {
                of_rank[0].1[0] = f32::from_bits(1.0_f32.to_bits() + 1);
            }
            assert!(!agrees(&found), "{}: a bit differs", plan.id);
        }
    }
}
