//! Frames on a TCP connection between two ranks. A frame consists of a magic number, the version, the kind, the job's
//! nonce, the length and the payload.

use super::connection_error::ConnectionError;
use super::heartbeats::{self, Sender, Silence};
use super::limits::MAX_STEP_BYTES;
use crate::error::ProtocolFault;
use rustix::net::sockopt::{
    set_socket_keepalive, set_tcp_keepidle, set_tcp_keepintvl, set_tcp_user_timeout,
};
use std::io::{ErrorKind, Read};
use std::net::{IpAddr, TcpStream};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// The longest payload that rank 0 sends: the contributions of all ranks, or their hosts.
pub(super) fn root_bytes(world: u32) -> usize {
    (world as usize)
        .saturating_mul(MAX_STEP_BYTES + 4)
        .saturating_add(UNVERIFIED_BYTES)
}

/// A random number that rank 0 creates for each job. Frames with another number are refused.
pub(super) type Nonce = [u8; 16];

pub(super) const VERSION: u16 = 5;
/// The longest payload of a process that has not proved yet that it is a rank.
pub(super) const UNVERIFIED_BYTES: usize = 1 << 10;
/// The longest payload of a rank: its contribution and the name of the step.
pub(super) const RANK_BYTES: usize = MAX_STEP_BYTES + (1 << 10);
const MAGIC: [u8; 4] = *b"MKRN";
const HEADER_BYTES: usize = 28;

/// The purpose of a frame.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameKind {
    /// A rank sends its number and its job to rank 0. The nonce is zero.
    Hello = 1,
    /// Rank 0 accepts the rank. From this frame on, frames carry the nonce of the job.
    Welcome = 2,
    /// Rank 0 refuses the rank and sends the reason.
    Refused = 3,
    /// A rank's contribution to a step.
    Contribution = 4,
    /// The contributions of all ranks.
    Complete = 5,
    /// The step cannot be completed.
    Failed = 6,
    /// Rank 0 requests a proof. The nonce is zero.
    Challenge = 7,
    /// A rank proves that it knows the job's secret. The nonce is zero.
    Proof = 8,
    /// A rank closes its connection in an orderly way, so it is not considered lost.
    Goodbye = 9,
    /// The process of a rank is alive.
    Heartbeat = 10,
}

impl FrameKind {
    fn from_number(number: u8) -> Option<Self> {
        [
            Self::Hello,
            Self::Welcome,
            Self::Refused,
            Self::Contribution,
            Self::Complete,
            Self::Failed,
            Self::Challenge,
            Self::Proof,
            Self::Goodbye,
            Self::Heartbeat,
        ]
        .into_iter()
        .find(|kind| *kind as u8 == number)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub kind: FrameKind,
    pub nonce: Nonce,
    pub payload: Vec<u8>,
}

impl Frame {
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + self.payload.len());
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&[self.kind as u8, 0]);
        bytes.extend_from_slice(&self.nonce);
        bytes.extend_from_slice(
            &u32::try_from(self.payload.len())
                .unwrap_or(u32::MAX)
                .to_le_bytes(),
        );
        bytes.extend_from_slice(&self.payload);
        bytes
    }

    /// Decodes the first frame in `bytes`. Returns it with its length, or `None` if the frame is not complete yet. The
    /// payload may have at most `limit` bytes. Faults are reported as early as the bytes allow.
    pub fn decode(bytes: &[u8], limit: usize) -> Result<Option<(Self, usize)>, ProtocolFault> {
        let known = bytes.len().min(MAGIC.len());
        if bytes[..known] != MAGIC[..known] {
            return Err(ProtocolFault::NotMkernel);
        }
        let Some(header) = bytes.first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let found = u16::from_le_bytes([header[4], header[5]]);
        if found != VERSION {
            return Err(ProtocolFault::Version {
                found,
                expected: VERSION,
            });
        }
        let kind = FrameKind::from_number(header[6]).ok_or(ProtocolFault::Malformed)?;
        let mut nonce = Nonce::default();
        nonce.copy_from_slice(&header[8..24]);
        let length = u32::from_le_bytes([header[24], header[25], header[26], header[27]]) as usize;
        if length > limit {
            return Err(ProtocolFault::TooLong {
                bytes: length,
                limit,
            });
        }
        let end = HEADER_BYTES + length;
        Ok(bytes.get(HEADER_BYTES..end).map(|payload| {
            (
                Self {
                    kind,
                    nonce,
                    payload: payload.to_vec(),
                },
                end,
            )
        }))
    }
}

