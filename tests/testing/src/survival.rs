//! Ranks with faults, while the other ranks rebuild their communicator and compute again.

use mkernel::cudarc::driver::CudaSlice;
use mkernel::half::bf16;
use mkernel::network::{Failure, Transport};
use mkernel::{Communicator, Error, fused_kernel};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Barrier;
use std::time::Duration;

const M: usize = 4;
const N: usize = 64;

#[fused_kernel(op = all_reduce, m = 4, n = 64)]
struct Sum;

#[fused_kernel(op = all_reduce, m = 4, n = 64, nodes = 2)]
struct SumOfNodes;

/// A sum over the ranks of a communicator, on one node or on two.
pub struct AnySum(Nodes);

enum Nodes {
    One(Box<Sum>),
    Two(Box<SumOfNodes>),
}

impl AnySum {
    /// Returns whether there is a kernel for this many ranks.
    #[must_use]
    pub fn fits(world: u32, nodes: u32) -> bool {
        world.is_multiple_of(nodes) && [1, 2, 4, 8].contains(&(world / nodes))
    }

    /// Prepares the kernel for the ranks of a communicator, on all ranks.
    ///
    /// # Errors
    /// The errors of `prepare`.
    pub fn prepare(ranks: &Communicator, nodes: u32) -> Result<Self, Error> {
        Ok(Self(match nodes {
            1 => Nodes::One(Box::new(Sum::prepare(ranks)?)),
            _ => Nodes::Two(Box::new(SumOfNodes::prepare(ranks)?)),
        }))
    }

    /// Adds the tensors of all ranks of the communicator, and checks the sums.
    ///
    /// # Errors
    /// The errors of the launch and of the call.
    ///
    /// # Panics
    /// A sum is wrong, or there is no memory.
    pub fn check(&self, ranks: &Communicator, weights: &CudaSlice<bf16>) -> Result<(), Error> {
        let stream = ranks.default_stream();
        let mut y = stream.alloc_zeros::<bf16>(M * N).expect("memory");
        let (x, result) = (weights, &mut y);
        match &self.0 {
            Nodes::One(sum) => sum.launch(&stream, SumOperands { x, y: result })?,
            Nodes::Two(sum) => sum.launch(&stream, SumOfNodesOperands { x, y: result })?,
        }
        ranks.synchronize(&stream)?;
        let y = stream.clone_dtoh(&y).expect("a copy");
        let expected: f32 = ranks.job_ranks().iter().map(|rank| value(*rank)).sum();
        assert!(y.iter().all(|sum| sum.to_f32() == expected), "{}", y[0]);
        Ok(())
    }
}

fn value(job_rank: u32) -> f32 {
    (1 << job_rank) as f32
}

/// Allocates a tensor whose elements identify the rank of a job.
///
/// # Panics
/// There is no memory.
#[must_use]
pub fn weights(ranks: &Communicator) -> CudaSlice<bf16> {
    let own = vec![bf16::from_f32(value(ranks.rank())); M * N];
    ranks.default_stream().clone_htod(&own).expect("memory")
}

/// Ends like the thread of a rank that panics, which drops all values of the thread.
pub fn dies<T>(owned: T) {
    let died = catch_unwind(AssertUnwindSafe(move || {
        let _owned = owned;
        resume_unwind(Box::new("this rank dies"));
    }));
    drop(died);
}

/// A generator of random numbers (SplitMix64).
#[derive(Debug)]
pub struct Random(pub u64);

impl Random {
    /// Returns a number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }
}

/// What happens to a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The rank drops its operators and its communicator.
    Ends,
    /// The rank's thread panics between two calls.
    Dies,
    /// The rank's thread panics after it has enqueued a call.
    DiesInCall,
    /// The rank makes no more calls until all other ranks are done, like a process that is stopped.
    Stops,
    /// The rank is late once, and takes part.
    Late,
    /// The NIC of the rank fails, and the rank ends at its next error.
    Nic,
}

impl FaultKind {
    /// All kinds.
    pub const ALL: [Self; 6] = [
        Self::Ends,
        Self::Dies,
        Self::DiesInCall,
        Self::Stops,
        Self::Late,
        Self::Nic,
    ];
}

/// The fault of a rank.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// The rank in the job.
    pub rank: u32,
    /// The number of calls that the rank makes before.
    pub calls: u64,
    /// What happens.
    pub kind: FaultKind,
}

impl Fault {
    /// Returns whether the rank fails after this number of calls. A NIC may fail a few calls later.
    fn is_over(&self, calls: u64) -> bool {
        let delay = if self.kind == FaultKind::Nic { 20 } else { 0 };
        calls >= self.calls + delay
    }
}

/// A job some of whose ranks have faults.
#[derive(Debug)]
pub struct Faulty {
    /// The number of ranks at the start.
    pub world: u32,
    /// The number of nodes of kernels.
    pub nodes: u32,
    /// The faults, one for a rank at most.
    pub faults: Vec<Fault>,
}

impl Faulty {
    /// Returns a job in which up to half of the ranks have one of the faults `kinds`, at random calls.
    #[must_use]
    pub fn random(random: &mut Random, (world, nodes): (u32, u32), kinds: &[FaultKind]) -> Self {
        let count = 1 + random.below(u64::from(world) / 2);
        let mut ranks: Vec<u32> = (0..world).collect();
        let mut fault = || Fault {
            rank: ranks.swap_remove(random.below(ranks.len() as u64) as usize),
            calls: random.below(6),
            kind: kinds[random.below(kinds.len() as u64) as usize],
        };
        let faults = (0..count).map(|_| fault()).collect();
        Self {
            world,
            nodes,
            faults,
        }
    }

