//! Connections that have not proved yet that they are ranks.
//!
//! There are at most [`MOST`]. Where one more comes, one of the address that has the most is closed, so that nobody keeps the
//! ranks of other hosts out: one that has been silent for long, or else any, at random. A rank whose connection is closed
//! connects again, until its deadline.

use super::fds::random_bytes;
use super::greeting::{Conversation, Hello};
use super::wire::Link;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

pub(super) const MOST: usize = 128;

/// A rank speaks as soon as it is connected.
const SILENT: Duration = Duration::from_millis(500);

/// Somebody who connected.
pub(super) struct Stranger {
    pub link: Link,
    pub from: IpAddr,
    pub since: Instant,
    /// Set when it has said who it is.
    pub hello: Option<(Hello, Conversation)>,
}

#[derive(Default)]
pub(super) struct Strangers(Vec<Stranger>);

impl Strangers {
    pub fn push(&mut self, stranger: Stranger) {
        if self.0.len() >= MOST {
            self.drop_one();
        }
        self.0.push(stranger);
    }

    /// Closes one; false if there is none.
    pub fn drop_one(&mut self) -> bool {
        let is_silent = |s: &Stranger| s.hello.is_none() && s.since.elapsed() > SILENT;
        let all = self.0.iter().map(|s| (s.from, is_silent(s)));
        let victim = victim(&all.collect::<Vec<_>>(), random());
        victim.is_some_and(|victim| {
            self.0.remove(victim);
            true
        })
    }

    /// All of them, to be heard.
    pub fn take(&mut self) -> Vec<Stranger> {
        std::mem::take(&mut self.0)
    }
}

fn random() -> usize {
    // Without random numbers, it is the oldest.
    let bytes = random_bytes().unwrap_or_default();
    usize::from(u16::from_le_bytes([bytes[0], bytes[1]]))
}

/// Which is to be closed, of connections with their addresses and whether they have been silent for long, in the order in
/// which they came.
fn victim(strangers: &[(IpAddr, bool)], random: usize) -> Option<usize> {
    let mut counts = HashMap::new();
    for (from, _) in strangers {
        *counts.entry(network(*from)).or_insert(0) += 1;
    }
    let most = counts.values().copied().max()?;
    let of_most: Vec<usize> = (0..strangers.len())
        .filter(|i| counts[&network(strangers[*i].0)] == most)
        .collect();
    let silent = of_most.iter().find(|i| strangers[**i].1);
    silent.or(of_most.get(random % of_most.len())).copied()
}

/// What counts as one address: in IPv6, a host has as many as 64 bits can tell apart.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from(u128::from(address) >> 64 << 64).into(),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn one_of_the_address_with_the_most_goes() {
        let of = |text| (address(text), false);
        let strangers = ["10.0.0.1", "10.0.0.9", "10.0.0.2", "10.0.0.9", "10.0.0.9"].map(of);
        let victims: Vec<_> = (0..4).map(|random| victim(&strangers, random)).collect();
        assert_eq!(victims, [1, 3, 4, 1].map(Some));
        assert_eq!(victim(&[], 3), None);
    }

    #[test]
    fn who_is_silent_for_long_goes_first() {
        let from = address("10.0.0.1");
        let strangers = [(from, false), (from, false), (from, true)];
        assert_eq!(victim(&strangers, 0), Some(2));
        assert_eq!(victim(&strangers[..2], 0), Some(0));
    }

    #[test]
    fn addresses_of_an_ipv6_network_are_one() {
        let same = |a, b| network(address(a)) == network(address(b));
        assert!(same("2001:db8::1", "2001:db8::ffff:2"));
        assert!(!same("2001:db8::1", "2001:db8:0:1::1"));
        assert!(same("::ffff:10.0.0.1", "10.0.0.1"));
        assert!(!same("10.0.0.2", "10.0.0.1"));
    }
}
