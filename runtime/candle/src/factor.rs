//! [`Factor`]: a factor of a product, with the scales of its elements.

use crate::error::refuse;
use crate::ranks::Ranks;
use candle_core::{DType, Result, Tensor};
use mkernel::spec::Scales;
use mkernel::spec::plan::SCALE_BLOCK;

const BLOCK: usize = SCALE_BLOCK as usize;

/// A factor of a product: a tensor of bf16 or f16, or elements of e4m3 with fp32 scales by which they are multiplied.
///
/// A tensor converts into a factor. [`scaled`](Self::scaled) makes a factor of e4m3, and
/// [`all_reduce_rms_norm_e4m3`](crate::all_reduce_rms_norm_e4m3) returns one.
#[derive(Clone, Debug)]
pub struct Factor {
    elements: Tensor,
    scales: Option<Tensor>,
}

impl Factor {
    /// Creates a factor from elements, `F8E4M3`, and their scales, `F32`.
    ///
    /// | scales | of an input `[.., K]` | of a weight `[N, K]` |
    /// |---|---|---|
    /// | one | `[1]`, the same on all ranks | `[1]` |
    /// | of rows | `[..]` or `[.., 1]` | `[N]` or `[N, 1]` |
    /// | of blocks | `[.., ⌈K/128⌉]` | `[⌈N/128⌉, ⌈K/128⌉]`, as checkpoints of DeepSeek-V3 have them |
    ///
    /// # Errors
    /// Fails if elements or scales have another type.
    pub fn scaled(elements: Tensor, scales: Tensor) -> Result<Self> {
        for (name, tensor, dtype) in [
            ("elements", &elements, DType::F8E4M3),
            ("scales", &scales, DType::F32),
        ] {
            if tensor.dtype() != dtype {
                refuse!(
                    "the {name} of a factor are {:?}; they must be {dtype:?}, so call to_dtype first",
                    tensor.dtype()
                );
            }
        }
        let scales = Some(scales);
        Ok(Self { elements, scales })
    }

    /// Returns the elements.
    #[must_use]
    pub fn elements(&self) -> &Tensor {
        &self.elements
    }

    /// Returns the scales of elements of e4m3.
    #[must_use]
    pub fn scales(&self) -> Option<&Tensor> {
        self.scales.as_ref()
    }

    /// Returns which elements of this weight `[N, K]` share a scale.
    pub(crate) fn scales_of_weight(&self) -> Result<Scales> {
        let (n, k) = self.elements.dims2()?;
        let Some(scales) = &self.scales else {
            return Ok(Scales::None);
        };
        let of_k = k.div_ceil(BLOCK);
        // The two halves of a weight for SwiGLU have blocks of their own.
        let of_n = [n.div_ceil(BLOCK), 2 * (n / 2).div_ceil(BLOCK)];
        match *scales.dims() {
            [] | [1] => Ok(Scales::Tensor),
            [rows] | [rows, 1] if rows == n => Ok(Scales::Row),
            [rows, cols] if of_n.contains(&rows) && cols == of_k => Ok(Scales::Block),
            ref dims => refuse!(
                "the scales of a weight {:?} have the shape {dims:?}; pass [1] for one scale, [{n}] for scales of rows, or \
                 [{}, {of_k}] for scales of blocks of {BLOCK}×{BLOCK}",
                [n, k],
                of_n[0]
            ),
        }
    }

    /// Copies this rank's part of a weight along a dimension to the device of `ranks`, with the scales of the part.
    pub(crate) fn part(&self, ranks: &Ranks, dim: usize, name: &str) -> Result<Self> {
        let scales = match (&self.scales, self.scales_of_weight()?, dim) {
            (Some(scales), Scales::Row, 0) => Some(part(ranks, scales, 0, name)?),
            (Some(scales), Scales::Block, _) => {
                let size = self.elements.dim(dim)?;
                if !size.is_multiple_of(BLOCK * ranks.world()) && ranks.world() > 1 {
                    refuse!(
                        "{name} has {size} elements in dimension {dim}, in blocks of {BLOCK} that share a scale, which {} ranks \
                         cannot share evenly; pad it to {}, or give each rank its part and the part's scales by new",
                        ranks.world(),
                        size.next_multiple_of(BLOCK * ranks.world())
                    );
                }
                Some(part(ranks, scales, dim, name)?)
            }
            (scales, ..) => {
                let copied = scales.as_ref().map(|all| all.to_device(ranks.device()));
                copied.transpose()?
            }
        };
        let elements = part(ranks, &self.elements, dim, name)?;
        Ok(Self { elements, scales })
    }
}

/// Copies this rank's part of `whole` along a dimension to the device of `ranks`.
pub(crate) fn part(ranks: &Ranks, whole: &Tensor, dim: usize, name: &str) -> Result<Tensor> {
    let (size, world) = (whole.dim(dim)?, ranks.world());
    if !size.is_multiple_of(world) {
        refuse!(
            "{name} has {size} elements in dimension {dim}, which {world} ranks cannot share evenly; pad it to {}",
            size.next_multiple_of(world)
        );
    }
    let part = whole.narrow(dim, ranks.rank() * (size / world), size / world)?;
    // A copy, so that the whole tensor can be dropped.
    part.force_contiguous()?.to_device(ranks.device())
}

impl From<Tensor> for Factor {
    fn from(elements: Tensor) -> Self {
        Self {
            elements,
            scales: None,
        }
    }
}

impl From<&Tensor> for Factor {
    fn from(elements: &Tensor) -> Self {
        Self::from(elements.clone())
    }
}

impl From<&Self> for Factor {
    fn from(factor: &Self) -> Self {
        factor.clone()
    }
}
