//! Jobs: consecutive calls of an operator on all ranks, whose results are known. Jobs run on simulated GPUs and on real
//! GPUs.
//!
//! - [`GemmJob`], [`attention`], [`collective`] and [`experts`] are the jobs of the kinds of operators.
//! - [`batches`] compares the bits of rows that several batches share, and [`token_batches`] the bits of tokens.
//! - [`Turns`] makes calls of several operators of one communicator in turn.
//! - [`overlap`] makes two calls that the host cannot order, and [`overtaken`] a call that a later call may overtake.
//! - [`prepared`] makes single calls of one operator, for tests of their errors.
//! - [`share`], [`sixth_of_long`] and [`each_in_one`] take some jobs of a long list.
//! - [`all_are_right`] and its neighbours run jobs with many seeds.

pub mod attention;
pub mod batches;
mod buffer;
pub mod collective;
pub mod compared;
mod data;
pub mod experts;
mod forked;
pub mod gemm;
mod graph;
mod kernel_edits;
mod machine;
mod memo;
mod norm;
pub mod overlap;
pub mod overtaken;
mod permit;
pub mod prepared;
mod quantised;
mod random;
mod rows;
mod runs;
pub mod search;
mod shares;
mod simulated;
pub mod token_batches;
mod turns;

pub use buffer::{Buffer, is_symmetric};
pub use gemm::GemmJob;
pub use gemm::cases::common_jobs;
pub use kernel_edits::apply_edits;
pub use machine::{Machine, bad_network, emulated, with_causes};
pub use runs::{
    CallCount, all_are_right, all_are_right_now_or_after_many_calls,
    all_are_right_when_counters_wrap, all_fail, for_each_in_parallel, named, none_fails,
    right_for_seeds,
};
pub use shares::{draw, each_in_one, share, sixth_of_long};
pub use simulated::{Backend, Results, SimulatedJob, WRAPPING_CALL_COUNTS};
pub use turns::Turns;

use graph::{replay, stream_of};
use simulated::{CALLS, CALLS_AFTER, CALLS_BEFORE, deadline, set_call_count};
