//! [`OtherBatch`]: some lines of the first call in a call of another kernel, whose results must have equal bits.

use super::inputs::Inputs;
use super::verdict::Results;
use mkernel::spec::abi::OperandSpec;
use mkernel::spec::{Device, Dim, Problem, Shape, SizedSpec};
use mkernel::{KernelConfig, KernelPlan, Operand};
use std::ops::Range;

/// The rank that has a line, and the number of the line.
type Place = (usize, usize);

/// Lines of an operand that two batches share. A line is a row, or a part of a row.
pub struct Lines {
    /// The number of elements of a line.
    pub cols: usize,
    /// The place of each line in the other batch, and its place in the first call.
    pub places: Vec<[Place; 2]>,
}

impl Lines {
    /// The elements of an operand of the other batch. `sizes` are the numbers of elements on each rank. Lines that are not shared are zeros.
    pub fn copied<T: Copy + Default>(
        &self,
        first: &[Vec<T>],
        sizes: impl Iterator<Item = usize>,
    ) -> Vec<Vec<T>> {
        let mut copies: Vec<Vec<T>> = sizes.map(|elems| vec![T::default(); elems]).collect();
        for [to, from] in &self.places {
            copies[to.0][self.range(to)].copy_from_slice(&first[from.0][self.range(from)]);
        }
        copies
    }

    fn range(&self, (_, line): &Place) -> Range<usize> {
        line * self.cols..(line + 1) * self.cols
    }
}

/// A call of another kernel, which has lines of the first call.
pub struct OtherBatch {
    pub plan: KernelPlan,
    pub inputs: Inputs,
    /// The shared lines of each result.
    results: Vec<(Operand, Lines)>,
}

impl OtherBatch {
    /// A call with these elements of int32 operands. `rows` are given if each call gives its rows. `None` if no such kernel exists.
    pub fn planned(
        config: KernelConfig,
        shape: Shape,
        rows: Option<u64>,
        numbers: Vec<(Operand, Vec<Vec<i32>>)>,
    ) -> Option<Self> {
        let spec = SizedSpec::for_sizes(config, shape).ok()?;
        let plan = KernelPlan::new(&spec, &Device::default()).ok()?;
        let inputs = Inputs {
            rows,
            operands: plan.operands_in_call(rows.unwrap_or(0)),
            numbers,
            ..Inputs::default()
        };
        Some(Self {
            plan,
            inputs,
            results: Vec::new(),
        })
    }

    /// The same call with the elements of the first call. `lines` returns the lines of an operand that the batches share, or `None` for an input that both
    /// batches have in common, and for a result that is not compared.
    pub fn of(
        mut self,
        first: &Inputs,
        lines: impl Fn(&Self, &OperandSpec) -> Option<Lines>,
    ) -> Self {
        for spec in self.inputs.operands.clone() {
            let operand = spec.operand;
            let lines = lines(&self, &spec);
            if spec.written {
                self.results.extend(lines.map(|lines| (operand, lines)));
            } else if let of_ranks @ [_, ..] = first.of(operand) {
                let sizes = (0..).map(|rank| self.inputs.elems(operand, rank));
                let values = lines.map_or_else(
                    || of_ranks.to_vec(),
                    |lines| lines.copied(of_ranks, sizes.take(of_ranks.len())),
                );
                self.inputs.floats.push((operand, values));
            }
        }
        self
    }

    /// Whether the results of all ranks have the bits of the results of the first call.
    pub fn agrees(&self, first: &[&Results], found: &[&Results]) -> bool {
        self.results.iter().all(|(operand, lines)| {
            let bits = |of_ranks: &[&Results], place: &Place| -> Option<Vec<u32>> {
                let mut named = of_ranks[place.0].iter();
                let (_, values) = named.find(|(name, _)| *name == operand.name())?;
                let line = values.get(lines.range(place))?.iter();
                Some(line.map(|value| value.to_bits()).collect())
            };
            let mut places = lines.places.iter();
            places.all(|[after, before]| {
                let expected = bits(first, before);
                expected.is_some() && expected == bits(found, after)
            })
        })
    }
}

