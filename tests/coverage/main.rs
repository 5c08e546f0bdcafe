//! Tests that the golden configurations in `tests/configs` cover the code that can be rendered: each value that changes the
//! code of a kernel has a configuration.

mod collectives;
mod experts;
mod measured;
mod norms;
mod one_rank;
mod scales;
mod waits;

use mkernel_spec::plan::{AttentionPlan, OpPlan, Split};
use mkernel_spec::{Activation, BLayout, Dtype, GemmOp, Layout, Op, Placement, Transfer};
use mkernel_testing::golden::Golden;

/// Panics unless one of `goldens` satisfies `is`. `what` describes the golden.
fn some(goldens: &[Golden], what: &str, is: impl Fn(&Golden) -> bool) {
    assert!(goldens.iter().any(is), "no golden has {what}");
}

/// Each operator has golden configurations of bf16 and fp16.
#[test]
fn goldens_cover_the_types_of_elements() {
    let goldens = Golden::all();
    for op in Op::ALL {
        for dtype in Dtype::FACTORS {
            some(&goldens, &format!("{op} of {dtype}"), |g| {
                let mut operands = g.plan.operands().iter();
                g.plan.spec.op() == op && operands.any(|operand| operand.dtype == dtype)
            });
        }
    }
}

/// Each value that changes the code of a GEMM kernel has a golden configuration.
#[test]
fn goldens_cover_the_code_of_gemm_kernels() {
    let mut goldens = Golden::all();
    goldens.retain(|golden| golden.plan.gemm().is_some());
    check_gemm_tiles(&goldens);
    check_transfers(&goldens);
    check_reductions(&goldens);
    check_epilogues(&goldens);
    check_gemm_nodes(&goldens);
    check_split_k(&goldens);
    check_run_time_rows(&goldens);
}

fn check_gemm_tiles(goldens: &[Golden]) {
    for world in mkernel_spec::spec::WORLDS {
        some(goldens, &format!("world {world}"), |g| {
            g.plan.spec.world() == world
        });
    }
    for (m, n) in [(128, 256), (128, 128), (64, 256), (64, 128), (128, 64)] {
        some(goldens, &format!("tile {m}x{n}"), |g| {
            (g.gemm().tile.m, g.gemm().tile.n) == (m, n)
        });
    }
    for layout in [BLayout::Kn, BLayout::Nk] {
        some(goldens, layout.name(), |g| {
            g.gemm().config.b_layout == layout
        });
    }
    for reduces in [true, false] {
        some(goldens, "CTAs that keep pace", |g| {
            g.gemm().order.pace_steps > 0 && g.gemm().reduction.is_some() == reduces
        });
    }
}

fn check_transfers(goldens: &[Golden]) {
    for transfer in Transfer::ALL {
        some(goldens, transfer.name(), |g| {
            g.gemm().transfer == Some(transfer)
        });
    }
    let chunks = |g: &Golden| g.gemm().chunks.clone();
    for dedicated in [true, false] {
        for to_self in [true, false] {
            let what = "a push by SMs of each kind with each alignment";
            some(goldens, what, |g| {
                g.gemm().transfer == Some(Transfer::SmPush)
                    && (g.gemm().comm_ctas > 0) == dedicated
                    && chunks(g).is_some_and(|c| c.to_self == to_self)
            });
        }
    }
    some(goldens, "a push by all warps", |g| {
        g.gemm().comm_ctas == 0 && chunks(g).is_some_and(|c| c.push_warps > 1)
    });
    some(goldens, "slices of K", |g| {
        chunks(g).is_some_and(|c| c.k_slices > 1)
    });
}

fn check_reductions(goldens: &[Golden]) {
    for op in GemmOp::ALL {
        some(goldens, op.op().name(), |g| g.gemm().config.op == op);
    }
    let reduction = |g: &Golden| g.gemm().reduction.clone();
    for op in [GemmOp::GemmRs, GemmOp::GemmAr] {
        for shots in [1, 2] {
            some(goldens, &format!("{op} in {shots} shots"), |g| {
                g.gemm().config.op == op && reduction(g).is_some_and(|r| r.shots == shots)
            });
        }
        some(goldens, "ranks that own no tile", |g| {
            g.gemm().config.op == op && reduction(g).is_some_and(|r| r.owners < g.plan.spec.world())
        });
    }
    for rows in [false, true] {
        some(goldens, "results in C of peers", |g| {
            reduction(g).is_some_and(|r| r.on_peers) && g.plan.max_rows().is_some() == rows
        });
    }
    some(goldens, "sums that are relayed", |g| {
        reduction(g).is_some_and(|r| r.shots == 1 && r.results)
    });
    for rounds in [true, false] {
        some(goldens, "one round, and several", |g| {
            reduction(g).is_some_and(|r| r.shots == 2 && (r.round_tiles < r.owner_tiles) == rounds)
        });
    }
}

