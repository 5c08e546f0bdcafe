//! [`Communicator::rebuild`]: a communicator of the ranks that are left after a failure.

use crate::communicator::Communicator;
use crate::driver::Uncaptured;
use crate::error::{CallError, ClusterError, Error};

impl Communicator {
    /// Connects the ranks that are left after a failure, in the same processes, and returns their communicator. All ranks that are
    /// left must call this, as with `MPIX_Comm_shrink` and `ncclCommShrink`. This communicator cannot be used after that.
    ///
    /// The ranks are numbered anew in their order; [`job_ranks`](Self::job_ranks) has their ranks in the job. The new communicator
    /// has the GPU, the streams, the timeouts, the transport and the measured choices of this one, and memory of its own. Memory of
    /// the program, such as weights, stays. Tensors of [`alloc`](Self::alloc) and operators belong to this communicator: prepare the
    /// operators again, for the new number of ranks, then drop the former ones with this communicator, which frees their memory.
    /// Kernels, messages and replays of graphs of this communicator cannot reach the memory of the new one.
    ///
    /// Kernels are for 1, 2, 4 or 8 ranks per node. [`split`](Self::split) makes such a group of the ranks that are left, as here,
    /// where one of four ranks fails and two of the others go on:
    ///
    /// ```
    /// use mkernel::half::bf16;
    /// use mkernel::{Communicator, Error, Simulation, fused_kernel};
    ///
    /// #[fused_kernel(op = all_reduce, m = 1, n = 64)]
    /// struct Sum;
    ///
    /// fn sum(ranks: &Communicator) -> Result<f32, Error> {
    ///     let (sum, stream) = (Sum::prepare(ranks)?, ranks.default_stream());
    ///     let x = stream.clone_htod(&[bf16::ONE; 64]).expect("memory");
    ///     let mut y = stream.alloc_zeros::<bf16>(64).expect("memory");
    ///     sum.launch(&stream, SumOperands { x: &x, y: &mut y })?;
    ///     ranks.synchronize(&stream)?;
    ///     Ok(stream.clone_dtoh(&y).expect("a copy")[0].to_f32())
    /// }
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let all = Communicator::simulated(&Simulation { ranks: 4, ..Simulation::default() })?;
    /// let sums = mkernel::run(all, |ranks| {
    ///     if ranks.rank() == 1 {
    ///         return Ok(None); // This rank ends here.
    ///     }
    ///     sum(&ranks).expect_err("a rank is missing");
    ///     let left = ranks.rebuild(3)?;
    ///     drop(ranks);
    ///     assert_eq!((left.world(), left.job_ranks()), (3, &[0, 2, 3][..]));
    ///     let pair = left.split((left.rank() < 2).then_some(0), 0)?;
    ///     pair.map(|pair| sum(&pair)).transpose()
    /// })?;
    /// assert_eq!(sums, [Some(2.0), None, Some(2.0), None]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A rank whose process has ended is left out at once. A rank that has not ended and does not call this, such as a stopped
    /// process, is left out after [`host_timeout`](Self::host_timeout), and a rank that calls this later than others by more than
    /// half of this time may be left out. Ranks that cannot reach each other can end up in different communicators. `at_least` of
    /// more than half of the ranks excludes this, since there can be only one such communicator.
    ///
    /// If this fails, it can be called again, for instance with fewer ranks. If a rank fails in the last moment, some ranks can get
    /// a communicator with the lost rank, whose next call fails, and the other ranks an error.
    ///
    /// # Errors
    /// [`Error::RanksMissing`] with the ranks that are left out if fewer than `at_least` are left,
    /// [`CallError::NotRebuildable`] for a group of [`split`](Self::split) and for a communicator that was rebuilt before, and
    /// [`ClusterError::AtLeast`].
    pub fn rebuild(&self, at_least: u32) -> Result<Self, Error> {
        // Another thread may be capturing a stream of its own, which must not be affected.
        let _uncaptured = Uncaptured::new();
        let shared = self.shared();
        if at_least > self.world() {
            let world = self.world();
            return Err(Error::Cluster(ClusterError::AtLeast { at_least, world }));
        }
        if shared.cluster.is_split() {
            return Err(Error::Call(CallError::NotRebuildable));
        }
        // Kernels that wait for ranks that are gone must end before kernels of the new communicator start on this GPU.
        shared.fail(Error::Aborted { cause: None });
        shared.end_simulated();
        let gpu = shared.gpu()?;
        let timeout = self.host_timeout();
        let (ranks, survivors) = shared.ranks().connect_survivors(at_least, timeout)?;
        let cluster = shared.cluster.survivors(&survivors);
        tracing::info!(rank = ranks.rank(), job_ranks = ?cluster.job_ranks, "a communicator was rebuilt");
        Ok(Self::of_shared(shared.rebuilt(gpu, ranks, cluster)))
    }

    /// Returns the number of times that the communicator was [rebuilt](Self::rebuild). Groups of [`split`](Self::split) have the
    /// number of the communicator that was split.
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.shared().cluster.generation
    }
}
