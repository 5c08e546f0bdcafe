//! The rendered CUDA of `tests/configs/*.toml`, as snapshots: a reviewer reads the kernel itself in the diff.
//!
//! After a change that was meant: `INSTA_UPDATE=always cargo test --test golden`, then read `git diff tests/snapshots`.

mod configs;

use configs::Golden;
use mkernel_compile::{render, render_fabric_test};
use mkernel_spec::plan::{AttentionPlan, DispatchPlan, OpPlan, Split};
use mkernel_spec::{Activation, BLayout, Dtype, GemmOp, Layout, Placement, Target, Transfer};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Columns of a line of a kernel; only the line with the kernel's symbol may be longer.
const MAX_COLUMNS: usize = 140;

#[test]
fn snapshots() {
    insta::glob!("configs/*.toml", |path| {
        let golden = Golden::read(path);
        insta::with_settings!({
            prepend_module_to_snapshot => false,
            snapshot_suffix => "",
            omit_expression => true,
        }, {
            insta::assert_snapshot!(golden.name, golden.source.text);
        });
    });
}

/// The kernel that is the same for all configurations.
#[test]
fn fabric_test() {
    let source = render_fabric_test(Target::Sm90a).expect("renders");
    insta::with_settings!({ prepend_module_to_snapshot => false, omit_expression => true }, {
        insta::assert_snapshot!("fabric_test", source.text);
    });
}

#[test]
fn every_snapshot_has_a_configuration() {
    let names: BTreeSet<_> = Golden::all().into_iter().map(|g| g.name).collect();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots");
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let stem = path.file_stem().expect("a name").to_string_lossy();
        // A change that is not accepted yet lies in `NAME.snap.new`.
        let name = stem.trim_end_matches(".snap");
        assert!(
            names.contains(name) || name == "fabric_test",
            "{} is left over",
            path.display()
        );
    }
}

