//! [`RivalCalls`]: calls of a rival's libraries.

use super::rivals::{Collective, Multiplier, Place, Product, Rival, Step};
use crate::cli::run::call_memory::Span;
use mkernel::cudarc::driver::{CudaSlice, CudaStream, DevicePtr, result};
use mkernel::spec::Dtype;
use mkernel::{Communicator, Operand};
use mkernel_measure::cublas::Cublas;
use mkernel_measure::cublas_lt::{Pointers, ScaledProduct};
use mkernel_measure::nccl::{Exchange, Nccl};
use mkernel_measure::{Failure, View, agreed};
use std::path::Path;
use std::sync::Arc;

/// The libraries that rivals call, on one rank. `None` without rivals that call a library.
pub struct Libraries<'a> {
    cublas_dir: Option<&'a Path>,
    cublas: Option<Result<Cublas, Failure>>,
    nccl: Option<Result<Nccl, Failure>>,
}

impl<'a> Libraries<'a> {
    /// Loads the libraries of the rivals from the folders of cuBLAS and of NCCL, if they are given. Calls will run on `stream`.
    /// All ranks must call this together.
    pub fn load(
        ranks: &Communicator,
        stream: &Arc<CudaStream>,
        rivals: &[Rival],
        (cublas_dir, nccl_dir): (Option<&'a Path>, Option<&'a Path>),
    ) -> Result<Self, Failure> {
        let cublas = match rivals.iter().any(Rival::multiplies) {
            true => Some(agreed(ranks, Cublas::new(cublas_dir, stream))?),
            false => None,
        };
        let communicates = rivals.iter().any(Rival::communicates);
        Ok(Self {
            cublas_dir,
            cublas,
            nccl: communicates.then(|| Nccl::new(nccl_dir, ranks, stream)),
        })
    }

    /// Notes about libraries that cannot be called.
    pub fn missing(&self) -> Vec<String> {
        let cublas = self.cublas.as_ref().and_then(|of| of.as_ref().err());
        let nccl = self.nccl.as_ref().and_then(|of| of.as_ref().err());
        let named = [("cuBLAS", cublas), ("NCCL", nccl)];
        let note = |(name, error): (&str, Option<&Failure>)| {
            let text = error?.to_string();
            // The list of files is long.
            let (reason, _) = text.split_once(". Looked for").unwrap_or((&text, ""));
            Some(format!("{name} was not compared: {reason}"))
        };
        named.into_iter().filter_map(note).collect()
    }

    /// Whether the libraries of a rival can be called.
    pub fn can_run(&self, rival: &Rival) -> bool {
        (!rival.multiplies() || self.cublas().is_ok())
            && (!rival.communicates() || self.nccl().is_ok())
    }

    fn cublas(&self) -> Result<&Cublas, &'static str> {
        let loaded = self.cublas.as_ref().and_then(|of| of.as_ref().ok());
        loaded.ok_or("cuBLAS is not loaded")
    }

    fn nccl(&self) -> Result<&Nccl, &'static str> {
        let loaded = self.nccl.as_ref().and_then(|of| of.as_ref().ok());
        loaded.ok_or("NCCL is not loaded")
    }
}

/// A rival with its memory on one rank.
pub struct RivalCalls<'a> {
    rival: &'a Rival,
    libraries: &'a Libraries<'a>,
    /// The kernel's operands, by copy.
    operands: &'a [Vec<Span>],
    /// The addresses of the rival's own tensors.
    own: Vec<u64>,
    /// The products of cuBLASLt, by copy, if the rival has one.
    scaled: Vec<ScaledProduct>,
    captured: Arc<CudaStream>,
    _memory: Vec<CudaSlice<u8>>,
}

impl<'a> RivalCalls<'a> {
    /// Allocates the rival's own tensors by `stream`. Calls will run on `captured`.
    pub fn new(
        rival: &'a Rival,
        libraries: &'a Libraries<'a>,
        operands: &'a [Vec<Span>],
        [stream, captured]: [&Arc<CudaStream>; 2],
    ) -> Result<Self, Failure> {
        let mut calls = Self {
            rival,
            libraries,
            operands,
            own: Vec::new(),
            scaled: Vec::new(),
            captured: captured.clone(),
            _memory: Vec::new(),
        };
        for own in &rival.own {
            let memory = stream.alloc_zeros::<u8>(own.bytes.max(1) as usize)?;
            let address = memory.device_ptr(stream).0;
            if let Some(operand) = own.filled_with {
                fill(stream, (address, own.bytes), calls.operand(operand, 0)?)?;
            }
            calls.own.push(address);
            calls._memory.push(memory);
        }
        let scaled = rival.steps.iter().find_map(|step| match step {
            Step::Product(product) => match product.by {
                Multiplier::Scaled { fast } => Some((product, fast)),
                Multiplier::Cublas => None,
            },
            Step::Collective(_) => None,
        });
        if let Some((product, fast)) = scaled {
            let workspace = stream.alloc_zeros::<u8>(WORKSPACE_BYTES)?;
            let address = workspace.device_ptr(stream).0;
            let copies = 0..operands.len();
            let of_copy = |copy| calls.scaled_product(product, fast, address, copy);
            calls.scaled = copies.map(of_copy).collect::<Result<_, _>>()?;
            calls._memory.push(workspace);
        }
        stream.synchronize()?;
        Ok(calls)
    }

