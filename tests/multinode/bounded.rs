//! Tests of `dispatch_gemm` and `combine` on several nodes without room for all tokens of all ranks. Tokens lie in segments,
//! partial sums in the slots of rows, and chunks reuse the places of earlier chunks.

use crate::experts::{are_right, job};
use mkernel::KernelConfig;
use mkernel::spec::{
    CombineConfig, CombineOp, Device, Dim, DispatchConfig, DispatchOp, KernelPlan, SizedSpec,
};
use mkernel_testing::jobs::Backend;
use mkernel_testing::jobs::experts::Layer;

/// Returns a layer with `max_rows`, tokens per put and puts in flight. Experts have almost equal numbers of rows.
fn bounded(
    topology: (u32, u32),
    (experts, top_k, max_tokens): (usize, usize, usize),
    max_rows: u32,
    puts: (u32, u32),
) -> Layer {
    let mut layer = job(topology, (experts as u64, top_k as u64, max_tokens as u64));
    (layer.max_rows, layer.puts) = (Some(max_rows), Some(puts));
    let world = (topology.0 * topology.1) as usize;
    (0..3).fold(layer, |layer, call| {
        let tokens = |rank| match (call, rank) {
            (1, 0) => 0,
            (1, 2) => 3,
            _ => max_tokens,
        };
        let counts: Vec<_> = (0..world).map(tokens).collect();
        layer.call(&counts, move |rank, token| {
            let choice = |j| ((call + rank + token + j * experts / top_k) % experts) as i32;
            (0..top_k).map(choice).collect()
        })
    })
}

/// Three nodes of two ranks. A rank has 40 rows, and room for 44. With two communication CTAs, one may forward a token that
/// the other one has numbered.
fn of_three_nodes() -> Layer {
    let mut layer = bounded((3, 2), (12, 4, 10), 44, (2, 1));
    layer.comm_ctas = Some(2);
    layer
}

#[test]
fn bounded_layers_are_right() {
    let layers = [
        ("3 nodes of 2", of_three_nodes()),
        ("3 nodes of 1", bounded((3, 1), (6, 3, 14), 45, (3, 2))),
        ("2 nodes of 3", bounded((2, 3), (6, 2, 7), 16, (1, 3))),
        ("room for all", bounded((2, 2), (8, 2, 9), 20, (2, 9))),
    ];
    for (name, layer) in &layers {
        let [dispatch, _] = layer.specs().expect("possible");
        let plan = KernelPlan::new(&dispatch, &Device::simulated(3)).expect("a plan");
        let channels = plan
            .body()
            .network
            .as_ref()
            .expect("several nodes")
            .channels;
        assert_eq!(channels == 2, *name != "room for all", "{name}");
    }
    are_right(layers);
}

/// Checks the memory of a layer of DeepSeek's size, on 64 nodes of 8 ranks, with room for twice the rows of a rank under even
/// routing.
#[test]
fn memory_does_not_grow_with_the_nodes() {
    let bytes = |nodes: u32| -> u64 {
        let (world, max_rows) = (nodes * 8, Some(2 * 8 * 4096));
        let size = |size| Dim::Static(size);
        let dispatch = DispatchConfig {
            experts: size(512),
            top_k: size(8),
            max_tokens: size(4096),
            hidden: size(7168),
            intermediate: size(2048),
            max_rows,
            ..DispatchConfig::new(DispatchOp::DispatchGemm)
        };
        let combine = CombineConfig {
            experts: size(512),
            top_k: size(8),
            max_tokens: size(4096),
            hidden: size(7168),
            max_rows,
            ..CombineConfig::new(CombineOp::Combine)
        };
        let on_nodes = |config| KernelConfig { nodes, ..config };
        let configs = [
            KernelConfig::new(world, dispatch),
            KernelConfig::new(world, combine),
        ];
        let of = |config| {
            let spec = SizedSpec::validate(on_nodes(config)).expect("possible");
            let plan = KernelPlan::new(&spec, &Device::h200()).expect("a plan");
            println!(
                "{nodes} nodes: {:.2} GB",
                plan.workspace_bytes() as f64 / 1e9
            );
            plan.workspace_bytes()
        };
        configs.into_iter().map(of).sum()
    };
    let [few, many] = [8, 64].map(bytes);
    assert!(many <= 4_000_000_000, "{many}");
    assert!(many <= few * 5 / 4, "{few}, {many}");
}

/// If two tokens name one row, their rank gets an error, and the rank with the row gets an error that names a token. Other ranks
/// may have all their sums before the error.
#[test]
fn a_row_of_two_tokens_is_an_error() {
    let layer = bounded((2, 2), (8, 2, 9), 20, (2, 9));
    // Experts 6 and 7, on rank 3.
    let errors = layer.repeat_a_row(Backend::Simulated { seed: 1 }, [2, 3], 1);
    let of_row = errors[3]
        .as_ref()
        .expect("an error of the rank with the row");
    let is_named = of_row.contains("rank 0, call 1 of operator")
        && of_row.contains(": choice 1 of token")
        && of_row.contains("row index");
    assert!(errors[0].is_some() && is_named, "{errors:?}");
}
