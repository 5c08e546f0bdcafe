//! The choices of the planner: options that fix a choice, and the values that are worth a measurement.

use super::config::KernelConfig;
use super::problem::Problem;
use crate::config::{
    AttentionConfig, AttentionTuning, CollectiveConfig, CollectiveOp, DispatchConfig, GemmConfig,
    GemmOp, Protocol, Transfer, Tuning,
};

/// A change of a configuration, which fixes one choice or several that belong together.
type Change<C> = Box<dyn Fn(&mut C)>;

/// The numbers of communicating CTAs that a search tries.
const COMM_CTAS: [u32; 6] = [2, 4, 8, 16, 32, 64];
/// The numbers of slices of K that a search tries.
const SPLITS: [u32; 7] = [1, 2, 3, 4, 5, 6, 8];

impl Problem {
    /// The problem with all choices left to the planner.
    #[must_use]
    pub fn without_choices(&self) -> Self {
        match *self {
            Self::Gemm(config) => Self::Gemm(GemmConfig {
                tuning: Tuning::default(),
                ..config
            }),
            Self::Attention(config) => Self::Attention(AttentionConfig {
                tuning: AttentionTuning::default(),
                ..config
            }),
            Self::Dispatch(config) => Self::Dispatch(DispatchConfig {
                tile_m: None,
                tile_n: None,
                split_k: None,
                comm_ctas: None,
                ..config
            }),
            // Its options bound memory.
            Self::Combine(config) => Self::Combine(config),
            Self::Collective(config) => Self::Collective(CollectiveConfig {
                protocol: None,
                shots: None,
                ..config
            }),
        }
    }
}

impl KernelConfig {
    /// Configurations that fix the choices that matter most, in all combinations. Some combinations have no plan, and several may
    /// have the same plan.
    #[must_use]
    pub fn candidates(&self) -> Vec<Self> {
        let problems = match self.problem {
            Problem::Gemm(config) => of_gemm(config, self.world),
            Problem::Attention(config) => of_attention(config),
            Problem::Dispatch(config) => of_dispatch(config),
            Problem::Combine(_) => Vec::new(),
            Problem::Collective(config) => of_collective(config),
        };
        self.with(problems)
    }

    /// Configurations that differ from this configuration in one more choice, which matters less than the choices of
    /// [`Self::candidates`].
    #[must_use]
    pub fn refinements(&self) -> Vec<Self> {
        match self.problem {
            Problem::Gemm(config) => self.with(of_design(config)),
            _ => Vec::new(),
        }
    }

    fn with(&self, problems: Vec<Problem>) -> Vec<Self> {
        let problems = problems.into_iter();
        let with = |problem| Self {
            problem,
            ..self.clone()
        };
        problems.map(with).collect()
    }
}

/// The configuration with each combination of one change of each axis.
fn product<C: Copy + Into<Problem>>(config: C, axes: &[Vec<Change<C>>]) -> Vec<Problem> {
    let start = vec![config];
    let all = axes.iter().fold(start, |configs, axis| {
        let configs = configs.iter();
        let changed = configs.flat_map(|config| {
            axis.iter().map(|change| {
                let mut config = *config;
                change(&mut config);
                config
            })
        });
        changed.collect()
    });
    all.into_iter().map(Into::into).collect()
}

/// An axis with a change for each value.
fn axis<C: 'static, V: Copy + 'static>(
    values: impl IntoIterator<Item = V>,
    change: impl Fn(&mut C, V) + Copy + 'static,
) -> Vec<Change<C>> {
    let change_to = |value| -> Change<C> { Box::new(move |config| change(config, value)) };
    values.into_iter().map(change_to).collect()
}

fn of_gemm(config: GemmConfig, world: u32) -> Vec<Problem> {
    let mut axes = vec![
        axis([64, 128], |c: &mut GemmConfig, rows| {
            c.tuning.tile_m = Some(rows);
        }),
        axis([64, 128, 256], |c: &mut GemmConfig, cols| {
            c.tuning.tile_n = Some(cols);
        }),
        axis(SPLITS, |c: &mut GemmConfig, slices| {
            c.tuning.split_k = Some(slices);
        }),
    ];
    if !config.op.reduces() {
        axes.push(axis([false, true], |c: &mut GemmConfig, cluster| {
            c.tuning.cluster = Some(cluster);
        }));
    }
    match config.op {
        _ if world == 1 => {}
        GemmOp::AgGemm => axes.push(ways_of_rows()),
        GemmOp::GemmRs | GemmOp::GemmAr => {
            axes.push(axis([1, 2], |c: &mut GemmConfig, shots| {
                c.tuning.shots = Some(shots);
            }));
        }
        GemmOp::Gemm => {}
    }
    product(config, &axes)
}

