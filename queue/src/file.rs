//! The queue file: opening it, pragmas, versions, the checks that tell a queue from something else, and giving way to
//! another writer.
//! The file is opened by SQLite only: closing any other descriptor on it would drop SQLite's locks for the process.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension};

use crate::error::{Error, Named, Result};
use crate::lock::{Lock, LockKind, real};
use crate::step::{passed, step};

/// Marks the file as ours in SQLite's header (`application_id`): "mshq".
const APPLICATION_ID: i64 = 0x6d73_6871;
/// The schema this program writes and reads.
const SCHEMA_VERSION: i64 = 1;
/// 3.51.3: versions before it can lose committed pages with two connections (WAL reset).
const SQLITE_MIN: i32 = 3_051_003;

/// Rows written in one transaction where a runner may be at work: some milliseconds of its time.
pub(crate) const SHORT_BATCH: usize = 2_000;
const GIVE_WAY_MAX: Duration = Duration::from_millis(100);

const TABLES: &str = include_str!("schema/tables.sql");
const INDEXES: &str = include_str!("schema/indexes.sql");

/// An open queue file.
#[derive(Debug)]
pub struct Queue {
    pub(crate) conn: Connection,
    pub(crate) path: PathBuf,
}

impl Queue {
    /// Opens an existing queue for reading and writing.
    ///
    /// # Errors
    /// `Missing`, `Foreign`, `Newer`, and whatever SQLite finds wrong with the file.
    pub fn open(path: &Path) -> Result<Queue> {
        check_sqlite()?;
        if !path.try_exists().named("look for", path)? {
            return Err(Error::Missing(path.to_owned()));
        }
        if !path.is_file() {
            return Err(Error::Foreign(path.to_owned()));
        }
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let conn = Connection::open_with_flags(plain(path)?, flags).named("open", path)?;
        let queue = Queue { conn, path: real(path) };
        queue.check_ours().and_then(|()| queue.set_pragmas()).map_err(|error| queue.or_read_only(error))?;
        #[cfg(feature = "test-faults")]
        let queue = crate::faults::watched(queue);
        Ok(queue)
    }

    /// Creates the tables in a new file, without journal and indexes: it is loaded under a temporary name, then
    /// `finish_new` makes it durable and moves it to its own.
    pub(crate) fn create_new(path: &Path) -> Result<Queue> {
        check_sqlite()?;
        // Made before SQLite opens it, which would make it as readable as the umask allows: it holds uris in full, and a
        // presigned one is a password. SQLite gives its log the same mode.
        drop(private().create_new(true).write(true).open(path).named("create", path)?);
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let conn = Connection::open_with_flags(plain(path)?, flags).named("create", path)?;
        let queue = Queue { conn, path: path.to_owned() };
        #[cfg(feature = "test-faults")]
        let queue = crate::faults::watched(queue);
        queue
            .conn
            .execute_batch(&format!(
                "PRAGMA page_size=4096; PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; PRAGMA cache_size=-65536;
                 PRAGMA locking_mode=EXCLUSIVE; PRAGMA foreign_keys=OFF;
                 PRAGMA application_id={APPLICATION_ID}; PRAGMA user_version={SCHEMA_VERSION}; {TABLES}"
            ))
            .named("create", path)?;
        let id = format!("{:016x}", fastrand::u64(..));
        queue.set_meta("queue_id", &id)?;
        Ok(queue)
    }

    /// Builds the indexes of a newly loaded file.
    pub(crate) fn index_new(&self) -> Result<()> {
        self.conn.execute_batch(INDEXES).named("index", &self.path)
    }

    /// Makes a newly loaded file durable and gives it its own name, unless a file has that name already.
    pub(crate) fn finish_new(self, path: &Path) -> Result<Queue> {
        let temporary = self.path.clone();
        self.conn.close().map_err(|(_, error)| error).named("close", &temporary)?;
        let file = std::fs::File::open(&temporary).named("open", &temporary)?;
        step("new queue: sync").and_then(|()| file.sync_all()).named("sync", &temporary)?;
        drop(file);
        // A hard link fails where the name is taken, so a queue made meanwhile is never replaced.
        step("new queue: link").named("create", path)?;
        std::fs::hard_link(&temporary, path)
            .or_else(|error| match error.kind() {
                std::io::ErrorKind::AlreadyExists => Err(error),
                _ => std::fs::rename(&temporary, path), // file systems without hard links
            })
            .named("create", path)?;
        let _gone_already_if_renamed = std::fs::remove_file(&temporary);
        passed("new queue: linked");
        sync_directory(path)?;
        Queue::open(path)
    }

