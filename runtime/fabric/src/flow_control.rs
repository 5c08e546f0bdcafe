//! Flow control between two endpoints: sequence numbers and credits on the sending side, in-order and exactly-once
//! delivery on the receiving side.
//!
//! A put consumes a credit. The receiver returns the credit when it has delivered the put *in order*. So the distance of a put
//! from a missing earlier put is at most the number of credits, which is the size of a channel's reorder window.

use crate::endpoint_info::{MAX_CREDITS_IN_FLIGHT, put_credits};
use crate::immediate::{CREDIT_MODULUS, SEQUENCE_MODULUS};
use crate::reorder::{Insertion, ReorderBuffer};

/// The sender's view of the puts to one peer.
pub struct SendWindow {
    credits: u32,
    /// The number of puts posted, modulo [`CREDIT_MODULUS`].
    posted: u32,
    /// The number of puts that the peer has delivered, modulo [`CREDIT_MODULUS`].
    delivered: u32,
    /// The number of puts on each channel so far.
    counts: Vec<u32>,
}

impl SendWindow {
    /// Creates the window for a peer that keeps `receives` receives. The counter of each channel starts at `first`.
    pub fn new(receives: u32, channels: u16, first: u32) -> Self {
        Self {
            credits: put_credits(receives),
            posted: 0,
            delivered: 0,
            counts: vec![first; channels.into()],
        }
    }

    /// Returns the sequence number of the channel's next put.
    pub fn next_sequence(&mut self, channel: u16) -> u32 {
        let count = &mut self.counts[usize::from(channel)];
        let sequence = *count % SEQUENCE_MODULUS;
        *count = count.wrapping_add(1);
        sequence
    }

    /// Returns the number of puts that may be posted now.
    pub fn available(&self) -> u32 {
        self.credits - self.outstanding()
    }

    /// Records that puts were posted. Their number must not exceed the available credits.
    pub fn record_posted(&mut self, puts: u32) {
        self.posted = self.posted.wrapping_add(puts) % CREDIT_MODULUS;
    }

    fn outstanding(&self) -> u32 {
        self.posted.wrapping_sub(self.delivered) % CREDIT_MODULUS
    }

    /// Records the total number of puts that the peer has delivered.
    ///
    /// Credit messages are not ordered, so a message with an old total is ignored.
    ///
    /// # Errors
    ///
    /// Returns an error if the peer claims to have delivered more puts than were posted.
    pub fn receive_credit(&mut self, delivered: u32) -> Result<(), String> {
        let more = delivered.wrapping_sub(self.delivered) % CREDIT_MODULUS;
        if more >= CREDIT_MODULUS / 2 {
            return Ok(());
        }
        if more > self.outstanding() {
            let outstanding = self.outstanding();
            return Err(format!(
                "it returned credits for {more} puts, but only {outstanding} are in flight"
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

/// The receiver's view of the puts from one peer.
pub struct ReceiveWindow {
    /// The reorder state of each channel.
    channels: Vec<Channel>,
    /// The minimum number of credits in a credit message, a quarter of all credits.
    batch: u32,
    /// The number of puts delivered, modulo [`CREDIT_MODULUS`].
    delivered: u32,
    /// The number of puts for which credits were returned, modulo [`CREDIT_MODULUS`].
    acknowledged: u32,
    /// The number of credit messages that have not completed.
    credits_in_flight: u32,
}

impl ReceiveWindow {
    /// Creates the window of an endpoint that keeps `receives` receives for each peer. The counter of each channel
    /// starts at `first`.
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

    /// Records the arrival of a put. Returns the channel's new count if it grew.
    ///
    /// # Errors
    ///
    /// Returns an error for an unknown channel, or for a put that is further ahead than the sender has credits.
    pub fn receive_put(&mut self, channel: u16, sequence: u32) -> Result<Option<u32>, String> {
        let known = self.channels.len();
        let Some(Channel { count, reorder }) = self.channels.get_mut(usize::from(channel)) else {
            return Err(format!(
                "it put on channel {channel}, but there are {known} channels"
            ));
        };
        let distance = sequence.wrapping_sub(*count) % SEQUENCE_MODULUS;
        if distance >= SEQUENCE_MODULUS / 2 {
            return Ok(None); // The put was delivered before.
        }
        match reorder.insert(distance) {
            Insertion::New(0) | Insertion::Duplicate => Ok(None),
            Insertion::New(complete) => {
                *count = count.wrapping_add(complete);
                self.delivered = self.delivered.wrapping_add(complete) % CREDIT_MODULUS;
                Ok(Some(*count))
            }
            Insertion::OutOfRange => Err(format!(
                "put {sequence} of channel {channel} is {distance} ahead of the next expected one, which is more than its \
                 credits allow"
            )),
        }
    }

    /// Returns the number of puts delivered, modulo [`CREDIT_MODULUS`].
    pub fn delivered(&self) -> u32 {
        self.delivered
    }

    /// Returns the total number of delivered puts if a credit message to the peer is due.
    ///
    /// A message is due when a batch of puts was delivered since the last credit message and fewer than
    /// [`MAX_CREDITS_IN_FLIGHT`] credit messages are in flight.
    pub fn next_credit(&mut self) -> Option<u32> {
        let unacknowledged = self.delivered.wrapping_sub(self.acknowledged) % CREDIT_MODULUS;
        if unacknowledged < self.batch || self.credits_in_flight == MAX_CREDITS_IN_FLIGHT {
            return None;
        }
        self.acknowledged = self.delivered;
        self.credits_in_flight += 1;
        Some(self.delivered)
    }

    /// Records that a credit message has completed.
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
        /// Simulates two endpoints and a network that delays, reorders and repeats all messages.
        #[test]
        fn puts_are_delivered_in_order_and_once_and_credits_never_run_dry(
            first in prop::sample::select(vec![0, SEQUENCE_MODULUS - 9, u32::MAX - 9]),
            receives in 16u32..40,
            picks in prop::collection::vec((any::<prop::sample::Index>(), any::<bool>()), 400),
        ) {
            let mut out = SendWindow::new(receives, CHANNELS, first);
            let mut incoming = ReceiveWindow::new(receives, CHANNELS, first);
            // Credit messages in flight, in any order, and credit messages that have arrived and wait to be read, in
            // order of arrival.
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
                        prop_assert!((unread.len() as u32) < CREDIT_RECEIVES, "{} unread credits and a close", unread.len());
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

    /// The network holds old credit messages back while newer messages arrive. Then all messages arrive before any is read.
    #[test]
    fn late_credits_find_receives() {
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
        assert!(
            (unread as u32) < CREDIT_RECEIVES,
            "{unread} unread credits and a close"
        );
    }

    #[test]
    fn messages_that_violate_the_protocol_are_errors() {
        let mut out = SendWindow::new(16, 1, 0);
        out.record_posted(3);
        assert_eq!(out.receive_credit(2), Ok(()));
        assert!(
            out.receive_credit(4)
                .expect_err("3 posted")
                .contains("2 puts, but only 1")
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
