//! The text of mkernel's kernels: templates, headers for GPUs, and headers that replace some of the GPU headers on
//! simulated GPUs.
//!
//! Each table has pairs of a file's path, relative to its folder, and its text. Pairs are sorted by path. This crate has
//! no other code, so that a crate that needs the text can be built from a registry.

include!(concat!(env!("OUT_DIR"), "/files.rs"));
