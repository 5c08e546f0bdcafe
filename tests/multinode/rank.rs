//! Ranks of GEMM operators on several nodes, each in a thread. Each element of C shows the ranks whose operands were used.

use mkernel::Operand;
use mkernel::cudarc::driver::{CudaSlice, CudaStream};
use mkernel::half::bf16;
use mkernel::testing::in_threads;
use mkernel::{
    Communicator, Error, KernelConfig, Operator, Simulation,
    network::{Faults, NicModel, Transport},
    spec::{BLayout, Dim, GemmConfig, GemmOp, GemmShape, Tuning},
};
use std::sync::Arc;

pub const SHAPE: GemmShape = GemmShape {
    m: 256,
    n: 64,
    k: 64,
};

/// A rank with a prepared operator and its operands.
pub struct Rank {
    pub operator: Operator,
    pub stream: Arc<CudaStream>,
    op: GemmOp,
    a: CudaSlice<bf16>,
    b: CudaSlice<bf16>,
    pub ranks: Communicator,
}

/// Runs `body` on each of four simulated GPUs in two nodes, and returns the values by rank.
pub fn on_ranks<T: Send>(
    op: GemmOp,
    seed: u64,
    faults: Faults,
    body: impl Fn(Rank) -> T + Sync,
) -> Vec<T> {
    on_nodes((2, 2), op, seed, faults, body)
}

/// Runs `body` on each simulated GPU of `nodes` nodes of `local_world` GPUs, and returns the values by rank.
pub fn on_nodes<T: Send>(
    (nodes, local_world): (u32, u32),
    op: GemmOp,
    seed: u64,
    faults: Faults,
    body: impl Fn(Rank) -> T + Sync,
) -> Vec<T> {
    let simulation = Simulation {
        ranks: nodes * local_world,
        seed,
        sms: 4,
        ..Simulation::default()
    };
    let communicators = Communicator::simulated(&simulation).expect("simulated GPUs");
    in_threads(communicators, |ranks| {
        body(Rank::new(ranks, nodes, op, faults.clone()))
    })
}

impl Rank {
    fn new(ranks: Communicator, nodes: u32, op: GemmOp, faults: Faults) -> Self {
        let nic = NicModel::default();
        ranks.set_transport(Transport::Emulated { nic, faults });
        let config = GemmConfig {
            m: Dim::Static(SHAPE.m),
            n: Dim::Static(SHAPE.n),
            k: Dim::Static(SHAPE.k),
            b_layout: BLayout::Nk,
            tuning: Tuning {
                comm_ctas: op.communicates().then_some(1),
                ..Tuning::default()
            },
            ..GemmConfig::new(op)
        };
        let config = KernelConfig {
            nodes,
            ..KernelConfig::new(ranks.world(), config)
        };
        // SAFETY: each rank uses one stream.
        unsafe { ranks.context().disable_event_tracking() };
        let operator = ranks.prepare(&config, SHAPE).expect("prepared");
        let stream = ranks.context().new_stream().expect("a stream");
        let rows = match op {
            GemmOp::AgGemm => own_rows(&ranks),
            _ => SHAPE.m,
        };
        let upload = |elems: u64, value| {
            let values = vec![bf16::from_f32(value); elems as usize];
            stream.clone_htod(&values).expect("uploaded")
        };
        Self {
            a: upload(rows * SHAPE.k, 1.0 + ranks.rank() as f32),
            b: upload(SHAPE.n * SHAPE.k, 0.5),
            operator,
            stream,
            op,
            ranks,
        }
    }

    fn rows_of_c(&self) -> u64 {
        match self.op {
            GemmOp::GemmRs => own_rows(&self.ranks),
            _ => SHAPE.m,
        }
    }

    /// Returns poison of the size of C.
    pub fn poison(&self) -> Vec<bf16> {
        vec![bf16::NAN; (self.rows_of_c() * SHAPE.n) as usize]
    }

    /// Returns a C that is filled with poison.
    pub fn poisoned(&self) -> CudaSlice<bf16> {
        self.stream.clone_htod(&self.poison()).expect("uploaded")
    }

    pub fn launch(&self, c: &mut CudaSlice<bf16>) -> Result<(), Error> {
        self.operator.launch(&self.stream, &self.a, &self.b, c)
    }

    /// Adds a call to the graph that is being captured. The graph must be destroyed before `self` and `c`.
    pub fn capture(&self, c: &mut CudaSlice<bf16>) -> Result<(), Error> {
        let call = self.operator.call(&self.stream);
        let call = call.read(Operand::A, &self.a).read(Operand::B, &self.b);
        // SAFETY: the caller destroys the graph before the operands, and all work is on one stream.
        unsafe { call.write(Operand::C, c).capture() }
    }

    /// Waits for the calls, and checks every element of a result.
    pub fn check(&self, c: &CudaSlice<bf16>) {
        self.ranks
            .synchronize(&self.stream)
            .expect("the calls succeed");
        let c = self.stream.clone_dtoh(c).expect("downloaded");
        let (rows, world) = (shard_rows(&self.ranks), u64::from(self.ranks.world()));
        for (i, value) in (0..).zip(&c) {
            let factor = match self.op {
                GemmOp::AgGemm => 1 + i / SHAPE.n / rows,
                GemmOp::Gemm => 1 + u64::from(self.ranks.rank()),
                _ => world * (world + 1) / 2,
            };
            let expected = factor as f32 * 0.5 * SHAPE.k as f32;
            assert_eq!(value.to_f32(), expected, "element {i}");
        }
    }
}

fn shard_rows(ranks: &Communicator) -> u64 {
    SHAPE.m.div_ceil(ranks.world().into())
}

/// Returns the number of rows of this rank's shard. The last ranks may have fewer rows than other ranks.
fn own_rows(ranks: &Communicator) -> u64 {
    let rows = shard_rows(ranks);
    rows.min(SHAPE.m.saturating_sub(rows * u64::from(ranks.rank())))
}
