//! What a later snapshot finds in the queue and plans anew: shards that were held, and what a killed snapshot left.

use std::collections::HashSet;
use std::time::Instant;

use rusqlite::{OptionalExtension, Row, params};

use crate::error::{Named, Result};
use crate::file::{Queue, SHORT_BATCH};
use crate::staging::{Item, Staging};

/// Held shards that a later snapshot of the run takes apart: remainders, which it plans again, and what was released, which
/// is the manifest's. Not those that wait for `retry`, or that came from one.
const REOPENED: &str = "s.state = 5 AND (s.error IS NULL OR s.error = 'released to the manifest')
  AND NOT EXISTS (SELECT 1 FROM exceptions e WHERE e.shard = s.shard AND e.state = 1)
  AND NOT EXISTS (SELECT 1 FROM exceptions e WHERE e.retried_in = s.shard)";

/// Ranges of seq, in order and apart from each other: few, as a language has one remainder.
#[derive(Debug, Default)]
pub(crate) struct Ranges(Vec<(i64, i64)>);

impl Ranges {
    pub(crate) fn contain(&self, seq: i64) -> bool {
        let after = self.0.partition_point(|(first, _)| *first <= seq);
        let before = after.checked_sub(1).and_then(|at| self.0.get(at));
        before.is_some_and(|(_, last)| seq <= *last)
    }
}

impl Queue {
    /// Removes what a killed snapshot copied: all that lies beyond the last shard, from its end, in short transactions, as
    /// a runner may be at work. Callers hold the intake lock.
    pub(crate) fn drop_unplanned(&self) -> Result<()> {
        let planned: i64 = self
            .conn
            .query_row("SELECT coalesce(max(last), 0) FROM shards", [], |row| row.get(0))
            .named("read", &self.path)?;
        loop {
            let begun = Instant::now();
            let dropped = self.execute(
                "DELETE FROM microshards WHERE seq IN (SELECT seq FROM microshards WHERE seq > ?1 ORDER BY seq DESC LIMIT ?2)",
                params![planned, SHORT_BATCH as i64],
            )?;
            if dropped == 0 {
                break;
            }
            self.give_way(begun.elapsed())?;
        }
        self.execute("DELETE FROM snapshots WHERE planned_at IS NULL", params![])?;
        Ok(())
    }

    /// Remainders that an earlier snapshot held back are planned again, together with what is new: as the manifest now
    /// lists them, or as they were where it doesn't.
    pub(crate) fn restage_held(&self, run_id: &str, staging: &mut Staging) -> Result<()> {
        let run: Option<i64> = self
            .conn
            .query_row("SELECT run FROM runs WHERE run_id = ?1", [run_id], |row| row.get(0))
            .optional()
            .named("read", &self.path)?;
        let Some(run) = run else { return Ok(()) };
        let remainders = self.remainders(run)?;
        if remainders.0.is_empty() {
            return Ok(());
        }
        self.name_run(run)?;
        let mut listed = HashSet::new();
        staging.for_each_in_plan_order(|item| {
            let held = self.find(run, item)?.filter(|seq| remainders.contain(*seq));
            listed.extend(held);
            Ok(())
        })?;
        for (first, last) in remainders.0 {
            self.restage(first, last, &listed, staging)?;
        }
        Ok(())
    }

    /// The ranges of the run's held remainders.
    fn remainders(&self, run: i64) -> Result<Ranges> {
        let sql =
            "SELECT s.first, s.last FROM groups g JOIN shards s INDEXED BY shards_held ON s.grp = g.grp AND s.state = 5
                   WHERE g.run = ?1 AND s.error IS NULL ORDER BY s.first";
        self.ranges(sql, run)
    }

    fn ranges(&self, sql: &str, run: i64) -> Result<Ranges> {
        self.conn
            .prepare(sql)
            .and_then(|mut select| select.query_map([run], |row| Ok((row.get(0)?, row.get(1)?)))?.collect())
            .map(Ranges)
            .named("read", &self.path)
    }

    fn restage(&self, first: i64, last: i64, listed: &HashSet<i64>, staging: &mut Staging) -> Result<()> {
        let mut select = self
            .conn
            .prepare_cached(
                "SELECT m.seq, g.language, m.microshard_id, m.uri, m.rows, m.bytes, m.sha256, m.created_at, m.updated_at
                 FROM shards s JOIN groups g ON g.grp = s.grp JOIN microshards m ON m.seq BETWEEN s.first AND s.last
                 WHERE s.first = ?1 AND s.last = ?2",
            )
            .named("read", &self.path)?;
        let mut rows = select.query([first, last]).named("read", &self.path)?;
        while let Some(row) = rows.next().named("read", &self.path)? {
            let (seq, item) = held(row).named("read", &self.path)?;
            if !listed.contains(&seq) {
                staging.add(&item)?;
            }
        }
        Ok(())
    }

    /// The ranges of the run's held shards that are taken apart when the manifest lists their microshards again.
    pub(crate) fn reopened(&self, run: i64) -> Result<Ranges> {
        let sql = format!(
            "SELECT s.first, s.last FROM groups g JOIN shards s INDEXED BY shards_held ON s.grp = g.grp AND s.state = 5
             WHERE {REOPENED} AND g.run = ?1 ORDER BY s.first"
        );
        self.ranges(&sql, run)
    }

    /// Takes the run's reopened shards apart: what the manifest lists of them has been copied to `first_new` and beyond.
    pub(crate) fn drop_held(&self, run: i64, first_new: i64) -> Result<()> {
        let reopened = format!(
            "SELECT s.shard FROM shards s JOIN groups g ON g.grp = s.grp WHERE {REOPENED} AND g.run = ?1 AND s.first < ?2"
        );
        let of_seq = format!(
            "seq IN (SELECT m.seq FROM shards h JOIN microshards m ON m.seq BETWEEN h.first AND h.last
               WHERE h.shard IN ({reopened}))"
        );
        for table in ["exceptions", "troubles"] {
            self.conn
                .execute(&format!("DELETE FROM {table} WHERE {of_seq}"), [run, first_new])
                .named("write", &self.path)?;
        }
        self.conn
            .execute(&format!("DELETE FROM microshards WHERE {of_seq}"), [run, first_new])
            .and_then(|_| {
                self.conn.execute(&format!("DELETE FROM shards WHERE shard IN ({reopened})"), [run, first_new])
            })
            .named("write", &self.path)?;
        Ok(())
    }
}

fn held(row: &Row<'_>) -> rusqlite::Result<(i64, Item)> {
    let item = Item {
        language: row.get(1)?,
        microshard_id: Some(row.get(2)?),
        uri: row.get(3)?,
        rows: row.get(4)?,
        bytes: row.get::<_, Option<i64>>(5)?.map(|bytes| bytes as u64),
        sha256: row.get(6)?,
        created_at: row.get(7)?,
        updated_at: row.get(8)?,
    };
    Ok((row.get(0)?, item))
}