#[test]
fn rendered_text_reads_like_hand_written_code() {
    let faults: Vec<String> = Golden::all().iter().flat_map(text_faults).collect();
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

/// What a person would not have written.
fn text_faults(golden: &Golden) -> Vec<String> {
    let (id, text) = (&golden.source.id, &golden.source.text);
    let mut faults = Vec::new();
    let mut fault = |line: usize, what: String| {
        faults.push(format!("{}:{line}: {what}", golden.name));
    };
    for (number, line) in (1..).zip(text.lines()) {
        let columns = line.chars().count();
        if columns > MAX_COLUMNS && !line.contains(id.as_str()) {
            fault(number, format!("{columns} columns"));
        }
        if line.ends_with([' ', '\t']) || line.contains('\t') {
            fault(number, "a trailing blank or a tab".into());
        }
        for left in ["{{", "{%", "{#", "#if", "asm(", "asm volatile"] {
            if line.contains(left) {
                fault(number, format!("`{left}` in `{line}`"));
            }
        }
    }
    if text.matches("__global__").count() != 1 {
        fault(0, "not exactly one __global__".into());
    }
    if !text.contains(&format!(" {id}(const __grid_constant__ Args args) {{\n")) {
        fault(0, format!("the kernel is not called {id}"));
    }
    if *id != golden.plan.id || !text.starts_with(&format!("// {id}\n")) {
        fault(0, format!("the banner does not begin with {id}"));
    }
    if text.contains("\n\n\n") || !text.ends_with("}\n") {
        fault(0, "blank lines in a row, or at the end".into());
    }
    faults
}

#[test]
fn rendering_is_repeatable() {
    for golden in Golden::all() {
        let again = render(&golden.plan).expect("rendered before");
        assert_eq!(golden.source, again, "{}", golden.name);
    }
}

#[test]
fn symbols_differ() {
    let goldens = Golden::all();
    let ids: BTreeSet<_> = goldens.iter().map(|g| &g.source.id).collect();
    assert_eq!(ids.len(), goldens.len());
}

/// The matrix: each thing that changes which code is rendered occurs.
#[test]
fn goldens_cover_what_the_templates_can_render() {
    let mut goldens = Golden::all();
    goldens.retain(|golden| golden.plan.gemm().is_some());
    let some = |what: &str, is: &dyn Fn(&Golden) -> bool| {
        assert!(goldens.iter().any(is), "no golden has {what}");
    };
    for world in mkernel_spec::spec::WORLDS {
        some(&format!("world {world}"), &|g| g.plan.spec.world() == world);
    }
    for (m, n) in [(128, 256), (128, 128), (64, 256), (64, 128), (128, 64)] {
        some(&format!("tile {m}x{n}"), &|g| {
            (g.gemm().tile.m, g.gemm().tile.n) == (m, n)
        });
    }
    for layout in [BLayout::Kn, BLayout::Nk] {
        some(layout.name(), &|g| g.gemm().config.b_layout == layout);
    }
    for transfer in Transfer::ALL {
        some(transfer.name(), &|g| g.gemm().transfer == Some(transfer));
    }
    let chunks = |g: &Golden| g.gemm().chunks.clone();
    for dedicated in [true, false] {
        for to_self in [true, false] {
            some("each way of SM pushes with each alignment", &|g| {
                g.gemm().transfer == Some(Transfer::SmPush)
                    && (g.gemm().comm_ctas > 0) == dedicated
                    && chunks(g).is_some_and(|c| c.to_self == to_self)
            });
        }
    }
    some("a push by all warps", &|g| {
        g.gemm().comm_ctas == 0 && chunks(g).is_some_and(|c| c.push_warps > 1)
    });
    some("slices of K", &|g| {
        chunks(g).is_some_and(|c| c.k_slices > 1)
    });
    for op in GemmOp::ALL {
        some(op.name(), &|g| g.gemm().config.op == op);
    }
    for reduces in [true, false] {
        some("CTAs that keep pace", &|g| {
            g.gemm().order.pace_steps > 0 && g.gemm().reduction.is_some() == reduces
        });
    }
    let sums = |g: &Golden| g.gemm().reduction.clone();
    for op in [GemmOp::GemmRs, GemmOp::GemmAr] {
        for shots in [1, 2] {
            some(&format!("{op} in {shots} shots"), &|g| {
                g.gemm().config.op == op && sums(g).is_some_and(|r| r.shots == shots)
            });
        }
        some("ranks that own nothing", &|g| {
            g.gemm().config.op == op && sums(g).is_some_and(|r| r.owners < g.plan.spec.world())
        });
    }
    some("sums that are relayed", &|g| {
        sums(g).is_some_and(|r| r.shots == 1 && r.results)
    });
    for rounds in [true, false] {
        some("one round, and several", &|g| {
            sums(g).is_some_and(|r| r.shots == 2 && (r.round_tiles < r.owner_tiles) == rounds)
        });
    }
    let epilogue = |g: &Golden| g.gemm().config.epilogue;
    for activation in Activation::ALL {
        some(activation.name(), &|g| epilogue(g).activation == activation);
    }
    for op in GemmOp::ALL {
        some("each addend", &|g| {
            g.gemm().config.op == op && epilogue(g).bias
        });
        some("each addend", &|g| {
            g.gemm().config.op == op && epilogue(g).residual
        });
    }
    for shots in [None, Some(1), Some(2)] {
        some("fp32 of each origin", &|g| {
            epilogue(g).output == Dtype::Fp32 && sums(g).map(|r| r.shots) == shots
        });
    }
    for op in GemmOp::ALL {
        for (nodes, local_world) in [(2, 2), (2, 4), (3, 2)] {
            // What gemm_ar has of two nodes of four, it has of two.
            if (op, local_world) != (GemmOp::GemmAr, 4) {
                some(&format!("{op} on {nodes} nodes of {local_world}"), &|g| {
                    let topology = g.plan.spec.topology();
                    g.gemm().config.op == op
                        && (topology.nodes, topology.local_world) == (nodes, local_world)
                });
            }
        }
    }
    some("nodes of one rank", &|g| {
        let topology = g.plan.spec.topology();
        topology.nodes > 1 && topology.local_world == 1
    });
    let order = |g: &Golden| g.gemm().order.clone();
    some("a last round that is not split", &|g| {
        order(g).tail_parts == 1
    });
    some("a split last round after others", &|g| {
        order(g).tail_parts > 1 && order(g).whole_tiles > 0
    });
    some("nothing but a split round", &|g| {
        order(g).tail_parts > 1 && order(g).whole_tiles == 0
    });
}

#[test]
fn goldens_cover_what_the_templates_of_attention_can_render() {
    let goldens = Golden::all();
    let attention = |g: &Golden| match &g.plan.op_plan {
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
    some("a scale of its own", &|_, op_plan| {
        op_plan.config.scale.fixed().is_some()
    });
    some("heads that share K and V", &|_, op_plan| {
        op_plan.shape.kv_heads < op_plan.shape.heads
    });
}

#[test]
fn goldens_cover_what_the_templates_of_experts_can_render() {
    let goldens = Golden::all();
    let dispatch = |g: &Golden| match &g.plan.op_plan {
        OpPlan::Dispatch(op_plan) => Some((g.plan.spec.world(), op_plan.clone())),
        _ => None,
    };
    let plans: Vec<_> = goldens.iter().filter_map(dispatch).collect();
    let some = |what: &str, is: &dyn Fn(u32, &DispatchPlan) -> bool| {
        assert!(
            plans.iter().any(|(world, op_plan)| is(*world, op_plan)),
            "no golden has {what}"
        );
    };
    for is_alone in [true, false] {
        some("each world", &|world, _| (world == 1) == is_alone);
        some("each alignment of tokens", &|_, op_plan| {
            op_plan.shape.hidden.is_multiple_of(64) == is_alone
        });
        some("each alignment of columns", &|_, op_plan| {
            op_plan
                .shape
                .intermediate
                .is_multiple_of(op_plan.tile_cols().into())
                == is_alone
        });
    }
    for swiglu in [true, false] {
        for split in [Split::Rows, Split::Cols] {
            some("each result of each split", &|_, op_plan| {
                (op_plan.config.swiglu, op_plan.split) == (swiglu, split)
            });
        }
        for layout in [BLayout::Kn, BLayout::Nk] {
            some("each result of each layout", &|_, op_plan| {
                (op_plan.config.swiglu, op_plan.config.b_layout) == (swiglu, layout)
            });
        }
    }
    for (nodes, local_world) in [(2, 1), (2, 2), (3, 2)] {
        assert!(goldens.iter().any(|g| {
            let topology = g.plan.spec.topology();
            matches!(g.plan.op_plan, OpPlan::Dispatch(_))
                && (topology.nodes, topology.local_world) == (nodes, local_world)
        }));
    }
    for (m, n) in [(128, 256), (128, 128), (64, 256), (64, 128)] {
        some(&format!("tile {m}x{n}"), &|_, op_plan| {
            (op_plan.tile.m, op_plan.tile.n) == (m, n)
        });
    }
    for is_alone in [true, false] {
        assert!(goldens.iter().any(|g| {
            matches!(g.plan.op_plan, OpPlan::Combine(_)) && (g.plan.spec.world() == 1) == is_alone
        }));
    }
}
