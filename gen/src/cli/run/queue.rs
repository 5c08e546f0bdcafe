//! [`Queue`]: the runs that are left, which threads take one after the other.

use std::ops::Range;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// One run: the index of a kernel, and a seed.
pub type Run = (usize, u64);

/// Every kernel with every seed, kernel by kernel. Runs start in this order.
pub struct Queue<'a> {
    seeds: Range<u64>,
    /// The bytes of host memory that a run of each kernel needs.
    needed_bytes: &'a [u64],
    /// The bytes that all concurrent runs may need together. A run that needs more starts alone.
    most_bytes: u64,
    state: Mutex<State>,
    ended: Condvar,
}

struct State {
    next: Run,
    is_open: bool,
    running: usize,
    used_bytes: u64,
}

impl<'a> Queue<'a> {
    /// The runs of kernels that need these bytes each, with all seeds.
    pub fn new(seeds: Range<u64>, needed_bytes: &'a [u64], most_bytes: u64) -> Self {
        let state = State {
            next: (0, seeds.start),
            is_open: true,
            running: 0,
            used_bytes: 0,
        };
        Self {
            seeds,
            needed_bytes,
            most_bytes,
            state: Mutex::new(state),
            ended: Condvar::new(),
        }
    }

    /// The first run of a kernel.
    pub fn of_kernel(&self, kernel: usize) -> Run {
        (kernel, self.seeds.start)
    }

    /// The run after `run`.
    pub fn after(&self, (kernel, seed): Run) -> Run {
        match seed + 1 < self.seeds.end {
            true => (kernel, seed + 1),
            false => self.of_kernel(kernel + 1),
        }
    }

    /// Takes the next run, and waits until there is memory for it. `None` if no run is left.
    pub fn take(&self) -> Option<Run> {
        let mut state = self.state();
        loop {
            let needed = *self.needed_bytes.get(state.next.0)?;
            if !state.is_open {
                return None;
            }
            let all_bytes = state.used_bytes.saturating_add(needed);
            if state.running == 0 || all_bytes <= self.most_bytes {
                let run = state.next;
                state.next = self.after(run);
                state.running += 1;
                state.used_bytes = all_bytes;
                return Some(run);
            }
            state = self
                .ended
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Ends a run that was taken.
    pub fn end(&self, (kernel, _): Run) {
        let mut state = self.state();
        state.running -= 1;
        state.used_bytes -= self.needed_bytes[kernel];
        self.ended.notify_all();
    }

    /// Leaves out the runs of `kernel` that nobody has taken.
    pub fn skip(&self, kernel: usize) {
        let mut state = self.state();
        if state.next.0 == kernel {
            state.next = self.of_kernel(kernel + 1);
        }
    }

    /// Leaves out all runs that nobody has taken.
    pub fn close(&self) {
        self.state().is_open = false;
        self.ended.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;
    use std::time::Duration;

    #[test]
    fn runs_start_in_order_until_the_queue_is_closed() {
        let queue = Queue::new(3..5, &[1, 1, 1], 100);
        assert_eq!(queue.take(), Some((0, 3)));
        assert_eq!(queue.take(), Some((0, 4)));
        assert_eq!(queue.take(), Some((1, 3)));
        queue.skip(1);
        queue.skip(0);
        assert_eq!(queue.take(), Some((2, 3)));
        queue.close();
        assert_eq!(queue.take(), None);
        let one = Queue::new(0..1, &[1], 0);
        assert_eq!((one.take(), one.take()), (Some((0, 0)), None));
    }

    #[test]
    fn a_run_waits_for_the_memory_of_the_runs_before_it() {
        let queue = Queue::new(0..1, &[6, 200, 5], 10);
        let first = queue.take().expect("a run");
        thread::scope(|scope| {
            let second = scope.spawn(|| queue.take());
            thread::sleep(Duration::from_millis(50));
            assert!(!second.is_finished());
            queue.end(first);
            assert_eq!(second.join().ok(), Some(Some((1, 0))));
        });
        queue.end((1, 0));
        assert_eq!(queue.take(), Some((2, 0)));
    }
}
