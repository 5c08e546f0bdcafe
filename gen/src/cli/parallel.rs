//! [`in_parallel`]: independent steps on several threads.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Calls `step` for each index below `count`, on up to `threads` threads, and returns the results by index.
pub fn in_parallel<T: Send>(
    threads: usize,
    count: usize,
    step: impl Fn(usize) -> T + Sync,
) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..threads.min(count) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= count {
                        break;
                    }
                    let result = step(index);
                    let mut results = results.lock().expect("no thread panics with the lock");
                    results.push((index, result));
                }
            });
        }
    });
    let mut results = results
        .into_inner()
        .expect("no thread panics with the lock");
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::in_parallel;

    #[test]
    fn results_have_the_order_of_indices() {
        for threads in [1, 3, 100] {
            assert_eq!(
                in_parallel(threads, 9, |index| index * index),
                [0, 1, 4, 9, 16, 25, 36, 49, 64]
            );
        }
        assert!(in_parallel(2, 0, |index| index).is_empty());
    }
}