/// A connection whose operations never block.
pub(super) struct Connection {
    stream: Arc<TcpStream>,
    sender: Arc<Sender>,
    silence: Box<Silence>,
    received: Vec<u8>,
    /// The longest payload that is accepted. It bounds the memory that the other end can use.
    limit: usize,
}

impl Connection {
    /// Wraps a connection to a process that has not proved yet that it is a rank. See [`detect_silence`] for `timeout`.
    pub fn new(stream: TcpStream, timeout: Duration) -> std::io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        detect_silence(&stream, timeout)?;
        let stream = Arc::new(stream);
        Ok(Self {
            sender: Arc::new(Sender::new(stream.clone())),
            silence: Box::new(Silence::new(heartbeats::limit(timeout))),
            stream,
            received: Vec::new(),
            limit: UNVERIFIED_BYTES,
        })
    }

    #[cfg(test)]
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Returns the sending side, for heartbeats.
    pub fn sender(&self) -> Weak<Sender> {
        Arc::downgrade(&self.sender)
    }

    /// Returns the address of this end.
    pub fn own_address(&self) -> Option<IpAddr> {
        let address = self.stream.local_addr().ok()?;
        Some(address.ip().to_canonical())
    }

    /// Accepts payloads of up to `limit` bytes from now on.
    pub fn allow(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// Returns the next frame other than a heartbeat, if one has arrived. A connection whose heartbeats have stopped is closed.
    pub fn poll(&mut self) -> Result<Option<Frame>, ConnectionError> {
        let mut buffer = [0; 16 << 10];
        loop {
            if let Some((frame, length)) = Frame::decode(&self.received, self.limit)? {
                self.received.drain(..length);
                // A process that is not known to be a rank sends no heartbeats.
                if frame.kind == FrameKind::Heartbeat && self.limit > UNVERIFIED_BYTES {
                    self.silence.begin();
                    continue;
                }
                return Ok(Some(frame));
            }
            match (&*self.stream).read(&mut buffer) {
                Ok(0) => return Err(ConnectionError::Closed),
                Ok(count) => {
                    self.silence.end();
                    self.received.extend_from_slice(&buffer[..count]);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return match self.silence.is_over_limit() {
                        true => Err(ConnectionError::Closed),
                        false => Ok(None),
                    };
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Err(ConnectionError::Closed),
            }
        }
    }

    pub fn send(&mut self, frame: &Frame, deadline: Instant) -> Result<(), ConnectionError> {
        self.send_until(frame, || Instant::now() >= deadline)
    }

    /// Sends a frame as [`send`](Self::send) does, but gives up when `is_over` returns true.
    pub fn send_until(
        &mut self,
        frame: &Frame,
        is_over: impl FnMut() -> bool,
    ) -> Result<(), ConnectionError> {
        self.sender.send_until(&frame.encode(), is_over)
    }
}

/// Makes TCP close a connection whose other end is silent for two thirds of `timeout`. A host that loses power or its
/// network does not close its connections. The kernel of a process that is alive or stopped still answers.
pub(super) fn detect_silence(stream: &TcpStream, timeout: Duration) -> std::io::Result<()> {
    // TCP counts whole seconds.
    let silence = (timeout * 2 / 3).clamp(Duration::from_secs(2), Duration::from_secs(60));
    let between = Duration::from_secs((silence / 8).as_secs().max(1));
    set_tcp_keepidle(stream, between)?;
    set_tcp_keepintvl(stream, between)?;
    // This limit applies regardless of the number of unanswered packets.
    set_tcp_user_timeout(stream, silence.as_millis() as u32)?;
    set_socket_keepalive(stream, true)?;
    Ok(())
}

/// Reads a payload from front to back. Every read is checked against its length.
pub(super) struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub fn u8(&mut self) -> Result<u8, ProtocolFault> {
        Ok(self.bytes(1)?[0])
    }

    pub fn u32(&mut self) -> Result<u32, ProtocolFault> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn bytes(&mut self, count: usize) -> Result<&'a [u8], ProtocolFault> {
        let (value, rest) = self
            .0
            .split_at_checked(count)
            .ok_or(ProtocolFault::Malformed)?;
        self.0 = rest;
        Ok(value)
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], ProtocolFault> {
        let (value, rest) = self.0.split_first_chunk().ok_or(ProtocolFault::Malformed)?;
        self.0 = rest;
        Ok(*value)
    }

    /// Checks that the whole payload was read.
    pub fn end(&self) -> Result<(), ProtocolFault> {
        self.0
            .is_empty()
            .then_some(())
            .ok_or(ProtocolFault::Malformed)
    }

    /// Reads a byte string that is preceded by its length.
    pub fn string(&mut self) -> Result<&'a [u8], ProtocolFault> {
        let count = self.u32()? as usize;
        self.bytes(count)
    }
}

