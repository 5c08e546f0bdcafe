//! Tensor-parallel layers: operators of mkernel, or products of candle with collectives of NCCL.

use candle_core::{DType, Module, Result, Tensor};
use mkernel_candle::{ColumnParallel, Ranks, RowParallel, all_gather, matmul};

#[cfg(feature = "cuda")]
use super::nccl::Nccl;

/// A linear layer on this rank.
pub type Layer = Box<dyn Module>;

/// A way to build the layers that ranks divide.
pub trait Parallel {
    /// Returns this rank.
    fn ranks(&self) -> &Ranks;

    /// Returns the column-parallel layer of this rank's rows of a weight.
    fn column(&self, weight: Tensor) -> Result<Layer>;

    /// Returns the row-parallel layer of this rank's columns of a weight, which adds up the ranks' products.
    fn row(&self, weight: Tensor) -> Result<Layer>;

    /// Gathers a row `[1, N]` of each rank to `[ranks, N]`.
    fn gather(&self, x: &Tensor) -> Result<Tensor>;
}

/// Operators of mkernel.
pub struct Fused(pub Ranks);

impl Parallel for Fused {
    fn ranks(&self) -> &Ranks {
        &self.0
    }

    fn column(&self, weight: Tensor) -> Result<Layer> {
        Ok(Box::new(ColumnParallel::new(&self.0, weight, None)?))
    }

    fn row(&self, weight: Tensor) -> Result<Layer> {
        Ok(Box::new(RowParallel::new(&self.0, weight, None)?))
    }

    fn gather(&self, x: &Tensor) -> Result<Tensor> {
        all_gather(&self.0, x, self.0.world())
    }
}

/// Products of candle, followed by NCCL if there are several ranks.
pub struct Unfused {
    ranks: Ranks,
    #[cfg(feature = "cuda")]
    nccl: Option<std::sync::Arc<Nccl>>,
}

impl Unfused {
    /// Connects the ranks by NCCL. Returns `None` if there are several ranks and NCCL is not installed.
    pub fn new(ranks: Ranks) -> Result<Option<Self>> {
        #[cfg(feature = "cuda")]
        if ranks.world() > 1 {
            let nccl = Nccl::new(&ranks)?.map(std::sync::Arc::new);
            return Ok(nccl.map(|nccl| Self {
                ranks,
                nccl: Some(nccl),
            }));
        }
        #[cfg(not(feature = "cuda"))]
        if ranks.world() > 1 {
            return Ok(None);
        }
        Ok(Some(Self {
            ranks,
            #[cfg(feature = "cuda")]
            nccl: None,
        }))
    }
}

impl Parallel for Unfused {
    fn ranks(&self) -> &Ranks {
        &self.ranks
    }

    fn column(&self, weight: Tensor) -> Result<Layer> {
        Ok(Box::new(move |x: &Tensor| matmul(x, &weight)))
    }

    fn row(&self, weight: Tensor) -> Result<Layer> {
        #[cfg(feature = "cuda")]
        if let Some(nccl) = self.nccl.clone() {
            return Ok(Box::new(move |x: &Tensor| {
                nccl.all_reduce(&matmul(x, &weight)?)
            }));
        }
        self.column(weight)
    }

    fn gather(&self, x: &Tensor) -> Result<Tensor> {
        #[cfg(feature = "cuda")]
        if let Some(nccl) = &self.nccl {
            return nccl.all_gather(x);
        }
        Ok(x.clone())
    }
}

/// Computes `a · b` of batches of bf16 matrices. On the CPU, where candle does not multiply bf16, converts to f32.
pub fn batched(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    if !a.device().is_cpu() {
        return a.matmul(b);
    }
    let (a, b) = (a.to_dtype(DType::F32)?, b.to_dtype(DType::F32)?);
    a.matmul(&b)?.to_dtype(DType::BF16)
}
