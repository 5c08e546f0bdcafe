//! Arrival words in device memory, where kernels poll them without crossing PCIe.

use crate::driver::{self, Stream};
use crate::error::{Error, with_causes};
use crate::report::Page;
use cudarc::driver::CudaContext;
use mkernel_fabric::{Arrivals, FabricError, PeerId};
use mkernel_spec::abi::FLAG_STRIDE_BYTES;
use std::sync::Arc;

/// The words of a rank, by peer and channel, written by a stream of the proxy's own.
pub(crate) struct DeviceArrivals {
    pub ctx: Arc<CudaContext>,
    pub stream: Stream,
    /// Where they start; [`FLAG_STRIDE_BYTES`] apart.
    pub words: u64,
    pub channels: u16,
    /// Whose abort word ends the waits of kernels.
    pub page: Arc<Page>,
}

impl DeviceArrivals {
    fn write(&self, peer: PeerId, channel: u16, count: u32) -> Result<(), Error> {
        driver::bind(&self.ctx)?;
        let index = u64::from(peer.0) * u64::from(self.channels) + u64::from(channel);
        // SAFETY: the words are mapped until the proxy has ended, and its stream is done.
        unsafe {
            self.stream
                .write_word(self.words + index * FLAG_STRIDE_BYTES, count)
        }
    }
}

impl Arrivals for DeviceArrivals {
    fn raise(&mut self, peer: PeerId, channel: u16, count: u32) {
        if let Err(error) = self.write(peer, channel, count) {
            // The context is broken: no kernel will run to its end.
            tracing::error!(error = with_causes(&error), "an arrival could not be told");
            self.page.abort();
        }
    }

    fn abort(&mut self, _: &FabricError) {
        self.page.abort();
    }
}
