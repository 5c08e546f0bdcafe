//! Mistakes that may be planted in every kernel with buckets.

/// Edits of a kernel, as [`SimulatedJob::edit`](super::SimulatedJob::edit) takes them.
pub type Edits = &'static [(&'static str, &'static str)];

/// The bucket of the rows of the call before, of two ranks. The other rank has announced them in the other set of words.
#[rustfmt::skip]
pub const BUCKET_OF_CALL_BEFORE: Edits = &[("@buckets.choose", "ctx.rows > => (load_relaxed_sys(ctx.local_ptr(Symmetric<u64>{ctx.begun.offset ^ 16}) + (1 - ctx.rank)) >> 32) >")];
/// The bucket of one row fewer than the call has.
pub const BUCKET_OF_ONE_ROW_LESS: Edits = &[("@buckets.choose", "ctx.rows > => ctx.rows > 1 +")];
/// Calls of buckets are not counted.
pub const CALLS_NOT_COUNTED: Edits = &[("@call.advance-bucket", "")];
/// Every bucket takes the calls of all for its own.
pub const CALLS_OF_ALL: Edits = &[(
    "@buckets.epoch",
    "ctx.bucket_epochs[kBucket] + 1 => ctx.epoch",
)];
/// Every bucket uses the call count of the first bucket.
pub const CALLS_OF_FIRST: Edits = &[("@buckets.epoch", "[kBucket] => [0]")];
/// Calls of every bucket are counted as calls of the first bucket.
pub const CALLS_COUNTED_FOR_FIRST: Edits = &[("@buckets.word", "[kBucket] => [0]")];
/// Ranks announce calls in the words that the calls of a bucket alternate between.
pub const ANNOUNCED_BY_BUCKET: Edits = &[("@begin.announce", "ctx.call_parity() => ctx.parity()")];
/// Ranks announce calls to other nodes in the words that the calls of a bucket alternate between.
pub const PUT_BY_BUCKET: Edits = &[("@begin.put-word", "ctx.call_parity() => ctx.parity()")];
/// The calls of one bucket count as the calls of all buckets.
pub const CALLS_OF_BUCKET: Edits = &[("@call.advance", "ctx.call() => ctx.epoch")];