/// Appends a byte string in the form that [`Reader::string`] reads.
pub(super) fn put_string(to: &mut Vec<u8>, bytes: &[u8]) {
    to.extend_from_slice(&u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_le_bytes());
    to.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame() -> Frame {
        Frame {
            kind: FrameKind::Contribution,
            nonce: [7; 16],
            payload: b"payload".to_vec(),
        }
    }

    fn decode(bytes: &[u8]) -> Result<Option<(Frame, usize)>, ProtocolFault> {
        Frame::decode(bytes, UNVERIFIED_BYTES)
    }

    #[test]
    fn a_frame_comes_back_whole_and_only_when_whole() {
        let bytes = frame().encode();
        for end in 0..bytes.len() {
            assert_eq!(decode(&bytes[..end]), Ok(None), "{end} bytes");
        }
        assert_eq!(
            decode(&[&bytes, &b"MKRN"[..]].concat()),
            Ok(Some((frame(), bytes.len())))
        );
    }

    #[test]
    fn foreign_bytes_are_distinguished_from_short_frames() {
        assert_eq!(decode(b"GET / HTTP/1.1"), Err(ProtocolFault::NotMkernel));
        assert_eq!(decode(b"MKX"), Err(ProtocolFault::NotMkernel));
        let mut bytes = frame().encode();
        bytes[4] = 9;
        assert_eq!(
            decode(&bytes),
            Err(ProtocolFault::Version {
                found: 9,
                expected: VERSION
            })
        );
        let mut bytes = frame().encode();
        bytes[6] = 200;
        assert_eq!(decode(&bytes), Err(ProtocolFault::Malformed));
    }

    #[test]
    fn a_frame_cannot_cause_a_large_allocation() {
        let mut bytes = frame().encode();
        bytes[24..28].copy_from_slice(&u32::MAX.to_le_bytes());
        let error = decode(&bytes).expect_err("4 GiB");
        assert!(matches!(error, ProtocolFault::TooLong { .. }), "{error}");
    }

    #[test]
    fn a_reader_never_reads_past_the_end() {
        let mut payload = Vec::new();
        put_string(&mut payload, b"abc");
        let mut reader = Reader(&payload);
        assert_eq!(reader.string(), Ok(&b"abc"[..]));
        assert_eq!(reader.u32(), Err(ProtocolFault::Malformed));
        payload[0] = 200;
        assert_eq!(Reader(&payload).string(), Err(ProtocolFault::Malformed));
    }
}
