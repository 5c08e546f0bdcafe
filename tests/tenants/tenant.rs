//! [`Tenant`]: a kernel that does not belong to mkernel, and holds SMs until the same kernel runs on all ranks.

use mkernel::Communicator;
use mkernel::cudarc::driver::sys::{self, CUfunction_attribute};
use mkernel::cudarc::driver::{CudaContext, CudaStream, result};
use mkernel_compile::{CudaSource, Store};
use mkernel_spec::{Arch, Backend};
use mkernel_testing::lab::Failure;
use std::ffi::c_void;
use std::sync::{Arc, Mutex};

/// Shared memory of a CTA, so large that no other CTA fits on the SM.
const SMEM_BYTES: u32 = 200 << 10;

/// Numbers that depend on a seed only.
pub struct Numbers(pub u64);

impl Numbers {
    /// Returns the next number, below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (self.0 >> 33) % limit
    }
}

/// The words through which the tenants of all ranks wait for each other, in pinned memory.
struct Words {
    context: Arc<CudaContext>,
    memory: *mut c_void,
}

// SAFETY: the memory belongs to no thread.
unsafe impl Send for Words {}
// SAFETY: only kernels access the memory.
unsafe impl Sync for Words {}

impl Words {
    fn allocate(context: &Arc<CudaContext>, ranks: u32) -> Result<Self, Failure> {
        let bytes = ranks as usize * size_of::<u32>();
        context.bind_to_thread()?;
        // SAFETY: the context is current, and all words are written before other threads see the memory.
        unsafe {
            let memory = result::malloc_host(bytes, 0)?;
            memory.cast::<u8>().write_bytes(0, bytes);
            Ok(Self {
                context: context.clone(),
                memory,
            })
        }
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        let is_bound = self.context.bind_to_thread();
        // SAFETY: the tenants have waited for their kernels, and nothing else uses the memory.
        let freed = is_bound.and_then(|()| unsafe { result::free_host(self.memory) });
        if let Err(error) = freed {
            eprintln!("the words are not freed: {error}");
        }
    }
}

/// The [`Words`] of a job, which the first rank that needs them allocates.
#[derive(Default)]
pub struct Begun(Mutex<Option<Arc<Words>>>);

/// The argument of the kernel.
#[repr(C)]
struct Args {
    begun: u64,
    rank: u32,
    ranks: u32,
    launch: u32,
    hold_ns: u32,
}

/// The tenants of a rank.
pub struct Tenant {
    stream: Arc<CudaStream>,
    function: sys::CUfunction,
    words: Arc<Words>,
    rank: u32,
    ranks: u32,
    launches: u32,
    sms: u32,
}

impl Tenant {
    /// Compiles the kernel, which will hold `sms` SMs.
    pub fn new(ranks: &Communicator, begun: &Begun, sms: u32) -> Result<Self, Failure> {
        let source = CudaSource {
            id: "tenant".into(),
            arch: Arch::Sm90a,
            backend: Backend::HostCxx,
            text: include_str!("tenant.cu").into(),
        };
        let cubin = Store::from_env()?.get_or_build(&source)?;
        ranks.context().bind_to_thread()?;
        // SAFETY: the compiler has made the image, which contains this kernel.
        let function = unsafe {
            let module = result::module::load_data(cubin.bytes.as_ptr().cast())?;
            result::module::get_function(module, c"tenant".into())?
        };
        let smem = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the function is loaded.
        unsafe { result::function::set_function_attribute(function, smem, SMEM_BYTES as i32)? };
        let mut words = begun.0.lock().map_err(|_| "a rank panicked")?;
        let words = match &*words {
            Some(words) => words.clone(),
            None => words
                .insert(Arc::new(Words::allocate(ranks.context(), ranks.world())?))
                .clone(),
        };
        Ok(Self {
            stream: ranks.context().new_stream()?,
            function,
            words,
            rank: ranks.rank(),
            ranks: ranks.world(),
            launches: 0,
            sms,
        })
    }

    /// Launches the kernel, which holds its SMs for `hold_ns` and then until it has begun on all ranks.
    pub fn launch(&mut self, hold_ns: u32) -> Result<(), Failure> {
        self.launches += 1;
        let mut args = Args {
            begun: self.words.memory as u64,
            rank: self.rank,
            ranks: self.ranks,
            launch: self.launches,
            hold_ns,
        };
        let mut params = [(&raw mut args).cast::<c_void>()];
        self.stream.context().bind_to_thread()?;
        // SAFETY: the kernel takes this struct, and its words live until all kernels have ended.
        unsafe {
            result::launch_kernel(
                self.function,
                (self.sms, 1, 1),
                (32, 1, 1),
                SMEM_BYTES,
                self.stream.cu_stream(),
                &mut params,
            )?;
        }
        Ok(())
    }

    /// Waits for all launches.
    pub fn synchronize(&self) -> Result<(), Failure> {
        Ok(self.stream.synchronize()?)
    }
}

impl Drop for Tenant {
    fn drop(&mut self) {
        let _ = self.stream.synchronize();
    }
}
