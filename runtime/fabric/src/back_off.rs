//! The wait of a proxy's thread before it looks for work again.

use std::time::Duration;

/// The time for which a proxy without work spins.
const SPIN_UNTIL: Duration = Duration::from_micros(50);
/// The time without work after which a proxy stops yielding and sleeps. While a write is in flight, the proxy yields until
/// [`SHORT_SLEEP_UNTIL`].
const YIELD_UNTIL: Duration = Duration::from_millis(1);
/// The length of a short sleep.
const SHORT_SLEEP: Duration = Duration::from_micros(50);
/// The time without work after which a proxy changes to long sleeps, if no write is in flight.
const SHORT_SLEEP_UNTIL: Duration = Duration::from_millis(20);
/// The length of a long sleep. A command or an arrival may be picked up late by this time plus the time that the
/// system takes to wake a thread, unless [`Proxy::wake`](crate::proxy::Proxy::wake) was called before. Sleeping this long costs about 2 % of a
/// core.
pub const LONG_SLEEP: Duration = Duration::from_micros(500);
/// The time for which a proxy yields after a launch was captured. Replays of a graph do not call
/// [`Proxy::wake`](crate::proxy::Proxy::wake). The time is longer than a step of most models. Afterwards the proxy sleeps, but
/// never for [`LONG_SLEEP`].
const CAPTURED_YIELD_UNTIL: Duration = Duration::from_millis(50);

/// The action of a thread without work before it looks for work again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pause {
    Spin,
    Yield,
    Sleep(Duration),
}

fn pause(idle_for: Duration, is_idle: bool, is_captured: bool) -> Pause {
    let yield_for = match (is_idle, is_captured) {
        (_, true) => CAPTURED_YIELD_UNTIL,
        (true, false) => YIELD_UNTIL,
        (false, false) => SHORT_SLEEP_UNTIL,
    };
    if idle_for < SPIN_UNTIL {
        Pause::Spin
    } else if idle_for < yield_for {
        Pause::Yield
    } else if idle_for < SHORT_SLEEP_UNTIL || !is_idle || is_captured {
        Pause::Sleep(SHORT_SLEEP)
    } else {
        Pause::Sleep(LONG_SLEEP)
    }
}

/// Waits after a step without progress. `idle_for` is the time since the last progress. Returns whether the thread slept.
pub fn back_off(idle_for: Duration, is_idle: bool, is_captured: bool) -> bool {
    match pause(idle_for, is_idle, is_captured) {
        Pause::Spin => std::hint::spin_loop(),
        Pause::Yield => std::thread::yield_now(),
        Pause::Sleep(sleep) => {
            std::thread::park_timeout(sleep);
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_sleeps_longer_the_longer_it_has_been_idle() {
        let after = |ms, is_idle| pause(Duration::from_millis(ms), is_idle, false);
        for is_idle in [false, true] {
            assert_eq!(after(0, is_idle), Pause::Spin);
        }
        assert_eq!(
            (after(0, true), after(2, true)),
            (Pause::Spin, Pause::Sleep(SHORT_SLEEP))
        );
        assert_eq!(after(30, true), Pause::Sleep(LONG_SLEEP));
        assert_eq!(
            (after(2, false), after(30, false)),
            (Pause::Yield, Pause::Sleep(SHORT_SLEEP))
        );
    }

    #[test]
    fn a_captured_proxy_yields_between_replays_and_never_sleeps_long() {
        for is_idle in [false, true] {
            let after = |ms| pause(Duration::from_millis(ms), is_idle, true);
            for ms in [1, 5, 20, 49] {
                assert_eq!(after(ms), Pause::Yield, "{ms} ms");
            }
            for ms in [50, 1000, 1_000_000] {
                assert_eq!(after(ms), Pause::Sleep(SHORT_SLEEP), "{ms} ms");
            }
        }
    }
}
