//! The exact bits of numbers as elements of e4m3 that share a scale.

use mkernel::float8::F8E4M3;

/// Elements of e4m3 that share a scale.
#[derive(Clone, Debug, PartialEq)]
pub struct Quantised {
    /// The elements.
    pub elements: Vec<F8E4M3>,
    /// The scale.
    pub scale: f32,
}

impl Quantised {
    /// Quantises numbers as kernels do. An infinite number makes all elements NaN.
    #[must_use]
    pub fn of(numbers: &[f32]) -> Self {
        let least = 2f32.powi(-64);
        let greatest = numbers.iter().fold(least, |most, x| most.max(x.abs()));
        let scale = greatest * (1.0 / 448.0);
        let factor = match scale.is_finite() {
            true => 1.0 / scale,
            false => f32::NAN,
        };
        let elements = numbers.iter().map(|x| F8E4M3::from_f32(x * factor));
        Self {
            elements: elements.collect(),
            scale,
        }
    }
}
