//! How long things take on an emulated NIC, and what goes wrong there.

use super::frame::MAX_WRITE_BYTES;
use crate::error::FabricError;
use std::time::Duration;

/// Figures of an emulated NIC.
#[derive(Clone, Debug, PartialEq)]
pub struct NicModel {
    /// NICs per endpoint; writes go to the one that is free first.
    pub rails: u32,
    /// Of each of them, one way: 10^9 bytes per second.
    pub gb_per_s: f64,
    /// From the last byte's departure to its arrival, and from the arrival to the sender's completion.
    pub latency: Duration,
    /// What each write takes of a NIC besides its bytes.
    pub per_write: Duration,
    /// Writes per peer that may be on their way.
    pub queue_depth: u32,
    /// Receives kept for each peer.
    pub receives: u32,
    /// The longest write; at most [`MAX_WRITE_BYTES`](super::MAX_WRITE_BYTES).
    pub write_bytes: u32,
}

impl Default for NicModel {
    /// One NIC of 400 Gbit/s, as on a host of a few switches' distance.
    fn default() -> Self {
        Self {
            rails: 1,
            gb_per_s: 50.0,
            latency: Duration::from_micros(2),
            per_write: Duration::from_nanos(10),
            queue_depth: 256,
            receives: 256,
            write_bytes: 16 << 20,
        }
    }
}

impl NicModel {
    /// Whether they can be.
    pub(super) fn check(&self) -> Result<(), FabricError> {
        let mut mistakes = Vec::new();
        if self.gb_per_s.is_nan() || self.gb_per_s <= 0.0 {
            mistakes.push(format!("an emulated NIC of {} GB/s", self.gb_per_s));
        }
        if self.write_bytes > MAX_WRITE_BYTES {
            mistakes.push(format!(
                "writes of {} bytes, but {MAX_WRITE_BYTES} are the most",
                self.write_bytes
            ));
        }
        if self.rails == 0 || self.queue_depth == 0 || self.receives == 0 {
            mistakes.push("an emulated NIC without rails, queue or receives".into());
        }
        if mistakes.is_empty() {
            Ok(())
        } else {
            Err(FabricError::Config(mistakes))
        }
    }
}

/// What goes wrong; the same `seed` and the same calls give the same faults.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Faults {
    /// Of all that is random.
    pub seed: u64,
    /// Each write and completion is late by up to this, and so overtakes others.
    pub jitter: Duration,
    /// The probability that a write or completion is lost once (or once more) and repeated.
    pub loss: f64,
    /// What each repetition takes.
    pub retransmission: Duration,
    /// The probability that an event is reported twice.
    pub duplicates: f64,
    /// What breaks for good.
    pub failure: Option<Failure>,
}

impl Faults {
    /// Whether nothing comes or goes any more, after so many writes; an error if the NIC has failed.
    pub(super) fn is_silent(&self, writes: u64) -> Result<bool, FabricError> {
        match self.failure {
            Some(Failure::Nic { after_writes }) if writes >= after_writes => {
                Err(FabricError::Nic {
                    reason: format!("it was set to fail after {after_writes} writes"),
                })
            }
            Some(Failure::Silence { after_writes }) => Ok(writes >= after_writes),
            _ => Ok(false),
        }
    }
}

/// What breaks after so many writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Calls return an error.
    Nic {
        /// Writes before.
        after_writes: u64,
    },
    /// Nothing comes or goes any more, and nobody says so.
    Silence {
        /// Writes before.
        after_writes: u64,
    },
}

/// SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
#[derive(Clone, Debug)]
pub(super) struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// True with this probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        probability > 0.0 && (self.next() >> 11) as f64 * 2f64.powi(-53) < probability
    }

    fn below(&mut self, end: u64) -> u64 {
        if end == 0 { 0 } else { self.next() % end }
    }
}

/// Most times that one write is lost.
const MAX_LOSSES: u32 = 8;

/// When the writes of an endpoint leave and arrive.
pub(super) struct Timing {
    nic: NicModel,
    faults: Faults,
    pub random: Random,
    /// By rail: when its last write will have left. In fractions, so that rates are exact.
    free_ns: Vec<f64>,
}

impl Timing {
    pub fn new(nic: &NicModel, faults: &Faults) -> Self {
        Self {
            nic: nic.clone(),
            faults: faults.clone(),
            random: Random(faults.seed),
            free_ns: vec![0.0; nic.rails as usize],
        }
    }

    /// When a write that is posted now arrives.
    pub fn arrival_ns(&mut self, now_ns: u64, bytes: u32) -> u64 {
        let takes = f64::from(bytes) / self.nic.gb_per_s + self.nic.per_write.as_nanos() as f64;
        let mut rail = 0;
        for other in 1..self.free_ns.len() {
            if self.free_ns[other] < self.free_ns[rail] {
                rail = other;
            }
        }
        let leaves = self.free_ns[rail].max(now_ns as f64) + takes;
        self.free_ns[rail] = leaves;
        // Figures of a user's may add up to more than there is.
        (leaves as u64).saturating_add(self.latency_ns())
    }

    /// How long something small is on its way.
    pub fn latency_ns(&mut self) -> u64 {
        let Faults {
            jitter,
            loss,
            retransmission,
            ..
        } = self.faults;
        let late = self.random.below(jitter.as_nanos() as u64);
        let mut total = (self.nic.latency.as_nanos() as u64).saturating_add(late);
        for _ in 0..MAX_LOSSES {
            if !self.random.chance(loss) {
                break;
            }
            total = total.saturating_add(retransmission.as_nanos() as u64);
        }
        total
    }
}
