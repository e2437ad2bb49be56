//! Memory permits (I8): a lane takes one before it claims, so that nothing is claimed that there is no room for. One job
//! is always admitted, whatever its size, so the budget can't deadlock. Turns are first come, first served.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// A budget of bytes.
#[derive(Debug)]
pub struct Budget {
    total: u64,
    state: Mutex<State>,
    freed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    used: u64,
    next_ticket: u64,
    serving: u64,
}

/// Bytes taken from a budget; given back when dropped.
#[derive(Debug)]
pub struct Permit<'a> {
    budget: &'a Budget,
    bytes: u64,
}

impl Budget {
    /// A budget of `total` bytes.
    pub fn new(total: u64) -> Budget {
        Budget { total, state: Mutex::default(), freed: Condvar::new() }
    }

    /// Waits for its turn and for room. Before each wait `make_room` is asked to drop what can be had again; it says
    /// whether it did.
    pub fn acquire(&self, bytes: u64, make_room: &dyn Fn() -> bool) -> Permit<'_> {
        let mut state = self.lock();
        let ticket = state.next_ticket;
        state.next_ticket += 1;
        while !self.admits(&state, ticket, bytes) {
            if state.serving == ticket {
                drop(state);
                let made_room = make_room();
                state = self.lock();
                if made_room || self.admits(&state, ticket, bytes) {
                    continue;
                }
            }
            state = self.freed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.serving += 1;
        state.used += bytes;
        drop(state);
        self.freed.notify_all();
        Permit { budget: self, bytes }
    }

    fn admits(&self, state: &State, ticket: u64, bytes: u64) -> bool {
        state.serving == ticket && (state.used == 0 || state.used.saturating_add(bytes) <= self.total)
    }

    /// Bytes in use now.
    pub fn used(&self) -> u64 {
        self.lock().used
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Permit<'_> {
    /// Bytes it is for.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Accounts for what is really held, without waiting: who comes next waits for it.
    pub fn resize(&mut self, bytes: u64) {
        let mut state = self.budget.lock();
        state.used = state.used - self.bytes + bytes;
        drop(state);
        self.bytes = bytes;
        self.budget.freed.notify_all();
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.budget.lock().used -= self.bytes;
        self.budget.freed.notify_all();
    }
}
