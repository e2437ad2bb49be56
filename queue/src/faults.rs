//! Deaths that tests ask for: compiled only with the feature `test-faults`, which nothing but the tests has.

use std::cell::RefCell;
use std::collections::BTreeSet;
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
