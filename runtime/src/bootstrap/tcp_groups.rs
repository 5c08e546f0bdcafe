//! Connects groups of ranks that are processes. The first rank of a group listens for the other ranks of the group, as rank 0
//! of a job does. The ranks learn its address and a key over the connections that they have.

use super::fds::random_bytes;
use super::files::os;
use super::group::{Connected, Group, Network, agree};
use super::host_map::HostMap;
use super::local;
use super::rendezvous::client::join;
use super::rendezvous::job::Job;
use super::rendezvous::secret::Secret;
use super::rendezvous::server::accept_ranks;
use super::wait::{StepWait, Stop};
use super::wire::{Reader, put_string};
use crate::error::{Error, Peer, ProtocolFault};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener};
use std::time::Duration;

/// The means by which other ranks connect to a rank that listens.
pub(super) struct Door {
    /// An address of the rank's host.
    pub address: IpAddr,
    /// The port at which the rank listens, or 0 if it does not listen.
    pub port: u16,
    pub key: [u8; 16],
}

impl Door {
    pub fn new(address: IpAddr, listener: Option<&TcpListener>) -> Result<Self, Error> {
        let port =
            |listener: &TcpListener| listener.local_addr().map_or(0, |address| address.port());
        Ok(Self {
            address,
            port: listener.map_or(0, port),
            key: random_bytes()?,
        })
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&u32::from(self.port).to_le_bytes());
        bytes.extend_from_slice(&self.key);
        put_string(&mut bytes, self.address.to_string().as_bytes());
        bytes
    }

    fn read(bytes: &[u8]) -> Result<Self, ProtocolFault> {
        let mut reader = Reader(bytes);
        let port = u16::try_from(reader.u32()?).map_err(|_| ProtocolFault::Malformed)?;
        let key = reader.array()?;
        let address = std::str::from_utf8(reader.string()?).ok();
        let address = address.and_then(|text| text.parse().ok());
        reader.end()?;
        Ok(Self {
            address: address.ok_or(ProtocolFault::Malformed)?,
            port,
            key,
        })
    }
}

/// Connects the ranks `members`, in this order. `members` has this rank, or is empty if this rank is in no group. The outer error
/// is a failure of `parent`, which cannot be used afterwards.
pub(super) fn connect(
    parent: &mut dyn Group,
    network: &Network,
    members: &[u32],
    wait: &StepWait,
) -> Result<Result<Connected, Error>, Error> {
    let opened = open(parent, network, members);
    let opened = opened.map(|(door, listener)| (listener, door.to_bytes()));
    let (listener, doors) = match agree(parent, opened, wait.clone())? {
        Ok(agreed) => agreed,
        Err(error) => return Ok(Err(error)),
    };
    let connected = read(&doors, wait.step).and_then(|doors| {
        let (own, hosts) = ((parent.rank(), members), parent.host_map());
        connect_members(
            own,
            hosts,
            network,
            (listener, &doors),
            (wait.timeout, &wait.stop),
        )
    });
    // No rank uses its group before all groups are connected.
    let connected = connected.map(|group| (group, Vec::new()));
    let agreed = agree(parent, connected, wait.again(wait.step))?;
    Ok(agreed.map(|(group, _)| group))
}

/// Begins to listen if this rank is the first rank of a group.
fn open(
    parent: &dyn Group,
    network: &Network,
    members: &[u32],
) -> Result<(Door, Option<TcpListener>), Error> {
    let is_first = members.len() > 1 && members[0] == parent.rank();
    let is_on_one_host = parent.host_map().of_group(members).count() == 1;
    let listener = is_first.then(|| listen(is_on_one_host)).transpose()?;
    Ok((Door::new(network.address, listener.as_ref())?, listener))
}

/// Listens for ranks of this host, or of all hosts.
pub(super) fn listen(is_on_one_host: bool) -> Result<TcpListener, Error> {
    let bind = || {
        let listener = match is_on_one_host {
            true => TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?,
            false => TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0))
                .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)))?,
        };
        listener.set_nonblocking(true)?;
        Ok(listener)
    };
    bind().map_err(os("listening for other ranks"))
}