fn check_epilogues(goldens: &[Golden]) {
    let epilogue = |g: &Golden| g.gemm().config.epilogue;
    for activation in Activation::ALL {
        some(goldens, activation.name(), |g| {
            epilogue(g).activation == activation
        });
    }
    for op in GemmOp::ALL {
        some(goldens, &format!("{op} with a bias"), |g| {
            g.gemm().config.op == op && epilogue(g).bias
        });
        some(goldens, &format!("{op} with a residual"), |g| {
            g.gemm().config.op == op && epilogue(g).residual
        });
    }
    for shots in [None, Some(1), Some(2)] {
        some(goldens, &format!("fp32 after {shots:?} shots"), |g| {
            let reduction = g.gemm().reduction.as_ref();
            epilogue(g).output == Some(Dtype::Fp32) && reduction.map(|r| r.shots) == shots
        });
    }
}

fn check_gemm_nodes(goldens: &[Golden]) {
    for op in GemmOp::ALL.into_iter().filter(|op| op.communicates()) {
        for (nodes, local_world) in [(2, 2), (2, 4), (3, 2)] {
            // Code of gemm_ar on two nodes of four ranks equals the code on two nodes of two ranks.
            if (op, local_world) != (GemmOp::GemmAr, 4) {
                let what = format!("{op} on {nodes} nodes of {local_world}");
                some(goldens, &what, |g| {
                    let topology = g.plan.spec.topology();
                    g.gemm().config.op == op
                        && (topology.nodes, topology.local_world) == (nodes, local_world)
                });
            }
        }
    }
    some(goldens, "nodes of one rank", |g| {
        let topology = g.plan.spec.topology();
        topology.nodes > 1 && topology.local_world == 1
    });
}

fn check_split_k(goldens: &[Golden]) {
    let order = |g: &Golden| g.gemm().order.clone();
    some(goldens, "a last round that is not split", |g| {
        order(g).tail_splits == 1
    });
    some(goldens, "a split last round after others", |g| {
        order(g).tail_splits > 1 && order(g).whole_tiles > 0
    });
    some(goldens, "only a split round", |g| {
        order(g).tail_splits > 1 && order(g).whole_tiles == 0
    });
    for reduces in [true, false] {
        some(goldens, "CTAs that complete no part of a tile", |g| {
            let group_cols = match g.gemm().split {
                Split::Rows => g.gemm().tile.n,
                Split::Cols => g.gemm().tile.n / 2,
            };
            g.gemm().config.op.reduces() == reduces && order(g).tail_splits > group_cols / 64
        });
    }
    for split in [Split::Rows, Split::Cols] {
        some(goldens, "clusters that share tiles", |g| {
            g.gemm().cluster.is_some() && g.gemm().split == split
        });
    }
}

/// Kernels with rows at run time have other orders of tiles, stores and counts than kernels with constant rows.
fn check_run_time_rows(goldens: &[Golden]) {
    let gemm = |golden: &Golden| golden.plan.gemm().cloned();
    for op in GemmOp::ALL {
        some(goldens, &format!("rows at run time of {op}"), |golden| {
            golden.plan.max_rows().is_some()
                && gemm(golden).is_some_and(|gemm| gemm.config.op == op)
        });
    }
    let shots = |golden: &Golden| {
        gemm(golden)
            .and_then(|gemm| gemm.reduction)
            .map(|r| r.shots)
    };
    some(goldens, "packets of rows at run time", |golden| {
        golden.plan.max_rows().is_some() && shots(golden) == Some(1)
    });
    for (buckets, what) in [(1, "one bucket"), (3, "three buckets"), (4, "four buckets")] {
        some(goldens, what, |golden| {
            golden.plan.max_rows().is_some() && golden.plan.bodies.len() == buckets
        });
    }
    some(goldens, "puts of rows at run time", |golden| {
        golden.plan.max_rows().is_some()
            && golden.plan.body().network.is_some()
            && gemm(golden).is_some()
    });
}

