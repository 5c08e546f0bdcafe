//! NCCL, which is loaded at run time. Its collectives are the baseline of operators that communicate.

use crate::Failure;
use crate::agreed::agreed;
use crate::library::{Wanted, succeed};
use mkernel::Communicator;
use mkernel::cudarc::driver::CudaStream;
use mkernel::cudarc::driver::sys::CUstream;
use mkernel::spec::{CollectiveOp, Dtype};
use std::ffi::{c_int, c_void};
use std::mem;
use std::path::Path;
use std::ptr::null_mut;
use std::sync::Arc;

const LIBRARY: Wanted = Wanted {
    name: "NCCL",
    flag: "--nccl-dir",
    versions: &[&["libnccl.so.2"]],
    packages: &["nccl"],
};

// These values are from nccl.h.
const ID_BYTES: usize = 128;
const FLOAT16: c_int = 6;
const FLOAT32: c_int = 7;
const BFLOAT16: c_int = 9;
const SUM: c_int = 0;

#[repr(C)]
#[derive(Clone, Copy)]
struct UniqueId([u8; ID_BYTES]);

type Comm = *mut c_void;
type Data = *const c_void;
type GetUniqueId = unsafe extern "C" fn(*mut UniqueId) -> c_int;
type CommInitRank = unsafe extern "C" fn(*mut Comm, c_int, UniqueId, c_int) -> c_int;
type CommDestroy = unsafe extern "C" fn(Comm) -> c_int;
/// Also the type of `ncclReduceScatter`.
type AllReduce =
    unsafe extern "C" fn(Data, *mut c_void, usize, c_int, c_int, Comm, CUstream) -> c_int;
type AllGather = unsafe extern "C" fn(Data, *mut c_void, usize, c_int, Comm, CUstream) -> c_int;
/// Also the type of `ncclRecv`, which writes the data.
type Send = unsafe extern "C" fn(Data, usize, c_int, c_int, Comm, CUstream) -> c_int;
type Group = unsafe extern "C" fn() -> c_int;

/// The functions of the library.
struct Functions {
    get_unique_id: GetUniqueId,
    comm_init_rank: CommInitRank,
    comm_destroy: CommDestroy,
    all_reduce: AllReduce,
    reduce_scatter: AllReduce,
    broadcast: AllReduce,
    all_gather: AllGather,
    send: Send,
    recv: Send,
    group_start: Group,
    group_end: Group,
}

/// A communicator of NCCL, whose collectives run on one stream.
pub struct Nccl {
    functions: Functions,
    comm: Comm,
    world: u32,
    stream: Arc<CudaStream>,
}

/// The operands of a collective. Peers have equal numbers of elements.
#[derive(Clone, Copy, Debug)]
pub struct Exchange {
    /// The collective.
    pub op: CollectiveOp,
    /// The address of the data of this rank.
    pub from: u64,
    /// The address of the result.
    pub to: u64,
    /// The number of elements: of the tensor for `all_reduce` and `broadcast`, else of the part of one rank.
    pub elems: u64,
    /// The type of the elements.
    pub dtype: Dtype,
    /// The rank whose data a broadcast sends.
    pub root: u32,
}

impl Functions {
    fn load(dir: Option<&Path>) -> Result<Self, Failure> {
        let libraries = LIBRARY.open(dir)?;
        let library = libraries.last().ok_or("no library was loaded")?;
        // SAFETY: the names and the signatures agree with nccl.h. `Broadcast` has an integer, the root, in the place of the
        // operation of `AllReduce`.
        let functions = unsafe {
            Self {
                get_unique_id: *library.get(c"ncclGetUniqueId")?,
                comm_init_rank: *library.get(c"ncclCommInitRank")?,
                comm_destroy: *library.get(c"ncclCommDestroy")?,
                all_reduce: *library.get(c"ncclAllReduce")?,
                reduce_scatter: *library.get(c"ncclReduceScatter")?,
                broadcast: *library.get(c"ncclBroadcast")?,
                all_gather: *library.get(c"ncclAllGather")?,
                send: *library.get(c"ncclSend")?,
                recv: *library.get(c"ncclRecv")?,
                group_start: *library.get(c"ncclGroupStart")?,
                group_end: *library.get(c"ncclGroupEnd")?,
            }
        };
        // NCCL has threads that outlive its communicators, so it is never unloaded.
        mem::forget(libraries);
        Ok(functions)
    }
}

