//! One runner, one snapshot per queue file: an OS lock on a side file. The lock's death is the proof of its holder's.
//! Side files stay when the lock is gone: removing them would let two processes lock two files of the same name.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::{Named, Result};

/// How often, and how far apart, a lock is tried before it counts as held.
const LOOKS: u32 = 5;
const LOOK: Duration = Duration::from_millis(10);

/// What is locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockKind {
    /// `run`: one at a time.
    Runner,
    /// Whatever adds microshards: `snapshot`, `retry`.
    Intake,
}

/// A lock that is held until it is dropped, or its process dies.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock; `None` where another process has it.
    ///
    /// # Errors
    /// Where the side file cannot be made, or the file system knows no locks.
    pub fn try_acquire(queue: &Path, kind: LockKind) -> Result<Option<Lock>> {
        let path = side_file(queue, kind);
        let file = File::options().create(true).truncate(false).write(true).open(&path).named("open", &path)?;
        // `is_held` has it for a moment when it looks: somebody's `status` must not look like a runner.
        for _ in 0..LOOKS {
            match file.try_lock() {
                Ok(()) => return Ok(Some(Lock { _file: file })),
                Err(TryLockError::WouldBlock) => std::thread::sleep(LOOK),
                Err(TryLockError::Error(error)) => return Err(error).named("lock", &path),
            }
        }
        Ok(None)
    }

    /// Whether another process has it. Looks only, and makes no file.
    pub fn is_held(queue: &Path, kind: LockKind) -> Result<bool> {
        let path = side_file(queue, kind);
        if !path.exists() {
            return Ok(false);
        }
        let file = File::open(&path).named("open", &path)?;
        match file.try_lock_shared() {
            Ok(()) => Ok(false),
            Err(TryLockError::WouldBlock) => Ok(true),
            Err(TryLockError::Error(error)) => Err(error).named("lock", &path),
        }
    }
}

/// `queue.db` -> `queue.db.lock`.
fn side_file(queue: &Path, kind: LockKind) -> PathBuf {
    with_suffix(
        queue,
        match kind {
            LockKind::Runner => ".lock",
            LockKind::Intake => ".intake-lock",
        },
    )
}

/// A file beside the queue file.
pub fn with_suffix(queue: &Path, suffix: &str) -> PathBuf {
    let mut name = queue.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}
