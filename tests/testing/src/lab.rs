//! GPU work of tests and benchmarks beside the calls of mkernel: random matrices, references, and a kernel that waits.

mod matrix;
mod verdict;

pub use matrix::{Matrix, SymmetricMatrix};
pub use mkernel_measure::{Failure, Random, TimeLimit, View, seed_from_clock};
pub use verdict::{Finish, MAX_RELATIVE_ERROR, Verdict};

use mkernel::Communicator;
use mkernel::cudarc::driver::{
    CudaFunction, CudaSlice, CudaStream, DevicePtr, LaunchConfig, PushKernelArg, sys,
};
use mkernel::half::bf16;
use mkernel::spec::Dtype;
use mkernel_measure::Kernels;
use std::sync::Arc;
use std::time::Duration;

/// The CUDA source of the kernels of a [`Lab`].
pub const KERNELS: &str = include_str!("lab/kernels.cu");

/// The helper kernels of `kernels.cu`, loaded on one GPU. All kernels run on one stream.
pub struct Lab {
    /// The stream on which the kernels run.
    pub stream: Arc<CudaStream>,
    fill: CudaFunction,
    check: CudaFunction,
    checksum: CudaFunction,
    spin: CudaFunction,
}

impl Lab {
    /// Compiles the kernels, or loads them from the cache, for the GPU of `stream`.
    ///
    /// # Errors
    /// The kernels cannot be compiled or loaded.
    pub fn new(stream: &Arc<CudaStream>) -> Result<Self, Failure> {
        // SAFETY: users of a `Lab` order their work by its one stream.
        unsafe { stream.context().disable_event_tracking() };
        let kernels = Kernels::new(stream, "lab", KERNELS)?;
        Ok(Self {
            stream: stream.clone(),
            fill: kernels.get("fill")?,
            check: kernels.get("check")?,
            checksum: kernels.get("checksum")?,
            spin: kernels.get("spin")?,
        })
    }

    /// Allocates a matrix of bf16 and poisons it. `pad` elements lie between rows.
    ///
    /// # Errors
    /// The memory cannot be allocated.
    pub fn matrix(&self, rows: u64, cols: u64, pad: u64) -> Result<Matrix, Failure> {
        self.matrix_of(Dtype::Bf16, rows, cols, pad)
    }

    /// Allocates a matrix of `dtype` and poisons it. `pad` elements lie between rows.
    ///
    /// # Errors
    /// The memory cannot be allocated.
    pub fn matrix_of(
        &self,
        dtype: Dtype,
        rows: u64,
        cols: u64,
        pad: u64,
    ) -> Result<Matrix, Failure> {
        let stride = cols + pad;
        let halves = rows * stride * dtype.bytes() / Dtype::Bf16.bytes();
        // SAFETY: `poison` sets the whole allocation.
        let memory = unsafe { self.stream.alloc::<bf16>(halves.max(1) as usize) }?;
        let address = memory.device_ptr(&self.stream).0;
        let view = View {
            rows,
            cols,
            stride,
            dtype,
            address,
        };
        let matrix = Matrix { memory, view };
        self.poison(&matrix)?;
        Ok(matrix)
    }

    /// Allocates a matrix in symmetric memory, without elements between the rows. All ranks must call this.
    ///
    /// # Errors
    /// The memory cannot be allocated.
    pub fn symmetric_matrix(
        &self,
        ranks: &Communicator,
        dtype: Dtype,
        rows: u64,
        cols: u64,
    ) -> Result<SymmetricMatrix, Failure> {
        let halves = rows * cols * dtype.bytes() / Dtype::Bf16.bytes();
        let memory = ranks.alloc::<bf16>(&self.stream, halves as usize)?;
        let view = View {
            rows,
            cols,
            stride: cols,
            dtype,
            address: memory.device_ptr(&self.stream).0,
        };
        self.poison(&view)?;
        Ok(SymmetricMatrix { memory, view })
    }

