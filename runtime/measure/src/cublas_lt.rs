//! cuBLASLt, which is loaded at run time. Its products of e4m3 are the baseline of benchmarks.

use crate::Failure;
use crate::cublas::LIBRARY;
use crate::library::succeed;
use libloading::Library;
use mkernel::cudarc::driver::sys::CUstream;
use mkernel::spec::GemmShape;
use std::ffi::{c_int, c_void};
use std::path::Path;
use std::ptr::null_mut;

type Opaque = *mut c_void;
type Status = c_int;

// These values are from cublas_api.h, cublasLt.h and library_types.h.
const R_32F: c_int = 0;
const R_16BF: c_int = 14;
const R_8F_E4M3: c_int = 28;
const COMPUTE_32F: c_int = 68;
const OP_T: i32 = 1;
const DESC_TRANSA: c_int = 3;
const DESC_A_SCALE_POINTER: c_int = 17;
const DESC_B_SCALE_POINTER: c_int = 18;
const DESC_FAST_ACCUM: c_int = 25;
const DESC_A_SCALE_MODE: c_int = 31;
const DESC_B_SCALE_MODE: c_int = 32;
const SCALE_OUTER_VEC_32F: i32 = 3;
const PREF_MAX_WORKSPACE_BYTES: c_int = 1;

/// A choice of cuBLASLt's heuristics, with its bytes of workspace.
#[repr(C)]
#[derive(Clone, Copy)]
struct Heuristic {
    algo: [u64; 8],
    workspace_bytes: usize,
    state: Status,
    waves: f32,
    reserved: [c_int; 4],
}

/// The addresses of A, B, their scales, and C.
#[derive(Clone, Copy, Debug)]
pub struct Pointers {
    /// `[M, K]`, e4m3.
    pub a: u64,
    /// `[N, K]`, e4m3.
    pub b: u64,
    /// `[M]`, fp32.
    pub a_scales: u64,
    /// `[N]`, fp32.
    pub b_scales: u64,
    /// `[M, N]`, bf16.
    pub c: u64,
    /// Memory for cuBLASLt.
    pub workspace: u64,
    /// The size of that memory in bytes.
    pub workspace_bytes: usize,
}

/// A product of e4m3 with a scale for each row of A and each column of B. The objects that it allocates in cuBLASLt
/// live as long as the process.
pub struct ScaledProduct {
    handle: Opaque,
    desc: Opaque,
    layouts: [Opaque; 3],
    heuristic: Heuristic,
    pointers: Pointers,
    matmul: Matmul,
    _libraries: Vec<Library>,
}

type Matmul = unsafe extern "C" fn(
    Opaque,
    Opaque,
    *const c_void,
    u64,
    Opaque,
    u64,
    Opaque,
    *const c_void,
    u64,
    Opaque,
    u64,
    Opaque,
    *const c_void,
    u64,
    usize,
    CUstream,
) -> Status;
type Create = unsafe extern "C" fn(*mut Opaque) -> Status;
type DescCreate = unsafe extern "C" fn(*mut Opaque, c_int, c_int) -> Status;
type SetAttribute = unsafe extern "C" fn(Opaque, c_int, *const c_void, usize) -> Status;
type LayoutCreate = unsafe extern "C" fn(*mut Opaque, c_int, u64, u64, i64) -> Status;
type GetHeuristic = unsafe extern "C" fn(
    Opaque,
    Opaque,
    Opaque,
    Opaque,
    Opaque,
    Opaque,
    Opaque,
    c_int,
    *mut Heuristic,
    *mut c_int,
) -> Status;

/// Calls a function that creates an object.
fn created(name: &str, create: impl FnOnce(*mut Opaque) -> Status) -> Result<Opaque, Failure> {
    let mut object = null_mut();
    succeed(name, create(&raw mut object))?;
    Ok(object)
}

impl ScaledProduct {
    /// Loads the library as [`Cublas`](crate::cublas::Cublas) does, and chooses an algorithm. With `fast`, tensor cores
    /// accumulate over all of K. A context must be current.
    ///
    /// # Errors
    /// The library is not found, or has no such product.
    pub fn new(
        dir: Option<&Path>,
        shape: GemmShape,
        pointers: Pointers,
        fast: bool,
    ) -> Result<Self, Failure> {
        let libraries = LIBRARY.open(dir)?;
        let library = libraries.first().ok_or("no library was loaded")?;
        // SAFETY: the names and the signatures agree with cublasLt.h.
        let (handle, matmul) = unsafe {
            let create = library.get::<Create>(c"cublasLtCreate")?;
            let handle = created("cublasLtCreate", |to| create(to))?;
            (handle, *library.get::<Matmul>(c"cublasLtMatmul")?)
        };
        let desc = describe(library, &pointers, fast)?;
        let layouts = layouts(library, shape)?;
        let heuristic = choose(library, (handle, desc), layouts, pointers.workspace_bytes)?;
        Ok(Self {
            handle,
            desc,
            layouts,
            heuristic,
            pointers,
            matmul,
            _libraries: libraries,
        })
    }

