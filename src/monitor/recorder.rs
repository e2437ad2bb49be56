//! Keeps every event, for tests: a test waits for what it needs to have happened instead of sleeping.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::{Event, Monitor};

/// Keeps every event.
#[derive(Debug, Default)]
pub struct Recorder {
    events: Mutex<Vec<Event>>,
    more: Condvar,
    ticks: Mutex<u64>,
    ticked: Condvar,
}

impl Recorder {
    /// All events so far.
    pub fn events(&self) -> Vec<Event> {
        self.lock().clone()
    }

    /// Blocks until `condition` holds for the events so far.
    pub fn wait_until(&self, mut condition: impl FnMut(&[Event]) -> bool) {
        drop(self.more.wait_while(self.lock(), |events| !condition(events)));
    }

    /// Blocks until the run has looked at its interrupt after this call.
    pub fn wait_for_tick(&self) {
        let ticks = self.ticks.lock().unwrap_or_else(PoisonError::into_inner);
        // The tick under way may have begun with that look.
        let enough = *ticks + 2;
        drop(self.ticked.wait_while(ticks, |ticks| *ticks < enough));
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Event>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Monitor for Recorder {
    fn event(&self, event: &Event) {
        self.lock().push(event.clone());
        self.more.notify_all();
    }

    fn tick(&self, _: Instant) {
        *self.ticks.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.ticked.notify_all();
    }
}
