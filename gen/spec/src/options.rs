//! Options: their names, their types, and the values that users write.

pub(crate) mod dim;
pub(crate) mod dtype;
pub(crate) mod norm;
pub(crate) mod op;
pub(crate) mod option;
pub(crate) mod option_type;
pub(crate) mod scale;
pub(crate) mod value;
pub(crate) mod values;

pub use dim::Dim;
pub(crate) use dtype::SMEM_ALIGN;
pub use dtype::{Dtype, DtypeInfo, LINE_BYTES, TmaType};
pub use norm::{Eps, Norm};
pub use op::Op;
pub use option::{OperatorConfig, OptionSpec, Options};
pub use scale::Scale;
pub use value::{Value, nearest};
pub use values::{Limits, Values};
