//! What a rank and rank 0 say to each other until they know each other:
//!
//! ```text
//! rank                                rank 0
//! Hello      who I am, my number  ──▶
//!                                 ◀── Challenge  my number, and whether this job has a secret
//! Proof      HMAC of all that     ──▶
//!            (all ranks have come)
//!                                 ◀── Welcome    the job's nonce and nodes, HMAC of all that
//! ```
//! Without a secret, proofs are empty.

use super::ProtocolFault;
use super::fds::random_bytes;
use super::meet::Job;
use super::nodes::Nodes;
use super::secret::{PROOF_BYTES, Role};
use super::wire::{Frame, Kind, Nonce, Reader, put_string};
use crate::error::Error;

/// A connection's random number.
type Number = [u8; 16];

/// The most that a rank may say of its host or its job.
pub(crate) const MAX_NAME_BYTES: usize = 256;

/// How a rank presents itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub rank: u32,
    pub world: u32,
    pub job: Vec<u8>,
    /// What tells hosts apart.
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
            kind: Kind::Hello,
            nonce: Nonce::default(),
            payload,
        }
    }

    /// What a stranger says, checked against what rank 0 knows.
    pub fn check(frame: &Frame, own: &Self) -> Result<Self, ProtocolFault> {
        if frame.kind != Kind::Hello {
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
        if rank == 0 || rank >= world {
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
pub(super) struct Challenge {
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
            kind: Kind::Challenge,
            nonce: Nonce::default(),
            payload,
        }
    }

    /// A rank with a secret joins nobody who has none, and the other way round.
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

/// A conversation after [`Hello`] and [`Challenge`]; both ends have the same.
#[derive(Clone, Debug)]
pub(super) struct Conversation {
    said: Vec<u8>,
}

impl Conversation {
    pub fn new(hello: &Hello, challenge: &Challenge) -> Self {
        let said = [hello.frame().encode(), challenge.frame().encode()].concat();
        Self { said }
    }

    /// The rank's proof.
    pub fn proof(&self, job: &Job) -> Frame {
        let secret = job.secret.as_ref();
        let proof = secret.map(|secret| secret.prove(Role::Joins, &self.said).to_vec());
        Frame {
            kind: Kind::Proof,
            nonce: Nonce::default(),
            payload: proof.unwrap_or_default(),
        }
    }

    pub fn check_proof(&self, frame: &Frame, job: &Job) -> Result<(), ProtocolFault> {
        if frame.kind != Kind::Proof {
            return Err(ProtocolFault::Malformed);
        }
        let is_right = match &job.secret {
            Some(secret) => secret.verify(Role::Joins, &self.said, &frame.payload),
            None => frame.payload.is_empty(),
        };
        is_right.then_some(()).ok_or(ProtocolFault::WrongSecret)
    }

    /// Rank 0's last word: its proof covers what it brings.
    pub fn welcome(&self, job: &Job, nonce: Nonce, nodes: &Nodes) -> Frame {
        let mut payload = Vec::new();
        nodes.encode(&mut payload);
        if let Some(secret) = &job.secret {
            let said = [&self.said[..], &nonce, &payload].concat();
            payload.extend_from_slice(&secret.prove(Role::Gathers, &said));
        }
        Frame {
            kind: Kind::Welcome,
            nonce,
            payload,
        }
    }

    pub fn check_welcome(&self, frame: &Frame, job: &Job) -> Result<Nodes, ProtocolFault> {
        let mut payload = frame.payload.as_slice();
        if let Some(secret) = &job.secret {
            let end = payload.len().checked_sub(PROOF_BYTES);
            let (body, proof) = payload.split_at(end.ok_or(ProtocolFault::WrongSecret)?);
            let said = [&self.said[..], &frame.nonce, body].concat();
            if !secret.verify(Role::Gathers, &said, proof) {
                return Err(ProtocolFault::WrongSecret);
            }
            payload = body;
        }
        let mut reader = Reader(payload);
        let nodes = Nodes::decode(&mut reader, job.world)?;
        reader.end()?;
        Ok(nodes)
    }
}
