//! The protocol between two endpoints: sequence numbers and credits out, order and exactly-once in.
//!
//! A put takes a credit. Its receiver gives the credit back when it has delivered the put *in order*; so no put can be
//! further ahead of a missing one than there are credits, and the window of a channel is that number.

use crate::immediate::{RETURNS, SEQUENCES};
use crate::offer::{CREDITS_UNSENT, put_credits};
use crate::window::{Seen, Window};

/// Puts to a peer.
pub struct Outgoing {
    credits: u32,
    /// Puts posted, and those given back: modulo [`RETURNS`].
    posted: u32,
    returned: u32,
    /// By channel.
    counts: Vec<u32>,
}

impl Outgoing {
    /// To a peer who keeps `receives` receives; each channel's count starts at `first`.
    pub fn new(receives: u32, channels: u16, first: u32) -> Self {
        Self {
            credits: put_credits(receives),
            posted: 0,
            returned: 0,
            counts: vec![first; channels.into()],
        }
    }

    /// The sequence number of the channel's next put.
    pub fn number(&mut self, channel: u16) -> u32 {
        let count = &mut self.counts[usize::from(channel)];
        let sequence = *count % SEQUENCES;
        *count = count.wrapping_add(1);
        sequence
    }

    /// Puts that may be posted now.
    pub fn available(&self) -> u32 {
        self.credits - self.outstanding()
    }

    /// Puts were posted, at most as many as available.
    pub fn posted(&mut self, puts: u32) {
        self.posted = self.posted.wrapping_add(puts) % RETURNS;
    }

    fn outstanding(&self) -> u32 {
        self.posted.wrapping_sub(self.returned) % RETURNS
    }

    /// The peer has delivered so many puts by now. Old news are no fault, since nothing keeps them in order.
    ///
    /// # Errors
    ///
    /// What cannot be: more than were posted.
    pub fn give_back(&mut self, returned: u32) -> Result<(), String> {
        let more = returned.wrapping_sub(self.returned) % RETURNS;
        if more >= RETURNS / 2 {
            return Ok(());
        }
        if more > self.outstanding() {
            let outstanding = self.outstanding();
            return Err(format!(
                "it gave {more} puts back, but {outstanding} are on their way"
            ));
        }
        self.returned = returned;
        Ok(())
    }
}

struct Channel {
    count: u32,
    window: Window,
}

/// Puts from a peer.
pub struct Incoming {
    channels: Vec<Channel>,
    batch: u32,
    /// Puts delivered, and those that the peer was told of: modulo [`RETURNS`].
    delivered: u32,
    told: u32,
    /// Credit messages that have not left.
    unsent: u32,
}

impl Incoming {
    /// For an endpoint that keeps `receives` receives per peer; each channel's count starts at `first`.
    pub fn new(receives: u32, channels: u16, first: u32) -> Self {
        let credits = put_credits(receives);
        let channel = |_| Channel {
            count: first,
            window: Window::new(credits),
        };
        Self {
            channels: (0..channels).map(channel).collect(),
            batch: credits.div_ceil(4),
            delivered: 0,
            told: 0,
            unsent: 0,
        }
    }

    /// A put came. The channel's new count, if it grew.
    ///
    /// # Errors
    ///
    /// What cannot be: an unknown channel, or a put further ahead than the sender has credits.
    pub fn arrived(&mut self, channel: u16, sequence: u32) -> Result<Option<u32>, String> {
        let known = self.channels.len();
        let Some(Channel { count, window }) = self.channels.get_mut(usize::from(channel)) else {
            return Err(format!("a put on channel {channel}, but there are {known}"));
        };
        let distance = sequence.wrapping_sub(*count) % SEQUENCES;
        if distance >= SEQUENCES / 2 {
            return Ok(None); // delivered before
        }
        match window.see(distance) {
            Seen::New(0) | Seen::Again => Ok(None),
            Seen::New(complete) => {
                *count = count.wrapping_add(complete);
                self.delivered = self.delivered.wrapping_add(complete) % RETURNS;
                Ok(Some(*count))
            }
            Seen::Beyond => Err(format!(
                "put {sequence} of channel {channel} is {distance} ahead of the next one, more than it has credits"
            )),
        }
    }

    /// What the peer is to be told, if enough was delivered since it was told last, and what it was told has left.
    pub fn credit(&mut self) -> Option<u32> {
        let news = self.delivered.wrapping_sub(self.told) % RETURNS;
        if news < self.batch || self.unsent == CREDITS_UNSENT {
            return None;
        }
        self.told = self.delivered;
        self.unsent += 1;
        Some(self.delivered)
    }

