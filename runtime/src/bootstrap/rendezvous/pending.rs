//! Connections that have not proved yet that they belong to a rank.
//!
//! The number of pending connections is at most [`MOST`]. If another connection arrives, one connection of the address with the
//! most connections is closed, so that no address can keep out the ranks of other hosts. The closed connection is a connection
//! that has been silent for long, or else a random connection. A rank whose connection is closed connects again until its
//! deadline.

use super::handshake::{Hello, Transcript};
use crate::bootstrap::fds::random_bytes;
use crate::bootstrap::wire::Connection;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

pub(crate) const MOST: usize = 128;

/// The time after which a silent connection is closed before others. A rank sends its first message immediately.
const SILENT: Duration = Duration::from_millis(500);

/// A connection that has not completed the handshake.
pub(crate) struct PendingConnection {
    pub link: Connection,
    pub from: IpAddr,
    pub since: Instant,
    /// The first message, after it was received and checked.
    pub hello: Option<(Hello, Transcript)>,
}

#[derive(Default)]
pub(crate) struct PendingConnections(Vec<PendingConnection>);

impl PendingConnections {
    pub fn push(&mut self, connection: PendingConnection) {
        if self.0.len() >= MOST {
            self.close_one();
        }
        self.0.push(connection);
    }

    /// Closes one connection. Returns false if no connection is pending.
    pub fn close_one(&mut self) -> bool {
        let is_silent = |s: &PendingConnection| s.hello.is_none() && s.since.elapsed() > SILENT;
        let all = self.0.iter().map(|s| (s.from, is_silent(s)));
        let victim = victim(&all.collect::<Vec<_>>(), random());
        victim.is_some_and(|victim| {
            self.0.remove(victim);
            true
        })
    }

    /// Takes all connections, so that they can be polled.
    pub fn take(&mut self) -> Vec<PendingConnection> {
        std::mem::take(&mut self.0)
    }
}

fn random() -> usize {
    // If there are no random numbers, the oldest connection is chosen.
    let bytes = random_bytes().unwrap_or_default();
    usize::from(u16::from_le_bytes([bytes[0], bytes[1]]))
}

/// Chooses the connection to close. For each connection, in the order of arrival, `connections` has the address and
/// whether it has been silent for long.
fn victim(connections: &[(IpAddr, bool)], random: usize) -> Option<usize> {
    let mut counts = HashMap::new();
    for (from, _) in connections {
        *counts.entry(network(*from)).or_insert(0) += 1;
    }
    let most = counts.values().copied().max()?;
    let of_most: Vec<usize> = (0..connections.len())
        .filter(|i| counts[&network(connections[*i].0)] == most)
        .collect();
    let silent = of_most.iter().find(|i| connections[**i].1);
    silent.or(of_most.get(random % of_most.len())).copied()
}

/// Returns the part of an address that identifies a host. In IPv6 this is the first 64 bits, since a host can have all
/// addresses that begin with these bits.
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
        let connections = ["10.0.0.1", "10.0.0.9", "10.0.0.2", "10.0.0.9", "10.0.0.9"].map(of);
        let victims: Vec<_> = (0..4).map(|random| victim(&connections, random)).collect();
        assert_eq!(victims, [1, 3, 4, 1].map(Some));
        assert_eq!(victim(&[], 3), None);
    }

    #[test]
    fn silent_connections_are_closed_first() {
        let from = address("10.0.0.1");
        let connections = [(from, false), (from, false), (from, true)];
        assert_eq!(victim(&connections, 0), Some(2));
        assert_eq!(victim(&connections[..2], 0), Some(0));
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