pub(super) fn read(doors: &[Vec<u8>], step: &'static str) -> Result<Vec<Door>, Error> {
    let read = |(rank, bytes): (u32, &Vec<u8>)| {
        Door::read(bytes).map_err(|source| Error::Protocol {
            peer: Peer::Rank(rank),
            step,
            source,
        })
    };
    (0..).zip(doors).map(read).collect()
}

/// Connects this rank to the other members. `doors` are the doors of all ranks.
fn connect_members(
    (rank, members): (u32, &[u32]),
    hosts: &HostMap,
    network: &Network,
    (listener, doors): (Option<TcpListener>, &[Door]),
    (timeout, stop): (Duration, &Stop),
) -> Result<Connected, Error> {
    let place = members.iter().position(|member| *member == rank);
    let Some((place, first)) = place.zip(members.first()) else {
        return Ok(None);
    };
    if members.len() == 1 {
        return Ok(Some(Box::new(local::groups(1).remove(0))));
    }
    let door = &doors[*first as usize];
    let job = Job {
        rank: place as u32,
        world: members.len() as u32,
        host: address_of(members, hosts, doors).to_string(),
        port: door.port,
        name: "group".to_owned(),
        several_hosts: hosts.of_group(members).count() > 1,
        // The first rank of a host identifies the host.
        host_id: format!("{:?}", hosts.local_ranks(rank).first()),
        secret: Secret::new(&[&network.key[..], &door.key].concat()),
        // All members have entered the step, and the other groups wait for this group no longer than the step lasts.
        timeout: timeout / 2,
        silence: network.silence,
        stop: stop.clone(),
    };
    let group = match listener {
        Some(listener) => accept_ranks(&job, &listener),
        None => join(&job),
    };
    let group = group.map_err(|error| in_parent(error, members))?;
    Ok(Some(Box::new(group)))
}

/// Replaces the ranks of the group in an error by the ranks of the communicator that is split.
fn in_parent(mut error: Error, members: &[u32]) -> Error {
    let replace = |rank: &mut u32| *rank = members.get(*rank as usize).copied().unwrap_or(*rank);
    match &mut error {
        Error::RanksMissing { ranks, .. } => ranks.iter_mut().for_each(replace),
        Error::RankLeft { rank, .. } => replace(rank),
        _ => {}
    }
    error
}

/// Returns the address at which the members connect to their first rank. Ranks of its host may have met rank 0 on the loopback
/// interface, so the address comes from any rank of the host.
pub(super) fn address_of(members: &[u32], hosts: &HostMap, doors: &[Door]) -> IpAddr {
    let of_host = hosts.local_ranks(members[0]).into_iter();
    let mut addresses = of_host.map(|rank| doors[rank as usize].address);
    let outward = addresses.find(|address| !address.is_loopback());
    let is_on_one_host = hosts.of_group(members).count() == 1;
    outward
        .filter(|_| !is_on_one_host)
        .unwrap_or(Ipv4Addr::LOCALHOST.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_ranks_of_the_communicator_that_is_split() {
        let missing = Error::RanksMissing {
            step: "rendezvous",
            ranks: vec![0, 2],
            waited: Duration::from_secs(1),
            refused: Vec::new(),
        };
        let text = in_parent(missing, &[5, 3, 4]).to_string();
        assert!(text.contains("ranks 5, 4 have not entered"), "{text}");
        let step = "rendezvous";
        let left = in_parent(Error::RankLeft { rank: 1, step }, &[5, 3]);
        assert!(matches!(left, Error::RankLeft { rank: 3, .. }), "{left}");
    }

    #[test]
    fn a_door_is_read_as_it_was_written_and_malformed_doors_are_refused() {
        for address in ["10.0.0.7", "fd00::1"] {
            let door = Door {
                address: address.parse().expect("an address"),
                port: 65_535,
                key: [3; 16],
            };
            let bytes = door.to_bytes();
            let read = Door::read(&bytes).expect("well-formed");
            assert_eq!(read.address.to_string(), address);
            assert_eq!((read.port, read.key), (65_535, [3; 16]));
            for end in 0..bytes.len() {
                assert!(Door::read(&bytes[..end]).is_err(), "{end} bytes");
            }
            let mut high_port = bytes;
            high_port[2] = 1;
            assert!(Door::read(&high_port).is_err());
        }
    }
}