    /// Returns the ranks that are left in the end.
    #[must_use]
    pub fn left(&self) -> Vec<u32> {
        let fails = |rank| {
            let mut faults = self.faults.iter();
            faults.any(|fault| fault.rank == rank && fault.kind != FaultKind::Late)
        };
        (0..self.world).filter(|rank| !fails(*rank)).collect()
    }

    /// Returns the fault of a rank if it is of this kind.
    fn fault(&self, rank: u32, kind: FaultKind) -> Option<&Fault> {
        let mut faults = self.faults.iter();
        faults.find(|fault| fault.rank == rank && fault.kind == kind)
    }

    /// Runs the job on the ranks of a host, with a thread for each rank. `timeout` is the timeout of hosts and of real GPUs. All ranks that are left
    /// rebuild their communicator until no fault is left, and compute right results all the time. `transport` returns the transport of
    /// a rank whose NIC has this failure.
    ///
    /// # Panics
    /// A result is wrong, a rank that is left cannot go on, or the simulator finds a mistake.
    pub fn run(
        &self,
        communicators: Vec<Communicator>,
        timeout: Duration,
        transport: impl Fn(Option<Failure>) -> Transport,
    ) {
        let end = Barrier::new(self.world as usize);
        let left = std::thread::scope(|scope| {
            let start = |ranks: Communicator| {
                // Simulated GPUs have deadlines in simulated time.
                if !ranks.is_simulated() {
                    ranks.set_timeout(timeout);
                }
                ranks.set_host_timeout(timeout);
                let of_nic = self.fault(ranks.rank(), FaultKind::Nic);
                ranks.set_transport(transport(of_nic.map(|fault| Failure::Nic {
                    after_writes: fault.calls,
                })));
                let end = &end;
                scope.spawn(move || {
                    ranks.context().bind_to_thread().expect("a GPU");
                    let lived = catch_unwind(AssertUnwindSafe(|| self.lives(ranks, end)));
                    lived.map_err(|_| end.wait())
                })
            };
            let threads: Vec<_> = communicators.into_iter().map(start).collect();
            let joined = threads.into_iter().map(|thread| thread.join());
            joined.map(Result::ok).collect::<Vec<_>>()
        });
        for (rank, found) in (0..).zip(left) {
            let Some(Ok(found)) = found else {
                panic!("rank {rank} has panicked: {self:?}");
            };
            let is_left = self.left().contains(&rank);
            assert_eq!(found, is_left.then(|| self.left()), "rank {rank}: {self:?}");
        }
    }

    /// Lets a rank live. Returns the ranks that are left, or `None` if the rank itself is not.
    fn lives(&self, mut ranks: Communicator, end: &Barrier) -> Option<Vec<u32>> {
        let weights = weights(&ranks);
        let (own, left) = (ranks.rank(), self.left());
        let mut fault = self.faults.iter().find(|fault| fault.rank == own);
        let (mut calls, mut last_calls) = (0, 0);
        loop {
            // Other numbers of ranks only exchange bytes.
            let fits = AnySum::fits(ranks.world(), self.nodes);
            let sum = fits.then(|| AnySum::prepare(&ranks, self.nodes));
            let error = loop {
                if let Some(now) = fault.take_if(|fault| fault.is_over(calls)) {
                    if now.kind != FaultKind::Late {
                        fails(now.kind, (sum, ranks), &weights, end);
                        return None;
                    }
                    std::thread::sleep(Duration::from_millis(100));
                }
                let result = match &sum {
                    Some(Ok(sum)) => sum.check(&ranks, &weights),
                    Some(Err(error)) => Err(error.clone()),
                    None => ranks.barrier(),
                };
                calls += 1;
                match result {
                    Ok(()) if ranks.job_ranks() != left => {}
                    Ok(()) if last_calls < 3 => last_calls += 1,
                    Ok(()) => {
                        ranks.barrier().expect("all are left");
                        assert_eq!(ranks.findings(), []);
                        end.wait();
                        return Some(ranks.job_ranks().to_vec());
                    }
                    Err(error) => break error,
                }
            };
            if self.fault(own, FaultKind::Nic).is_some() {
                fails(FaultKind::Ends, (sum, ranks), &weights, end);
                return None;
            }
            let rebuilt = ranks.rebuild(left.len() as u32);
            let rebuilt = rebuilt.unwrap_or_else(|e| panic!("rank {own}: {e}, after {error}"));
            drop((sum, ranks));
            ranks = rebuilt;
        }
    }
}

/// Lets a rank fail. Returns when all ranks are done.
fn fails(
    kind: FaultKind,
    (sum, ranks): (Option<Result<AnySum, Error>>, Communicator),
    weights: &CudaSlice<bf16>,
    end: &Barrier,
) {
    match kind {
        FaultKind::Ends => drop((sum, ranks)),
        FaultKind::Stops => {
            end.wait();
            let error = ranks.rebuild(ranks.world()).err();
            assert!(error.is_some(), "the others went on without this rank");
            return;
        }
        _ => {
            if let (FaultKind::DiesInCall, Some(Ok(sum))) = (kind, &sum) {
                ranks.set_timeout(Duration::ZERO);
                let _ = sum.check(&ranks, weights);
            }
            dies((sum, ranks));
        }
    }
    end.wait();
}
