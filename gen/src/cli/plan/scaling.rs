//! `mkernel-gen plan --scaling`: the traffic and times of a kernel on several numbers of nodes.

use crate::cli::format::{bytes, micros, table};
use crate::cli::input::Kernel;
use crate::cli::output::Line;
use mkernel_spec::{Diagnostics, KernelConfig, KernelPlan, SizedSpec};
use schemars::JsonSchema;
use serde::Serialize;

/// The numbers of nodes in a table.
const NODES: [u32; 6] = [2, 4, 8, 16, 32, 64];

/// A kernel on one of these numbers of nodes.
#[derive(Serialize, JsonSchema)]
pub struct Scaled<'a> {
    label: &'a str,
    nodes: u32,
    ranks: u32,
    /// Bytes that each rank sends over NVLink, which equal the bytes that it receives.
    link_bytes: u64,
    /// Bytes that each rank sends over its NICs, which equal the bytes that it receives.
    nic_bytes: u64,
    /// Workspace of each rank.
    workspace_bytes: u64,
    /// Queue pairs of a rank on each of its NICs over transport `rc`, one for each peer. EFA needs one for all peers.
    queue_pairs: u32,
    puts: u32,
    bound_us: f64,
    bound_reason: &'static str,
    estimate_us: f64,
}

impl Line for Scaled<'_> {
    const KIND: &'static str = "scaling";
}

/// Plans the kernel for each number of nodes, with the same number of ranks on each node.
pub(super) fn scaled<'a>(
    kernel: &'a Kernel,
    plan: &KernelPlan,
) -> Result<Vec<Scaled<'a>>, Diagnostics> {
    let local_world = plan.spec.topology().local_world;
    let on = |nodes: u32| {
        let config = KernelConfig {
            nodes,
            world: nodes * local_world,
            ..plan.spec.config().clone()
        };
        let spec = SizedSpec::validate(config)?;
        let plan = KernelPlan::new(&spec, &plan.device)?;
        let (body, peers) = (plan.body(), spec.topology().peers());
        Ok(Scaled {
            label: &kernel.label,
            nodes,
            ranks: spec.world(),
            link_bytes: body.traffic.link_bytes,
            nic_bytes: body.traffic.nic_bytes,
            workspace_bytes: plan.workspace_bytes(),
            queue_pairs: peers,
            puts: body.network.as_ref().map_or(0, |network| {
                network.puts * u32::from(network.channels) * peers
            }),
            bound_us: body.bound.us(),
            bound_reason: body.bound.reason(),
            estimate_us: body.estimate_us,
        })
    };
    NODES.into_iter().map(on).collect()
}

/// Formats the rows as a table.
pub(super) fn text(rows: &[Scaled<'_>]) -> String {
    let heading = [
        "nodes",
        "ranks",
        "NVLink out",
        "NIC out",
        "workspace",
        "queue pairs",
        "puts",
        "bound",
        "by",
        "estimate",
    ];
    let mut cells = vec![heading.map(str::to_owned).to_vec()];
    cells.extend(rows.iter().map(|row| {
        vec![
            row.nodes.to_string(),
            row.ranks.to_string(),
            bytes(row.link_bytes),
            bytes(row.nic_bytes),
            bytes(row.workspace_bytes),
            row.queue_pairs.to_string(),
            row.puts.to_string(),
            micros(row.bound_us),
            row.bound_reason.to_owned(),
            micros(row.estimate_us),
        ]
    }));
    let label = rows.first().map_or("", |row| row.label);
    format!(
        "{label}, for each rank\n{}",
        table(&cells, &[0, 1, 2, 3, 4, 5, 6, 7, 9])
    )
}
