//! `retry`: failed microshards are copied to the end of the plan and new shards are cut from them, so that a plan once made
//! never changes and the old failure stays on record.

use std::collections::BTreeSet;

use rusqlite::{Row, params};

use crate::error::{Error, Named, Result};
use crate::failures::{Retried, RetrySelection};
use crate::file::{Queue, now_ms};
use crate::intake::NameShard;
use crate::lock::{Acquired, Lock, LockKind};

/// A shard that failures are brought back from.
struct Source {
    shard: i64,
    grp: i64,
    snapshot: i64,
    run: i64,
    snapshot_number: u32,
    language: String,
    run_id: String,
    /// What is brought back.
    size: Extent,
}

/// Microshards, rows and bytes, as the manifest counts them; 0 where it does not. Floating, as sums of what it says may be
/// beyond an integer.
#[derive(Clone, Copy)]
struct Extent {
    microshards: f64,
    rows: f64,
    bytes: f64,
}

impl Extent {
    fn with(self, other: Extent) -> Extent {
        Extent {
            microshards: self.microshards + other.microshards,
            rows: self.rows + other.rows,
            bytes: self.bytes + other.bytes,
        }
    }

    fn is_within(self, limit: Extent) -> bool {
        self.microshards <= limit.microshards && self.rows <= limit.rows && self.bytes <= limit.bytes
    }
}

/// What goes into one new shard.
struct Batch {
    /// The first of them; the others are of its language and snapshot.
    first: Source,
    shards: Vec<i64>,
    size: Extent,
    /// The most that it may come to.
    largest: Extent,
}

impl Batch {
    fn takes(&self, source: &Source) -> bool {
        let is_beside = (self.first.grp, self.first.snapshot) == (source.grp, source.snapshot);
        is_beside && self.size.with(source.size).is_within(self.largest)
    }

    fn add(&mut self, source: Source) {
        self.size = self.size.with(source.size);
        self.shards.push(source.shard);
    }
}

impl Queue {
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
            .execute_batch(
                "CREATE TEMP TABLE IF NOT EXISTS chosen(seq INTEGER PRIMARY KEY); DELETE FROM chosen;
                 CREATE TEMP TABLE IF NOT EXISTS sources(shard INTEGER PRIMARY KEY)",
            )
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

    /// New shards of what was chosen: the failures of a language's shards together, as long as no shard of it is larger.
    fn add_retries(&self, name: &NameShard, retried: &mut Retried) -> Result<()> {
        let mut batches: Vec<Batch> = Vec::new();
        for source in self.sources()? {
            if let Some(batch) = batches.last_mut().filter(|batch| batch.takes(&source)) {
                batch.add(source);
                continue;
            }
            let largest = self.largest(source.grp)?;
            batches.push(Batch { size: source.size, shards: vec![source.shard], largest, first: source });
        }
        for batch in batches {
            self.add_retry(&batch, name)?;
            retried.shards += 1;
        }
        Ok(())
    }

    /// The shards that failures are brought back from: those of one language and snapshot stand together.
    fn sources(&self) -> Result<Vec<Source>> {
        self.conn
            .prepare(
                "SELECT s.shard, s.grp, s.snapshot, g.run, n.number, g.language, r.run_id,
                        total(1), total(m.rows), total(m.bytes)
                 FROM chosen c JOIN exceptions e ON e.seq = c.seq JOIN shards s ON s.shard = e.shard
                 JOIN microshards m ON m.seq = c.seq JOIN groups g ON g.grp = s.grp JOIN runs r ON r.run = g.run
                 JOIN snapshots n ON n.snapshot = s.snapshot GROUP BY s.shard ORDER BY s.grp, s.snapshot, s.shard",
            )
            .and_then(|mut select| select.query_map([], source)?.collect())
            .named("read", &self.path)
    }

    /// The most that was planned into one of the group's shards; no limit where the manifest does not count.
    fn largest(&self, grp: i64) -> Result<Extent> {
        let sql = "SELECT max(members) * 1.0, coalesce(max(rows_planned), 9e18) * 1.0, coalesce(max(bytes_planned), 9e18) * 1.0
                   FROM shards WHERE grp = ?1";
        self.conn.query_row(sql, [grp], |row| extent(row, 0)).named("read", &self.path)
    }

    fn add_retry(&self, batch: &Batch, name: &NameShard) -> Result<()> {
        let Source { grp, snapshot, run, snapshot_number, ref language, ref run_id, .. } = batch.first;
        let number = self.next_number(grp, snapshot)?;
        let shard_name = name(run_id, language, snapshot_number, number);
        self.execute("DELETE FROM sources", params![])?;
        for shard in &batch.shards {
            self.execute("INSERT INTO sources VALUES(?1)", params![shard])?;
        }
        self.copy_failures(run)?;
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
            "UPDATE exceptions SET state = 1, retried_in = ?1
             WHERE shard IN (SELECT shard FROM sources) AND state = 0 AND seq IN (SELECT seq FROM chosen)",
            params![shard],
        )?;
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

    fn copy_failures(&self, run: i64) -> Result<()> {
        self.execute(
            "INSERT INTO microshards(run, microshard_id, uri, rows, bytes, sha256, created_at, updated_at)
             SELECT ?1, m.microshard_id, m.uri, m.rows, m.bytes, m.sha256, m.created_at, m.updated_at
             FROM chosen c JOIN exceptions e ON e.seq = c.seq JOIN microshards m ON m.seq = e.seq
             WHERE e.shard IN (SELECT shard FROM sources) AND e.state = 0 ORDER BY m.seq",
            params![run],
        )?;
        // How often they were tried goes with them: the copies lie beyond the last shard, in the same order.
        self.execute(
            "INSERT INTO troubles(seq, tries, since, sentence)
             SELECT (SELECT max(last) FROM shards) + row_number() OVER (ORDER BY e.seq), e.tries, ?1, e.sentence
             FROM chosen c JOIN exceptions e ON e.seq = c.seq
             WHERE e.shard IN (SELECT shard FROM sources) AND e.state = 0",
            params![now_ms()],
        )?;
        Ok(())
    }
}

fn source(row: &Row<'_>) -> rusqlite::Result<Source> {
    Ok(Source {
        shard: row.get(0)?,
        grp: row.get(1)?,
        snapshot: row.get(2)?,
        run: row.get(3)?,
        snapshot_number: row.get(4)?,
        language: row.get(5)?,
        run_id: row.get(6)?,
        size: extent(row, 7)?,
    })
}

fn extent(row: &Row<'_>, first: usize) -> rusqlite::Result<Extent> {
    Ok(Extent { microshards: row.get(first)?, rows: row.get(first + 1)?, bytes: row.get(first + 2)? })
}
