//! Collectives of NCCL on tensors of candle, as in candle's examples. libnccl is loaded at run time.

use candle_core::cuda_backend::CudaStorageSlice;
use candle_core::{CpuStorage, CudaStorage, CustomOp1, Error, Layout, Result, Shape, Tensor, bail};
use libloading::Library;
use mkernel::cudarc::driver::sys::CUstream;
use mkernel::cudarc::driver::{DevicePtr, DevicePtrMut};
use mkernel_candle::Ranks;
use std::ffi::{c_int, c_void};

const ID_BYTES: usize = 128;
/// `ncclBfloat16` and `ncclSum`.
const BF16: c_int = 9;
const SUM: c_int = 0;

#[repr(C)]
#[derive(Clone, Copy)]
struct UniqueId([u8; ID_BYTES]);

type GetUniqueId = unsafe extern "C" fn(*mut UniqueId) -> c_int;
type CommInitRank = unsafe extern "C" fn(*mut *mut c_void, c_int, UniqueId, c_int) -> c_int;
type AllReduce = unsafe extern "C" fn(
    *const c_void,
    *mut c_void,
    usize,
    c_int,
    c_int,
    *mut c_void,
    CUstream,
) -> c_int;
type AllGather =
    unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, *mut c_void, CUstream) -> c_int;
type CommDestroy = unsafe extern "C" fn(*mut c_void) -> c_int;

/// A communicator of NCCL.
pub struct Nccl {
    comm: *mut c_void,
    world: usize,
    all_reduce: AllReduce,
    all_gather: AllGather,
    destroy: CommDestroy,
    /// The library, which must stay loaded while its functions are in use.
    _library: Library,
}

impl Nccl {
    /// Connects the ranks. Returns `None` if NCCL is not installed.
    pub fn new(ranks: &Ranks) -> Result<Option<Self>> {
        // SAFETY: the initialisers of NCCL have no effects on this program.
        let Ok(library) = (unsafe { Library::new("libnccl.so.2") }) else {
            return Ok(None);
        };
        // SAFETY: the types are those of nccl.h.
        let (get_id, init, all_reduce, all_gather, destroy) = unsafe {
            (
                symbol::<GetUniqueId>(&library, "ncclGetUniqueId")?,
                symbol::<CommInitRank>(&library, "ncclCommInitRank")?,
                symbol::<AllReduce>(&library, "ncclAllReduce")?,
                symbol::<AllGather>(&library, "ncclAllGather")?,
                symbol::<CommDestroy>(&library, "ncclCommDestroy")?,
            )
        };
        let mut id = UniqueId([0; ID_BYTES]);
        if ranks.rank() == 0 {
            // SAFETY: `id` has the size of ncclUniqueId.
            checked("ncclGetUniqueId", unsafe { get_id(&mut id) })?;
        }
        let ids = ranks
            .communicator()
            .all_gather(&id.0)
            .map_err(Error::wrap)?;
        let first = ids.first().and_then(|id| id.as_slice().try_into().ok());
        let id = UniqueId(first.ok_or_else(|| Error::msg("rank 0 sent no id of NCCL"))?);
        let mut comm = std::ptr::null_mut();
        ranks
            .stream()
            .context()
            .bind_to_thread()
            .map_err(Error::wrap)?;
        // SAFETY: the GPU of this rank is current, and all ranks pass the id of rank 0.
        let made = unsafe { init(&mut comm, ranks.world() as c_int, id, ranks.rank() as c_int) };
        checked("ncclCommInitRank", made)?;
        let world = ranks.world();
        Ok(Some(Self {
            comm,
            world,
            all_reduce,
            all_gather,
            destroy,
            _library: library,
        }))
    }

    /// Returns the sum of all ranks' tensors.
    pub fn all_reduce(&self, x: &Tensor) -> Result<Tensor> {
        x.apply_op1_no_bwd(&Collective {
            nccl: self,
            gathers: false,
        })
    }

    /// Gathers a row `[1, N]` of each rank to `[ranks, N]`.
    pub fn all_gather(&self, x: &Tensor) -> Result<Tensor> {
        x.apply_op1_no_bwd(&Collective {
            nccl: self,
            gathers: true,
        })
    }
}

impl Drop for Nccl {
    fn drop(&mut self) {
        // SAFETY: the communicator exists, and its collectives have ended: the program has synchronized.
        unsafe { (self.destroy)(self.comm) };
    }
}

struct Collective<'a> {
    nccl: &'a Nccl,
    gathers: bool,
}

impl CustomOp1 for Collective<'_> {
    fn name(&self) -> &'static str {
        "nccl"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        bail!("NCCL is for tensors on GPUs")
    }

    fn cuda_fwd(&self, x: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        let CudaStorageSlice::BF16(slice) = &x.slice else {
            bail!("this example reduces bf16");
        };
        let Some((first, end)) = layout.contiguous_offsets() else {
            bail!("NCCL takes contiguous tensors");
        };
        let (stream, count) = (x.device.cuda_stream(), end - first);
        let mut dims = layout.dims().to_vec();
        if self.gathers {
            dims[0] *= self.nccl.world;
        }
        let shape = Shape::from(dims);
        // SAFETY: NCCL writes all elements before other work of the stream reads them.
        let mut result = unsafe { x.device.alloc::<half::bf16>(shape.elem_count())? };
        let input = slice.slice(first..end);
        {
            let (from, _read) = input.device_ptr(&stream);
            let (to, _written) = result.device_ptr_mut(&stream);
            let (from, to, handle) = (from as *const c_void, to as *mut c_void, stream.cu_stream());
            // SAFETY: both tensors have the elements of the collective, and are freed in the order of the stream.
            let code = unsafe {
                match self.gathers {
                    true => (self.nccl.all_gather)(from, to, count, BF16, self.nccl.comm, handle),
                    false => {
                        (self.nccl.all_reduce)(from, to, count, BF16, SUM, self.nccl.comm, handle)
                    }
                }
            };
            checked("a collective of NCCL", code)?;
        }
        Ok((
            CudaStorage::wrap_cuda_slice(result, x.device.clone()),
            shape,
        ))
    }
}

/// Returns a function of the library.
///
/// # Safety
/// `T` must be the type of the function.
unsafe fn symbol<T: Copy>(library: &Library, name: &str) -> Result<T> {
    // SAFETY: the caller knows the type.
    let symbol = unsafe { library.get::<T>(name.as_bytes()) };
    symbol.map(|symbol| *symbol).map_err(Error::wrap)
}

fn checked(call: &str, code: c_int) -> Result<()> {
    match code {
        0 => Ok(()),
        code => bail!("{call} failed with ncclResult_t {code}"),
    }
}