    /// Sets every element to a NaN that no kernel computes.
    ///
    /// # Errors
    /// The driver refuses the work.
    pub fn poison(&self, matrix: &View) -> Result<(), Failure> {
        let bytes = (matrix.rows * matrix.stride * matrix.dtype.bytes()) as usize;
        if bytes == 0 {
            return Ok(());
        }
        self.stream.context().bind_to_thread()?;
        // SAFETY: the matrix has these bytes, and is freed on the same stream.
        let set =
            unsafe { sys::cuMemsetD8Async(matrix.address, 0xff, bytes, self.stream.cu_stream()) };
        Ok(set.result()?)
    }

    /// Fills a matrix with random elements, which depend only on `seed`, the column and the row. The first row has the
    /// number `first_row`.
    ///
    /// # Errors
    /// The driver refuses the work.
    pub fn fill(&self, matrix: &View, first_row: u64, seed: u64) -> Result<(), Failure> {
        self.fill_scaled(matrix, first_row, seed, 1.0)
    }

    /// Fills a matrix as [`Lab::fill`] does, and multiplies each element by `scale`.
    ///
    /// # Errors
    /// The driver refuses the work.
    pub fn fill_scaled(
        &self,
        matrix: &View,
        first_row: u64,
        seed: u64,
        scale: f32,
    ) -> Result<(), Failure> {
        let View {
            rows,
            cols,
            stride,
            address,
            ..
        } = matrix;
        if *rows == 0 {
            return Ok(());
        }
        let mut launch = self.stream.launch_builder(&self.fill);
        launch
            .arg(address)
            .arg(rows)
            .arg(cols)
            .arg(stride)
            .arg(&first_row)
            .arg(&seed)
            .arg(&scale);
        // SAFETY: the kernel writes only the matrix.
        unsafe { launch.launch(grid_stride(rows * stride)) }?;
        Ok(())
    }

    /// Compares every `row_step`th row of C with A · B, and adds the outcome to the verdict in `slot`.
    ///
    /// If `transposed`, B has the shape `[N, K]`. C is the sum of `parts` partial sums that were each rounded. The
    /// epilogue `finish` was applied to C.
    ///
    /// # Errors
    /// The driver refuses the work.
    pub fn check(
        &self,
        (a, b, c): (&View, &View, &View),
        transposed: bool,
        (row_step, parts): (u64, u32),
        finish: Finish,
        verdicts: &CudaSlice<u64>,
        slot: usize,
    ) -> Result<(), Failure> {
        let (b_k_stride, b_n_stride) = if transposed {
            (1, b.stride)
        } else {
            (b.stride, 1)
        };
        let verdict = verdicts.device_ptr(&self.stream).0 + (slot * Verdict::WORDS * 8) as u64;
        let mut launch = self.stream.launch_builder(&self.check);
        launch.arg(&a.address).arg(&a.stride);
        launch.arg(&b.address).arg(&b_k_stride).arg(&b_n_stride);
        launch.arg(&c.address).arg(&c.stride);
        launch
            .arg(&c.rows)
            .arg(&c.cols)
            .arg(&a.cols)
            .arg(&row_step)
            .arg(&verdict);
        if c.rows == 0 {
            return Ok(());
        }
        // The slack per square root of K. Another order of addition may change a typical sum by a three-hundredth. A
        // partial sum that was rounded may be off by a 256th of itself, and it may be larger than the sum.
        let slack = if parts > 1 { 8e-3f64 } else { 1e-3 };
        let finish = finish.raw();
        launch.arg(&slack).arg(&finish);
        let rows = c.rows.div_ceil(row_step);
        let config = LaunchConfig {
            grid_dim: (c.stride.div_ceil(32) as u32, rows.div_ceil(8) as u32, 1),
            block_dim: (32, 8, 1),
            shared_mem_bytes: 0,
        };
        // SAFETY: the kernel reads the matrices and writes only the verdict.
        unsafe { launch.launch(config) }?;
        Ok(())
    }

