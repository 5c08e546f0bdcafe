//! Shares of long lists of jobs. Each run of all tests takes one share, which the headers of kernels choose.

use mkernel_compile::headers;
use mkernel_spec::Backend;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::LazyLock;

/// The variable with which tests run all jobs, whatever its value.
const ALL_JOBS: &str = "ALL_JOBS";

static HEADERS: LazyLock<u64> = LazyLock::new(|| hash(headers(Backend::HostCxx)));

fn hash(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// Returns a number that looks random. It depends on `key` and on the text of all headers.
pub fn draw(key: impl Hash) -> u64 {
    hash((*HEADERS, key))
}

/// Returns the number of the share of a job. Of `count` neighbours, each share has one.
fn share_of(index: u64, key: impl Hash, count: u64) -> u64 {
    (index + draw((index / count, key)) % count) % count
}

/// Returns one in `count` of the jobs: the share with this number, which is less than `count`. Each job is in one share. Another
/// `key` divides the jobs in another way.
pub fn share<J>(jobs: Vec<J>, key: impl Hash, (number, count): (u64, u64)) -> Vec<J> {
    if std::env::var_os(ALL_JOBS).is_some() {
        return jobs;
    }
    let jobs = (0..).zip(jobs);
    let in_share = jobs.filter(|(index, _)| share_of(*index, &key, count) == number);
    in_share.map(|(_, job)| job).collect()
}

/// Returns one of each six neighbours of a list with more than four jobs, and a shorter list as it is.
pub fn sixth_of_long<J>(jobs: &[J]) -> Vec<&J> {
    let count = match jobs.len() as u64 {
        0..=4 => 1,
        // A share of fewer jobs could be empty.
        count => count.min(6),
    };
    share(jobs.iter().collect(), "a part of a long list", (0, count))
}

/// Returns the jobs of each of these worlds, which are alike, but each job in one world only.
///
/// # Panics
/// A world has more jobs than another one.
pub fn each_in_one<W: Copy, J>(worlds: &[W], jobs_of: impl Fn(W) -> Vec<J>) -> Vec<J> {
    let count = worlds.len() as u64;
    let all: Vec<_> = worlds.iter().map(|world| jobs_of(*world)).collect();
    let is_alike = all.iter().all(|jobs| jobs.len() == all[0].len());
    assert!(is_alike, "each job is once in the list of each world");
    let of_world = |(number, jobs): (u64, Vec<J>)| share(jobs, "", (number, count));
    (0..).zip(all).flat_map(of_world).collect()
}

#[cfg(test)]
mod tests {
    use super::share_of;

    #[test]
    fn each_share_has_as_many_jobs_as_the_others() {
        let mut shares: Vec<u64> = (0..12).map(|index| share_of(index, "key", 3)).collect();
        let others: Vec<u64> = (0..12).map(|index| share_of(index, "other", 3)).collect();
        assert_ne!(shares, others);
        shares.sort_unstable();
        assert_eq!(shares, [[0; 4], [1; 4], [2; 4]].concat());
    }
}