    /// Prepares a product of cuBLASLt on a copy of the kernel's operands.
    fn scaled_product(
        &self,
        product: &Product,
        fast: bool,
        workspace: u64,
        copy: usize,
    ) -> Result<ScaledProduct, Failure> {
        let pointers = Pointers {
            a: self.address(product.a, copy)?,
            b: self.operand(Operand::B, copy)?.address,
            a_scales: self.operand(Operand::AScales, copy)?.address,
            b_scales: self.operand(Operand::BScales, copy)?.address,
            c: self.address(product.c, copy)?,
            workspace,
            workspace_bytes: WORKSPACE_BYTES,
        };
        ScaledProduct::new(self.libraries.cublas_dir, product.shape, pointers, fast)
    }

    /// Enqueues a call on a copy of the kernel's operands.
    pub fn enqueue(&self, copy: usize) -> Result<(), Failure> {
        self.rival.steps.iter().try_for_each(|step| match step {
            Step::Product(product) => self.multiply(product, copy),
            Step::Collective(collective) => self.exchange(collective, copy),
        })
    }

    fn multiply(&self, product: &Product, copy: usize) -> Result<(), Failure> {
        if let Multiplier::Scaled { .. } = product.by {
            let scaled = self.scaled.get(copy).ok_or(NO_MEMORY)?;
            // SAFETY: `rivals::of` gives the tensors these sizes. They outlive the calls, for which `Timing` waits.
            return unsafe { scaled.enqueue(self.captured.cu_stream()) };
        }
        let (m, n, k) = (product.shape.m, product.shape.n, product.shape.k);
        let matrix = |place, rows, cols, dtype: Dtype| -> Result<View, Failure> {
            Ok(View {
                rows,
                cols,
                stride: cols,
                dtype,
                address: self.address(place, copy)?,
            })
        };
        let a = matrix(product.a, m, k, product.factors)?;
        let (b_rows, b_cols) = match product.b_is_transposed {
            true => (n, k),
            false => (k, n),
        };
        let b = Place::Operand(Operand::B);
        let b = matrix(b, b_rows, b_cols, product.factors)?;
        let c = matrix(product.c, m, n, product.result)?;
        let cublas = self.libraries.cublas()?;
        cublas.gemm(&a, &b, &c, product.b_is_transposed)
    }

    fn exchange(&self, collective: &Collective, copy: usize) -> Result<(), Failure> {
        let exchange = Exchange {
            op: collective.op,
            from: self.address(collective.from, copy)?,
            to: self.address(collective.to, copy)?,
            elems: collective.elems,
            dtype: collective.dtype,
            root: collective.root,
        };
        // SAFETY: `rivals::of` gives the tensors these sizes. They outlive the calls, for which `Timing` waits, and all ranks make
        // the calls in the order of rivals.
        unsafe { self.libraries.nccl()?.enqueue(&exchange) }
    }

    fn address(&self, place: Place, copy: usize) -> Result<u64, Failure> {
        match place {
            Place::Own(index) => Ok(self.own.get(index).copied().ok_or(NO_MEMORY)?),
            Place::Operand(wanted) => Ok(self.operand(wanted, copy)?.address),
        }
    }

    fn operand(&self, wanted: Operand, copy: usize) -> Result<Span, Failure> {
        let mut known = self.operands[copy].iter();
        let found = known.find(|span| span.operand == wanted);
        Ok(found.copied().ok_or(NO_MEMORY)?)
    }
}

/// Bytes that cuBLASLt may use besides the operands.
const WORKSPACE_BYTES: usize = 32 << 20;
const NO_MEMORY: &str = "a tensor of a rival has no memory";

/// Copies the elements of an operand to memory of the given address and bytes, one copy behind the other.
fn fill(stream: &CudaStream, (to, bytes): (u64, u64), from: Span) -> Result<(), Failure> {
    for start in (0..bytes).step_by(from.bytes.max(1) as usize) {
        let count = from.bytes.min(bytes - start) as usize;
        // SAFETY: both have these bytes, and outlive the copy, since the caller waits for the stream.
        unsafe { result::memcpy_dtod_async(to + start, from.address, count, stream.cu_stream()) }?;
    }
    Ok(())
}