/// The last half of `count` numbers, in reverse order.
pub fn last_half(count: usize) -> Vec<usize> {
    (count / 2..count).rev().collect()
}

/// The last half of the rows of the first call, in reverse order, as a call of a GEMM operator or of a collective for exactly this number
/// of rows. `None` if the kernel does not promise equal bits, or exchanges rows, which other ranks then get.
pub fn of_rows(config: &KernelConfig, plan: &KernelPlan, first: &Inputs) -> Option<OtherBatch> {
    let (mut config, mut shape) = (config.clone(), plan.shape());
    let (m, most) = match (&mut config.problem, &mut shape) {
        (Problem::Gemm(of), Shape::Gemm(shape)) if of.batch_invariant => (&mut of.m, &mut shape.m),
        (Problem::Collective(of), Shape::Collective(shape))
            if of.batch_invariant && !of.op.exchanges() =>
        {
            (&mut of.m, &mut shape.m)
        }
        _ => return None,
    };
    let rows = last_half(first.rows.unwrap_or(*most) as usize);
    *most = rows.len() as u64;
    *m = Dim::Static(*most);
    let world = plan.spec.world();
    let other = OtherBatch::planned(config, shape, None, Vec::new())?;
    Some(other.of(first, |_, after| {
        let mut specs = first.operands.iter();
        let before = specs.find(|spec| spec.operand == after.operand)?;
        // Operands that do not depend on M, such as weights and scales of tensors, are the same in both batches.
        if before.rows == after.rows && !after.written {
            return None;
        }
        Some(Lines {
            cols: after.cols as usize,
            places: places([before, after], world, &rows),
        })
    }))
}

/// The places of `rows`, of which each rank has all or a share.
fn places(specs: [&OperandSpec; 2], world: u32, rows: &[usize]) -> Vec<[Place; 2]> {
    let all = specs.map(|spec| -> Vec<Place> {
        let of_rank = |rank| (0..spec.rows.on(rank) as usize).map(move |row| (rank as usize, row));
        (0..world).flat_map(of_rank).collect()
    });
    let [before, after] = all;
    let are_shared = after.len() == rows.len();
    let place = |(index, to): (usize, Place)| match are_shared {
        true => [to, before[rows[index]]],
        false => [to, (to.0, rows[to.1])],
    };
    after.into_iter().enumerate().map(place).collect()
}

#[cfg(test)]
mod tests {
    use super::super::operators::other_batch;
    use super::*;
    use crate::cli::machine::{Machine, Simulated};
    use crate::cli::run::ranks::Job;
    use crate::cli::run::routing::TokenLoad;
    use mkernel::network::Transport;
    use mkernel::spec::{
        AttentionConfig, AttentionOp, BLayout, CollectiveConfig, CollectiveOp, CombineConfig,
        CombineOp, DispatchConfig, DispatchOp, Dtype, GemmConfig, GemmOp, Placement, Router,
        Scales, Scores,
    };

    /// Rows that ranks share, and rows that all ranks have; a number of rows that the ranks do not divide; scales of rows, and a
    /// scale that all rows share.
    fn of_rows() -> [Problem; 5] {
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
        [
            gemm(GemmOp::AgGemm, Dim::Static(7)).into(),
            gemm(GemmOp::GemmRs, Dim::UpTo(11)).into(),
            sum.into(),
            scaled(Scales::Tensor).into(),
            scaled(Scales::Row).into(),
        ]
    }