    /// Copies the elements of `from` to `to`, which has the shape of `from`.
    ///
    /// # Errors
    /// The driver refuses the work.
    pub fn copy(&self, from: &View, to: &View) -> Result<(), Failure> {
        self.stream.context().bind_to_thread()?;
        let device = sys::CUmemorytype::CU_MEMORYTYPE_DEVICE;
        let copy = sys::CUDA_MEMCPY2D {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: device,
            srcHost: std::ptr::null(),
            srcDevice: from.address,
            srcArray: std::ptr::null_mut(),
            srcPitch: (from.stride * from.dtype.bytes()) as usize,
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: device,
            dstHost: std::ptr::null_mut(),
            dstDevice: to.address,
            dstArray: std::ptr::null_mut(),
            dstPitch: (to.stride * to.dtype.bytes()) as usize,
            WidthInBytes: (from.cols * from.dtype.bytes()) as usize,
            Height: from.rows as usize,
        };
        // SAFETY: both matrices have these rows and columns. Their memory is freed on the same stream, after the copy.
        Ok(unsafe { sys::cuMemcpy2DAsync_v2(&copy, self.stream.cu_stream()) }.result()?)
    }

    /// Allocates `slots` empty verdicts.
    ///
    /// # Errors
    /// The memory cannot be allocated.
    pub fn verdicts(&self, slots: usize) -> Result<CudaSlice<u64>, Failure> {
        Ok(self
            .stream
            .clone_htod(&[0, 0, 0, 0, u64::MAX].repeat(slots))?)
    }

    /// Waits for the stream and returns the verdicts.
    ///
    /// # Errors
    /// Work on the stream has failed.
    pub fn read_verdicts(&self, verdicts: &CudaSlice<u64>) -> Result<Vec<Verdict>, Failure> {
        let words = self.read(verdicts)?;
        Ok(words
            .chunks_exact(Verdict::WORDS)
            .map(Verdict::new)
            .collect())
    }

    /// Adds a checksum of all elements to `sums[slot]`.
    ///
    /// # Errors
    /// The driver refuses the work.
    pub fn checksum(
        &self,
        matrix: &View,
        sums: &CudaSlice<u64>,
        slot: usize,
    ) -> Result<(), Failure> {
        let elems = matrix.rows * matrix.stride * matrix.dtype.bytes() / Dtype::Bf16.bytes();
        if elems == 0 {
            return Ok(());
        }
        let sum = sums.device_ptr(&self.stream).0 + (slot * 8) as u64;
        let mut launch = self.stream.launch_builder(&self.checksum);
        launch.arg(&matrix.address).arg(&elems).arg(&sum);
        // SAFETY: the kernel reads the matrix and writes only the sum.
        unsafe { launch.launch(grid_stride(elems)) }?;
        Ok(())
    }

    /// Waits for the stream and returns the words.
    ///
    /// # Errors
    /// Work on the stream has failed.
    pub fn read(&self, words: &CudaSlice<u64>) -> Result<Vec<u64>, Failure> {
        let words = self.stream.clone_dtoh(words)?;
        self.stream.synchronize()?;
        Ok(words)
    }

    /// Keeps the stream busy for this time.
    ///
    /// # Errors
    /// The driver refuses the work.
    pub fn spin(&self, time: Duration) -> Result<(), Failure> {
        let ns = time.as_nanos() as u64;
        let mut launch = self.stream.launch_builder(&self.spin);
        launch.arg(&ns);
        // SAFETY: the kernel accesses no memory.
        unsafe { launch.launch(one_thread()) }?;
        Ok(())
    }
}

fn one_thread() -> LaunchConfig {
    LaunchConfig {
        grid_dim: (1, 1, 1),
        block_dim: (1, 1, 1),
        shared_mem_bytes: 0,
    }
}

/// Returns the launch configuration of a grid-stride loop over `elems` elements.
fn grid_stride(elems: u64) -> LaunchConfig {
    LaunchConfig {
        grid_dim: (elems.div_ceil(256).clamp(1, 2048) as u32, 1, 1),
        block_dim: (256, 1, 1),
        shared_mem_bytes: 0,
    }
}