    /// A credit message has left.
    pub fn credit_left(&mut self) {
        self.unsent -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::offer::CREDIT_RECEIVES;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    const CHANNELS: u16 = 3;

    proptest! {
        /// Two endpoints, and a network that delays, reorders and repeats all that they say.
        #[test]
        fn puts_are_delivered_in_order_and_once_and_credits_never_run_dry(
            first in prop::sample::select(vec![0, SEQUENCES - 9, u32::MAX - 9]),
            receives in 16u32..40,
            picks in prop::collection::vec((any::<prop::sample::Index>(), any::<bool>()), 400),
        ) {
            let mut out = Outgoing::new(receives, CHANNELS, first);
            let mut incoming = Incoming::new(receives, CHANNELS, first);
            // Credits on their way, in any order; then those that wait to be read, in the order of their arrival.
            let (mut puts, mut credits, mut unread) = (Vec::new(), Vec::new(), VecDeque::new());
            let (mut sent, mut delivered) = ([0u32; 3], [0u32; 3]);
            let mut picks = picks.into_iter().cycle();
            for round in 0.. {
                while sent.iter().sum::<u32>() < 300 && out.available() > 0 {
                    let channel = (sent.iter().sum::<u32>() * 7 % 5 % 3) as u16;
                    puts.push((channel, out.number(channel)));
                    out.posted(1);
                    sent[usize::from(channel)] += 1;
                }
                let (index, twice) = picks.next().expect("endless");
                match index.index(4) {
                    0 if !credits.is_empty() => {
                        unread.push_back(credits.swap_remove(index.index(credits.len())));
                        incoming.credit_left();
                        prop_assert!((unread.len() as u32) < CREDIT_RECEIVES, "{} unread credits and a goodbye", unread.len());
                    }
                    1 if !unread.is_empty() => {
                        let credit = unread.pop_front().expect("not empty");
                        prop_assert_eq!(out.give_back(credit), Ok(()));
                        prop_assert_eq!(out.give_back(credit), Ok(()));
                    }
                    _ if !puts.is_empty() => {
                        let at = index.index(puts.len());
                        let (channel, sequence) = if twice { puts[at] } else { puts.swap_remove(at) };
                        if let Some(count) = incoming.arrived(channel, sequence).expect("within the window") {
                            prop_assert!(count.wrapping_sub(first) > delivered[usize::from(channel)]);
                            delivered[usize::from(channel)] = count.wrapping_sub(first);
                        }
                        prop_assert!(delivered.iter().zip(sent).all(|(delivered, sent)| *delivered <= sent));
                    }
                    _ if credits.is_empty() && unread.is_empty() => break,
                    _ => (),
                }
                credits.extend(incoming.credit());
                prop_assert!(round < 100_000, "stuck");
            }
            prop_assert_eq!((sent.iter().sum::<u32>(), delivered), (300, sent));
        }
    }

    /// The network keeps old credits back while the newest come; then all arrive, and nobody reads.
    #[test]
    fn credits_that_come_late_find_receives() {
        let (mut out, mut incoming) = (Outgoing::new(16, 1, 0), Incoming::new(16, 1, 0));
        let mut credits = Vec::new();
        for _ in 0..100 {
            while out.available() > 0 {
                out.posted(1);
                let number = out.number(0);
                incoming.arrived(0, number).expect("in order");
                credits.extend(incoming.credit());
            }
            incoming.credit_left();
            assert_eq!(out.give_back(credits.pop().expect("one at least")), Ok(()));
        }
        let mut unread = 0;
        while !credits.is_empty() || out.available() > 0 {
            unread += credits.drain(..).map(|_| incoming.credit_left()).count();
            if out.available() > 0 {
                out.posted(1);
                let number = out.number(0);
                incoming.arrived(0, number).expect("in order");
            }
            credits.extend(incoming.credit());
        }
        assert!((unread as u32) < CREDIT_RECEIVES, "{unread} and a goodbye");
    }

    #[test]
    fn what_cannot_be_is_an_error() {
        let mut out = Outgoing::new(16, 1, 0);
        out.posted(3);
        assert_eq!(out.give_back(2), Ok(()));
        assert!(
            out.give_back(4)
                .expect_err("3 posted")
                .contains("2 puts back, but 1")
        );
        let mut incoming = Incoming::new(16, 1, 0);
        assert!(
            incoming
                .arrived(1, 0)
                .expect_err("one channel")
                .contains("channel 1")
        );
        assert!(
            incoming
                .arrived(0, 8)
                .expect_err("8 credits")
                .contains("8 ahead")
        );
        assert_eq!(incoming.arrived(0, 7), Ok(None));
    }
}
