//! [`Gpu`]: the GPU of a rank, or the part of a GPU that several ranks share.

use crate::driver::{self, Backend, Stream};
use crate::error::{DeviceError, Error};
use crate::order::{self, Order};
use crate::part::Part;
use cudarc::driver::{CudaContext, CudaStream};
use mkernel_spec::Device;
use std::sync::{Arc, Mutex};

/// A GPU, or a part of a GPU, with the resources that the runtime itself needs there.
pub(crate) struct Gpu {
    pub ctx: Arc<CudaContext>,
    pub device: Device,
    pub is_shared: bool,
    /// The stream for the program's work. Ranks that share a GPU have streams of their own: work in the GPU's default
    /// stream would make the ranks wait for each other.
    pub default_stream: Arc<CudaStream>,
    /// The stream for the runtime's own work.
    pub stream: Stream,
    pub order: Arc<Mutex<Order>>,
}

impl Gpu {
    pub fn open(ordinal: usize, part: Part, kind: Backend) -> Result<Self, Error> {
        let (ctx, device) = driver::open(ordinal, kind)?;
        let default_stream = match part.count {
            1 => ctx.default_stream(),
            _ => driver::named("cuStreamCreate", ctx.new_stream())?,
        };
        let too_many = DeviceError::TooManyRanks {
            ordinal,
            ranks: part.count,
            sm_count: device.sm_count,
        };
        Ok(Self {
            stream: Stream::new(&ctx)?,
            order: order::of(&ctx, part)?,
            device: device.part(part.count).ok_or(Error::Device(too_many))?,
            is_shared: part.count > 1,
            default_stream,
            ctx,
        })
    }
}
