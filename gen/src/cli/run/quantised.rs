//! [`Quantised`]: rows as elements of e4m3 with scales.

use super::reference::{Matrix, rounding_error, sum_error};
use mkernel::spec::Dtype;

/// A matrix as elements of e4m3, and the scales of the elements.
pub struct Quantised {
    pub elements: Matrix,
    pub scales: Matrix,
}

impl Quantised {
    /// Quantises a matrix whose elements the kernel rounds to their type before, unless this is fp32. `share` columns of a row share a scale.
    pub fn of(matrix: &Matrix, share: usize) -> Self {
        let (mut elements, mut of_elements) = (Vec::new(), Vec::new());
        let (mut scales, mut of_scales) = (Vec::new(), Vec::new());
        let rows = matrix.values.chunks(matrix.cols);
        for (values, before) in rows.zip(matrix.errors.chunks(matrix.cols)) {
            for (values, before) in values.chunks(share).zip(before.chunks(share)) {
                let error = |(value, before): (&f32, &f32)| {
                    before + sum_error(matrix.terms) + rounding_error(*value, matrix.dtype)
                };
                let errors: Vec<f32> = values.iter().zip(before).map(error).collect();
                let greatest = values
                    .iter()
                    .fold(2f32.powi(-64), |most, x| most.max(x.abs()));
                let of_greatest = errors.iter().fold(0.0, |most: f32, x| most.max(*x));
                let scale = greatest / 448.0;
                scales.push(scale);
                of_scales.push(of_greatest / 448.0);
                for (value, error) in values.iter().zip(errors) {
                    let element = value / scale;
                    elements.push(element);
                    let error = error / scale + element.abs() * (of_greatest / greatest);
                    // The element that is rounded may have a larger error of rounding than the element without errors.
                    of_elements.push(1.2 * error);
                }
            }
        }
        let of = |values, errors, cols, dtype| Matrix {
            values,
            cols,
            terms: 0,
            errors,
            dtype,
        };
        Self {
            elements: of(elements, of_elements, matrix.cols, Dtype::E4m3),
            scales: of(scales, of_scales, matrix.cols.div_ceil(share), Dtype::Fp32),
        }
    }
}
