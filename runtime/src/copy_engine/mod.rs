//! Copies by copy engines. A thread per communicator watches the requests of its operators' kernels (their doorbells)
//! and enqueues the copies.
//!
//! A kernel makes its request when it starts. Copies therefore never run ahead of the caller's stream, and replays of a
//! graph need no call of the host program. Each chunk is copied to all peers in turn, with a flag after each copy. When
//! all chunks for a peer have been read, a copy engine writes the sender's own `sent` word for that peer. The kernel
//! ends only after all of these words are written, so that the caller may reuse A.
//!
//! A kernel whose waits are aborted must not end before its copies either. Such a kernel withdraws its request if the
//! thread has not claimed the request yet, and otherwise waits for the thread's answer. See `withdraw_copies` in
//! mk/comm/host_copies.cuh.

mod job;
mod poll_policy;
mod schedule;
mod streams;
mod thread;

pub(crate) use job::CopyJob;
pub(crate) use thread::CopyThread;