/// The ways of rows of A to other ranks.
fn ways_of_rows() -> Vec<Change<GemmConfig>> {
    let ctas = [0].into_iter().chain(COMM_CTAS);
    let by_sms = ctas.flat_map(|ctas| [1, 2, 4].map(|slices| (ctas, slices)));
    let mut ways = axis(by_sms, |c: &mut GemmConfig, (ctas, slices)| {
        c.tuning.transfer = Some(Transfer::SmPush);
        (c.tuning.comm_ctas, c.tuning.k_slices) = (Some(ctas), Some(slices));
    });
    ways.extend(axis([Transfer::CopyEngine], |c: &mut GemmConfig, way| {
        c.tuning.transfer = Some(way);
    }));
    ways
}

/// The GEMM with one more choice fixed.
fn of_design(config: GemmConfig) -> Vec<Problem> {
    let mut changes = axis(3..=8, |c: &mut GemmConfig, stages| {
        c.tuning.stages = Some(stages);
    });
    changes.extend(axis([1, 2, 4, 8, 16, 32], |c: &mut GemmConfig, rows| {
        c.tuning.group_m = Some(rows);
    }));
    changes.extend(axis([0, 4, 8, 16, 32], |c: &mut GemmConfig, steps| {
        c.tuning.pace_steps = Some(steps);
    }));
    if config.op.reduces() {
        changes.extend(axis(
            [1, 2, 4, 8, 16, 32, 66],
            |c: &mut GemmConfig, tiles| {
                c.tuning.round_tiles = Some(tiles);
            },
        ));
    }
    if config.op == GemmOp::AgGemm {
        changes.extend(axis([128, 256, 512, 1024], |c: &mut GemmConfig, rows| {
            c.tuning.chunk_rows = Some(rows);
        }));
    }
    product(config, &[changes])
}

fn of_attention(config: AttentionConfig) -> Vec<Problem> {
    let ctas = axis(
        [1].into_iter().chain(COMM_CTAS),
        |c: &mut AttentionConfig, ctas| {
            c.tuning.comm_ctas = Some(ctas);
        },
    );
    product(config, &[ctas])
}

fn of_dispatch(config: DispatchConfig) -> Vec<Problem> {
    let mut axes = vec![
        axis([64, 128], |c: &mut DispatchConfig, rows| {
            c.tile_m = Some(rows);
        }),
        axis([128, 256], |c: &mut DispatchConfig, cols| {
            c.tile_n = Some(cols);
        }),
    ];
    if config.op.dispatches() {
        axes.extend([
            axis(SPLITS, |c: &mut DispatchConfig, slices| {
                c.split_k = Some(slices);
            }),
            axis(COMM_CTAS, |c: &mut DispatchConfig, ctas| {
                c.comm_ctas = Some(ctas);
            }),
        ]);
    }
    product(config, &axes)
}

fn of_collective(config: CollectiveConfig) -> Vec<Problem> {
    let adds_up = config.op == CollectiveOp::AllReduce;
    let shots: &[_] = if adds_up {
        &[Some(1), Some(2)]
    } else {
        &[None]
    };
    let packets = shots.iter().map(|shots| (Protocol::Ll, *shots));
    let ways = packets.chain([(Protocol::Simple, None)]);
    let ways = axis(ways, |c: &mut CollectiveConfig, (protocol, shots)| {
        (c.protocol, c.shots) = (Some(protocol), shots);
    });
    product(config, &[ways])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{BLayout, Dim, Op};
    use crate::device::Device;
    use crate::kernel::{SizedSpec, Tuned};
    use crate::plan::KernelPlan;

    fn config(op: Op) -> KernelConfig {
        let mut config = KernelConfig::new(2, op.problem());
        for (field, dim) in config.problem.dims_mut() {
            let size = match field.name() {
                "batch" | "top_k" => 1,
                "heads" | "kv_heads" | "experts" => 8,
                "head_dim" => 128,
                _ => 1024,
            };
            *dim = Dim::Static(size);
        }
        if let Problem::Dispatch(config) = &mut config.problem {
            (config.b_layout, config.swiglu) = (BLayout::Nk, config.op.dispatches());
        }
        config
    }

    /// A candidate differs from its kernel in choices alone. Some candidates have plans that the cost model does not choose.
    #[test]
    fn candidates_fix_choices_and_nothing_else() {
        for op in Op::ALL {
            let config = config(op);
            let plan = |config: &KernelConfig| {
                let spec = SizedSpec::validate(config.clone()).ok()?;
                KernelPlan::with_tuned(&spec, &Device::h200(), &Tuned::default()).ok()
            };
            let chosen = plan(&config).unwrap_or_else(|| panic!("{op} has no plan"));
            let candidates = config.candidates();
            assert_eq!(candidates.is_empty(), op == Op::Combine, "{op}");
            let planned: Vec<_> = candidates.iter().filter_map(plan).collect();
            let is_other = |plan: &&KernelPlan| plan.body().estimate_us > chosen.body().estimate_us;
            let others = planned.iter().filter(is_other).count();
            assert!(others > 0 || op == Op::Combine, "{op}");
            let refined = candidates.iter().flat_map(KernelConfig::refinements);
            for candidate in candidates.iter().cloned().chain(refined) {
                assert_ne!(candidate.problem, config.problem, "{op}");
                assert_eq!(candidate.problem.without_choices(), config.problem, "{op}");
            }
        }
    }
}
