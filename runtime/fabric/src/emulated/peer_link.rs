//! [`PeerLink`]: an emulated NIC's end of the wire to a peer.

use super::frame;
use super::wire::Wire;

/// What a NIC has for a peer.
pub struct PeerLink {
    wire: Box<dyn Wire>,
    /// Whether it was reported as lost.
    pub is_lost: bool,
    /// Writes to the peer that have not completed.
    pub in_flight: u32,
    /// Writes of the peer that came and were not reported.
    pub receives_in_use: u32,
    /// Tickets of writes that were reported since the last flush.
    pub acks: Vec<u64>,
    /// Frames for the wire, from `sent` on.
    pub output: Vec<u8>,
    sent: usize,
    /// Bytes of the wire that are no whole frame yet.
    pub input: Vec<u8>,
    /// Why the wire takes or gives no more.
    end: Option<String>,
    /// Whether it has given all that it will.
    is_drained: bool,
}

impl PeerLink {
    /// Over a wire.
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

    /// Appends what has come to `input`.
    pub fn receive(&mut self) {
        let before = self.input.len();
        if let Err(reason) = self.wire.receive(&mut self.input) {
            self.end.get_or_insert(reason);
        }
        self.is_drained = self.end.is_some() && self.input.len() == before;
    }

    /// Puts on the wire what it takes. Whether there was anything.
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
                // What the peer said before it closed the wire is still to be heard.
                Err(reason) => self.end = Some(reason),
            }
        }
        self.output.clear();
        self.sent = 0;
        has_output
    }

    /// Gives room back where most of the output has left; a wire that is never empty would keep all of it.
    fn drop_sent(&mut self) {
        if self.sent > self.output.len() / 2 {
            self.output.drain(..self.sent);
            self.sent = 0;
        }
    }

    /// Why nothing more will come, once all that came was reported.
    pub fn end(&self) -> Option<&str> {
        self.end
            .as_deref()
            .filter(|_| self.is_drained && self.receives_in_use == 0)
    }
}
