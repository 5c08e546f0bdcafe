//! cuBLAS, which is loaded at run time. Its GEMM is the baseline of benchmarks.

use crate::library::{Wanted, succeed};
use crate::{Failure, View};
use libloading::Library;
use mkernel::cudarc::driver::CudaStream;
use mkernel::spec::Dtype;
use std::ffi::{c_int, c_void};
use std::path::Path;
use std::ptr::null_mut;

type Handle = *mut c_void;
type GemmEx = unsafe extern "C" fn(
    Handle,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    *const c_void,
    *const c_void,
    c_int,
    c_int,
    *const c_void,
    c_int,
    c_int,
    *const c_void,
    *mut c_void,
    c_int,
    c_int,
    c_int,
    c_int,
) -> c_int;

// These values are from cublas_api.h and library_types.h.
const OP_N: c_int = 0;
const OP_T: c_int = 1;
const R_32F: c_int = 0;
const R_16F: c_int = 2;
const R_16BF: c_int = 14;
const COMPUTE_32F: c_int = 68;
const GEMM_DEFAULT: c_int = -1;

/// The last file is cuBLAS. The first file is cuBLASLt.
pub(crate) const LIBRARY: Wanted = Wanted {
    name: "cuBLAS",
    flag: "--cublas-dir",
    versions: &[
        &["libcublasLt.so.13", "libcublas.so.13"],
        &["libcublasLt.so.12", "libcublas.so.12"],
    ],
    packages: &["cu13", "cublas"],
};

type Destroy = unsafe extern "C" fn(Handle) -> c_int;

/// A handle of cuBLAS for one stream.
pub struct Cublas {
    handle: Handle,
    gemm_ex: GemmEx,
    destroy: Destroy,
    _libraries: Vec<Library>,
}

impl Cublas {
    /// Loads the library from `dir`, or else by the loader's search, from CUDA toolkits or from Python packages. The
    /// context of the stream must be current.
    pub fn new(dir: Option<&Path>, stream: &CudaStream) -> Result<Self, Failure> {
        let libraries = LIBRARY.open(dir)?;
        let library = libraries.last().ok_or("no library was loaded")?;
        type Create = unsafe extern "C" fn(*mut Handle) -> c_int;
        type SetStream = unsafe extern "C" fn(Handle, *mut c_void) -> c_int;
        // SAFETY: the names and the signatures agree with cublas_v2.h.
        let (create, set_stream, gemm_ex, destroy) = unsafe {
            (
                *library.get::<Create>(c"cublasCreate_v2")?,
                *library.get::<SetStream>(c"cublasSetStream_v2")?,
                *library.get::<GemmEx>(c"cublasGemmEx")?,
                *library.get::<Destroy>(c"cublasDestroy_v2")?,
            )
        };
        let mut handle = null_mut();
        // SAFETY: the pointer is to a live handle, and a context is current.
        succeed("cublasCreate", unsafe { create(&raw mut handle) })?;
        // SAFETY: the handle has been created above, and the stream is alive.
        succeed("cublasSetStream", unsafe {
            set_stream(handle, stream.cu_stream().cast())
        })?;
        Ok(Self {
            handle,
            gemm_ex,
            destroy,
            _libraries: libraries,
        })
    }

    /// Computes C = A · B for dense row-major matrices of two-byte elements, and C also of fp32. If `transposed` is set, B is `[N, K]`.
    pub fn gemm(&self, a: &View, b: &View, c: &View, transposed: bool) -> Result<(), Failure> {
        let (m, n, k) = (c.rows as c_int, c.cols as c_int, a.cols as c_int);
        let (op_b, b_stride) = if transposed { (OP_T, k) } else { (OP_N, n) };
        let (of_factors, of_result) = (data_type(a.dtype)?, data_type(c.dtype)?);
        let (one, zero) = (1.0f32, 0.0f32);
        let pointer = |matrix: &View| matrix.operand().ptr as *mut c_void;
        // The matrices of cuBLAS are column-major, so it computes the transposed product: Cᵀ = Bᵀ · Aᵀ.
        // SAFETY: the matrices have these sizes. Alpha and beta are floats, as the compute type requires.
        let status = unsafe {
            (self.gemm_ex)(
                self.handle,
                op_b,
                OP_N,
                n,
                m,
                k,
                (&raw const one).cast(),
                pointer(b),
                of_factors,
                b_stride,
                pointer(a),
                of_factors,
                k,
                (&raw const zero).cast(),
                pointer(c),
                of_result,
                n,
                COMPUTE_32F,
                GEMM_DEFAULT,
            )
        };
        succeed("cublasGemmEx", status)
    }
}

impl Drop for Cublas {
    fn drop(&mut self) {
        // SAFETY: the handle exists. Its user has waited for its products.
        unsafe { (self.destroy)(self.handle) };
    }
}

/// Returns cuBLAS's number for a type.
fn data_type(dtype: Dtype) -> Result<c_int, Failure> {
    match dtype {
        Dtype::Bf16 => Ok(R_16BF),
        Dtype::Fp16 => Ok(R_16F),
        Dtype::Fp32 => Ok(R_32F),
        other => Err(format!("cuBLAS is not called with elements of {other}").into()),
    }
}
