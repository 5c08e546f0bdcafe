//! The connections that rank 0 refused. The error that names the missing ranks lists them.

use std::net::IpAddr;

/// The number of different refusals that are kept. The number is limited because anyone can connect.
const MOST: usize = 8;

#[derive(Default)]
pub(crate) struct Refusals(Vec<Refusal>);

struct Refusal {
    from: IpAddr,
    reason: String,
    count: u32,
}

impl Refusals {
    pub fn add(&mut self, from: IpAddr, reason: &str) {
        let from = from.to_canonical();
        tracing::warn!(%from, reason, "a process that connected was refused");
        let same = |known: &&mut Refusal| known.from == from && known.reason == reason;
        let is_full = self.0.len() >= MOST;
        match self.0.iter_mut().find(same) {
            Some(known) => known.count = known.count.saturating_add(1),
            None if !is_full => self.0.push(Refusal {
                from,
                reason: reason.to_owned(),
                count: 1,
            }),
            None => {}
        }
    }

    /// Returns a text for each refusal.
    pub fn texts(&self) -> Vec<String> {
        let text = |refusal: &Refusal| match refusal.count {
            1 => format!("{}: {}", refusal.from, refusal.reason),
            count => format!("{} ({count} times): {}", refusal.from, refusal.reason),
        };
        self.0.iter().map(text).collect()
    }
}
