//! What can go wrong with a queue file, each with what to do about it.

use std::path::{Path, PathBuf};

/// The result of an operation on the queue.
pub type Result<T> = std::result::Result<T, Error>;

/// Trouble with the queue file, or with what was asked of it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no such file.
    #[error("no queue at {}: make one with `compact-local snapshot --queue {}`", .0.display(), .0.display())]
    Missing(PathBuf),
    /// The file is something else.
    #[error("{} is not a queue of compact-local: name another file with --queue", .0.display())]
    Foreign(PathBuf),
    /// The file was written by a newer version.
    #[error("{} has schema version {found}, this program knows up to {known}: use the newer program", path.display())]
    Newer {
        /// Which file.
        path: PathBuf,
        /// Its version.
        found: i64,
        /// Ours.
        known: i64,
    },
    /// SQLite may not make its log beside the file.
    #[error(
        "failed to open {}: it is read-only for this user, and SQLite keeps its log beside it, also to read while no runner \
         works: remount the disk, or make the file and its directory writable, and run again", .0.display()
    )]
    ReadOnly(PathBuf),
    /// The bundled SQLite has a known fault.
    #[error("SQLite {0} can lose committed pages; 3.51.3 or newer is needed: rebuild with the bundled one")]
    Sqlite(String),
    /// The file system refused.
    #[error("failed to {operation} {}: {source}{}", path.display(), file_advice(source))]
    Io {
        /// What was tried.
        operation: &'static str,
        /// On which file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// SQLite refused.
    #[error("failed to {operation} {}: {cause}{}", path.display(), advice(cause))]
    Database {
        /// What was tried.
        operation: &'static str,
        /// On which file.
        path: PathBuf,
        /// The cause; no source, as what lies under it says the same once more.
        cause: rusqlite::Error,
    },
    /// The caller's input cannot be taken.
    #[error("{0}")]
    Input(String),
    /// What is to be retried has not failed; says which.
    #[error("{0}")]
    NotFailed(String),
    /// The thread that owns the connection is gone; its own error says why.
    #[error("the queue's writer has stopped")]
    Stopped,
}

const FULL: &str = ": free some disk space and run again; nothing committed is lost";
const READ_ONLY: &str = ": it and its directory must be writable for this user: set this right and run again";

/// What to do about an error of the file system; empty where the message says it all.
fn file_advice(error: &std::io::Error) -> &'static str {
    use std::io::ErrorKind::*;
    match error.kind() {
        StorageFull | QuotaExceeded => FULL,
        ReadOnlyFilesystem | PermissionDenied => READ_ONLY,
        _ => "",
    }
}

/// What to do about an SQLite error; empty where the message says it all.
fn advice(error: &rusqlite::Error) -> &'static str {
    use rusqlite::ErrorCode::*;
    match error.sqlite_error_code() {
        Some(DiskFull) => FULL,
        // The log's index is given its room by a write; nothing else is read or written there.
        Some(SystemIoFailure) if extended_code(error) == Some(rusqlite::ffi::SQLITE_IOERR_SHMSIZE) => {
            ": there is no room for the log's index: free some disk space and run again; nothing committed is lost"
        }
        Some(SystemIoFailure) => {
            ": the disk is failing, or over a quota: look at the kernel's log, then run again; nothing committed is lost"
        }
        Some(ReadOnly) => READ_ONLY,
        Some(DatabaseCorrupt) => {
            ": the file is damaged; restore it, or snapshot into a new one and run `sync-back` there"
        }
        Some(DatabaseBusy | DatabaseLocked) => ": another process holds it",
        Some(CannotOpen) => ": its directory must exist and be writable for this user",
        _ => "",
    }
}

fn extended_code(error: &rusqlite::Error) -> Option<i32> {
    error.sqlite_error().map(|error| error.extended_code)
}

/// Names the operation and the file an SQLite error belongs to.
pub(crate) trait Named<T> {
    /// Turns an SQLite error into ours.
    fn named(self, operation: &'static str, path: &Path) -> Result<T>;
}

impl<T> Named<T> for rusqlite::Result<T> {
    fn named(self, operation: &'static str, path: &Path) -> Result<T> {
        self.map_err(|cause| match cause.sqlite_error_code() {
            Some(rusqlite::ErrorCode::NotADatabase) => Error::Foreign(path.to_owned()),
            _ => Error::Database { operation, path: path.to_owned(), cause },
        })
    }
}

impl<T> Named<T> for std::io::Result<T> {
    fn named(self, operation: &'static str, path: &Path) -> Result<T> {
        self.map_err(|source| Error::Io { operation, path: path.to_owned(), source })
    }
}
