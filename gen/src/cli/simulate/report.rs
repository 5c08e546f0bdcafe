//! The results of `mkernel-gen simulate`.

use super::engine::Outcome;
use super::network::Network;
use super::usage::{Server, Usage};
use crate::cli::format::{bytes, micros, table};
use crate::cli::input::Kernel;
use crate::cli::output::Line;
use mkernel_spec::KernelPlan;
use mkernel_spec::schedule::Schedule;
use schemars::JsonSchema;
use serde::Serialize;

/// A simulated call on a number of nodes. Numbers of bytes, puts and waits are those of the rank with the most.
#[derive(Serialize, JsonSchema)]
pub struct Simulated<'a> {
    pub label: &'a str,
    pub nodes: u32,
    ranks: u32,
    /// Ranks that were simulated; the other ranks act like these ranks.
    simulated_ranks: usize,
    /// The time of the call on the slowest rank.
    pub us: f64,
    /// The time that no kernel beats.
    pub bound_us: f64,
    bound_reason: &'static str,
    /// The time that the cost model expects.
    estimate_us: f64,
    link_out_bytes: u64,
    link_in_bytes: u64,
    nic_out_bytes: u64,
    nic_in_bytes: u64,
    puts: u64,
    arrivals: u64,
    /// Times that a put waited for credits of its receiver.
    credit_waits: u64,
    /// Queue pairs of a rank on each of its NICs over transport `rc`, one for each peer. EFA needs one for all peers.
    queue_pairs: u32,
    /// Workspace of each rank.
    workspace_bytes: u64,
    /// The parts of the time for which resources are busy, the busiest resource first.
    busy: Vec<Busy>,
    events: u64,
}

/// The part of the time for which a resource of a rank is busy, on the rank on which it is busiest.
#[derive(Clone, Serialize, JsonSchema)]
struct Busy {
    resource: String,
    share: f64,
}

impl Line for Simulated<'_> {
    const KIND: &'static str = "simulation";
}

impl<'a> Simulated<'a> {
    pub fn new(
        kernel: &'a Kernel,
        (plan, schedule): (&KernelPlan, &dyn Schedule),
        network: &Network,
        outcome: &Outcome,
    ) -> Self {
        let (topology, body) = (schedule.topology(), plan.body());
        let most = |of: fn(&Usage) -> u64| outcome.usage.iter().map(of).max().unwrap_or(0);
        Self {
            label: &kernel.label,
            nodes: topology.nodes,
            ranks: topology.world(),
            simulated_ranks: outcome.usage.len(),
            us: outcome.us,
            bound_us: body.bound.us(),
            bound_reason: body.bound.reason(),
            estimate_us: body.estimate_us,
            link_out_bytes: most(|of| of.link_out_bytes),
            link_in_bytes: most(|of| of.link_in_bytes),
            nic_out_bytes: most(|of| of.nic_out_bytes),
            nic_in_bytes: most(|of| of.nic_in_bytes),
            puts: most(|of| of.puts),
            arrivals: most(|of| of.arrivals),
            credit_waits: most(|of| of.credit_waits),
            queue_pairs: topology.peers(),
            workspace_bytes: plan.workspace_bytes(),
            busy: busy(schedule, network, outcome),
            events: outcome.events,
        }
    }
}

fn busy(schedule: &dyn Schedule, network: &Network, outcome: &Outcome) -> Vec<Busy> {
    let most = |of: &dyn Fn(&Usage) -> f64| outcome.usage.iter().map(of).fold(0.0, f64::max);
    let nics =
        |of: &[Server]| of.iter().map(|nic| nic.busy_us).sum::<f64>() / f64::from(network.rails);
    let mut all = vec![
        ("NVLink out".to_owned(), most(&|of| of.link_out.busy_us)),
        ("NVLink in".to_owned(), most(&|of| of.link_in.busy_us)),
        ("NIC out".to_owned(), most(&|of| nics(&of.nics_out))),
        ("NIC in".to_owned(), most(&|of| nics(&of.nics_in))),
        ("proxy".to_owned(), most(&|of| of.proxy.busy_us)),
        ("leaf switches".to_owned(), outcome.switch_busy_us),
    ];
    for (lane, of) in schedule.lanes().iter().enumerate() {
        let work = most(&|usage| usage.work_us[lane]);
        all.push((
            format!("{} ×{}", of.name, of.workers),
            work / f64::from(of.workers),
        ));
    }
    all.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    let used = all.into_iter().filter(|(_, us)| *us > 0.0);
    let share = |(resource, us)| Busy {
        resource,
        share: us / outcome.us,
    };
    used.map(share).collect()
}

/// Formats the rows of a kernel as a table.
pub fn text(rows: &[Simulated<'_>]) -> String {
    const HEADING: [&str; 12] = [
        "nodes",
        "ranks",
        "time",
        "bound",
        "by",
        "NVLink out",
        "NIC out",
        "puts",
        "waits",
        "workspace",
        "busiest",
        "busy",
    ];
    let mut cells = vec![HEADING.map(str::to_owned).to_vec()];
    cells.extend(rows.iter().map(|row| {
        let busiest = row.busy.first();
        vec![
            row.nodes.to_string(),
            row.ranks.to_string(),
            micros(row.us),
            micros(row.bound_us),
            row.bound_reason.to_owned(),
            bytes(row.link_out_bytes),
            bytes(row.nic_out_bytes),
            row.puts.to_string(),
            row.credit_waits.to_string(),
            bytes(row.workspace_bytes),
            busiest.map_or(String::new(), |busy| busy.resource.clone()),
            busiest.map_or(String::new(), |busy| format!("{:.0} %", 100.0 * busy.share)),
        ]
    }));
    let label = rows.first().map_or("", |row| row.label);
    format!(
        "{label}, for each rank\n{}",
        table(&cells, &[0, 1, 2, 3, 5, 6, 7, 8, 9, 11])
    )
}
