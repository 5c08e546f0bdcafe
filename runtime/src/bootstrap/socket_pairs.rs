//! Connects pairs of ranks of a host by socket pairs, which emulated NICs use as their network.

use super::collective::Collective;
use super::fds::{Mailbox, deliver, random_bytes};
use super::files::os;
use crate::error::{Error, Peer, ProtocolFault};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

const STEP: &str = "connection of emulated NICs";

/// Connects this rank to each of `peers`, and returns the streams in the order of `peers`. This is a collective step of all
/// ranks of the host. If a rank names a peer, that peer must name the rank.
pub(crate) fn connect(
    ranks: &mut Collective,
    peers: &[u32],
    timeout: Duration,
) -> Result<Vec<UnixStream>, Error> {
    let (rank, world) = (ranks.rank(), ranks.world());
    let mailbox = Mailbox::open().and_then(|mailbox| {
        let contribution = [mailbox.name(), &random_bytes()?].concat();
        Ok((mailbox, contribution))
    });
    let (mailbox, contributions) = ranks.agree(STEP, mailbox, timeout)?;
    let contributions = names(&contributions)?;
    // The nonce of rank 0 is used for all connections.
    let (_, nonce) = contributions[0];
    let connected = (|| {
        let mut streams = Vec::new();
        for &peer in peers.iter().filter(|peer| **peer > rank) {
            let (ours, theirs) = UnixStream::pair().map_err(os("socketpair"))?;
            deliver(
                theirs.as_fd(),
                rank,
                &nonce,
                peer,
                &contributions[peer as usize].0,
            )?;
            streams.push((peer, ours));
        }
        let lower: Vec<u32> = peers.iter().copied().filter(|peer| *peer < rank).collect();
        let came = mailbox.collect(&lower, world, &nonce, ranks.wait(STEP, timeout))?;
        for (peer, fd) in (0..).zip(came) {
            streams.extend(fd.map(|fd| (peer, UnixStream::from(fd))));
        }
        Ok((streams, Vec::new()))
    })();
    let (mut streams, _) = ranks.agree(STEP, connected, timeout)?;
    streams.sort_by_key(|(peer, _)| peers.iter().position(|known| known == peer));
    Ok(streams.into_iter().map(|(_, stream)| stream).collect())
}

/// The name of a mailbox, and a nonce.
type Name = ([u8; 16], [u8; 16]);

/// Reads the names and nonces, by rank.
fn names(contributions: &[Vec<u8>]) -> Result<Vec<Name>, Error> {
    let split = |(rank, contribution): (u32, &Vec<u8>)| {
        let halves = contribution.split_at_checked(16);
        let halves =
            halves.and_then(|(name, nonce)| Some((name.try_into().ok()?, nonce.try_into().ok()?)));
        halves.ok_or(Error::Protocol {
            peer: Peer::Rank(rank),
            step: STEP,
            source: ProtocolFault::Malformed,
        })
    };
    (0..).zip(contributions).map(split).collect()
}
