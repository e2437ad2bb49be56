//! Faults that tests ask for: compiled only with the feature `test-faults`, which nothing but the tests has.

/// Dies, as a decoder with a bug would, on the microshard that the environment names.
pub(crate) fn before_decode(microshard_id: i64) {
    let asked = std::env::var("COMPACT_LOCAL_TEST_DIE_ON").ok().and_then(|id| id.parse().ok());
    if asked == Some(microshard_id) {
        std::process::abort();
    }
}
