//! The messages by which a rank and rank 0 authenticate each other:
//!
//! ```text
//! rank                                        rank 0
//! Hello      rank, world, job, host,      ──▶
//!            random number
//!                                         ◀── Challenge  random number, whether this job has a secret
//! Proof      HMAC of both messages        ──▶
//!            (all ranks have connected)
//!                                         ◀── Welcome    the job's nonce, the ranks that are connected,
//!                                                         and their hosts, HMAC of all of this
//! ```
//! Without a secret, proofs are empty. When a job is rebuilt, its lowest rank that is left takes the part of rank 0.

use super::job::Job;
use super::secret::{PROOF_BYTES, Side};
use crate::bootstrap::fds::random_bytes;
use crate::bootstrap::host_map::HostMap;
use crate::bootstrap::wire::{Frame, FrameKind, Nonce, Reader, put_string};
use crate::error::{Error, ProtocolFault};

/// A random number that belongs to one connection.
type Number = [u8; 16];

/// The longest name of a host or a job, in bytes.
pub(crate) const MAX_NAME_BYTES: usize = 256;

/// The first message of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub rank: u32,
    pub world: u32,
    pub job: Vec<u8>,
    /// The id of the host, which no other host has.
    pub host: Vec<u8>,
    number: Number,
}

impl Hello {
    pub fn new(job: &Job) -> Result<Self, Error> {
        let cut = |text: &str| text.as_bytes()[..text.len().min(MAX_NAME_BYTES)].to_vec();
        Ok(Self {
            rank: job.rank,
            world: job.world,
            job: cut(&job.name),
            host: cut(&job.host_id),
            number: random_bytes()?,
        })
    }

    pub fn frame(&self) -> Frame {
        let mut payload = Vec::new();
        payload.extend_from_slice(&self.rank.to_le_bytes());
        payload.extend_from_slice(&self.world.to_le_bytes());
        put_string(&mut payload, &self.job);
        put_string(&mut payload, &self.host);
        payload.extend_from_slice(&self.number);
        Frame {
            kind: FrameKind::Hello,
            nonce: Nonce::default(),
            payload,
        }
    }

    /// Checks the first message of a connection against the own message of the rank that accepts.
    pub fn check(frame: &Frame, own: &Self) -> Result<Self, ProtocolFault> {
        if frame.kind != FrameKind::Hello {
            return Err(ProtocolFault::Malformed);
        }
        let mut reader = Reader(&frame.payload);
        let (rank, world) = (reader.u32()?, reader.u32()?);
        let (job, host) = (reader.string()?.to_vec(), reader.string()?.to_vec());
        let number = reader.array()?;
        reader.end()?;
        if job.len().max(host.len()) > MAX_NAME_BYTES {
            return Err(ProtocolFault::Malformed);
        }
        if job != own.job {
            return Err(ProtocolFault::OtherJob);
        }
        if world != own.world {
            let expected = own.world;
            return Err(ProtocolFault::World {
                found: world,
                expected,
            });
        }
        if rank <= own.rank || rank >= world {
            return Err(ProtocolFault::Rank { rank, world });
        }
        Ok(Self {
            rank,
            world,
            job,
            host,
            number,
        })
    }
}

/// Rank 0's answer to a [`Hello`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Challenge {
    number: Number,
    has_secret: bool,
}

impl Challenge {
    pub fn new(job: &Job) -> Result<Self, Error> {
        Ok(Self {
            number: random_bytes()?,
            has_secret: job.secret.is_some(),
        })
    }

    pub fn frame(&self) -> Frame {
        let mut payload = self.number.to_vec();
        payload.push(u8::from(self.has_secret));
        Frame {
            kind: FrameKind::Challenge,
            nonce: Nonce::default(),
            payload,
        }
    }

    /// Checks that both ends have a secret, or that neither has one.
    pub fn check(frame: &Frame, job: &Job) -> Result<Self, ProtocolFault> {
        let mut reader = Reader(&frame.payload);
        let (number, has_secret) = (reader.array()?, reader.u8()? != 0);
        reader.end()?;
        match (has_secret, job.secret.is_some()) {
            (true, false) => Err(ProtocolFault::SecretMissing),
            (false, true) => Err(ProtocolFault::NoSecret),
            _ => Ok(Self { number, has_secret }),
        }
    }
}

