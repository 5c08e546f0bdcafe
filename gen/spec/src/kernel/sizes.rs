//! [`Sizes`]: the sizes with which a kernel is prepared.

use super::problem::Shape;
use crate::field::Field;
use crate::ops::attention::AttentionShape;
use crate::ops::collective::CollectiveShape;
use crate::ops::combine::CombineShape;
use crate::ops::dispatch::DispatchShape;
use crate::ops::gemm::GemmShape;

/// The sizes with which a kernel is prepared: a [`Shape`], which has every dimension, or some dimensions by name. Dimensions
/// that are not named have the sizes of the configuration.
///
/// ```
/// use mkernel_spec::{Field, GemmShape, Sizes};
///
/// let all: Sizes = GemmShape { m: 4096, n: 1024, k: 8192 }.into();
/// let rows: Sizes = [(Field::M, 4096)].into();
/// let none: Sizes = [].into();
/// assert_eq!((all.size(Field::M), rows.size(Field::M), none.size(Field::M)), (Some(4096), Some(4096), None));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sizes {
    /// Every dimension.
    Shape(Shape),
    /// Some dimensions.
    Named(Vec<(Field, u64)>),
}

impl Sizes {
    /// The size of a dimension; `None` if the size is not given.
    #[must_use]
    pub fn size(&self, field: Field) -> Option<u64> {
        match self {
            Self::Shape(shape) => shape.size(field),
            Self::Named(sizes) => {
                let mut sizes = sizes.iter();
                sizes
                    .find(|(name, _)| *name == field)
                    .map(|(_, size)| *size)
            }
        }
    }

    /// The given names, if the sizes are given by name.
    pub(super) fn names(&self) -> impl Iterator<Item = Field> {
        let named = match self {
            Self::Shape(_) => &[],
            Self::Named(sizes) => &sizes[..],
        };
        named.iter().map(|(name, _)| *name)
    }
}

impl<const N: usize> From<[(Field, u64); N]> for Sizes {
    fn from(sizes: [(Field, u64); N]) -> Self {
        Self::Named(sizes.into())
    }
}

macro_rules! shapes {
    ($($shape:ty)*) => {$(
        impl From<$shape> for Sizes {
            fn from(shape: $shape) -> Self {
                Self::Shape(shape.into())
            }
        }
    )*};
}

shapes!(Shape GemmShape AttentionShape DispatchShape CombineShape CollectiveShape);
