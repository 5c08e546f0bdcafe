//! The timing model of an emulated NIC ([`NicModel`]) and the faults that it injects ([`Faults`]).

use super::frame::MAX_WRITE_BYTES;
use crate::error::FabricError;
use crate::stats::RailCounters;
use std::sync::Arc;
use std::time::Duration;

/// The parameters of an emulated NIC.
#[derive(Clone, Debug, PartialEq)]
pub struct NicModel {
    /// The number of NICs per endpoint. A write takes the NIC that becomes free first.
    pub rails: u32,
    /// The bandwidth of each NIC in one direction, in 10^9 bytes per second.
    pub gb_per_s: f64,
    /// The time from the departure of the last byte to its arrival. The sender's completion follows the arrival after the same
    /// time.
    pub latency: Duration,
    /// The time that each write occupies a NIC in addition to the time for its bytes.
    pub per_write: Duration,
    /// The most writes per peer that may be in flight.
    pub queue_depth: u32,
    /// The number of receives that are kept for each peer.
    pub receives: u32,
    /// The size of the longest write, at most [`MAX_WRITE_BYTES`].
    pub write_bytes: u32,
    /// Whether arrivals are reported only after a flush.
    pub flushes_arrivals: bool,
}

impl Default for NicModel {
    /// A model with one NIC of 400 Gbit/s, and the latency of a network with a few switches.
    fn default() -> Self {
        Self {
            rails: 1,
            gb_per_s: 50.0,
            latency: Duration::from_micros(2),
            per_write: Duration::from_nanos(10),
            queue_depth: 256,
            receives: 256,
            write_bytes: 16 << 20,
            flushes_arrivals: false,
        }
    }
}

impl NicModel {
    /// Checks that the parameters are valid.
    pub(super) fn check(&self) -> Result<(), FabricError> {
        let mut issues = Vec::new();
        if self.gb_per_s.is_nan() || self.gb_per_s <= 0.0 {
            issues.push(format!(
                "the bandwidth of the emulated NIC is {} GB/s; it must be positive",
                self.gb_per_s
            ));
        }
        if self.write_bytes > MAX_WRITE_BYTES {
            issues.push(format!(
                "writes of the emulated NIC have up to {} bytes, but at most {MAX_WRITE_BYTES} are possible",
                self.write_bytes
            ));
        }
        if self.rails == 0 || self.queue_depth == 0 || self.receives == 0 {
            issues.push(
                "the emulated NIC has no rails, no queue or no receives; each must be at least 1"
                    .into(),
            );
        }
        if issues.is_empty() {
            Ok(())
        } else {
            Err(FabricError::Config(issues))
        }
    }
}

/// The faults to inject. Equal seeds and equal sequences of calls give equal faults.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Faults {
    /// The seed of all random decisions.
    pub seed: u64,
    /// The longest random delay of a write or a completion. Delays let later writes overtake earlier writes.
    pub jitter: Duration,
    /// The probability that a write or a completion is lost and repeated. A repetition may be lost again.
    pub loss: f64,
    /// The time that each repetition takes.
    pub retransmission: Duration,
    /// The probability that an event is reported twice.
    pub duplicates: f64,
    /// A permanent failure.
    pub failure: Option<Failure>,
}

impl Faults {
    /// Returns whether the NIC is silent after the given number of writes.
    ///
    /// # Errors
    ///
    /// [`FabricError::Nic`] if the NIC has failed.
    pub(super) fn is_silent(&self, writes: u64) -> Result<bool, FabricError> {
        match self.failure {
            Some(Failure::Nic { after_writes }) if writes >= after_writes => {
                Err(FabricError::Nic {
                    reason: format!("it was configured to fail after {after_writes} writes"),
                })
            }
            Some(Failure::Silence { after_writes }) => Ok(writes >= after_writes),
            _ => Ok(false),
        }
    }
}

/// A permanent failure after a number of writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// All calls return an error.
    Nic {
        /// The number of writes before the failure.
        after_writes: u64,
    },
    /// The NIC neither sends nor receives any more, and reports no error.
    Silence {
        /// The number of writes before the failure.
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

    /// Returns true with the given probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        probability > 0.0 && (self.next() >> 11) as f64 * 2f64.powi(-53) < probability
    }

    fn below(&mut self, end: u64) -> u64 {
        if end == 0 { 0 } else { self.next() % end }
    }
}

/// The most times that one write can be lost.
const MAX_LOSSES: u32 = 8;

/// Computes the times at which the writes of an endpoint depart and arrive.
pub(super) struct Timing {
    nic: NicModel,
    faults: Faults,
    pub random: Random,
    /// The time at which the last write of each rail has departed. The time is a fraction, so that rates are exact.
    free_ns: Vec<f64>,
    counters: Arc<[RailCounters]>,
}

impl Timing {
    pub fn new(nic: &NicModel, faults: &Faults) -> Self {
        Self {
            nic: nic.clone(),
            faults: faults.clone(),
            random: Random(faults.seed),
            free_ns: vec![0.0; nic.rails as usize],
            counters: RailCounters::of((0..nic.rails).map(|rail| format!("emulated{rail}"))),
        }
    }

    pub fn counters(&self) -> Arc<[RailCounters]> {
        Arc::clone(&self.counters)
    }

    /// Counts a write that is posted now, and returns its arrival time.
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
        self.counters[rail].count(bytes);
        // The parameters of a user may add up to more than the range of the type.
        (leaves as u64).saturating_add(self.latency_ns())
    }

    /// Returns the latency of a small message, with jitter and repetitions.
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
