//! One request for an object, as others see it: since when it is on its way, and a way to give it up.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::ObjectStore;

/// Shared by the thread that asks and whoever waits for its answer.
#[derive(Default)]
pub struct Ask(Mutex<State>);

#[derive(Default)]
enum State {
    /// Nobody has sent it.
    #[default]
    Waiting,
    /// It is on its way, through a store that no other thread uses.
    Sent(Instant, Arc<dyn ObjectStore>),
    Answered,
    GivenUp,
}

impl Ask {
    /// How long it has been on its way; `None` where it is not.
    pub fn sent_for(&self) -> Option<Duration> {
        match &*self.lock() {
            State::Sent(since, _) => Some(since.elapsed()),
            _ => None,
        }
    }

    /// Nobody wants the answer any more: a request on its way ends at once, one that waits is never sent.
    pub fn give_up(&self) {
        let mut state = self.lock();
        if let State::Sent(_, store) = &*state {
            store.hang_up();
        }
        if !matches!(*state, State::Answered) {
            *state = State::GivenUp;
        }
    }

    /// It is sent now; false where nobody wants it any more.
    pub(super) fn send(&self, store: &Arc<dyn ObjectStore>) -> bool {
        let mut state = self.lock();
        let is_wanted = matches!(*state, State::Waiting);
        if is_wanted {
            *state = State::Sent(Instant::now(), Arc::clone(store));
        }
        is_wanted
    }

    /// It has been answered; false where it was given up before, and the store with it.
    pub(super) fn end(&self) -> bool {
        let mut state = self.lock();
        let is_wanted = matches!(*state, State::Sent(..));
        if is_wanted {
            *state = State::Answered;
        }
        is_wanted
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Ask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sent for {:?}", self.sent_for())
    }
}
