//! [`PeerLink`]: the end of the wire from an emulated NIC to one peer, with its buffers.

use super::frame;
use super::wire::Wire;

/// The state of the link to one peer.
pub struct PeerLink {
    wire: Box<dyn Wire>,
    /// Whether the peer was reported as lost.
    pub is_lost: bool,
    /// The number of writes to the peer that have not completed.
    pub in_flight: u32,
    /// The number of writes of the peer that have arrived and have not been reported.
    pub receives_in_use: u32,
    /// The tickets of writes that were reported since the last flush.
    pub acks: Vec<u64>,
    /// Frames for the wire. The bytes before `sent` have been sent.
    pub output: Vec<u8>,
    sent: usize,
    /// Bytes from the wire that are not a complete frame yet.
    pub input: Vec<u8>,
    /// The reason why the wire sends or receives no more.
    end: Option<String>,
    /// Whether the wire has delivered everything that it will ever deliver.
    is_drained: bool,
}

impl PeerLink {
    /// Creates a link over a wire.
    pub fn new(wire: Box<dyn Wire>) -> Self {
        Self {
            wire,
            is_lost: false,
            in_flight: 0,
            receives_in_use: 0,
            acks: Vec::new(),
            output: Vec::new(),
            sent: 0,
            input: Vec::new(),
            end: None,
            is_drained: false,
        }
    }

    /// Appends the bytes that have arrived to `input`.
    pub fn receive(&mut self) {
        let before = self.input.len();
        if let Err(reason) = self.wire.receive(&mut self.input) {
            self.end.get_or_insert(reason);
        }
        self.is_drained = self.end.is_some() && self.input.len() == before;
    }

    /// Sends as much output as the wire accepts. Returns whether there was any output.
    pub fn flush(&mut self) -> bool {
        if !self.acks.is_empty() {
            frame::put_acks(&mut self.output, &self.acks);
            self.acks.clear();
        }
        let has_output = !self.output.is_empty();
        while self.sent < self.output.len() && self.end.is_none() {
            match self.wire.send(&self.output[self.sent..]) {
                Ok(0) => {
                    self.drop_sent();
                    return true;
                }
                Ok(sent) => self.sent += sent,
                // Bytes that the peer sent before it closed the wire must still be received.
                Err(reason) => self.end = Some(reason),
            }
        }
        self.output.clear();
        self.sent = 0;
        has_output
    }

    /// Releases the memory of sent output once it is more than half of the buffer. Otherwise a wire that is always busy would
    /// keep all of its output.
    fn drop_sent(&mut self) {
        if self.sent > self.output.len() / 2 {
            self.output.drain(..self.sent);
            self.sent = 0;
        }
    }

    /// Returns the reason why nothing more will arrive, once everything that arrived has been reported.
    pub fn end(&self) -> Option<&str> {
        self.end
            .as_deref()
            .filter(|_| self.is_drained && self.receives_in_use == 0)
    }
}
