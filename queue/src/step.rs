//! Step boundaries, at which tests let the process die, or the operation that comes next fail. Without the feature
//! `test-faults` nothing is left of them.

/// Before an operation that a disk may refuse, which `name` says: tests make it fail, or the process die.
#[cfg(not(feature = "test-faults"))]
#[inline(always)]
pub fn step(_name: &'static str) -> std::io::Result<()> {
    Ok(())
}

/// Between two operations: tests make the process die.
#[cfg(not(feature = "test-faults"))]
#[inline(always)]
pub fn passed(_name: &'static str) {}

#[cfg(feature = "test-faults")]
pub use crate::faults::{passed, step};

/// As `step`, before an operation of SQLite.
pub(crate) fn sql_step(name: &'static str) -> rusqlite::Result<()> {
    step(name).map_err(|error| {
        let code = match error.kind() {
            std::io::ErrorKind::StorageFull => rusqlite::ffi::SQLITE_FULL,
            std::io::ErrorKind::PermissionDenied => rusqlite::ffi::SQLITE_READONLY,
            _ => rusqlite::ffi::SQLITE_IOERR,
        };
        rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(code), Some(error.to_string()))
    })
}