#[test]
fn goldens_cover_the_code_of_attention_kernels() {
    let goldens = Golden::all();
    let attention = |g: &Golden| match &g.plan.body().op_plan {
        OpPlan::Attention(op_plan) => Some((g.plan.spec.world(), op_plan.clone())),
        _ => None,
    };
    for of_nodes in [(2, 1), (2, 2), (3, 2)] {
        assert!(
            goldens.iter().any(|g| {
                let topology = g.plan.spec.topology();
                attention(g).is_some() && (topology.nodes, topology.local_world) == of_nodes
            }),
            "no golden of attention has {of_nodes:?} nodes"
        );
    }
    let plans: Vec<_> = goldens.iter().filter_map(attention).collect();
    let some = |what: &str, is: &dyn Fn(u32, &AttentionPlan) -> bool| {
        assert!(
            plans.iter().any(|(world, op_plan)| is(*world, op_plan)),
            "no golden has {what}"
        );
    };
    for is_alone in [true, false] {
        for causal in [true, false] {
            some("each mask, alone and among ranks", &|world, op_plan| {
                (world == 1, op_plan.config.causal) == (is_alone, causal)
            });
        }
        for is_ragged in [true, false] {
            some(
                "short tiles and none, alone and among ranks",
                &|world, op_plan| (world == 1, op_plan.is_ragged()) == (is_alone, is_ragged),
            );
        }
    }
    for placement in Placement::ALL {
        for is_uneven in [true, false] {
            some(placement.name(), &|world, op_plan| {
                op_plan.config.placement == placement && op_plan.is_uneven(world) == is_uneven
            });
        }
    }
    for layout in Layout::ALL {
        some(layout.name(), &|_, op_plan| op_plan.config.layout == layout);
    }
    for dim in [64, 128] {
        some(&format!("heads of {dim}"), &|_, op_plan| {
            op_plan.shape.head_dim == dim
        });
    }
    some("heads that take turns in slots", &|world, op_plan| {
        world > 1 && op_plan.is_ring()
    });
    some("no LSE", &|_, op_plan| !op_plan.config.lse);
    some("a scale of its own", &|_, op_plan| {
        op_plan.config.scale.fixed().is_some()
    });
    some("heads that share K and V", &|_, op_plan| {
        op_plan.shape.kv_heads < op_plan.shape.heads
    });
}

/// Each value that changes the code of attention with lengths at run time has a golden configuration.
#[test]
fn goldens_cover_lengths_at_run_time() {
    let goldens = Golden::all();
    let some_of = |what: &str, is: fn(&Golden, &AttentionPlan) -> bool| {
        some(&goldens, what, |golden| match &golden.plan.body().op_plan {
            OpPlan::Attention(op_plan) => op_plan.takes_rows() && is(golden, op_plan),
            _ => false,
        });
    };
    some_of("one rank", |g, _| g.plan.spec.world() == 1);
    some_of("several nodes", |g, _| g.plan.body().network.is_some());
    some_of("packed sequences on one rank", |g, op_plan| {
        op_plan.config.packed && g.plan.spec.world() == 1
    });
    some_of("packed sequences and a mask", |g, op_plan| {
        op_plan.config.packed && op_plan.config.causal && g.plan.spec.world() > 1
    });
    some_of("room for all heads", |g, op_plan| {
        g.plan.spec.world() > 1 && g.plan.body().network.is_none() && !op_plan.is_ring()
    });
    some_of("heads that take turns in slots", |_, op_plan| {
        op_plan.is_ring()
    });
    some_of("cached rows on several nodes", |g, op_plan| {
        op_plan.config.cached.is_some() && g.plan.body().network.is_some()
    });
    for is_alone in [true, false] {
        let what = format!("cached rows, alone: {is_alone}");
        some(&goldens, &what, |golden| {
            match &golden.plan.body().op_plan {
                OpPlan::Attention(op_plan) => {
                    op_plan.config.cached.is_some() && (golden.plan.spec.world() == 1) == is_alone
                }
                _ => false,
            }
        });
    }
    some_of("cached rows without a mask, in turns", |_, op_plan| {
        op_plan.config.cached.is_some() && !op_plan.config.causal && op_plan.is_ring()
    });
}
