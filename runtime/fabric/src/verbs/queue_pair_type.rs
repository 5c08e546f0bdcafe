//! [`QueuePairType`]: what differs between RC and SRD queue pairs, and the work requests that they take.

use super::connect_info::{QueuePairInfo, RailInfo};
use super::device::{Device, Port};
use super::queue_pair::{Capability, QueueDepth, QueuePair};
use super::rail::Rail;
use std::io;

/// A write as a queue pair gets it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WorkRequest {
    /// What its completion says.
    pub(super) id: u64,
    pub(super) local_address: u64,
    pub(super) local_key: u32,
    pub(super) bytes: u32,
    pub(super) remote_address: u64,
    pub(super) remote_key: u32,
    pub(super) immediate: u32,
    /// The CPU may read the source: it is not in a GPU.
    pub(super) on_host: bool,
}

/// A kind of queue pair: RC or SRD.
pub(super) trait QueuePairType: Send + Sized {
    /// What people call it.
    const NAME: &'static str;
    /// What offers call it.
    const SERVICE: u8;
    /// Completions come in the order of posting, and one says that all before it are done.
    const IN_ORDER: bool;

    /// Whether the device has it, and how much of it over a port; what is missing, if not.
    fn capability(device: &Device, port: &Port) -> Result<Capability, String>;

    /// Makes one, with its receives posted. `nonce` is what peers need beside its number.
    fn new(rail: &Rail, depth: QueueDepth, nonce: u32) -> Result<Self, String>;

    /// What all kinds have in common.
    fn pair(&self) -> &QueuePair;

    /// The nonce to offer, of 32 random bits.
    fn nonce(random: u32) -> u32;

    /// Makes it ready to write to a queue pair of a peer, and to be written by that.
    fn connect(&mut self, rail: &Rail, to: &RailInfo, at: QueuePairInfo) -> Result<(), String>;

    /// Posts all of `requests`, in order.
    fn post(&mut self, requests: &[WorkRequest]) -> io::Result<()>;

    /// Posts `count` receives.
    fn receive(&self, rail: &Rail, count: u32) -> io::Result<()>;
}
