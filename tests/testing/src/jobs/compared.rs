//! Batches of one operator that run its plans.

use super::batches::{Batch, difference};
use super::shares::share;
use super::simulated::{Backend, Results, SimulatedJob};
use crate::lab::Random;
use mkernel::spec::{
    CollectiveConfig, CollectiveOp, Dim, GemmConfig, GemmOp, Problem, Protocol, Shape, Tuning,
};

/// Batches that are compared with one batch of the same operator that has all rows.
#[derive(Clone, Debug)]
pub struct Compared {
    /// The batch of all rows.
    pub all: Batch,
    /// The numbers of rows of the other batches.
    pub counts: Vec<u64>,
    /// One in this number of the other batches is run, unless [`share`] returns all.
    pub one_in: u64,
}

impl Compared {
    /// Runs all batches and compares the rows that they share with the batch of all rows.
    ///
    /// # Errors
    /// A call fails, the simulator finds a defect, or a row differs.
    pub fn run_on(&self, backend: Backend, seed: u64) -> Result<(), String> {
        let all = Batch {
            seed,
            ..self.all.clone()
        };
        let reference = all.run(backend)?;
        let key = format!("{:?} {}", all.problem, all.world);
        for (name, batch) in share(self.batches(&all), key, (0, self.one_in)) {
            let rows = batch
                .run(backend)
                .map_err(|error| format!("{name}: {error}"))?;
            if let Some(difference) = difference((&all, &reference), (&batch, &rows)) {
                return Err(format!("{name}: {difference}"));
            }
        }
        Ok(())
    }

    /// Few and many shuffled rows: with the planner's choices, with rows at run time, with other plans, and in a graph whose calls overlap.
    fn batches(&self, all: &Batch) -> Vec<(String, Batch)> {
        let random = &mut Random(all.seed);
        let most = all.rows.len() as u64;
        let mut found = Vec::new();
        for (index, count) in self.counts.iter().enumerate() {
            let batch = all.clone().of_rows(some_rows(random, most, *count));
            if index % 2 == 1 {
                let batch = batch.clone().of_at_most(Dim::Dynamic, most);
                found.push((format!("{count} of at most {most} rows"), batch));
            }
            found.push((format!("{count} rows"), batch));
        }
        for (index, (name, problem)) in plans(all).into_iter().enumerate() {
            // Only for few rows, four CTAs share every tile.
            let is_few = index % 2 == 1 || name.ends_with("cluster");
            let count = if is_few { (most / 16).min(64) } else { most };
            let batch = Batch {
                problem,
                ..all.clone()
            };
            let batch = batch.of_rows(some_rows(random, most, count));
            found.push((format!("{count} rows, {name}"), batch));
        }
        let graph = Batch {
            is_graph: true,
            sms: 5,
            ..all
                .clone()
                .of_rows(some_rows(random, most, most / 2))
                .of_at_most(Dim::Dynamic, most)
        };
        found.push(("half of the rows, in a graph".to_owned(), graph));
        found
    }
}

impl SimulatedJob for Compared {
    fn run(&self, seed: u64) -> Result<Results, String> {
        self.run_on(Backend::Simulated { seed }, seed)?;
        Ok(Results::new())
    }

    fn edit(&mut self, edits: Vec<(String, String)>) {
        self.all.edits = edits;
    }
}

/// Returns `count` of the first `end` numbers, without repetition, in a random order.
fn some_rows(random: &mut Random, end: u64, count: u64) -> Vec<u64> {
    let mut rows: Vec<u64> = (0..end).collect();
    for last in (1..rows.len()).rev() {
        rows.swap(last, random.below(last as u64 + 1) as usize);
    }
    rows.truncate(count as usize);
    rows
}

/// The operator with choices of the planner made in advance.
fn plans(batch: &Batch) -> Vec<(&'static str, Problem)> {
    match (batch.problem, batch.shape) {
        (Problem::Gemm(config), Shape::Gemm(shape)) => {
            let granules = config.granules(shape);
            let tuned = |(name, tuning)| (name, GemmConfig { tuning, ..config }.into());
            let all = tunings(batch, &config, granules).into_iter();
            all.map(tuned).chain(in_symmetric_memory(config)).collect()
        }
        (Problem::Collective(config), _) => protocols(batch, config),
        _ => Vec::new(),
    }
}

