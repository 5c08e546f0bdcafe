//! [`ArchSpec`]: what an architecture fixes for names, checks and planners.

use super::registers::Registers;
use serde::{Deserialize, Serialize};

/// Rows and columns of C that one CTA computes at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Tile {
    /// Rows.
    pub m: u32,
    /// Columns.
    pub n: u32,
}

/// Registers per thread of the warpgroup that loads, stores and sends, by operator. The warpgroups that multiply have the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProducerRegisters {
    /// GEMM operators.
    pub gemm: u32,
    /// GEMM operators whose calls give the rows.
    pub gemm_with_rows: u32,
    /// GEMM operators that normalise rows of tiles.
    pub gemm_normalising: u32,
    /// GEMM operators whose products are promoted.
    pub gemm_promoting: u32,
    /// GEMM operators whose products are promoted, and which push rows that calls give.
    pub gemm_promoting_pushed_rows: u32,
    /// Attention.
    pub attention: u32,
    /// Attention whose calls give the rows.
    pub attention_with_rows: u32,
    /// `dispatch_gemm`.
    pub dispatch: u32,
    /// `dispatch_gemm` whose products are promoted.
    pub dispatch_promoting: u32,
}

/// The facts of an architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArchSpec {
    /// The name in compilers' options.
    pub name: &'static str,
    /// The compute capability of its GPUs: major and minor.
    pub capability: (i32, i32),
    /// The GPUs that users can buy.
    pub gpus: &'static str,
    /// Shared memory that one CTA can have, bytes.
    pub smem_bytes: u32,
    /// 32-bit registers of an SM.
    pub sm_registers: u32,
    /// The most registers of a thread.
    pub max_registers: u32,
    /// The unit in which registers of a thread are allocated.
    pub register_step: u32,
    /// The threads of a warpgroup, which take part in an MMA together.
    pub group_threads: u32,
    /// The warpgroups of a CTA that multiply. One more warpgroup loads, stores and sends.
    pub groups: u32,
    /// Rows that a warpgroup multiplies at a time.
    pub group_rows: u32,
    /// Registers per thread of the warpgroup that does not multiply.
    pub producers: ProducerRegisters,
    /// Tiles of matrix products, largest first.
    pub tiles: &'static [Tile],
}

impl ArchSpec {
    /// The threads of a CTA that multiplies.
    #[must_use]
    pub const fn threads(&self) -> u32 {
        (1 + self.groups) * self.group_threads
    }

    /// The warps of a CTA that multiplies.
    #[must_use]
    pub const fn warps(&self) -> u32 {
        self.threads() / 32
    }

    /// The warps of a CTA that multiply, which are the last warps of the CTA.
    #[must_use]
    pub const fn multiplying_warps(&self) -> u32 {
        self.groups * self.group_threads / 32
    }

    /// The first of the warps that multiply. The warps before it are the producer warpgroup.
    #[must_use]
    pub const fn first_multiplying_warp(&self) -> u32 {
        self.group_threads / 32
    }

    /// Registers per thread of a CTA whose `threads` threads divide the registers of an SM evenly.
    #[must_use]
    pub const fn even_registers(&self, threads: u32) -> Registers {
        let all = self.sm_registers / threads / self.register_step * self.register_step;
        let entry = match all < self.max_registers {
            true => all,
            false => self.max_registers,
        };
        Registers {
            entry,
            producer: entry,
            consumer: entry,
        }
    }

    /// Registers per thread of a CTA that multiplies. The producer warpgroup keeps `producer` registers per thread, and the
    /// consumer warpgroups divide the rest.
    #[must_use]
    pub const fn split_registers(&self, producer: u32) -> Registers {
        let even = self.even_registers(self.threads());
        Registers {
            producer,
            consumer: even.entry + (even.entry - producer) / self.groups,
            ..even
        }
    }
}
