//! Deaths that tests ask for: compiled only with the feature `test-faults`, which nothing but the tests has.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicI64, Ordering};

use rusqlite::StatementStatus;
use rusqlite::trace::{TraceEvent, TraceEventCodes};

use crate::file::Queue;

thread_local! {
    static SEEN: RefCell<Option<BTreeSet<String>>> = const { RefCell::new(None) };
}

static LEFT: AtomicI64 = AtomicI64::new(i64::MAX);

/// The process dies when any of its connections begins the `statement`th statement from now, those of triggers counted.
pub fn die_at_statement(statement: i64) {
    LEFT.store(statement, Ordering::SeqCst);
}

pub(crate) fn watched(mut queue: Queue) -> Queue {
    queue.conn.trace_v2(TraceEventCodes::SQLITE_TRACE_STMT, Some(count)).expect("a build for tests can trace");
    queue
}

/// Runs `work` and returns the SQL of every statement that queues opened by this thread ran in it; triggers' excepted.
pub fn statements_of(work: impl FnOnce()) -> BTreeSet<String> {
    SEEN.with_borrow_mut(|seen| *seen = Some(BTreeSet::new()));
    work();
    SEEN.take().unwrap_or_default()
}

fn count(event: TraceEvent<'_>) {
    if let TraceEvent::Stmt(_, sql) = &event
        && !sql.starts_with("--")
    {
        SEEN.with_borrow_mut(|seen| seen.as_mut().map(|seen| seen.insert((*sql).to_owned())));
    }
    if matches!(event, TraceEvent::Stmt(..)) && LEFT.fetch_sub(1, Ordering::SeqCst) == 1 {
        std::process::abort();
    }
}

/// What the environment asks for, as `NAME;N;WHAT`: at the Nth passing of a step the process dies, or the operation fails
/// with an error number.
struct Fault {
    name: String,
    left: AtomicI64,
    errno: Option<i32>,
}

static FAULT: LazyLock<Option<Fault>> = LazyLock::new(|| {
    let asked = std::env::var("QUEUE_TEST_FAULT").ok()?;
    let mut parts = asked.split(';');
    let (name, left, what) = (parts.next()?.to_owned(), parts.next()?.parse().ok()?, parts.next()?);
    Some(Fault { name, left: AtomicI64::new(left), errno: what.parse().ok() })
});

/// Before an operation that a disk may refuse.
pub fn step(name: &'static str) -> io::Result<()> {
    record("step", name);
    match due(name) {
        Some(Fault { errno: Some(errno), .. }) => Err(io::Error::from_raw_os_error(*errno)),
        Some(_) => std::process::abort(),
        None => Ok(()),
    }
}

/// Between two operations.
pub fn passed(name: &'static str) {
    record("passed", name);
    if due(name).is_some() {
        std::process::abort();
    }
}

fn due(name: &str) -> Option<&'static Fault> {
    FAULT.as_ref().filter(|fault| fault.name == name && fault.left.fetch_sub(1, Ordering::SeqCst) == 1)
}

/// Notes a passing in the file that the environment names, so that tests know what steps there are.
fn record(kind: &str, name: &str) {
    if let Some(file) = std::env::var_os("QUEUE_TEST_STEPS") {
        let file = OpenOptions::new().append(true).create(true).open(file);
        // In one write: several threads pass steps.
        file.and_then(|mut file| file.write_all(format!("{kind};{name}\n").as_bytes())).expect("steps can be noted");
    }
}

impl Queue {
    /// How often a cached statement had to be compiled anew since it was first used.
    pub fn compiled_anew(&self, sql: &str) -> rusqlite::Result<i32> {
        Ok(self.conn.prepare_cached(sql)?.get_status(StatementStatus::RePrepare))
    }

    /// The fence of a shard, for a test that has lost its lease.
    pub fn attempt_of(&self, shard: i64) -> rusqlite::Result<i64> {
        self.conn.query_row("SELECT attempt FROM shards WHERE shard = ?1", [shard], |row| row.get(0))
    }
}