/// The operator with A or C in symmetric memory, if it may lie there.
fn in_symmetric_memory(config: GemmConfig) -> Option<(&'static str, Problem)> {
    let symmetric = GemmConfig {
        symmetric_a: config.op == GemmOp::AgGemm,
        symmetric_result: config.op == GemmOp::GemmAr && !config.epilogue.normalises(),
        ..config
    };
    let is_other = symmetric != config;
    is_other.then(|| ("symmetric memory", symmetric.into()))
}

/// The protocols of a collective, and the ways in which ranks store results.
fn protocols(batch: &Batch, config: CollectiveConfig) -> Vec<(&'static str, Problem)> {
    let by = |protocol, shots| CollectiveConfig {
        protocol: Some(protocol),
        shots,
        ..config
    };
    let symmetric = CollectiveConfig {
        symmetric_result: true,
        ..by(Protocol::Simple, None)
    };
    let mut found = vec![("chunks", by(Protocol::Simple, None))];
    if batch.nodes == 1 && batch.world > 1 {
        let shots = match config.op {
            CollectiveOp::AllReduce => vec![Some(1), Some(2)],
            _ => vec![None],
        };
        found.extend(
            shots
                .into_iter()
                .map(|shots| ("packets", by(Protocol::Ll, shots))),
        );
        if config.op.gathers() && !config.epilogue.normalises() {
            found.push(("chunks to results", symmetric));
        }
    }
    found
        .into_iter()
        .map(|(name, config)| (name, config.into()))
        .collect()
}

/// Choices of the planner that a GEMM operator has.
fn tunings(
    batch: &Batch,
    config: &GemmConfig,
    granules: Option<u32>,
) -> Vec<(&'static str, Tuning)> {
    let none = Tuning::default();
    let tile = |tile_m, tile_n| Tuning {
        tile_m: Some(tile_m),
        tile_n: Some(tile_n),
        ..none
    };
    let splits = |splits| Tuning {
        split_k: Some(splits),
        ..none
    };
    let mut found = vec![
        ("split_k = 1", splits(1)),
        ("split_k = 4", splits(4)),
        ("split_k = 2", splits(2)),
        ("tiles of 64 x 128", tile(64, 128)),
        ("tiles of 128 x 64", tile(128, 64)),
    ];
    // A norm keeps elements of rows in registers.
    if !config.epilogue.normalises() {
        found.push(("tiles of 64 x 256", tile(64, 256)));
    }
    if config.op.reduces() {
        found.extend(exchanges_of_sums(batch, config));
    } else {
        found.extend(exchanges_of_rows(batch, config, granules));
    }
    found
}

/// The ways in which partial sums of ranks meet.
fn exchanges_of_sums(batch: &Batch, config: &GemmConfig) -> Vec<(&'static str, Tuning)> {
    let shots = |shots, round_tiles| Tuning {
        shots: Some(shots),
        round_tiles,
        ..Tuning::default()
    };
    if batch.world == 1 || batch.nodes > 1 {
        return Vec::new();
    }
    let mut found = vec![
        ("two shots", shots(2, None)),
        ("rounds of a tile", shots(2, Some(1))),
    ];
    // The ranks of a reduce-scatter normalise rows behind two shots only.
    if config.op == GemmOp::GemmAr || !config.epilogue.normalises() {
        found.insert(0, ("one shot", shots(1, None)));
    }
    found
}

/// The ways in which CTAs share tiles, and rows of A travel.
fn exchanges_of_rows(
    batch: &Batch,
    config: &GemmConfig,
    granules: Option<u32>,
) -> Vec<(&'static str, Tuning)> {
    let none = Tuning::default();
    let mut found = Vec::new();
    if granules == Some(4) {
        let clusters = |cluster| Tuning {
            split_k: Some(4),
            cluster: Some(cluster),
            ..none
        };
        found.push(("a cluster", clusters(true)));
        found.push(("no cluster", clusters(false)));
    }
    if config.op == GemmOp::AgGemm && batch.world > 1 && batch.nodes == 1 {
        let slices = Tuning {
            k_slices: Some(4),
            ..none
        };
        let pushed = Tuning {
            comm_ctas: Some(2),
            ..none
        };
        found.extend([("4 slices", slices), ("2 CTAs push", pushed)]);
    }
    found
}
