//! Traffic of random sizes between all ranks and their peers, which checks each put right after its arrival.

use super::job::Job;
use super::load::{Load, SLOTS};
use mkernel::Error;
use mkernel::network::{NicProbe, ProbePut};
use std::time::Instant;

/// The channel of puts, and the channel of acknowledgements that a put was checked.
const DATA: u16 = 0;
const ACK: u16 = 1;

/// What a rank has found in the puts of its peers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    pub puts: u64,
    pub bytes: u64,
    /// The puts with wrong words.
    pub wrong_puts: u64,
    pub wrong_words: u64,
    /// The wrong words in which no byte had arrived.
    pub poisoned_words: u64,
    /// The puts that changed memory behind their last byte.
    pub spills: u64,
}

/// A rank's side of the traffic.
struct Side<'a> {
    job: &'a Job<'a>,
    probe: &'a NicProbe,
    load: Load,
    tally: Tally,
    /// For each peer: the puts made, and the puts of the peer that were checked.
    sent: Vec<u32>,
    checked: Vec<u32>,
    /// For each peer: the arrivals before this traffic.
    before: Vec<(u32, u32)>,
}

/// Makes all puts of a load and checks the puts of all peers. All ranks must call this.
pub fn run(job: &Job<'_>, probe: &NicProbe, load: Load) -> Result<Tally, Error> {
    let peers = probe.peers().len();
    let arrived = |peer: usize, channel| probe.arrived(peer as u16, channel);
    let before = (0..peers).map(|peer| (arrived(peer, DATA), arrived(peer, ACK)));
    let mut side = Side {
        job,
        probe,
        load,
        tally: Tally::default(),
        sent: vec![0; peers],
        checked: vec![0; peers],
        before: before.collect(),
    };
    let words = load.slot_words() * SLOTS as usize * peers;
    probe.target().poison(0, words);
    job.ranks.barrier()?;
    side.exchange()?;
    // Peers may still wait for acknowledgements.
    job.ranks.barrier()?;
    Ok(side.tally)
}

impl Side<'_> {
    fn exchange(&mut self) -> Result<(), Error> {
        let mut last = Instant::now();
        while !self.is_over() {
            let mut has_moved = false;
            for peer in 0..self.sent.len() as u16 {
                has_moved |= self.send(peer)? | self.receive(peer)?;
            }
            if has_moved {
                last = Instant::now();
                continue;
            }
            self.probe.check()?;
            // The connections of ranks detect the end of a process sooner than NICs.
            self.job.ranks.check()?;
            if last.elapsed() > self.job.ranks.timeout() {
                return Err(self.late());
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        let puts = self.load.puts;
        let acks = |peer| self.acks(peer as u16) == puts;
        (0..self.sent.len()).all(|peer| self.checked[peer] == puts && acks(peer))
    }

    fn acks(&self, peer: u16) -> u32 {
        let (_, before) = self.before[usize::from(peer)];
        self.probe.arrived(peer, ACK).wrapping_sub(before)
    }

    /// Makes the puts for which slots are free.
    fn send(&mut self, peer: u16) -> Result<bool, Error> {
        let (at, load) = (usize::from(peer), self.load);
        let (from, to) = (self.job.ranks.rank(), self.probe.peers()[at]);
        let own = self.probe.own_index(peer);
        let first = self.sent[at];
        let end = load.puts.min(self.acks(peer) + SLOTS);
        for put in first..end {
            let seed = load.seed(from, to, put);
            let (words, source) = (load.words(seed), load.slot(peer.into(), put));
            self.probe.source().write(source, words, seed);
            self.probe.put(&ProbePut {
                peer,
                channel: DATA,
                bytes: words as u32 * 8,
                source: source as u64 * 8,
                target: load.slot(own, put) as u64 * 8,
            })?;
        }
        self.sent[at] = end.max(first);
        Ok(end > first)
    }

    /// Checks the puts that have arrived, and poisons their slots for later puts.
    fn receive(&mut self, peer: u16) -> Result<bool, Error> {
        let (at, load) = (usize::from(peer), self.load);
        let (from, to) = (self.probe.peers()[at], self.job.ranks.rank());
        let arrived = self
            .probe
            .arrived(peer, DATA)
            .wrapping_sub(self.before[at].0);
        let first = self.checked[at];
        for put in first..arrived {
            let seed = load.seed(from, to, put);
            let (words, slot) = (load.words(seed), load.slot(peer.into(), put));
            let target = self.probe.target();
            let found = target.compare(slot, words, seed);
            self.tally.puts += 1;
            self.tally.bytes += words as u64 * 8;
            self.tally.wrong_puts += u64::from(found.wrong > 0);
            self.tally.wrong_words += found.wrong;
            self.tally.poisoned_words += found.poisoned;
            self.tally.spills += u64::from(!target.is_poisoned(slot + words, 1));
            target.poison(slot, words + 1);
            self.probe.put(&ProbePut {
                peer,
                channel: ACK,
                ..ProbePut::default()
            })?;
        }
        self.checked[at] = arrived.max(first);
        Ok(arrived > first)
    }

    fn late(&self) -> Error {
        let puts = self.load.puts;
        let counts = self.probe.peers().iter().zip(&self.checked).zip(0..);
        let missing: Vec<_> = counts
            .filter(|((_, checked), peer)| **checked < puts || self.acks(*peer) < puts)
            .map(|((rank, checked), peer)| {
                let acks = self.acks(peer);
                format!("{checked} of {puts} puts of rank {rank} have arrived, and it has acknowledged {acks}")
            })
            .collect();
        self.job.late(&missing.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::nic_check::args::NicCheck;
    use mkernel::network::Transport;
    use mkernel::{Communicator, Simulation};

    /// Peers with other seeds put other bytes, and puts of other lengths.
    #[test]
    fn wrong_bytes_are_counted() {
        let ranks = Communicator::simulated(&Simulation::default()).expect("simulated GPUs");
        let args = NicCheck::parse(&[]);
        let transport = Transport::default();
        let tally = |ranks: &Communicator, seed: u64| {
            let load = Load {
                puts: 20,
                most_bytes: 512,
                seed,
            };
            let job = Job::new(ranks, &args, &transport);
            let probe = job.probe(&transport, &load).expect("connects");
            run(&job, &probe, load).expect("arrives")
        };
        for (seeds, are_right) in [([5, 5], true), ([5, 6], false)] {
            let tallies: Vec<Tally> = std::thread::scope(|scope| {
                let tally = &tally;
                let start = |(ranks, seed)| scope.spawn(move || tally(ranks, seed));
                let threads: Vec<_> = ranks.iter().zip(seeds).map(start).collect();
                threads
                    .into_iter()
                    .map(|thread| thread.join().expect("no panic"))
                    .collect()
            });
            for tally in tallies {
                assert_eq!(tally.puts, 20);
                assert_eq!(tally.wrong_puts == 0, are_right, "{tally:?}");
                assert_eq!(
                    tally.poisoned_words + tally.spills == 0,
                    are_right,
                    "{tally:?}"
                );
            }
        }
    }
}
