//! [`Events`]: a queue of events in the order of time, and of their posting at equal times.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

struct Event<T> {
    at_us: f64,
    number: u64,
    what: T,
}

impl<T> Ord for Event<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.at_us
            .total_cmp(&other.at_us)
            .then(self.number.cmp(&other.number))
    }
}

impl<T> PartialOrd for Event<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> PartialEq for Event<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<T> Eq for Event<T> {}

/// Events that have not happened yet.
pub struct Events<T> {
    queue: BinaryHeap<Reverse<Event<T>>>,
    posted: u64,
}

impl<T> Events<T> {
    pub const fn new() -> Self {
        Self {
            queue: BinaryHeap::new(),
            posted: 0,
        }
    }

    pub fn post(&mut self, at_us: f64, what: T) {
        let number = self.posted;
        self.posted += 1;
        self.queue.push(Reverse(Event {
            at_us,
            number,
            what,
        }));
    }

    /// Removes the next event, and returns it with its time.
    pub fn next(&mut self) -> Option<(f64, T)> {
        let Reverse(event) = self.queue.pop()?;
        Some((event.at_us, event.what))
    }

    /// The number of events so far.
    pub const fn posted(&self) -> u64 {
        self.posted
    }
}

#[cfg(test)]
mod tests {
    use super::Events;

    #[test]
    fn events_come_in_the_order_of_time_and_of_posting() {
        let mut events = Events::new();
        for (at, what) in [(2.0, 'c'), (1.0, 'a'), (2.0, 'd'), (1.5, 'b')] {
            events.post(at, what);
        }
        let order: String = std::iter::from_fn(|| events.next().map(|(_, what)| what)).collect();
        assert_eq!((order.as_str(), events.posted()), ("abcd", 4));
    }
}
