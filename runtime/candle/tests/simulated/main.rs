//! Tests of layers and operators on simulated GPUs, with tensors of the CPU. What is expected is computed by candle, in
//! f32 and without ranks.

mod attention;
mod collectives;
mod experts;
mod linear;
mod mistakes;
mod ranks;
