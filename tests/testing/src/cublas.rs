//! cuBLAS, which is loaded at run time. Its GEMM is the baseline of benchmarks.

use crate::lab::{Failure, View};
use libloading::Library;
use mkernel::cudarc::driver::CudaStream;
use mkernel_compile::Env;
use std::ffi::{c_int, c_void};
use std::fs;
use std::path::{Path, PathBuf};
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
const R_16BF: c_int = 14;
const COMPUTE_32F: c_int = 68;
const GEMM_DEFAULT: c_int = -1;

/// A handle of cuBLAS for one stream.
pub struct Cublas {
    handle: Handle,
    gemm_ex: GemmEx,
    _libraries: Vec<Library>,
}

impl Cublas {
    /// Loads the library from `dir`, or else by the loader's search, from CUDA toolkits or from Python packages. The
    /// context of the stream must be current.
    pub fn new(dir: Option<&Path>, stream: &CudaStream) -> Result<Self, Failure> {
        let libraries = open(dir)?;
        let library = libraries.last().ok_or("no library was loaded")?;
        type Create = unsafe extern "C" fn(*mut Handle) -> c_int;
        type SetStream = unsafe extern "C" fn(Handle, *mut c_void) -> c_int;
        // SAFETY: the names and the signatures agree with cublas_v2.h.
        let (create, set_stream, gemm_ex) = unsafe {
            (
                *library.get::<Create>(c"cublasCreate_v2")?,
                *library.get::<SetStream>(c"cublasSetStream_v2")?,
                *library.get::<GemmEx>(c"cublasGemmEx")?,
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
            _libraries: libraries,
        })
    }

    /// Computes C = A · B for dense row-major matrices. If `transposed` is set, B is `[N, K]`.
    pub fn gemm(&self, a: &View, b: &View, c: &View, transposed: bool) -> Result<(), Failure> {
        let (m, n, k) = (c.rows as c_int, c.cols as c_int, a.cols as c_int);
        let (op_b, b_stride) = if transposed { (OP_T, k) } else { (OP_N, n) };
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
                R_16BF,
                b_stride,
                pointer(a),
                R_16BF,
                k,
                (&raw const zero).cast(),
                pointer(c),
                R_16BF,
                n,
                COMPUTE_32F,
                GEMM_DEFAULT,
            )
        };
        succeed("cublasGemmEx", status)
    }
}

pub(crate) fn succeed(call: &str, status: c_int) -> Result<(), Failure> {
    if status == 0 {
        Ok(())
    } else {
        Err(format!("{call} failed with status {status}").into())
    }
}

/// Loads cuBLAS and the libraries that it needs. cuBLAS is the last library of the result.
pub(crate) fn open(dir: Option<&Path>) -> Result<Vec<Library>, Failure> {
    let mut looked = Vec::new();
    let dirs = dir.map_or_else(candidates, |dir| vec![dir.to_owned()]);
    for dir in dirs {
        for major in [13, 12] {
            // The second library needs the first library, and finds it by name once it is loaded.
            let paths =
                ["cublasLt", "cublas"].map(|name| dir.join(format!("lib{name}.so.{major}")));
            // SAFETY: the initialisers of NVIDIA's libraries have no requirements.
            let libraries = paths.iter().map(|path| unsafe { Library::new(path) });
            match libraries.collect::<Result<Vec<_>, _>>() {
                Ok(libraries) => return Ok(libraries),
                Err(error) => looked.push(error.to_string()),
            }
        }
    }
    let looked = looked.join("\n  ");
    Err(
        format!("cuBLAS was not found; give its folder with --cublas-dir. Looked for:\n  {looked}")
            .into(),
    )
}

fn candidates() -> Vec<PathBuf> {
    let env = Env::get();
    let mut dirs = vec![PathBuf::new()]; // a bare name is searched in the loader's path
    dirs.extend(env.cuda_toolkits.iter().map(|home| home.join("lib64")));
    dirs.push("/usr/local/cuda/lib64".into());
    let prefixes = env.virtual_env.iter().map(PathBuf::as_path);
    let prefixes = prefixes.chain(env.path.iter().filter_map(|bin| bin.parent()));
    for site in prefixes.flat_map(site_packages) {
        dirs.extend(
            ["cu13", "cublas"].map(|package| site.join("nvidia").join(package).join("lib")),
        );
    }
    dirs.retain(|dir| dir.as_os_str().is_empty() || dir.is_dir());
    dirs
}

fn site_packages(prefix: &Path) -> Vec<PathBuf> {
    let folders = fs::read_dir(prefix.join("lib"))
        .into_iter()
        .flatten()
        .flatten();
    let pythons = folders.filter(|dir| dir.file_name().to_string_lossy().starts_with("python3"));
    pythons
        .map(|dir| dir.path().join("site-packages"))
        .collect()
}
