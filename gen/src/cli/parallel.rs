//! Independent steps on several threads.

use super::machine::cores;
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

/// The fewest elements that are worth a thread.
const ELEMS_OF_THREAD: usize = 1 << 20;

/// The elements `of(index)` for each index below `count`. Many elements are computed on all cores.
pub fn elements<T: Copy + Default + Send>(count: usize, of: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let mut elements = vec![T::default(); count];
    let each = count.div_ceil(cores()).max(ELEMS_OF_THREAD);
    let fill = |(part, elements): (usize, &mut [T])| {
        for (index, element) in (part * each..).zip(elements) {
            *element = of(index);
        }
    };
    if count <= each {
        fill((0, &mut elements));
        return elements;
    }
    thread::scope(|scope| {
        for part in elements.chunks_mut(each).enumerate() {
            let fill = &fill;
            scope.spawn(move || fill(part));
        }
    });
    elements
}

#[cfg(test)]
mod tests {
    use super::{ELEMS_OF_THREAD, elements, in_parallel};

    #[test]
    fn elements_are_in_order() {
        for count in [0, 1, ELEMS_OF_THREAD, 2 * ELEMS_OF_THREAD + 3] {
            let found = elements(count, |index| index);
            assert!(found.iter().copied().eq(0..count), "{count}");
        }
    }

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
