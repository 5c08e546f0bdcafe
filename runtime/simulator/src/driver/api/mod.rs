//! The functions of the CUDA driver that cudarc calls, by subject.
//!
//! Each function checks its arguments, returns the driver's own error codes, and never unwinds into its caller. `call`
//! holds their common code, and `table` lists all functions.

#![allow(non_snake_case, reason = "the names are those of the driver")]

mod call;
mod context;
mod copy;
mod device;
mod error_text;
mod event;
mod function;
mod graph;
mod memory;
mod module;
mod stream;
mod table;
mod tensor_map;
mod virtual_memory;

pub(super) use device::version_calls;
pub(super) use table::functions;
