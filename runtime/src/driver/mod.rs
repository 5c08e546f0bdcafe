//! Calls of the CUDA driver API that the safe layer of cudarc does not have. Each call is behind a function that is
//! safe, or that documents the caller's obligations. All handles are owned: they are freed on drop, and drop never
//! panics.

mod backend;
mod call;
mod capture;
mod device;
mod function;
mod library;
mod links;
mod memory;
mod nvml;
mod stream;
mod word_reader;

pub(crate) use backend::{Backend, choose_backend, use_simulated, wants_simulated};
pub(crate) use call::{bind, has_ended_context, named};
pub(crate) use capture::{Capture, GraphNode, Uncaptured};
pub use device::device_count;
pub(crate) use device::{bus_id, open};
pub(crate) use function::{Function, LaunchDims, LaunchMode, encode_tensor_map};
pub use links::gpu_links;
pub(crate) use links::link_to;
#[cfg(feature = "testing")]
pub(crate) use memory::edit_memory;
pub(crate) use memory::{DeviceMemory, Mapping, Pinned, nic_access};
pub(crate) use nvml::sm_clock_mhz;
pub(crate) use stream::{
    Event, Stream, UserStream, call_back, ignore_captures_of_others, is_capturing, is_done,
};
pub(crate) use word_reader::{WORDS_OF_A_READ, WordReader};
