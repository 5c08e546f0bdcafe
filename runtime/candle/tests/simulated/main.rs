//! Tests of layers and operators on simulated GPUs, with tensors of the CPU. candle computes the expected results, in
//! f32 and without ranks.

mod attention;
mod collectives;
mod e4m3;
mod experts;
mod linear;
mod mistakes;
mod ranks;
