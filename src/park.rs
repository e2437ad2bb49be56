//! What a deferred job has fetched, kept until the job is taken up again, so that one slow object never makes the other
//! 249 be downloaded again. Parked bodies hold their memory; the oldest are dropped when somebody needs the room.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use crate::fetch::Bodies;

/// The parked bodies, oldest first. A run has few deferred jobs at a time.
#[derive(Debug, Default)]
pub struct Park<'a> {
    parked: Mutex<VecDeque<Parked<'a>>>,
}

#[derive(Debug)]
struct Parked<'a> {
    shard: i64,
    bodies: Bodies<'a>,
}

impl<'a> Park<'a> {
    /// Keeps what `shard` has fetched.
    pub fn put(&self, shard: i64, bodies: Bodies<'a>) {
        self.lock().push_back(Parked { shard, bodies });
    }

    /// Gives back what `shard` had fetched.
    pub fn take(&self, shard: i64) -> Option<Bodies<'a>> {
        let mut parked = self.lock();
        let index = parked.iter().position(|parked| parked.shard == shard)?;
        parked.remove(index).map(|parked| parked.bodies)
    }

    /// Drops the oldest; false where there is none.
    pub fn drop_oldest(&self) -> bool {
        let oldest = self.lock().pop_front();
        oldest.is_some()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<Parked<'a>>> {
        self.parked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
