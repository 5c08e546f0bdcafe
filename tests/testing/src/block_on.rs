//! [`block_on`]: waits for a future on the calling thread.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Polls `future` until it is ready. Between polls, the thread sleeps until it is woken. Returns the output, and the
/// number of polls.
pub fn block_on<F: Future>(future: F) -> (F::Output, u32) {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    let mut polls = 1;
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return (output, polls),
            Poll::Pending => std::thread::park(),
        }
        polls += 1;
    }
}
