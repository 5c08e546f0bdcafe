//! [`ArchSpec`]: what an architecture fixes for names, checks and planners.

use super::registers::Registers;
use serde::{Deserialize, Serialize};

/// The threads of a warpgroup.
const GROUP_THREADS: u32 = 128;
/// Registers of a thread are allocated in multiples of this number.
const REGISTER_STEP: u32 = 8;

/// Rows and columns of C that one CTA computes at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Tile {
    /// Rows.
    pub m: u32,
    /// Columns.
    pub n: u32,
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
    /// Tiles of matrix products, largest first.
    pub tiles: &'static [Tile],
}

impl ArchSpec {
    /// Registers per thread of a CTA whose `threads` threads divide the registers of an SM evenly.
    #[must_use]
    pub const fn even_registers(&self, threads: u32) -> Registers {
        let all = self.sm_registers / threads / REGISTER_STEP * REGISTER_STEP;
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

    /// Registers per thread of a CTA with `threads` threads. The producer warpgroup keeps `producer` registers per thread, and the
    /// consumer warpgroups divide the rest.
    #[must_use]
    pub const fn split_registers(&self, threads: u32, producer: u32) -> Registers {
        let even = self.even_registers(threads);
        let consumers = threads / GROUP_THREADS - 1;
        Registers {
            producer,
            consumer: even.entry + (even.entry - producer) / consumers,
            ..even
        }
    }
}
