//! Layouts and codes on which host and device must agree byte by byte. They are declared once, here; the rendered
//! kernel prints or asserts them.

mod args;
mod codes;
mod extent;
mod layout;
mod limits;
mod operand;
mod state;
mod structs;
mod trace;

pub use args::{Arg, ArgKind, ArgLayout, Source, Stride, TensorMapSpec, rows_of_load};
pub use codes::{Activity, Role, Wait, codes_header};
pub use extent::Extent;
pub use layout::StructLayout;
pub(crate) use layout::layout;
pub use limits::{FLAG_STRIDE_BYTES, MAX_BUCKETS, MAX_OPERANDS, MAX_RANKS};
pub use operand::{Operand, OperandSpec};
pub use state::{GATE_WORDS, Gate, HEARD, HOST_ABORT, HostPage, LENGTHS_HASH, LOST, Report, State};
pub use structs::shared_structs;
pub use trace::{TraceBuffer, TraceCta, TraceEvent, TraceLayout, TraceRoom, TraceWarp};