    /// Enqueues the product.
    ///
    /// # Errors
    /// cuBLASLt refuses the call.
    ///
    /// # Safety
    /// The pointers lead to memory of these sizes, which outlives the call.
    pub unsafe fn enqueue(&self, stream: CUstream) -> Result<(), Failure> {
        let (one, zero) = (1.0f32, 0.0f32);
        let [a, b, c] = self.layouts;
        let to = &self.pointers;
        // SAFETY: the objects live as long as the process, and the caller guarantees the memory.
        let status = unsafe {
            (self.matmul)(
                self.handle,
                self.desc,
                (&raw const one).cast(),
                to.b,
                a,
                to.a,
                b,
                (&raw const zero).cast(),
                to.c,
                c,
                to.c,
                c,
                self.heuristic.algo.as_ptr().cast(),
                to.workspace,
                to.workspace_bytes,
                stream,
            )
        };
        succeed("cublasLtMatmul", status)
    }
}

/// Describes the product and its scales.
fn describe(library: &Library, pointers: &Pointers, fast: bool) -> Result<Opaque, Failure> {
    // SAFETY: the names and the signatures agree with cublasLt.h, and attributes have the sizes that the header gives.
    unsafe {
        let create = library.get::<DescCreate>(c"cublasLtMatmulDescCreate")?;
        let desc = created("cublasLtMatmulDescCreate", |to| {
            create(to, COMPUTE_32F, R_32F)
        })?;
        let set = library.get::<SetAttribute>(c"cublasLtMatmulDescSetAttribute")?;
        let attribute = |name, value: *const c_void, bytes| {
            let status = set(desc, name, value, bytes);
            succeed("cublasLtMatmulDescSetAttribute", status)
        };
        let int = |name, value: i32| attribute(name, (&raw const value).cast(), 4);
        let address = |name, value: u64| attribute(name, (&raw const value).cast(), 8);
        // Matrices of cuBLASLt are column-major, so it computes Cᵀ = B · Aᵀ, and B is its first factor.
        int(DESC_TRANSA, OP_T)?;
        int(DESC_A_SCALE_MODE, SCALE_OUTER_VEC_32F)?;
        int(DESC_B_SCALE_MODE, SCALE_OUTER_VEC_32F)?;
        address(DESC_A_SCALE_POINTER, pointers.b_scales)?;
        address(DESC_B_SCALE_POINTER, pointers.a_scales)?;
        attribute(DESC_FAST_ACCUM, (&raw const fast).cast(), 1)?;
        Ok(desc)
    }
}

/// The layouts of the first factor, the second factor and the result.
fn layouts(library: &Library, GemmShape { m, n, k }: GemmShape) -> Result<[Opaque; 3], Failure> {
    // SAFETY: the name and the signature are those of cublasLt.h.
    let create = unsafe { library.get::<LayoutCreate>(c"cublasLtMatrixLayoutCreate")? };
    let layout = |dtype, rows, cols, stride: u64| {
        // SAFETY: the pointer leads to room for a handle.
        created("cublasLtMatrixLayoutCreate", |to| unsafe {
            create(to, dtype, rows, cols, stride as i64)
        })
    };
    Ok([
        layout(R_8F_E4M3, k, n, k)?,
        layout(R_8F_E4M3, k, m, k)?,
        layout(R_16BF, n, m, n)?,
    ])
}

/// Asks the heuristics for an algorithm.
fn choose(
    library: &Library,
    (handle, desc): (Opaque, Opaque),
    [a, b, c]: [Opaque; 3],
    workspace_bytes: usize,
) -> Result<Heuristic, Failure> {
    let mut heuristic = Heuristic {
        algo: [0; 8],
        workspace_bytes: 0,
        state: 0,
        waves: 0.0,
        reserved: [0; 4],
    };
    let (mut found, to) = (0, &raw mut heuristic);
    let most = (&raw const workspace_bytes).cast();
    // SAFETY: the names and the signatures agree with cublasLt.h, and the objects were created by the functions for
    // such objects.
    unsafe {
        let create = library.get::<Create>(c"cublasLtMatmulPreferenceCreate")?;
        let preference = created("cublasLtMatmulPreferenceCreate", |to| create(to))?;
        let set = library.get::<SetAttribute>(c"cublasLtMatmulPreferenceSetAttribute")?;
        let status = set(preference, PREF_MAX_WORKSPACE_BYTES, most, 8);
        succeed("cublasLtMatmulPreferenceSetAttribute", status)?;
        let get = library.get::<GetHeuristic>(c"cublasLtMatmulAlgoGetHeuristic")?;
        let status = get(handle, desc, a, b, c, c, preference, 1, to, &raw mut found);
        succeed("cublasLtMatmulAlgoGetHeuristic", status)?;
    }
    succeed("the choice of an algorithm", heuristic.state)?;
    Ok(heuristic)
}
