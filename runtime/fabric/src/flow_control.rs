//! The protocol between two endpoints: sequence numbers and credits out, order and exactly-once in.
//!
//! A put takes a credit. Its receiver gives the credit back when it has delivered the put *in order*; so no put can be
//! further ahead of a missing one than there are credits, and the window of a channel is that number.

use crate::endpoint_info::{MAX_CREDITS_IN_FLIGHT, put_credits};
use crate::immediate::{CREDIT_MODULUS, SEQUENCE_MODULUS};
use crate::reorder::{Insertion, ReorderBuffer};

/// Puts to a peer.
pub struct SendWindow {
    credits: u32,
    /// Puts posted, and those given back: modulo [`CREDIT_MODULUS`].
    posted: u32,
    delivered: u32,
    /// By channel.
    counts: Vec<u32>,
}

impl SendWindow {
    /// To a peer who keeps `receives` receives; each channel's count starts at `first`.
    pub fn new(receives: u32, channels: u16, first: u32) -> Self {
        Self {
            credits: put_credits(receives),
            posted: 0,
            delivered: 0,
            counts: vec![first; channels.into()],
        }
    }

    /// The sequence number of the channel's next put.
    pub fn next_sequence(&mut self, channel: u16) -> u32 {
        let count = &mut self.counts[usize::from(channel)];
        let sequence = *count % SEQUENCE_MODULUS;
        *count = count.wrapping_add(1);
        sequence
    }

    /// Puts that may be posted now.
    pub fn available(&self) -> u32 {
        self.credits - self.outstanding()
    }

    /// Puts were posted, at most as many as available.
    pub fn record_posted(&mut self, puts: u32) {
        self.posted = self.posted.wrapping_add(puts) % CREDIT_MODULUS;
    }

    fn outstanding(&self) -> u32 {
        self.posted.wrapping_sub(self.delivered) % CREDIT_MODULUS
    }

    /// The peer has delivered so many puts by now. Old unacknowledged are no fault, since nothing keeps them in order.
    ///
    /// # Errors
    ///
    /// What cannot be: more than were posted.
    pub fn receive_credit(&mut self, delivered: u32) -> Result<(), String> {
        let more = delivered.wrapping_sub(self.delivered) % CREDIT_MODULUS;
        if more >= CREDIT_MODULUS / 2 {
            return Ok(());
        }
        if more > self.outstanding() {
            let outstanding = self.outstanding();
            return Err(format!(
                "it gave {more} puts back, but {outstanding} are on their way"
            ));
        }
        self.delivered = delivered;
        Ok(())
    }
}

struct Channel {
    count: u32,
    reorder: ReorderBuffer,
}

/// Puts from a peer.
pub struct ReceiveWindow {
    channels: Vec<Channel>,
    batch: u32,
    /// Puts delivered, and those that the peer was told of: modulo [`CREDIT_MODULUS`].
    delivered: u32,
    acknowledged: u32,
    /// Credit messages that have not left.
    credits_in_flight: u32,
}

impl ReceiveWindow {
    /// For an endpoint that keeps `receives` receives per peer; each channel's count starts at `first`.
    pub fn new(receives: u32, channels: u16, first: u32) -> Self {
        let credits = put_credits(receives);
        let channel = |_| Channel {
            count: first,
            reorder: ReorderBuffer::new(credits),
        };
        Self {
            channels: (0..channels).map(channel).collect(),
            batch: credits.div_ceil(4),
            delivered: 0,
            acknowledged: 0,
            credits_in_flight: 0,
        }
    }

    /// A put came. The channel's new count, if it grew.
    ///
    /// # Errors
    ///
    /// What cannot be: an unknown channel, or a put further ahead than the sender has credits.
    pub fn receive_put(&mut self, channel: u16, sequence: u32) -> Result<Option<u32>, String> {
        let known = self.channels.len();
        let Some(Channel { count, reorder }) = self.channels.get_mut(usize::from(channel)) else {
            return Err(format!("a put on channel {channel}, but there are {known}"));
        };
        let distance = sequence.wrapping_sub(*count) % SEQUENCE_MODULUS;
        if distance >= SEQUENCE_MODULUS / 2 {
            return Ok(None); // delivered before
        }
        match reorder.insert(distance) {
            Insertion::New(0) | Insertion::Duplicate => Ok(None),
            Insertion::New(complete) => {
                *count = count.wrapping_add(complete);
                self.delivered = self.delivered.wrapping_add(complete) % CREDIT_MODULUS;
                Ok(Some(*count))
            }
            Insertion::OutOfRange => Err(format!(
                "put {sequence} of channel {channel} is {distance} ahead of the next one, more than it has credits"
            )),
        }
    }

    /// What the peer is to be told, if enough was delivered since it was told last, and what it was told has left.
    pub fn next_credit(&mut self) -> Option<u32> {
        let unacknowledged = self.delivered.wrapping_sub(self.acknowledged) % CREDIT_MODULUS;
        if unacknowledged < self.batch || self.credits_in_flight == MAX_CREDITS_IN_FLIGHT {
            return None;
        }
        self.acknowledged = self.delivered;
        self.credits_in_flight += 1;
        Some(self.delivered)
    }

