//! What a later snapshot finds in the queue and plans anew: shards that were held, and what a killed snapshot left.

use std::collections::HashSet;

use rusqlite::{OptionalExtension, Row};

use crate::error::{Named, Result};
use crate::file::Queue;
use crate::staging::{Item, Staging};

/// Held shards that a later snapshot of the run takes apart: remainders, which it plans again, and what was released, which
/// is the manifest's. Not those that wait for `retry`, or that came from one.
const REOPENED: &str = "s.state = 5 AND (s.error IS NULL OR s.error = 'released to the manifest')
  AND NOT EXISTS (SELECT 1 FROM exceptions e WHERE e.shard = s.shard AND e.state = 1)
  AND NOT EXISTS (SELECT 1 FROM exceptions e WHERE e.retried_in = s.shard)";

impl Queue {
    /// Removes what a killed snapshot copied: all that lies beyond the last shard. Callers hold the intake lock.
    pub(crate) fn drop_unplanned(&self) -> Result<()> {
        self.conn
            .execute_batch(
                "BEGIN IMMEDIATE;
                 DELETE FROM microshards WHERE seq > (SELECT coalesce(max(last), 0) FROM shards);
                 DELETE FROM snapshots WHERE planned_at IS NULL;
                 COMMIT",
            )
            .named("clean", &self.path)
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
        if remainders.is_empty() {
            return Ok(());
        }
        self.name_run(run)?;
        let mut listed = HashSet::new();
        staging.for_each_in_plan_order(|item| {
            let held = self
                .find(run, item)?
                .filter(|seq| remainders.iter().any(|(first, last)| (first..=last).contains(&seq)));
            listed.extend(held);
            Ok(())
        })?;
        for (first, last) in remainders {
            self.restage(first, last, &listed, staging)?;
        }
        Ok(())
    }

    /// The ranges of the run's held remainders.
    fn remainders(&self, run: i64) -> Result<Vec<(i64, i64)>> {
        self.conn
            .prepare(
                "SELECT s.first, s.last FROM groups g JOIN shards s INDEXED BY shards_held ON s.grp = g.grp AND s.state = 5
                 WHERE g.run = ?1 AND s.error IS NULL",
            )
            .and_then(|mut select| select.query_map([run], |row| Ok((row.get(0)?, row.get(1)?)))?.collect())
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

    /// Whether the microshard is in a held shard that is taken apart when the manifest lists it again.
    pub(crate) fn is_reopened(&self, seq: i64) -> Result<bool> {
        let sql = format!("SELECT EXISTS(SELECT 1 FROM shards s WHERE {REOPENED} AND ?1 BETWEEN s.first AND s.last)");
        self.conn
            .prepare_cached(&sql)
            .and_then(|mut select| select.query_row([seq], |row| row.get(0)))
            .named("read", &self.path)
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
