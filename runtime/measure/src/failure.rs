//! [`Failure`]: any error of a measurement.

/// An error of any type, which can pass between threads.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;