impl Nccl {
    /// Loads the library from `dir`, or else by the loader's search, from CUDA toolkits or from Python packages, and connects
    /// the ranks. All ranks must call this together.
    ///
    /// # Errors
    /// A rank does not take part, or a rank has an error: the library is not found, or NCCL cannot connect the ranks. All
    /// ranks then return an error.
    pub fn new(
        dir: Option<&Path>,
        ranks: &Communicator,
        stream: &Arc<CudaStream>,
    ) -> Result<Self, Failure> {
        ranks.context().bind_to_thread()?;
        let functions = agreed(ranks, Functions::load(dir))??;
        let mut id = UniqueId([0; ID_BYTES]);
        let got = match ranks.rank() {
            // SAFETY: the pointer leads to an id.
            0 => succeed("ncclGetUniqueId", unsafe {
                (functions.get_unique_id)(&raw mut id)
            }),
            _ => Ok(()),
        };
        agreed(ranks, got)??;
        let ids = ranks.all_gather(&id.0)?;
        let first = ids.first().and_then(|id| id.as_slice().try_into().ok());
        let id = UniqueId(first.ok_or("rank 0 sent no id of NCCL")?);
        let (mut comm, world) = (null_mut(), ranks.world());
        // SAFETY: the GPU of this rank is current, and all ranks call this with the id of rank 0.
        let status = unsafe {
            (functions.comm_init_rank)(&raw mut comm, world as c_int, id, ranks.rank() as c_int)
        };
        let own = succeed("ncclCommInitRank", status).map(|()| Self {
            functions,
            comm,
            world,
            stream: stream.clone(),
        });
        agreed(ranks, own)?
    }

    /// Enqueues a collective on the stream.
    ///
    /// # Errors
    /// NCCL refuses the call, or has no such elements.
    ///
    /// # Safety
    /// The addresses lead to memory of these sizes, which outlives the call. All ranks call this in the same order.
    pub unsafe fn enqueue(&self, exchange: &Exchange) -> Result<(), Failure> {
        let Exchange {
            op,
            from,
            to,
            elems,
            dtype,
            root,
        } = *exchange;
        let kind = match dtype {
            Dtype::Bf16 => BFLOAT16,
            Dtype::Fp16 => FLOAT16,
            Dtype::Fp32 => FLOAT32,
            other => return Err(format!("NCCL is not called with elements of {other}").into()),
        };
        let (from, to, elems) = (from as Data, to as *mut c_void, elems as usize);
        let (call, comm, stream) = (&self.functions, self.comm, self.stream.cu_stream());
        // SAFETY: the communicator is alive, and the caller guarantees the memory.
        let status = unsafe {
            match op {
                CollectiveOp::AllReduce => {
                    (call.all_reduce)(from, to, elems, kind, SUM, comm, stream)
                }
                CollectiveOp::ReduceScatter => {
                    (call.reduce_scatter)(from, to, elems, kind, SUM, comm, stream)
                }
                CollectiveOp::Broadcast => {
                    (call.broadcast)(from, to, elems, kind, root as c_int, comm, stream)
                }
                CollectiveOp::AllGather => (call.all_gather)(from, to, elems, kind, comm, stream),
                CollectiveOp::AllToAll => self.all_to_all(exchange, kind),
            }
        };
        succeed("a collective of NCCL", status)
    }

    /// Sends each rank its part, and receives a part from each rank.
    ///
    /// # Safety
    /// As [`Self::enqueue`].
    unsafe fn all_to_all(&self, exchange: &Exchange, kind: c_int) -> c_int {
        let (call, comm, stream) = (&self.functions, self.comm, self.stream.cu_stream());
        let (elems, bytes) = (
            exchange.elems as usize,
            exchange.elems * exchange.dtype.bytes(),
        );
        // SAFETY: the communicator is alive, and the caller guarantees the memory.
        unsafe {
            let mut worst = (call.group_start)();
            for peer in 0..self.world {
                let at = |start: u64| (start + u64::from(peer) * bytes) as Data;
                let (from, to, peer) = (at(exchange.from), at(exchange.to), peer as c_int);
                worst = worst.max((call.send)(from, elems, kind, peer, comm, stream));
                worst = worst.max((call.recv)(to, elems, kind, peer, comm, stream));
            }
            worst.max((call.group_end)())
        }
    }
}

impl Drop for Nccl {
    fn drop(&mut self) {
        // SAFETY: the communicator exists. Its user has waited for its collectives.
        unsafe { (self.functions.comm_destroy)(self.comm) };
    }
}
