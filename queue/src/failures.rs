//! What failed and why, and bringing it back: `retry` copies failed microshards to the end of the plan and cuts new
//! shards from them, so that a plan once made never changes and the old failure stays on record.

use std::collections::BTreeSet;

use rusqlite::{Row, params};

use crate::error::{Error, Named, Result};
use crate::file::{Queue, now_ms};
use crate::intake::NameShard;
use crate::lock::{Acquired, Lock, LockKind};

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

    /// Puts failed microshards into new shards. Held shards whose failures are brought back become pending whole.
    ///
    /// # Errors
    /// Where a snapshot or another retry is at work, or a named microshard, or none of a named language, has failed.
    pub fn retry(&self, selection: &RetrySelection, name: &NameShard) -> Result<Retried> {
        let Acquired::Ours(_lock) = Lock::acquire(&self.path, LockKind::Intake)? else {
            return Err(Error::Input(
                "a snapshot or another retry is at work on this queue: wait for it to end".to_owned(),
            ));
        };
        let mut chosen = Vec::new();
        let mut not_failed: BTreeSet<i64> = selection.microshard_ids.iter().copied().collect();
        let mut without: BTreeSet<&str> = selection.languages.iter().map(String::as_str).collect();
        self.for_each_failure(&mut |failure| {
            if selection.takes(&failure) {
                chosen.push(failure.seq);
                not_failed.remove(&failure.microshard_id);
                without.remove(failure.language.as_str());
            }
            Ok(())
        })?;
        if !not_failed.is_empty() {
            let ids: Vec<String> = not_failed.iter().map(i64::to_string).collect();
            return Err(Error::NotFailed(format!("microshards {} have not failed here", ids.join(", "))));
        }
        if !without.is_empty() {
            let languages: Vec<&str> = without.into_iter().collect();
            return Err(Error::NotFailed(format!(
                "no microshard of language {} has failed here",
                languages.join(", ")
            )));
        }
        self.drop_unplanned()?;
        self.transaction(|| {
            self.mark(&chosen)?;
            let left = self.leave_released()?;
            let mut retried = Retried { unheld: self.unhold()?, ..Retried::default() };
            self.add_retries(name, &mut retried)?;
            retried.microshards = chosen.len() as u64 - left;
            Ok(retried)
        })
    }

    fn mark(&self, chosen: &[i64]) -> Result<()> {
        self.conn
            .execute_batch("CREATE TEMP TABLE IF NOT EXISTS chosen(seq INTEGER PRIMARY KEY); DELETE FROM chosen")
            .named("write", &self.path)?;
        for seq in chosen {
            self.execute("INSERT INTO chosen VALUES(?1)", params![seq])?;
        }
        Ok(())
    }

    /// What was released while it was held belongs to others now; returns how many stay failed.
    fn leave_released(&self) -> Result<u64> {
        let left = self.execute(
            "DELETE FROM chosen WHERE seq IN (SELECT e.seq FROM exceptions e JOIN shards s ON s.shard = e.shard
               WHERE s.state = 5 AND s.error = 'released to the manifest')",
            params![],
        )?;
        Ok(left as u64)
    }

    /// A shard held for its failures is built whole, once all of them are tried again.
    fn unhold(&self) -> Result<u64> {
        let shards: Vec<i64> = self
            .conn
            .prepare(
                "SELECT DISTINCT e.shard FROM chosen c JOIN exceptions e ON e.seq = c.seq JOIN shards s ON s.shard = e.shard
                 WHERE s.state = 5",
            )
            .and_then(|mut select| select.query_map([], |row| row.get(0))?.collect())
            .named("read", &self.path)?;
        for shard in &shards {
            self.execute(
                "DELETE FROM chosen WHERE seq IN (SELECT seq FROM exceptions WHERE shard = ?1)",
                params![shard],
            )?;
            self.execute("DELETE FROM exceptions WHERE shard = ?1 AND state = 0", params![shard])?;
            self.execute("UPDATE shards SET state = 0, error = NULL WHERE shard = ?1", params![shard])?;
        }
        Ok(shards.len() as u64)
    }

    /// One new shard for every shard that failures are brought back from: never larger than it was.
    fn add_retries(&self, name: &NameShard, retried: &mut Retried) -> Result<()> {
        let sources: Vec<(i64, i64, i64, i64, u32, String, String)> = self
            .conn
            .prepare(
                "SELECT DISTINCT s.shard, s.grp, s.snapshot, g.run, n.number, g.language, r.run_id
                 FROM chosen c JOIN exceptions e ON e.seq = c.seq JOIN shards s ON s.shard = e.shard
                 JOIN groups g ON g.grp = s.grp JOIN runs r ON r.run = g.run JOIN snapshots n ON n.snapshot = s.snapshot
                 ORDER BY s.shard",
            )
            .and_then(|mut select| {
                select
                    .query_map([], |row| {
                        Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?, row.get(5)?, row.get(6)?))
                    })?
                    .collect()
            })
            .named("read", &self.path)?;
        for (source, grp, snapshot, run, snapshot_number, language, run_id) in sources {
            let number = self.next_number(grp, snapshot)?;
            let shard_name = name(&run_id, &language, snapshot_number, number);
            self.copy_failures(source, run)?;
            self.execute(
                "INSERT INTO shards(grp, snapshot, number, name, first, last, members, work, rows_planned, bytes_planned, closed_by, state)
                 SELECT ?1, ?2, ?3, ?4, min(seq), max(seq), count(*), iif(count(rows) = count(*), sum(rows), count(*)),
                            iif(count(rows) = count(*), sum(rows), NULL),
                        iif(count(bytes) = count(*), sum(bytes), NULL), 'retry', 0
                 FROM microshards WHERE seq > (SELECT coalesce(max(last), 0) FROM shards)",
                params![grp, snapshot, number, shard_name],
            )?;
            let shard = self.conn.last_insert_rowid();
            self.execute(
                "UPDATE exceptions SET state = 1, retried_in = ?2
                 WHERE shard = ?1 AND state = 0 AND seq IN (SELECT seq FROM chosen)",
                params![source, shard],
            )?;
            retried.shards += 1;
        }
        Ok(())
    }

    /// The next number of a shard: that of one which `release` took apart is not given again.
    fn next_number(&self, grp: i64, snapshot: i64) -> Result<u32> {
        self.conn
            .query_row(
                "SELECT 1 + max(coalesce((SELECT max(number) FROM shards WHERE grp = ?1 AND snapshot = ?2), -1),
                   coalesce((SELECT CAST(value AS INTEGER) FROM meta WHERE key = 'retries:' || ?1 || ':' || ?2), -1))",
                params![grp, snapshot],
                |row| row.get(0),
            )
            .named("read", &self.path)
    }

    fn copy_failures(&self, source: i64, run: i64) -> Result<()> {
        self.execute(
            "INSERT INTO microshards(run, microshard_id, uri, rows, bytes, sha256, created_at, updated_at)
             SELECT ?2, m.microshard_id, m.uri, m.rows, m.bytes, m.sha256, m.created_at, m.updated_at
             FROM chosen c JOIN exceptions e ON e.seq = c.seq JOIN microshards m ON m.seq = e.seq
             WHERE e.shard = ?1 AND e.state = 0 ORDER BY m.seq",
            params![source, run],
        )?;
        // How often they were tried goes with them: the copies lie beyond the last shard, in the same order.
        self.execute(
            "INSERT INTO troubles(seq, tries, since, sentence)
             SELECT (SELECT max(last) FROM shards) + row_number() OVER (ORDER BY e.seq), e.tries, ?2, e.sentence
             FROM chosen c JOIN exceptions e ON e.seq = c.seq WHERE e.shard = ?1 AND e.state = 0",
            params![source, now_ms()],
        )?;
        Ok(())
    }
}

impl RetrySelection {
    fn takes(&self, failure: &FailedMicroshard) -> bool {
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