    /// A credit message has left.
    pub fn credit_completed(&mut self) {
        self.credits_in_flight -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint_info::CREDIT_RECEIVES;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    const CHANNELS: u16 = 3;

    proptest! {
        /// Two endpoints, and a network that delays, reorders and repeats all that they say.
        #[test]
        fn puts_are_delivered_in_order_and_once_and_credits_never_run_dry(
            first in prop::sample::select(vec![0, SEQUENCE_MODULUS - 9, u32::MAX - 9]),
            receives in 16u32..40,
            picks in prop::collection::vec((any::<prop::sample::Index>(), any::<bool>()), 400),
        ) {
            let mut out = SendWindow::new(receives, CHANNELS, first);
            let mut incoming = ReceiveWindow::new(receives, CHANNELS, first);
            // Credits on their way, in any order; then those that wait to be read, in the order of their arrival.
            let (mut puts, mut credits, mut unread) = (Vec::new(), Vec::new(), VecDeque::new());
            let (mut sent, mut delivered) = ([0u32; 3], [0u32; 3]);
            let mut picks = picks.into_iter().cycle();
            for round in 0.. {
                while sent.iter().sum::<u32>() < 300 && out.available() > 0 {
                    let channel = (sent.iter().sum::<u32>() * 7 % 5 % 3) as u16;
                    puts.push((channel, out.next_sequence(channel)));
                    out.record_posted(1);
                    sent[usize::from(channel)] += 1;
                }
                let (index, twice) = picks.next().expect("endless");
                match index.index(4) {
                    0 if !credits.is_empty() => {
                        unread.push_back(credits.swap_remove(index.index(credits.len())));
                        incoming.credit_completed();
                        prop_assert!((unread.len() as u32) < CREDIT_RECEIVES, "{} unread credits and a goodbye", unread.len());
                    }
                    1 if !unread.is_empty() => {
                        let credit = unread.pop_front().expect("not empty");
                        prop_assert_eq!(out.receive_credit(credit), Ok(()));
                        prop_assert_eq!(out.receive_credit(credit), Ok(()));
                    }
                    _ if !puts.is_empty() => {
                        let at = index.index(puts.len());
                        let (channel, sequence) = if twice { puts[at] } else { puts.swap_remove(at) };
                        if let Some(count) = incoming.receive_put(channel, sequence).expect("within the window") {
                            prop_assert!(count.wrapping_sub(first) > delivered[usize::from(channel)]);
                            delivered[usize::from(channel)] = count.wrapping_sub(first);
                        }
                        prop_assert!(delivered.iter().zip(sent).all(|(delivered, sent)| *delivered <= sent));
                    }
                    _ if credits.is_empty() && unread.is_empty() => break,
                    _ => (),
                }
                credits.extend(incoming.next_credit());
                prop_assert!(round < 100_000, "stuck");
            }
            prop_assert_eq!((sent.iter().sum::<u32>(), delivered), (300, sent));
        }
    }

    /// The network keeps old credits back while the newest come; then all arrive, and nobody reads.
    #[test]
    fn credits_that_come_late_find_receives() {
        let (mut out, mut incoming) = (SendWindow::new(16, 1, 0), ReceiveWindow::new(16, 1, 0));
        let mut credits = Vec::new();
        for _ in 0..100 {
            while out.available() > 0 {
                out.record_posted(1);
                let number = out.next_sequence(0);
                incoming.receive_put(0, number).expect("in order");
                credits.extend(incoming.next_credit());
            }
            incoming.credit_completed();
            assert_eq!(
                out.receive_credit(credits.pop().expect("one at least")),
                Ok(())
            );
        }
        let mut unread = 0;
        while !credits.is_empty() || out.available() > 0 {
            unread += credits
                .drain(..)
                .map(|_| incoming.credit_completed())
                .count();
            if out.available() > 0 {
                out.record_posted(1);
                let number = out.next_sequence(0);
                incoming.receive_put(0, number).expect("in order");
            }
            credits.extend(incoming.next_credit());
        }
        assert!((unread as u32) < CREDIT_RECEIVES, "{unread} and a goodbye");
    }

    #[test]
    fn what_cannot_be_is_an_error() {
        let mut out = SendWindow::new(16, 1, 0);
        out.record_posted(3);
        assert_eq!(out.receive_credit(2), Ok(()));
        assert!(
            out.receive_credit(4)
                .expect_err("3 posted")
                .contains("2 puts back, but 1")
        );
        let mut incoming = ReceiveWindow::new(16, 1, 0);
        assert!(
            incoming
                .receive_put(1, 0)
                .expect_err("one channel")
                .contains("channel 1")
        );
        assert!(
            incoming
                .receive_put(0, 8)
                .expect_err("8 credits")
                .contains("8 ahead")
        );
        assert_eq!(incoming.receive_put(0, 7), Ok(None));
    }
}
