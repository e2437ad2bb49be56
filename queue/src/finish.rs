//! How a lease ends: once (I5). Every update carries shard, attempt and `state = 2` and counts the rows it touched; a
//! late finisher is refused before anything is written.

use rusqlite::params;

use crate::claim::{LOST_MAX, Lease};
use crate::error::{Error, Named, Result};
use crate::file::{Queue, now_ms};

/// Deferrals of one shard in a row without progress; then it fails.
pub const DEFERRALS_MAX: u32 = 360;

/// What a published shard is. Without rows it has no object: its key is empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Receipt {
    /// Its object's key, relative to the output.
    pub key: String,
    /// Rows in it.
    pub rows: u64,
    /// Bytes of the microshards it was made of.
    pub bytes_in: u64,
    /// Bytes of the object.
    pub bytes_out: u64,
    /// SHA-256 of the object.
    pub sha256: [u8; 32],
}

/// How a lease ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The shard's object is there and confirmed.
    Published(Receipt),
    /// It is taken up again later.
    Deferred {
        /// Not before this time, Unix milliseconds.
        until_ms: i64,
        /// Why.
        why: String,
        /// Something was got this time that was not there before.
        progress: bool,
    },
    /// It comes to nothing; all its microshards fail with this sentence, unless they have one of their own.
    Failed(String),
    /// It waits for `retry`, because some of its microshards failed.
    Held(String),
    /// Given back unworked: the runner was told to stop.
    Released,
}

/// A microshard that failed, or was tried in vain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Its place in plan order.
    pub seq: i64,
    /// Why, for a person.
    pub sentence: String,
    /// How often it was tried in all.
    pub tries: u32,
}

/// The end of a lease, with what became of single microshards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finish {
    /// How it ends.
    pub outcome: Outcome,
    /// Microshards that failed for good.
    pub failures: Vec<Failure>,
    /// Microshards that were tried in vain and will be tried again.
    pub troubles: Vec<Failure>,
}

/// Whether an outcome counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finished {
    /// It is in the queue.
    Accepted,
    /// The lease was lost to another; nothing was written, the work must be thrown away.
    Lost,
}

impl Queue {
    /// Ends a lease, inside the caller's transaction.
    pub fn finish(&self, lease: &Lease, finish: &Finish) -> Result<Finished> {
        if !self.holds(lease)? {
            return Ok(Finished::Lost);
        }
        for failure in &finish.failures {
            self.add_exception(lease.shard, failure)?;
        }
        for trouble in &finish.troubles {
            self.add_trouble(trouble)?;
        }
        match &finish.outcome {
            Outcome::Published(receipt) => self.publish(lease, receipt)?,
            Outcome::Deferred { until_ms, why, progress } => self.defer(lease, *until_ms, why, *progress)?,
            Outcome::Failed(sentence) => self.fail(lease.shard, sentence)?,
            Outcome::Held(why) => self.hold(lease, why)?,
            Outcome::Released => self.release(lease)?,
        }
        Ok(Finished::Accepted)
    }

    fn holds(&self, lease: &Lease) -> Result<bool> {
        self.conn
            .prepare_cached("SELECT EXISTS(SELECT 1 FROM shards WHERE shard = ?1 AND attempt = ?2 AND state = 2)")
            .and_then(|mut select| select.query_row([lease.shard, lease.attempt], |row| row.get(0)))
            .named("finish in", &self.path)
    }

    fn publish(&self, lease: &Lease, receipt: &Receipt) -> Result<()> {
        self.end(
            "UPDATE shards SET state = 3, owner = NULL, lease_expires_at = NULL, error = NULL, deferrals = 0,
               key = ?3, rows = ?4, bytes_in = ?5, bytes_out = ?6, sha256 = ?7, published_at = ?8
             WHERE shard = ?1 AND attempt = ?2 AND state = 2",
            params![
                lease.shard,
                lease.attempt,
                receipt.key,
                receipt.rows as i64,
                receipt.bytes_in as i64,
                receipt.bytes_out as i64,
                receipt.sha256,
                now_ms()
            ],
        )?;
        self.execute(
            "DELETE FROM troubles WHERE seq BETWEEN (SELECT first FROM shards WHERE shard = ?1)
               AND (SELECT last FROM shards WHERE shard = ?1)",
            params![lease.shard],
        )?;
        self.execute("UPDATE runner SET deaths = 0 WHERE one = 1 AND deaths > 0", params![])?;
        Ok(())
    }

