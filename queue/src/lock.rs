//! One runner, one snapshot per queue file: an OS lock on a side file. The lock's death is the proof of its holder's.
//! Side files stay when the lock is gone: removing them would let two processes lock two files of the same name.

use std::fs::{File, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::{Error, Named, Result};
use crate::file::private;

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

/// How the taking of a lock ended.
#[derive(Debug)]
pub enum Acquired {
    /// It is ours.
    Ours(Lock),
    /// Another process has it.
    Busy,
    /// The file system knows no locks (some network file systems): only the beat can tell.
    NoLocks,
}

/// A lock that is held until it is dropped, or its process dies.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock.
    ///
    /// # Errors
    /// Where the side file cannot be made, or the queue has more than one name.
    pub fn acquire(queue: &Path, kind: LockKind) -> Result<Acquired> {
        refuse_second_names(&real(queue))?;
        let path = side_file(queue, kind);
        let file = private().create(true).truncate(false).write(true).open(&path).named("open", &path)?;
        // `is_held` has it for a moment when it looks: somebody's `status` must not look like a runner.
        for _ in 0..LOOKS {
            match file.try_lock() {
                Ok(()) => return Ok(Acquired::Ours(Lock { _file: file })),
                Err(TryLockError::WouldBlock) => std::thread::sleep(LOOK),
                Err(TryLockError::Error(error)) if knows_no_locks(&error) => return Ok(Acquired::NoLocks),
                Err(TryLockError::Error(error)) => return Err(error).named("lock", &path),
            }
        }
        Ok(Acquired::Busy)
    }

    /// Whether another process has it; `None` where the file system knows no locks. Looks only, and makes no file.
    pub fn is_held(queue: &Path, kind: LockKind) -> Result<Option<bool>> {
        let path = side_file(queue, kind);
        if !path.exists() {
            return Ok(Some(false));
        }
        let file = File::open(&path).named("open", &path)?;
        match file.try_lock_shared() {
            Ok(()) => Ok(Some(false)),
            Err(TryLockError::WouldBlock) => Ok(Some(true)),
            Err(TryLockError::Error(error)) if knows_no_locks(&error) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error).named("lock", &path),
        }
    }
}

/// A lock is found by the queue's name: under another name of the same file another runner would not be seen.
fn refuse_second_names(queue: &Path) -> Result<()> {
    let names = || std::fs::metadata(queue).map_or(1, |metadata| metadata.nlink());
    if names() > 1 {
        // A snapshot that was killed while it gave a new queue its name leaves the old one.
        remove_second_name(queue, &with_suffix(queue, ".loading"))?;
    }
    if names() > 1 {
        return Err(Error::Input(format!(
            "{} is one of {} hard links to the same queue, whose runners would not see each other: remove the others, or \
             copy the queue while nothing is at work on it",
            queue.display(),
            names()
        )));
    }
    Ok(())
}

fn remove_second_name(queue: &Path, other: &Path) -> Result<()> {
    let file = |path: &Path| std::fs::symlink_metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()));
    if file(other).is_some() && file(other) == file(queue) {
        std::fs::remove_file(other).named("remove", other)?;
    }
    Ok(())
}

fn knows_no_locks(error: &std::io::Error) -> bool {
    // ENOLCK: an NFS server without a lock service.
    const ENOLCK: i32 = 37;
    error.kind() == std::io::ErrorKind::Unsupported || error.raw_os_error() == Some(ENOLCK)
}

/// `queue.db` -> `queue.db.lock`.
fn side_file(queue: &Path, kind: LockKind) -> PathBuf {
    with_suffix(
        &real(queue),
        match kind {
            LockKind::Runner => ".lock",
            LockKind::Intake => ".intake-lock",
        },
    )
}

/// The file behind a symbolic link: one queue has one name, and so one lock.
pub fn real(queue: &Path) -> PathBuf {
    std::fs::canonicalize(queue).unwrap_or_else(|_| queue.to_owned())
}

/// A file beside the queue file.
pub fn with_suffix(queue: &Path, suffix: &str) -> PathBuf {
    let mut name = queue.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}