    /// Tokens of ranks, and their rows. A kernel that chooses experts.
    fn of_tokens() -> [Problem; 5] {
        let (max_tokens, experts, top_k) = (Dim::Static(9), Dim::Static(4), Dim::Static(2));
        let dispatch = |op: DispatchOp| DispatchConfig {
            max_tokens,
            experts,
            top_k,
            hidden: Dim::Static(136),
            intermediate: Dim::Static(128),
            b_layout: BLayout::Nk,
            swiglu: op.dispatches(),
            batch_invariant: true,
            ..DispatchConfig::new(op)
        };
        let from_logits = DispatchConfig {
            router: Router {
                scores: Scores::Sigmoid,
                score_bias: true,
                ..Router::default()
            },
            ..dispatch(DispatchOp::MoeLayer)
        };
        let combine = CombineConfig {
            max_tokens,
            experts,
            top_k,
            hidden: Dim::Static(136),
            batch_invariant: true,
            ..CombineConfig::new(CombineOp::Combine)
        };
        [
            dispatch(DispatchOp::MoeLayer).into(),
            dispatch(DispatchOp::DispatchGemm).into(),
            dispatch(DispatchOp::GemmCombine).into(),
            from_logits.into(),
            combine.into(),
        ]
    }

    /// Sequences of one length, which are packed in the other batch, sequences over cached rows, which are not, and packed sequences.
    fn of_sequences() -> [Problem; 3] {
        let attention = |seq| AttentionConfig {
            batch: Dim::Static(3),
            seq,
            heads: Dim::Static(2),
            kv_heads: Dim::Static(1),
            head_dim: Dim::Static(64),
            causal: true,
            placement: Placement::Zigzag,
            ..AttentionConfig::new(AttentionOp::RingAttention)
        };
        let cached = AttentionConfig {
            cached: Some(50),
            ..attention(Dim::UpTo(70))
        };
        let packed = AttentionConfig {
            packed: true,
            ..attention(Dim::Static(300))
        };
        [
            attention(Dim::Static(150)).into(),
            cached.into(),
            packed.into(),
        ]
    }

    /// `random_runs` compares results of kernels.
    #[test]
    fn lines_are_compared_with_another_batch() {
        let kernels = of_rows().into_iter().chain(of_tokens());
        for problem in kernels.chain(of_sequences()) {
            let config = KernelConfig::new(2, problem);
            let spec = SizedSpec::validate(config.clone()).expect("valid");
            let plan = KernelPlan::new(&spec, &Device::simulated(8)).expect("a plan");
            let job = Job {
                config: &config,
                plan: &plan,
                load: TokenLoad::Any,
                machine: Machine::Simulated(Simulated {
                    sms: 8,
                    skew: 20,
                    timeline: false,
                }),
                seed: 5, // with which ranks have tokens
                calls: 1,
                threads: 1,
                transport: Transport::default(),
                launched: None,
            };
            assert!(finds_each_result(&job), "{}", plan.id);
        }
    }

    /// Whether results with equal lines agree, and results with another bit in a shared line of any operand do not.
    fn finds_each_result(job: &Job) -> bool {
        let calls = job.inputs();
        let other = other_batch(job.config, job.plan, &calls[0]).expect("a batch");
        let results = |inputs: &Inputs, rank: u32| -> Results {
            let written = inputs.operands.iter().filter(|spec| spec.written);
            let ones = |spec: &OperandSpec| vec![1.0; inputs.elems(spec.operand, rank)];
            written
                .map(|spec| (spec.operand.name(), ones(spec)))
                .collect()
        };
        let of = |inputs: &Inputs| [0, 1].map(|rank| results(inputs, rank));
        let (first, same) = (of(&calls[0]), of(&other.inputs));
        let agrees = |found: &[Results; 2]| other.agrees(&first.each_ref(), &found.each_ref());
        let mut of_results = other.results.iter();
        let all_are_found = of_results.all(|(operand, lines)| {
            let [(rank, line), _] = *lines.places.last().expect("a shared line");
            let mut found = same.clone();
            let mut named = found[rank].iter_mut();
            let (_, values) = named
                .find(|(name, _)| *name == operand.name())
                .expect("a result");
            values[lines.cols * (line + 1) - 1] = 1.0_f32.next_up();
            !agrees(&found)
        });
        !other.results.is_empty() && agrees(&same) && all_are_found
    }
}