    fn defer(&self, lease: &Lease, until_ms: i64, why: &str, progress: bool) -> Result<()> {
        let deferrals: u32 = self
            .conn
            .prepare_cached("SELECT deferrals FROM shards WHERE shard = ?1")
            .and_then(|mut select| select.query_row([lease.shard], |row| row.get(0)))
            .named("finish in", &self.path)?;
        let deferrals = if progress { 1 } else { deferrals.saturating_add(1) };
        if deferrals > DEFERRALS_MAX {
            let sentence = format!("was deferred {DEFERRALS_MAX} times in a row without progress: {why}");
            return self.fail(lease.shard, &sentence);
        }
        self.end(
            "UPDATE shards SET state = 1, owner = NULL, lease_expires_at = NULL, not_before = ?3, error = ?4, deferrals = ?5
             WHERE shard = ?1 AND attempt = ?2 AND state = 2",
            params![lease.shard, lease.attempt, until_ms, why, deferrals],
        )
    }

    fn hold(&self, lease: &Lease, why: &str) -> Result<()> {
        self.end(
            "UPDATE shards SET state = 5, owner = NULL, lease_expires_at = NULL, error = ?3
             WHERE shard = ?1 AND attempt = ?2 AND state = 2",
            params![lease.shard, lease.attempt, why],
        )
    }

    fn release(&self, lease: &Lease) -> Result<()> {
        self.end(
            "UPDATE shards SET state = 0, owner = NULL, lease_expires_at = NULL
             WHERE shard = ?1 AND attempt = ?2 AND state = 2",
            params![lease.shard, lease.attempt],
        )
    }

    /// Fails a shard and every microshard of it that has no sentence of its own yet.
    pub(crate) fn fail(&self, shard: i64, sentence: &str) -> Result<()> {
        self.execute(
            "INSERT INTO exceptions(seq, shard, state, sentence, tries, at)
             SELECT m.seq, s.shard, 0, ?2, coalesce(t.tries, 0) + 1, ?3
             FROM shards s JOIN microshards m ON m.seq BETWEEN s.first AND s.last LEFT JOIN troubles t ON t.seq = m.seq
             WHERE s.shard = ?1 AND NOT EXISTS (SELECT 1 FROM exceptions e WHERE e.seq = m.seq)",
            params![shard, sentence, now_ms()],
        )?;
        self.end(
            "UPDATE shards SET state = 4, owner = NULL, lease_expires_at = NULL, not_before = NULL, error = ?2
             WHERE shard = ?1 AND state IN (0, 1, 2)",
            params![shard, sentence],
        )
    }

    /// The bound on leases that end without an outcome.
    pub(crate) fn fail_if_lost_too_often(&self, shard: i64) -> Result<bool> {
        let lost: u32 = self
            .conn
            .prepare_cached("SELECT lost FROM shards WHERE shard = ?1")
            .and_then(|mut select| select.query_row([shard], |row| row.get(0)))
            .named("read", &self.path)?;
        if lost < LOST_MAX {
            return Ok(false);
        }
        let sentence = format!("its lease ran out {lost} times: the lane that worked on its shard hung");
        self.fail(shard, &sentence)?;
        Ok(true)
    }

    pub(crate) fn add_exception(&self, shard: i64, failure: &Failure) -> Result<()> {
        self.execute(
            "INSERT INTO exceptions(seq, shard, state, sentence, tries, at) VALUES(?1, ?2, 0, ?3, ?4, ?5)",
            params![failure.seq, shard, failure.sentence, failure.tries, now_ms()],
        )?;
        self.execute("DELETE FROM troubles WHERE seq = ?1", params![failure.seq])?;
        Ok(())
    }

    fn add_trouble(&self, trouble: &Failure) -> Result<()> {
        self.execute(
            "INSERT INTO troubles(seq, tries, since, sentence) VALUES(?1, ?2, ?4, ?3)
             ON CONFLICT(seq) DO UPDATE SET tries = ?2, sentence = ?3",
            params![trouble.seq, trouble.tries, trouble.sentence, now_ms()],
        )?;
        Ok(())
    }

    /// The update that ends a lease must touch exactly one row; `holds` has just been asked in the same transaction.
    fn end(&self, sql: &'static str, values: &[&dyn rusqlite::ToSql]) -> Result<()> {
        match self.execute(sql, values)? {
            1 => Ok(()),
            // A lease ends once (I5): nothing of it is committed.
            touched => Err(Error::Input(format!(
                "{} is damaged: the end of one lease changed {touched} shards; snapshot into a new queue",
                self.path.display()
            ))),
        }
    }

    pub(crate) fn execute(&self, sql: &'static str, values: &[&dyn rusqlite::ToSql]) -> Result<usize> {
        self.conn.prepare_cached(sql).and_then(|mut statement| statement.execute(values)).named("write", &self.path)
    }
}
