//! What ranks do together: by operators of mkernel, or by products of candle and collectives of NCCL.

use candle_core::{DType, Module, Result, Tensor};
use mkernel_candle::{ColumnParallel, Ranks, RowParallel, all_gather, matmul};

#[cfg(feature = "cuda")]
use super::nccl::Nccl;

/// A linear layer on this rank.
pub type Layer = Box<dyn Module>;

/// The ways in which ranks exchange data.
pub trait Parallel {
    /// Returns this rank.
    fn ranks(&self) -> &Ranks;

    /// Returns the layer that computes this rank's outputs, from this rank's rows of a weight.
    fn column(&self, weight: Tensor) -> Result<Layer>;

    /// Returns the layer that adds up the ranks' products, from this rank's columns of a weight.
    fn row(&self, weight: Tensor) -> Result<Layer>;

    /// Returns the rows of all ranks, one of each: `[ranks, N]` of `[1, N]`.
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

/// Products of candle, and behind them NCCL if there are several ranks.
pub struct Unfused {
    ranks: Ranks,
    #[cfg(feature = "cuda")]
    nccl: Option<std::sync::Arc<Nccl>>,
}

impl Unfused {
    /// Connects the ranks by NCCL. Returns none if there are several and NCCL is not installed.
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

/// Computes `a · b` of batches of matrices, in bf16. candle multiplies no bf16 on the CPU.
pub fn batched(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    if !a.device().is_cpu() {
        return a.matmul(b);
    }
    let (a, b) = (a.to_dtype(DType::F32)?, b.to_dtype(DType::F32)?);
    a.matmul(&b)?.to_dtype(DType::BF16)
}