    fn check_ours(&self) -> Result<()> {
        let application: i64 = self.pragma("application_id")?;
        let version: i64 = self.pragma("user_version")?;
        if application != APPLICATION_ID {
            return Err(Error::Foreign(self.path.clone()));
        }
        if version > SCHEMA_VERSION {
            return Err(Error::Newer { path: self.path.clone(), found: version, known: SCHEMA_VERSION });
        }
        Ok(())
    }

    /// In SQLite's own words a log that it may not make is an "unable to open database file".
    fn or_read_only(&self, error: Error) -> Error {
        let is_read_only = self.conn.is_readonly("main").unwrap_or(false);
        match error {
            Error::Database { cause, .. } if is_read_only && may_not_write(&cause) => {
                Error::ReadOnly(self.path.clone())
            }
            other => other,
        }
    }

    fn set_pragmas(&self) -> Result<()> {
        // mmap_size=0: with mmap an I/O error is a signal, not an error code.
        self.conn
            .execute_batch(
                "PRAGMA busy_timeout=60000; PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA cache_size=-8192;
                 PRAGMA temp_store=MEMORY; PRAGMA wal_autocheckpoint=1000; PRAGMA journal_size_limit=67108864;
                 PRAGMA mmap_size=0; PRAGMA foreign_keys=ON;",
            )
            .named("open", &self.path)?;
        self.conn.set_prepared_statement_cache_capacity(64);
        // Plans must not depend on bound values: where they do, a cached statement is compiled anew at every use.
        self.conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).named("open", &self.path)?;
        Ok(())
    }

    fn pragma(&self, name: &str) -> Result<i64> {
        self.conn.query_row(&format!("PRAGMA {name}"), [], |row| row.get(0)).named("read", &self.path)
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Leaves the file to a runner at work for as long as it has just been kept from it: SQLite has no queue of writers,
    /// and who comes back first wins.
    pub(crate) fn give_way(&self, held: Duration) -> Result<()> {
        if Lock::is_held(&self.path, LockKind::Runner)? != Some(false) {
            std::thread::sleep(held.min(GIVE_WAY_MAX));
        }
        Ok(())
    }

    /// A random id given to the file when it was made.
    pub fn queue_id(&self) -> Result<String> {
        self.meta("queue_id")?.ok_or_else(|| Error::Foreign(self.path.clone()))
    }

    /// A note kept for the caller.
    pub fn meta(&self, key: &str) -> Result<Option<String>> {
        self.conn
            .query_row("SELECT value FROM meta WHERE key = ?1", [key], |row| row.get(0))
            .optional()
            .named("read", &self.path)
    }

    /// Keeps a note for the caller, replacing the one before.
    pub fn set_meta(&self, key: &str, value: &str) -> Result<()> {
        self.conn
            .execute("INSERT INTO meta VALUES(?1, ?2) ON CONFLICT(key) DO UPDATE SET value = ?2", [key, value])
            .named("write", &self.path)?;
        Ok(())
    }
}

/// How a file beside the queue, or the queue itself, is made: for nobody else, whatever the umask.
pub fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(0o600);
    options
}

/// Unix time in milliseconds.
pub fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64)
}

/// A path that SQLite takes for nothing but a path: `:memory:` and `file:x` mean something else to it.
fn plain(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).named("find", path)
}

/// Removes a file of ours that an earlier process may have left.
pub(crate) fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error).named("remove", path),
        _ => Ok(()),
    }
}

/// Makes a new name in the file's directory durable.
pub(crate) fn sync_directory(path: &Path) -> Result<()> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let opened = step("queue: sync directory").and_then(|()| std::fs::File::open(directory));
    opened.and_then(|directory| directory.sync_all()).named("sync the directory of", path)
}

fn may_not_write(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::CannotOpen | ErrorCode::ReadOnly))
}

fn check_sqlite() -> Result<()> {
    if rusqlite::version_number() < SQLITE_MIN {
        return Err(Error::Sqlite(rusqlite::version().to_owned()));
    }
    Ok(())
}
