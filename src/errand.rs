//! What fetchers are sent for: for lanes, which of it is not answered; for `status`, what is waited for. One place for each
//! fetcher; nobody waits for another's.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::StoreError;
use crate::store::Ask;

/// One object to be fetched, for somebody.
#[derive(Debug)]
pub struct Errand {
    /// For which shard.
    pub shard: String,
    /// The object, in full.
    pub uri: String,
    /// It is asked for a second time, as the first takes long.
    pub again: bool,
    /// How far it is.
    pub ask: Ask,
}

/// What every fetcher is at.
#[derive(Debug)]
pub struct Errands(Vec<Place>);

/// What one fetcher is at.
pub type Place = Mutex<Option<Arc<Errand>>>;

impl Errands {
    /// Places for so many fetchers.
    pub fn new(fetchers: usize) -> Errands {
        Errands((0..fetchers).map(|_| Place::default()).collect())
    }

    /// One for each fetcher.
    pub fn places(&self) -> impl Iterator<Item = &Place> {
        self.0.iter()
    }

    /// Nobody wants an answer any more.
    pub fn give_up(&self) {
        self.now().for_each(|errand| errand.ask.give_up());
    }

    /// All that fetchers are at now.
    pub fn now(&self) -> impl Iterator<Item = Arc<Errand>> {
        self.0.iter().filter_map(|place| place.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }
}

/// The objects of a job that are asked for and not had, by the members' indexes. Each is settled once, whatever comes after.
#[derive(Debug, Default)]
pub struct Awaited(BTreeMap<usize, Object>);

#[derive(Debug, Default)]
struct Object {
    errands: Vec<Arc<Errand>>,
    answers: usize,
    /// What became of the first errand, while the second is under way.
    error: Option<StoreError>,
}

impl Awaited {
    /// An errand is on its way.
    pub fn asked(&mut self, index: usize, errand: Arc<Errand>) {
        self.0.entry(index).or_default().errands.push(errand);
    }

    /// What an answer makes of its object: the first good one is taken and others are given up; where none is good it is
    /// the first errand's error. `None` where that is not known yet, or has been long.
    pub fn answered(
        &mut self,
        index: usize,
        again: bool,
        result: Result<Vec<u8>, StoreError>,
    ) -> Option<Result<Vec<u8>, StoreError>> {
        let object = self.0.get_mut(&index)?;
        object.answers += 1;
        let result = match result {
            Ok(body) => Ok(body),
            Err(error) => {
                if !again {
                    object.error = Some(error);
                }
                if object.answers < object.errands.len() {
                    return None;
                }
                Err(object.error.take()?)
            }
        };
        self.0.remove(&index)?.errands.iter().for_each(|errand| errand.ask.give_up());
        Some(result)
    }

    /// How many are awaited.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Those that were asked for once.
    pub fn asked_once(&self) -> Vec<(usize, Arc<Errand>)> {
        let once = |(index, object): (&usize, &Object)| match object.errands.as_slice() {
            [errand] => Some((*index, Arc::clone(errand))),
            _ => None,
        };
        self.0.iter().filter_map(once).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Trouble;

    fn awaited(times: usize) -> Awaited {
        let mut awaited = Awaited::default();
        for again in [false, true].into_iter().take(times) {
            let errand = Errand { shard: "s".into(), uri: "u".into(), again, ask: Ask::default() };
            awaited.asked(7, Arc::new(errand));
        }
        awaited
    }

    fn bad(cause: &str) -> Result<Vec<u8>, StoreError> {
        Err(StoreError::new("get", "u", Trouble::Transient, cause))
    }

    #[test]
    fn the_first_good_answer_is_taken_and_a_second_one_is_not() {
        for first in [false, true] {
            let mut awaited = awaited(2);
            assert_eq!(awaited.answered(7, first, Ok(b"a".to_vec())).unwrap().unwrap(), b"a");
            assert_eq!(awaited.count(), 0);
            assert!(awaited.answered(7, !first, Ok(b"b".to_vec())).is_none());
        }
    }

    #[test]
    fn a_bad_answer_waits_for_the_other_one_and_of_two_bad_ones_the_first_requests_counts() {
        for first in [false, true] {
            let mut good = awaited(2);
            assert!(good.answered(7, first, bad("x")).is_none());
            assert!(good.answered(7, !first, Ok(Vec::new())).unwrap().is_ok());
            let mut both = awaited(2);
            let cause = |again| if again { "again" } else { "first" };
            assert!(both.answered(7, first, bad(cause(first))).is_none());
            let error = both.answered(7, !first, bad(cause(!first))).unwrap().unwrap_err();
            assert_eq!((error.cause.as_str(), both.count()), ("first", 0));
        }
    }

    #[test]
    fn what_was_asked_for_once_is_settled_by_its_answer() {
        let mut awaited = awaited(1);
        assert_eq!(awaited.asked_once().len(), 1);
        assert!(awaited.answered(7, false, bad("x")).unwrap().is_err());
        assert_eq!(awaited.count(), 0);
    }
}
