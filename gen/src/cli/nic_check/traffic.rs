//! Traffic of random sizes between all ranks and their peers, which checks each put right after its arrival.

use super::job::Job;
use mkernel::Error;
use mkernel::network::{NicProbe, ProbePut};
use std::time::Instant;

/// The puts to a peer that are in flight at once, each with a slot of its own.
const SLOTS: u32 = 4;
/// The channel of puts, and the channel of acknowledgements that a put was checked.
const DATA: u16 = 0;
const ACK: u16 = 1;

/// The puts that every rank makes to each of its peers.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub puts: u32,
    /// The length of the longest put, a multiple of 8.
    pub most_bytes: u32,
    pub seed: u64,
}

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

impl Load {
    /// The words of a slot: those of the longest put, and one that must not change.
    fn slot_words(&self) -> usize {
        (self.most_bytes / 8) as usize + 1
    }

    /// The bytes that source and target need for this number of peers.
    pub fn region_bytes(&self, peers: usize) -> u64 {
        (self.slot_words() * SLOTS as usize * peers.max(1) * 8) as u64
    }

    fn slot(&self, peer: u32, put: u32) -> usize {
        (peer * SLOTS + put % SLOTS) as usize * self.slot_words()
    }

    fn seed(&self, from: u32, to: u32, put: u32) -> u64 {
        let of_put = u64::from(from) << 48 | u64::from(to) << 32 | u64::from(put);
        mix(self.seed ^ of_put)
    }

    /// The words of a put. Each power of two is about as likely as every other.
    fn words(&self, seed: u64) -> usize {
        let most = u64::from(self.most_bytes / 8);
        let scale = seed % (u64::from(most.ilog2()) + 1);
        let words = 1 + mix(seed) % (1 << (scale + 1));
        words.min(most) as usize
    }
}

/// Mixes the bits of a number, as SplitMix64 does.
fn mix(number: u64) -> u64 {
    let z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
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
    use crate::cli::nic_check::NicCheck;
    use mkernel::network::Transport;
    use mkernel::{Communicator, Simulation};

    #[test]
    fn sizes_cover_all_scales_up_to_the_limit() {
        let load = Load {
            puts: 1,
            most_bytes: 4096,
            seed: 3,
        };
        let sizes: Vec<_> = (0..4000)
            .map(|put| load.words(load.seed(0, 1, put)))
            .collect();
        assert_eq!(sizes.iter().max(), Some(&512));
        assert_eq!(sizes.iter().min(), Some(&1));
        for scale in 0..9 {
            let range = 1 << scale..2 << scale;
            assert!(sizes.iter().any(|size| range.contains(size)), "{range:?}");
        }
        let least = Load {
            most_bytes: 8,
            ..load
        };
        assert_eq!(least.words(least.seed(0, 1, 2)), 1);
    }

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
