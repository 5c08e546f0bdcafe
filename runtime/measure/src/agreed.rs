//! [`agreed`]: success on all ranks.

use crate::Failure;
use mkernel::Communicator;

/// Returns the result of this rank, or an error if another rank has an error. All ranks must call this together.
///
/// # Errors
/// The outer error says that a rank does not take part.
pub fn agreed<T>(
    ranks: &Communicator,
    own: Result<T, Failure>,
) -> Result<Result<T, Failure>, Failure> {
    let text = own
        .as_ref()
        .err()
        .map_or(String::new(), ToString::to_string);
    // A long list of files could be longer than a contribution may be.
    let start: String = text.chars().take(200).collect();
    let all = ranks.all_gather(start.as_bytes())?;
    let failed = all.iter().position(|text| !text.is_empty());
    Ok(match (own, failed) {
        (Ok(_), Some(rank)) => {
            let reason = String::from_utf8_lossy(&all[rank]);
            Err(format!("rank {rank}: {reason}").into())
        }
        (own, _) => own,
    })
}
