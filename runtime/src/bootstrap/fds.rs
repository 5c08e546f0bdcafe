//! Passes file descriptors to other processes of the host, over abstract unix sockets.
//!
//! The sockets have random names, which are exchanged over the connections between the ranks. Another program therefore
//! cannot create a path first. Both ends check the user of the other end, and the receiver checks the nonce of the job.

use super::files::os;
use super::group::{Group, agree};
use super::limits::POLL;
use super::wait::StepWait;
use crate::error::{Error, Peer, ProtocolFault};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use rustix::rand::{GetRandomFlags, getrandom};
use std::io::{ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

pub(super) const STEP: &str = "exchange of memory handles";

/// The length of a message: the nonce and the rank.
const MESSAGE_BYTES: usize = 20;

/// Implements [`Group::exchange_fds`] for ranks that are processes.
pub(super) fn exchange(
    group: &mut dyn Group,
    fd: BorrowedFd<'_>,
    wait: &StepWait,
) -> Result<Vec<Option<OwnedFd>>, Error> {
    let rank = group.rank();
    let mailbox = Mailbox::open()?;
    // The sockets use random keys of their own, so that the nonce of the connections has no other use.
    let mut contribution = mailbox.name().to_vec();
    contribution.extend_from_slice(&random_bytes()?);
    let contributions = group.all_gather(&contribution, wait.again(STEP))?;
    let keys = contributions
        .iter()
        .zip(0..)
        .map(|(contribution, rank)| {
            let (name, key) = contribution
                .split_first_chunk::<16>()
                .unwrap_or((&[0; 16], &[]));
            <[u8; 16]>::try_from(key)
                .map(|key| (*name, key))
                .map_err(|_| Error::Protocol {
                    peer: Peer::Rank(rank),
                    step: STEP,
                    source: ProtocolFault::Malformed,
                })
        })
        .collect::<Result<Vec<_>, _>>()?;
    let mut peers = group.host_map().local_ranks(rank);
    peers.retain(|peer| *peer != rank);
    let delivered = peers.iter().try_for_each(|&peer| {
        let (name, key) = &keys[peer as usize];
        deliver(fd, rank, key, peer, name)
    });
    // After this step all ranks have sent their descriptors, so no rank waits for one that was never sent.
    agree(
        group,
        delivered.map(|()| ((), Vec::new())),
        wait.again("delivery of memory handles"),
    )??;
    let wait = wait.again(STEP);
    mailbox.collect(&peers, group.world(), &keys[rank as usize].1, wait)
}

/// A socket that receives the descriptors of the other ranks.
pub(super) struct Mailbox {
    listener: UnixListener,
    name: [u8; 16],
}

impl Mailbox {
    pub fn open() -> Result<Self, Error> {
        let name = random_bytes()?;
        let listener =
            UnixListener::bind_addr(&address(&name)?).map_err(os("bind of a unix socket"))?;
        listener
            .set_nonblocking(true)
            .map_err(os("set_nonblocking"))?;
        Ok(Self { listener, name })
    }

    /// Returns the name by which the other ranks connect to the socket.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// Receives one descriptor from each of `peers`. The result is indexed by rank and has `world` entries.
    pub fn collect(
        &self,
        peers: &[u32],
        world: u32,
        nonce: &[u8; 16],
        mut wait: StepWait,
    ) -> Result<Vec<Option<OwnedFd>>, Error> {
        let mut fds: Vec<Option<OwnedFd>> = (0..world).map(|_| None).collect();
        let missing = |fds: &[Option<OwnedFd>]| -> Vec<u32> {
            let missing = peers.iter().filter(|&&peer| fds[peer as usize].is_none());
            missing.copied().collect()
        };
        while !missing(&fds).is_empty() {
            if let Some(ended) = wait.look(Duration::ZERO) {
                return Err(wait.error(ended, missing(&fds)));
            }
            match self.listener.accept() {
                Ok((stream, _)) => match receive(&stream, nonce) {
                    Ok((peer, fd)) if peers.contains(&peer) && fds[peer as usize].is_none() => {
                        fds[peer as usize] = Some(fd);
                    }
                    // Other programs can connect to the socket too. Their messages are ignored and do not stop the
                    // ranks.
                    Ok((peer, _)) => {
                        tracing::warn!(peer, "a memory handle from an unexpected rank was dropped")
                    }
                    Err(error @ Error::OpenFiles { .. }) => return Err(error),
                    Err(error) => {
                        tracing::warn!(%error, "a connection to the handle socket was dropped")
                    }
                },
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::sleep(POLL),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(os("accept")(error)),
            }
        }
        Ok(fds)
    }
}

/// Sends `fd` to the mailbox `name` of rank `peer`.
pub(super) fn deliver(
    fd: BorrowedFd<'_>,
    rank: u32,
    nonce: &[u8; 16],
    peer: u32,
    name: &[u8],
) -> Result<(), Error> {
    let protocol = |source| Error::Protocol {
        peer: Peer::Rank(peer),
        step: STEP,
        source,
    };
    if name.len() != 16 {
        return Err(protocol(ProtocolFault::Malformed));
    }
    let stream = UnixStream::connect_addr(&address(name)?).map_err(os(
        "connect to a rank's unix socket (containers of one job must share the network namespace)",
    ))?;
    check_user(&stream).map_err(protocol)?;
    let mut message = [0; MESSAGE_BYTES];
    message[..16].copy_from_slice(nonce);
    message[16..].copy_from_slice(&rank.to_le_bytes());
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [fd];
    control.push(SendAncillaryMessage::ScmRights(&fds));
    // The buffer of a new socket has room for a message this small, so this call does not wait for the peer.
    let sent = retry_on_intr(|| {
        sendmsg(
            &stream,
            &[IoSlice::new(&message)],
            &mut control,
            SendFlags::NOSIGNAL,
        )
    })
    .map_err(|error| os("sendmsg of a memory handle")(error.into()))?;
    if sent == MESSAGE_BYTES {
        Ok(())
    } else {
        Err(protocol(ProtocolFault::Malformed))
    }
}

fn receive(stream: &UnixStream, nonce: &[u8; 16]) -> Result<(u32, OwnedFd), Error> {
    let protocol = |source| Error::Protocol {
        peer: Peer::Unknown,
        step: STEP,
        source,
    };
    check_user(stream).map_err(protocol)?;
    // A sender writes immediately after it connects, so a connection without data for a second is not from a rank.
    stream
        .set_read_timeout(Some(Duration::from_secs(1)))
        .map_err(os("set_read_timeout"))?;
    let mut message = [0; MESSAGE_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = retry_on_intr(|| {
        recvmsg(
            stream,
            &mut [IoSliceMut::new(&mut message)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        )
    })
    .map_err(|error| os("recvmsg of a memory handle")(error.into()))?;
    let fd = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    if received.bytes != MESSAGE_BYTES || message[..16] != nonce[..] {
        return Err(protocol(ProtocolFault::OtherJob));
    }
    let rank = u32::from_le_bytes([message[16], message[17], message[18], message[19]]);
    match fd {
        Some(fd) => Ok((rank, fd)),
        // The kernel omits a descriptor if this process cannot have more open files.
        None if received.flags.contains(ReturnFlags::CTRUNC) => {
            Err(os("recvmsg of a memory handle")(Errno::MFILE.into()))
        }
        None => Err(protocol(ProtocolFault::Malformed)),
    }
}

fn check_user(stream: &UnixStream) -> Result<(), ProtocolFault> {
    let expected = rustix::process::geteuid().as_raw();
    let found = socket_peercred(stream.as_fd())
        .map_err(|_| ProtocolFault::Malformed)?
        .uid
        .as_raw();
    if found == expected {
        Ok(())
    } else {
        Err(ProtocolFault::User { found, expected })
    }
}

fn address(name: &[u8]) -> Result<SocketAddr, Error> {
    let name: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
    SocketAddr::from_abstract_name(format!("mkernel-{name}"))
        .map_err(os("address of a unix socket"))
}

/// Returns 16 bytes from the random number generator of the kernel.
pub(super) fn random_bytes() -> Result<[u8; 16], Error> {
    let mut bytes = [0; 16];
    let mut rest = &mut bytes[..];
    while !rest.is_empty() {
        let count = retry_on_intr(|| getrandom(&mut *rest, GetRandomFlags::empty()))
            .map_err(|error| os("getrandom")(error.into()))?;
        rest = &mut rest[count..];
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::super::wait::Stop;
    use super::*;
    use std::io::{Read, Seek, Write};

    const NONCE: [u8; 16] = [5; 16];

    fn file_with(text: &str) -> std::fs::File {
        let mut file = tempfile::tempfile().expect("a temporary file");
        file.write_all(text.as_bytes()).expect("written");
        file
    }

    fn text_of(fd: OwnedFd) -> String {
        let mut file = std::fs::File::from(fd);
        let mut text = String::new();
        file.rewind().expect("seekable");
        file.read_to_string(&mut text).expect("readable");
        text
    }

    #[test]
    fn connections_of_other_programs_are_ignored() {
        let mailbox = Mailbox::open().expect("opened");
        let to = address(mailbox.name()).expect("an address");
        // The messages are garbage, a wrong nonce, this rank itself, a rank beyond the world, a duplicate, and a silent
        // connection.
        UnixStream::connect_addr(&to)
            .expect("connects")
            .write_all(b"garbage")
            .expect("sent");
        let file = file_with("wrong");
        deliver(file.as_fd(), 1, &[6; 16], 0, mailbox.name()).expect("sent");
        deliver(file.as_fd(), 0, &NONCE, 0, mailbox.name()).expect("sent");
        deliver(file.as_fd(), 9, &NONCE, 0, mailbox.name()).expect("sent");
        deliver(file_with("one").as_fd(), 1, &NONCE, 0, mailbox.name()).expect("sent");
        deliver(file.as_fd(), 1, &NONCE, 0, mailbox.name()).expect("sent");
        let silent = UnixStream::connect_addr(&to).expect("connects");
        deliver(file_with("two").as_fd(), 2, &NONCE, 0, mailbox.name()).expect("sent");
        let fds = mailbox
            .collect(
                &[1, 2],
                3,
                &NONCE,
                StepWait::new(STEP, Duration::from_secs(20)),
            )
            .expect("both ranks came");
        drop(silent);
        let texts: Vec<_> = fds.into_iter().map(|fd| fd.map(text_of)).collect();
        assert_eq!(
            texts,
            [None, Some("one".to_owned()), Some("two".to_owned())]
        );
    }

    #[test]
    fn a_message_without_a_descriptor_is_no_delivery() {
        let mailbox = Mailbox::open().expect("opened");
        let mut stream = UnixStream::connect_addr(&address(mailbox.name()).expect("an address"))
            .expect("connects");
        let message = [&NONCE[..], &1u32.to_le_bytes()].concat();
        stream.write_all(&message).expect("sent");
        let error = mailbox
            .collect(
                &[1],
                2,
                &NONCE,
                StepWait::new(STEP, Duration::from_millis(200)),
            )
            .expect_err("nothing came");
        assert!(
            matches!(&error, Error::RanksMissing { ranks, .. } if *ranks == [1]),
            "{error}"
        );
    }

    #[test]
    fn a_stop_ends_the_wait_for_descriptors() {
        let mailbox = Mailbox::open().expect("opened");
        let stop = Stop::default();
        let wait = StepWait::new(STEP, Duration::from_secs(20)).with(stop.clone(), None);
        let started = std::time::Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| stop.set());
            let error = mailbox.collect(&[1], 2, &NONCE, wait).err();
            assert!(matches!(error, Some(Error::Aborted { cause: None })));
        });
        assert!(started.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn a_malformed_name_or_a_closed_mailbox_is_an_error() {
        let file = file_with("x");
        let error = deliver(file.as_fd(), 0, &NONCE, 1, b"short").expect_err("a bad name");
        assert!(
            matches!(
                error,
                Error::Protocol {
                    peer: Peer::Rank(1),
                    ..
                }
            ),
            "{error}"
        );
        let gone = Mailbox::open().expect("opened").name().to_vec();
        let error = deliver(file.as_fd(), 0, &NONCE, 1, &gone).expect_err("nobody listens");
        assert!(matches!(error, Error::Os { .. }), "{error}");
    }
}
