//! `mkernel-gen simulate`: the times of calls on many nodes, by the messages of their plans.

mod engine;
mod events;
mod network;
mod plot;
mod ranks;
mod report;
mod usage;
mod window;

use super::failure::Failure;
use super::flags::DeviceFlags;
use super::format::bytes;
use super::input::{Kernel, Overrides, Sources};
use super::output::{print, print_json, print_note};
use mkernel_declare::SpannedDiagnostic;
use mkernel_fabric::endpoint_info::{
    MAX_PEER_RECEIVES, RECEIVE_QUEUE, put_credits, receives_per_peer,
};
use mkernel_spec::schedule::{Popularity, Routing};
use mkernel_spec::{Device, Diagnostics, Dim, Field, KernelConfig, KernelPlan, SizedSpec};
use network::{Network, NetworkFlags};
pub use report::Simulated;
use std::fs;
use std::path::PathBuf;

/// The numbers of nodes if none are given.
const NODES: [u32; 9] = [2, 4, 8, 16, 32, 64, 128, 256, 512];

/// The most bytes of counters.
const MAX_COUNTER_BYTES: u64 = 8 << 30;
/// The largest number of simulated ranks that takes seconds.
const MANY_RANKS: u32 = 512;

/// Arguments of `mkernel-gen simulate`.
#[derive(Debug, clap::Args)]
pub struct Simulate {
    #[command(flatten)]
    sources: Sources,
    #[command(flatten)]
    device: DeviceFlags,
    #[command(flatten)]
    network: NetworkFlags,
    /// GPUs of each node
    #[arg(long, value_name = "COUNT", default_value_t = 8)]
    gpus_per_node: u32,
    /// Take --m and --seq as the rows of each rank, so that the problem grows with the nodes
    #[arg(long)]
    rows_per_rank: bool,
    /// How tokens choose experts
    #[arg(long, value_enum, default_value_t = Experts::Uniform)]
    routing: Experts,
    /// Seed of the choice of experts
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Simulate every rank, also if all ranks act alike
    #[arg(long)]
    all_ranks: bool,
    /// SVG file for a plot of the times over the nodes
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

/// The probabilities with which tokens choose experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Experts {
    /// All experts are equally likely
    Uniform,
    /// The n-th most popular expert is chosen in proportion to 1/n
    Zipf,
}

impl Experts {
    const fn popularity(self) -> Popularity {
        match self {
            Self::Uniform => Popularity::Uniform,
            Self::Zipf => Popularity::Zipf,
        }
    }
}

impl Simulate {
    /// Simulates each kernel on each number of nodes.
    pub fn run(&self, json: bool) -> Result<(), Failure> {
        let device = self.network.device(self.device.device()?);
        let network = self.network.network(&device)?;
        let mut nodes = self
            .sources
            .flags
            .node_counts()
            .map_err(Failure::Diagnostics)?;
        if nodes.is_empty() {
            nodes = NODES.to_vec();
        }
        let world = nodes[0].saturating_mul(self.gpus_per_node);
        let mut sources = self.sources.clone();
        sources.flags = sources.flags.on(nodes[0], world);
        let overrides = Overrides {
            world: Some((world, "--gpus-per-node")),
            ..Overrides::default()
        };
        let mut lines = Vec::new();
        let kernels = sources.load(&device, overrides)?.planned()?;
        for (at, (kernel, plan)) in kernels.iter().enumerate() {
            let first = lines.len();
            for &nodes in &nodes {
                let line = self.simulate(kernel, plan.spec.config(), nodes, &network, &device)?;
                if json {
                    print_json(&line)?;
                }
                lines.push(line);
            }
            if !json {
                let separator = if at > 0 { "\n" } else { "" };
                print(&format!("{separator}{}", report::text(&lines[first..])))?;
            }
        }
        self.draw(&lines)
    }

    fn simulate<'a>(
        &self,
        kernel: &'a Kernel,
        config: &KernelConfig,
        nodes: u32,
        network: &Network,
        device: &Device,
    ) -> Result<Simulated<'a>, Failure> {
        let mistake = |reason: String, help: String| SpannedDiagnostic {
            span: kernel.location.clone(),
            reason: format!("{} on {nodes} nodes: {reason}", kernel.label),
            help,
        };
        let plan = self.plan(config, nodes, device).map_err(|found| {
            let mistakes = found.iter().map(|found| {
                mistake(
                    format!("{}: {}", found.field, found.reason),
                    found.help.clone(),
                )
            });
            Failure::Diagnostics(mistakes.collect())
        })?;
        let routing = Routing {
            popularity: self.routing.popularity(),
            seed: self.seed,
        };
        let schedule = plan.schedule(routing).map_err(|none| {
            Failure::Diagnostics(vec![mistake(none.reason, none.help.to_owned())])
        })?;
        let peers = schedule.topology().peers();
        let credits = put_credits(receives_per_peer(RECEIVE_QUEUE, MAX_PEER_RECEIVES, peers));
        let ranks = engine::ranks(&*schedule, network, !self.all_ranks);
        let needed = engine::counter_bytes(&*schedule, ranks);
        if needed > MAX_COUNTER_BYTES {
            let reason = format!(
                "the simulation of {} ranks needs {} of memory, and at most {} are allowed",
                ranks.count(),
                bytes(needed),
                bytes(MAX_COUNTER_BYTES)
            );
            let help =
                "use fewer nodes, or sizes that give all ranks equal work without --all-ranks";
            return Err(Failure::Diagnostics(vec![mistake(reason, help.to_owned())]));
        }
        if ranks.count() > MANY_RANKS {
            print_note(&format!(
                "simulates {} ranks, which can take minutes",
                ranks.count()
            ));
        }
        let outcome = engine::simulate(&*schedule, network, ranks, credits);
        Ok(Simulated::new(
            kernel,
            (&plan, &*schedule),
            network,
            &outcome,
        ))
    }

    /// The plan on a number of nodes.
    fn plan(
        &self,
        config: &KernelConfig,
        nodes: u32,
        device: &Device,
    ) -> Result<KernelPlan, Diagnostics> {
        let world = nodes.saturating_mul(self.gpus_per_node);
        let mut config = KernelConfig {
            nodes,
            world,
            ..config.clone()
        };
        for (field, dim) in config.problem.dims_mut() {
            let is_rows = [Field::M, Field::SEQ].contains(&field);
            if self.rows_per_rank && is_rows {
                *dim = match *dim {
                    Dim::Static(rows) => Dim::Static(rows * u64::from(world)),
                    Dim::UpTo(rows) => Dim::UpTo(rows * u64::from(world)),
                    Dim::Dynamic => Dim::Dynamic,
                };
            }
        }
        KernelPlan::new(&SizedSpec::validate(config)?, device)
    }

    fn draw(&self, lines: &[Simulated<'_>]) -> Result<(), Failure> {
        let Some(path) = &self.plot else {
            return Ok(());
        };
        let svg = plot::times(lines).map_err(|error| Failure::Plot(error.to_string()))?;
        fs::write(path, svg).map_err(|source| Failure::Write {
            path: path.clone(),
            source,
        })?;
        print_note(&format!("wrote {}", path.display()));
        Ok(())
    }
}
