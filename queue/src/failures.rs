//! What failed and why.

use rusqlite::Row;

use crate::error::{Named, Result};
use crate::file::Queue;

/// A microshard that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedMicroshard {
    /// Its place in plan order.
    pub seq: i64,
    /// Its id in the manifest.
    pub microshard_id: i64,
    /// Where it is.
    pub uri: String,
    /// Its run.
    pub run_id: String,
    /// Its language.
    pub language: String,
    /// The base name of the shard it was planned into.
    pub shard: String,
    /// Why, for a person.
    pub sentence: String,
    /// How often it was tried.
    pub tries: u32,
    /// When, Unix milliseconds.
    pub at_ms: i64,
}

/// Which failures are brought back.
#[derive(Debug, Clone, Default)]
pub struct RetrySelection {
    /// Of these languages; empty means all.
    pub languages: Vec<String>,
    /// These microshards; empty means all.
    pub microshard_ids: Vec<i64>,
}

/// What `retry` did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Retried {
    /// Microshards that are pending again.
    pub microshards: u64,
    /// New shards they were put into.
    pub shards: u64,
    /// Held shards that are pending again, whole.
    pub unheld: u64,
}

impl Queue {
    /// Calls `each` for every failed microshard, in plan order.
    pub fn for_each_failure(&self, each: &mut dyn FnMut(FailedMicroshard) -> Result<()>) -> Result<()> {
        let mut select = self
            .conn
            .prepare(
                "SELECT e.seq, m.microshard_id, m.uri, r.run_id, g.language, s.name, e.sentence, e.tries, e.at
                 FROM exceptions e JOIN microshards m ON m.seq = e.seq JOIN shards s ON s.shard = e.shard
                 JOIN groups g ON g.grp = s.grp JOIN runs r ON r.run = g.run WHERE e.state = 0 ORDER BY e.seq",
            )
            .named("read", &self.path)?;
        let mut rows = select.query([]).named("read", &self.path)?;
        while let Some(row) = rows.next().named("read", &self.path)? {
            each(failed(row).named("read", &self.path)?)?;
        }
        Ok(())
    }
}

impl RetrySelection {
    pub(crate) fn takes(&self, failure: &FailedMicroshard) -> bool {
        (self.languages.is_empty() || self.languages.contains(&failure.language))
            && (self.microshard_ids.is_empty() || self.microshard_ids.contains(&failure.microshard_id))
    }
}

fn failed(row: &Row<'_>) -> rusqlite::Result<FailedMicroshard> {
    Ok(FailedMicroshard {
        seq: row.get(0)?,
        microshard_id: row.get(1)?,
        uri: row.get(2)?,
        run_id: row.get(3)?,
        language: row.get(4)?,
        shard: row.get(5)?,
        sentence: row.get(6)?,
        tries: row.get(7)?,
        at_ms: row.get(8)?,
    })
}
