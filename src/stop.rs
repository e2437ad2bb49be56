//! One flag that ends a run early: an interrupt, or the first error. Waits on it end when it is set.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Set once, never cleared.
#[derive(Debug, Default)]
pub struct Stop {
    flag: AtomicBool,
    lock: Mutex<()>,
    set: Condvar,
}

impl Stop {
    /// Tells everybody to end at the next phase boundary.
    pub fn set(&self) {
        self.flag.store(true, Ordering::SeqCst);
        let _guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.set.notify_all();
    }

    /// Whether it is set.
    pub fn is_set(&self) -> bool {
        self.flag.load(Ordering::SeqCst)
    }

    /// The flag itself, for the queue's writer.
    pub fn flag(&self) -> &AtomicBool {
        &self.flag
    }

    /// Waits for `time`, or until it is set; tells whether it is.
    pub fn wait(&self, time: Duration) -> bool {
        let until = Instant::now() + time;
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        while !self.is_set() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            (guard, _) = self.set.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner);
        }
        true
    }
}

/// Sets the flag when a thread panics, so that the others do not wait for it for ever.
#[derive(Debug)]
pub struct StopOnPanic<'a>(pub &'a Stop);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.set();
        }
    }
}