/// The bytes of [`Hello`] and [`Challenge`], which are equal on both ends of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Transcript {
    messages: Vec<u8>,
}

impl Transcript {
    pub fn new(hello: &Hello, challenge: &Challenge) -> Self {
        let messages = [hello.frame().encode(), challenge.frame().encode()].concat();
        Self { messages }
    }

    /// Returns the rank's proof.
    pub fn proof(&self, job: &Job) -> Frame {
        let secret = job.secret.as_ref();
        let proof = secret.map(|secret| secret.prove(Side::Client, &self.messages).to_vec());
        Frame {
            kind: FrameKind::Proof,
            nonce: Nonce::default(),
            payload: proof.unwrap_or_default(),
        }
    }

    pub fn check_proof(&self, frame: &Frame, job: &Job) -> Result<(), ProtocolFault> {
        if frame.kind != FrameKind::Proof {
            return Err(ProtocolFault::Malformed);
        }
        let is_right = match &job.secret {
            Some(secret) => secret.verify(Side::Client, &self.messages, &frame.payload),
            None => frame.payload.is_empty(),
        };
        is_right.then_some(()).ok_or(ProtocolFault::WrongSecret)
    }

    /// Returns the last message of rank 0. Its proof covers the payload.
    pub fn welcome(&self, job: &Job, nonce: Nonce, admitted: &Admitted) -> Frame {
        let mut payload = admitted.to_bytes();
        if let Some(secret) = &job.secret {
            let messages = [&self.messages[..], &nonce, &payload].concat();
            payload.extend_from_slice(&secret.prove(Side::Server, &messages));
        }
        Frame {
            kind: FrameKind::Welcome,
            nonce,
            payload,
        }
    }

    pub fn check_welcome(&self, frame: &Frame, job: &Job) -> Result<Admitted, ProtocolFault> {
        let mut payload = frame.payload.as_slice();
        if let Some(secret) = &job.secret {
            let end = payload.len().checked_sub(PROOF_BYTES);
            let (body, proof) = payload.split_at(end.ok_or(ProtocolFault::WrongSecret)?);
            let messages = [&self.messages[..], &frame.nonce, body].concat();
            if !secret.verify(Side::Server, &messages, proof) {
                return Err(ProtocolFault::WrongSecret);
            }
            payload = body;
        }
        Admitted::read(payload, job)
    }
}

/// The ranks that a rendezvous has connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Admitted {
    /// The ranks in the job, in ascending order. The first rank has accepted the others.
    pub ranks: Vec<u32>,
    /// The hosts of `ranks`.
    pub hosts: HostMap,
}

impl Admitted {
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = (self.ranks.len() as u32).to_le_bytes().to_vec();
        bytes.extend(self.ranks.iter().flat_map(|rank| rank.to_le_bytes()));
        self.hosts.encode(&mut bytes);
        bytes
    }

    /// Reads the ranks. This rank must be among them.
    fn read(bytes: &[u8], job: &Job) -> Result<Self, ProtocolFault> {
        let mut reader = Reader(bytes);
        let count = reader.u32()?;
        if count > job.world {
            return Err(ProtocolFault::Malformed);
        }
        let ranks = (0..count)
            .map(|_| reader.u32())
            .collect::<Result<Vec<_>, _>>()?;
        let hosts = HostMap::decode(&mut reader, count)?;
        reader.end()?;
        let ascend = ranks.is_sorted_by(|a, b| a < b);
        let are_of_job = ranks.last().is_some_and(|last| *last < job.world);
        match ascend && are_of_job && ranks.contains(&job.rank) {
            true => Ok(Self { ranks, hosts }),
            false => Err(ProtocolFault::Malformed),
        }
    }

    /// Returns the place of a rank of the job among these ranks.
    pub fn place_of(&self, rank: u32) -> u32 {
        let lower = self.ranks.iter().take_while(|other| **other < rank);
        lower.count() as u32
    }
}
