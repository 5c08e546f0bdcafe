//! [`matmul`]: candle's product.

use candle_core::{DType, Device, Result, Tensor};

/// Computes `x [.., K] · w [N, K]ᵀ` on this rank alone: `[.., N]`, with the element type of x.
///
/// # Errors
/// Fails if the sizes do not fit.
pub fn matmul(x: &Tensor, w: &Tensor) -> Result<Tensor> {
    let (n, k) = w.dims2()?;
    let dims = dims_with_last(x, n);
    let x = x.reshape(((), k))?;
    let y = match x.device() {
        // candle multiplies no bf16 on the CPU. Products of 16-bit numbers are exact in f32.
        Device::Cpu => {
            let (wide, w) = (x.to_dtype(DType::F32)?, w.to_dtype(DType::F32)?);
            wide.matmul(&w.t()?)?.to_dtype(x.dtype())?
        }
        _ => x.matmul(&w.t()?)?,
    };
    y.reshape(dims)
}

/// Returns the dimensions of `x` with another last one.
pub(crate) fn dims_with_last(x: &Tensor, cols: usize) -> Vec<usize> {
    let mut dims = x.dims().to_vec();
    if let Some(last) = dims.last_mut() {
        *last = cols;
    }
    dims
}
