//! Faults that tests ask for; without the feature `test-faults`, which nothing but the tests has, nothing is left of them.

pub(crate) use microshard_queue::{passed, step};

/// Dies, as a decoder with a bug would, on the microshard that the environment names.
#[cfg(feature = "test-faults")]
pub(crate) fn before_decode(microshard_id: i64) {
    if asked("COMPACT_LOCAL_TEST_DIE_ON") == Some(microshard_id) {
        std::process::abort();
    }
}

/// Dies, as a killed snapshot would, when the manifest gives it the microshard that the environment names.
#[cfg(feature = "test-faults")]
pub(crate) fn before_take(microshard_id: i64) {
    if asked("COMPACT_LOCAL_TEST_DIE_TAKING") == Some(microshard_id) {
        std::process::abort();
    }
}

#[cfg(feature = "test-faults")]
fn asked(variable: &str) -> Option<i64> {
    std::env::var(variable).ok().and_then(|id| id.parse().ok())
}
