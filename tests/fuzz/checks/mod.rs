//! What must hold for any input: asked by libFuzzer of inputs it makes up, and by the tests of those that are kept. Each
//! `check` panics where it does not hold.

#![allow(dead_code, reason = "each fuzz target uses one of them")]

pub(crate) mod listing;
pub(crate) mod microshard;
pub(crate) mod queue;
pub(crate) mod tables;
pub(crate) mod uris;

use std::path::Path;

/// A directory for one input's files: in memory where there is such a place.
fn directory() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    let made = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    made.expect("a directory")
}

/// What is said to a person is said, and in one line that steers no terminal.
#[track_caller]
fn assert_shown(sentence: &str) {
    assert!(!sentence.is_empty() && !sentence.contains(char::is_control), "{sentence:?}");
}

/// Bytes of `base` with others put in their place: three bytes of the input tell where, one what.
fn patched(base: &[u8], places: &[usize], patches: &[u8]) -> Vec<u8> {
    let mut bytes = base.to_vec();
    for patch in patches.chunks_exact(4) {
        let number = usize::from(patch[0]) << 16 | usize::from(patch[1]) << 8 | usize::from(patch[2]);
        bytes[places[number % places.len()]] = patch[3];
    }
    bytes
}
