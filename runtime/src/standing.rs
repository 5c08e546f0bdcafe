//! [`Standing`]: whether a communicator is of use, and what ends its kernels' waits if not; and [`Vigil`], which looks
//! whether all ranks are there.

use crate::bootstrap::{Collective, Owner, Stop};
use crate::error::Error;
use crate::operator::Live;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// How often a rank looks for the others while it is in no step with them.
const LOOK: Duration = Duration::from_millis(10);

/// The first rank that is known to be lost. Proxies and other ranks tell.
pub(crate) type Lost = Arc<OnceLock<u32>>;

/// Why a communicator is out of use.
struct Poison {
    cause: Arc<Error>,
    /// Whether a caller has got the cause.
    is_returned: bool,
}

/// What a communicator, its operators and its vigil share.
pub(crate) struct Standing {
    ranks: Mutex<Collective>,
    /// Ends a step under way, which holds `ranks`.
    stop: Stop,
    operators: Mutex<Vec<Weak<Live>>>,
    poison: Mutex<Option<Poison>>,
    is_poisoned: AtomicBool,
    pub lost: Lost,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What these mutexes guard is whole between any two statements.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Standing {
    pub fn new(ranks: Collective) -> Self {
        Self {
            stop: ranks.stop(),
            ranks: Mutex::new(ranks),
            operators: Mutex::default(),
            poison: Mutex::default(),
            is_poisoned: AtomicBool::new(false),
            lost: Lost::default(),
        }
    }

    /// For a call of the program. If it needs a communicator that is of use, it must look only after this: of an
    /// [`abort`](Self::abort), it sees one or the other effect.
    pub fn ranks(&self) -> MutexGuard<'_, Collective> {
        let mut ranks = lock(&self.ranks);
        ranks.begin();
        ranks
    }

    /// Makes `abort` and `check` see an operator.
    pub fn register(&self, operator: &Arc<Live>) {
        let mut operators = lock(&self.operators);
        operators.retain(|known| known.strong_count() > 0);
        operators.push(Arc::downgrade(operator));
    }

    pub fn live(&self) -> Vec<Arc<Live>> {
        lock(&self.operators)
            .iter()
            .filter_map(Weak::upgrade)
            .collect()
    }

    /// An error if the communicator is out of use: the cause, if no call has returned that yet, so that the first error a
    /// caller gets is always the cause; else [`Error::Aborted`], which repeats it.
    pub fn ensure_usable(&self) -> Result<(), Error> {
        if !self.is_poisoned.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut poison = lock(&self.poison);
        let Some(poison) = poison.as_mut() else {
            return Ok(());
        };
        let was_returned = std::mem::replace(&mut poison.is_returned, true);
        Err(match &*poison.cause {
            Error::Aborted { .. } => (*poison.cause).clone(),
            _ if !was_returned => (*poison.cause).clone(),
            _ => Error::Aborted {
                cause: Some(poison.cause.clone()),
            },
        })
    }

    /// The cause as an error, if the communicator is out of use.
    pub fn check(&self) -> Result<(), Error> {
        match lock(&self.poison).as_mut() {
            Some(poison) => {
                poison.is_returned = true;
                Err((*poison.cause).clone())
            }
            None => Ok(()),
        }
    }

    /// Takes the communicator out of use, for the first reason that is given, and ends all kernels' waits.
    pub fn poison(&self, error: Error) {
        self.give_up(error);
        self.live()
            .iter()
            .for_each(|operator| operator.page.abort());
    }

    /// [`poison`](Self::poison) by the program, which ends the step under way with other ranks too.
    pub fn abort(&self) {
        self.poison(Error::Aborted { cause: None });
        self.stop.set();
    }

    fn give_up(&self, error: Error) {
        lock(&self.poison).get_or_insert_with(|| Poison {
            cause: Arc::new(error),
            is_returned: false,
        });
        self.is_poisoned.store(true, Ordering::Release);
    }

    /// Looks whether a rank is lost. If so, all others are told.
    fn look(&self) -> bool {
        let mut ranks = match self.ranks.try_lock() {
            Ok(ranks) => ranks,
            Err(TryLockError::Poisoned(ranks)) => ranks.into_inner(),
            // A step hears for itself.
            Err(TryLockError::WouldBlock) => return false,
        };
        if let Some(rank) = ranks.lost() {
            let _ = self.lost.set(rank);
        }
        let Some(&rank) = self.lost.get() else {
            return false;
        };
        ranks.tell_lost(rank);
        drop(ranks);
        let live = self.live();
        // This rank's network says more: it may be the one that is lost.
        let network = live.iter().find_map(|operator| operator.network_failure());
        self.give_up(network.unwrap_or(Error::RankLost { rank }));
        live.iter()
            .for_each(|operator| operator.page.abort_without(rank));
        true
    }
}

/// A thread that looks for the other ranks, until one is lost.
pub(crate) struct Vigil {
    standing: Arc<Standing>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    owner: Owner,
}

impl Vigil {
    /// Without a thread, kernels wait for a lost rank until their deadline.
    pub fn start(standing: &Arc<Standing>) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let watched = (standing.clone(), is_over.clone());
        let body = move || {
            let (standing, is_over) = watched;
            while !is_over.load(Ordering::Acquire) && !standing.look() {
                std::thread::park_timeout(LOOK);
            }
        };
        let thread = std::thread::Builder::new().name("mkernel-ranks".into());
        let thread = thread.spawn(body);
        if let Err(error) = &thread {
            tracing::warn!(%error, "no thread to look whether all ranks are there");
        }
        Self {
            standing: standing.clone(),
            is_over,
            thread: thread.ok(),
            owner: Owner::this_process(),
        }
    }
}

impl Drop for Vigil {
    fn drop(&mut self) {
        if !self.owner.is_here() {
            return;
        }
        self.is_over.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
        // What this rank's proxies have noticed meanwhile.
        self.standing.look();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::local;

    fn standing() -> Standing {
        Standing::new(Collective::new(local::groups(1).remove(0)))
    }

    #[test]
    fn the_first_error_is_the_cause_and_later_ones_repeat_it() {
        let standing = standing();
        standing.ensure_usable().expect("of use");
        standing.poison(Error::RankLost { rank: 3 });
        standing.poison(Error::RankLost { rank: 5 });
        let first = standing.ensure_usable().expect_err("rank 3 is lost");
        assert!(matches!(first, Error::RankLost { rank: 3 }), "{first}");
        let later = standing.ensure_usable().expect_err("rank 3 is lost");
        assert!(matches!(&later, Error::Aborted { cause: Some(_) }));
        let (first, later) = (first.to_string(), later.to_string());
        assert!(later.contains(&first), "{later}");
        assert!(standing.check().is_err_and(|e| e.to_string() == first));
    }

    #[test]
    fn a_checked_cause_is_no_news_to_the_next_call() {
        let standing = standing();
        standing.check().expect("of use");
        standing.poison(Error::RankLost { rank: 3 });
        standing.check().expect_err("rank 3 is lost");
        let next = standing.ensure_usable().expect_err("rank 3 is lost");
        assert!(matches!(next, Error::Aborted { cause: Some(_) }), "{next}");
    }

    #[test]
    fn an_abort_is_its_own_cause() {
        let standing = standing();
        standing.poison(Error::Aborted { cause: None });
        for _ in 0..2 {
            let error = standing.ensure_usable().expect_err("aborted");
            assert!(matches!(error, Error::Aborted { cause: None }), "{error}");
        }
    }
}
