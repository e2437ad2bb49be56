//! Claims: one planned shard at a time, in two phases, through partial indexes only, so that a claim costs what the
//! shard has members and never what is done (I7). Pending shards first, and of those the ones that a runner before had
//! begun; leases that ran out only when nothing is pending.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rusqlite::{OptionalExtension, Row, ToSql, params};

use crate::error::{Error, Named, Result};
use crate::file::Queue;

/// Leases of one shard that may run out; then it fails. A runner that died is counted by `DEATHS_MAX`, not here.
pub const LOST_MAX: u32 = 6;

/// The right to work one attempt at a shard.
#[derive(Debug, Clone)]
pub struct Lease {
    /// The shard.
    pub shard: i64,
    /// The fence: an outcome counts only while the shard is claimed at this attempt.
    pub attempt: i64,
    /// Goes up while the lane makes headway; a lease whose pulse stands still is not renewed.
    pub pulse: Pulse,
}

/// A sign of life of the lane that holds a lease.
#[derive(Debug, Clone, Default)]
pub struct Pulse(Arc<AtomicU64>);

impl Pulse {
    /// There was headway.
    pub fn beat(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// How often there was.
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A claimed shard and what it is made of.
#[derive(Debug, Clone)]
pub struct Job {
    /// The right to work it.
    pub lease: Lease,
    /// Its run.
    pub run_id: String,
    /// Its language.
    pub language: String,
    /// The base name of its object, without extension.
    pub name: String,
    /// Deferrals in a row without progress so far.
    pub deferrals: u32,
    /// Its microshards in order, without those that failed before.
    pub members: Vec<Member>,
    /// How many of its microshards failed before.
    pub failed_before: u64,
}

/// One microshard of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its place in plan order.
    pub seq: i64,
    /// Its id in the manifest.
    pub microshard_id: i64,
    /// Where it is.
    pub uri: String,
    /// Rows the manifest counts.
    pub rows: Option<u64>,
    /// Bytes the manifest counts.
    pub bytes: Option<u64>,
    /// SHA-256 in the manifest.
    pub sha256: Option<[u8; 32]>,
    /// How often it was tried in vain.
    pub tries: u32,
    /// Since when, Unix milliseconds; 0 where it was not.
    pub tried_since_ms: i64,
}

/// Who claims, when, and until when.
#[derive(Debug, Clone, Copy)]
pub struct Claimer<'a> {
    /// The runner.
    pub owner: &'a str,
    /// Unix milliseconds.
    pub now_ms: i64,
    /// How long the lease holds, in milliseconds.
    pub lease_ms: i64,
    /// Only shards of this run (`Queue::run_named`).
    pub only: Option<i64>,
}

const PROMOTE: &str = "UPDATE shards SET state = 0, not_before = NULL WHERE shard IN
   (SELECT shard FROM shards INDEXED BY shards_waiting WHERE state = 1 AND not_before <= ?1 LIMIT 64)";

/// A handful of rows a run: the counters, never the shards.
const CHOOSE: &str = "SELECT g.grp, r.run, r.turn FROM groups g INDEXED BY groups_pending JOIN runs r ON r.run = g.run
   WHERE g.pending > 0 AND (?1 IS NULL OR g.run = ?1) ORDER BY r.turn, g.work_left DESC, g.grp LIMIT 1";

/// A turn is one shard, whatever it holds: manifests count rows, or don't. Runs that had nothing to claim, or were passed
/// over, are taken along: they take turns from now on and have no past to catch up with.
const TAKE_TURN: &str = "UPDATE runs SET turn = ?2 + iif(run = ?1, 1.0 / weight, 0) WHERE run = ?1 OR turn < ?2";

const CLAIM_PENDING: &str = "UPDATE shards SET state = 2, owner = ?2, attempt = attempt + 1, lease_expires_at = ?3
   WHERE shard = (SELECT shard FROM shards INDEXED BY shards_pending WHERE state = 0 AND grp = ?1 ORDER BY shard LIMIT 1)
   RETURNING shard, grp, name, first, last, attempt, deferrals";

const CLAIM_BEGUN: &str = "UPDATE shards SET state = 2, owner = ?2, attempt = attempt + 1, lease_expires_at = ?3
   WHERE shard = ?1 AND state = 0 RETURNING shard, grp, name, first, last, attempt, deferrals";

const CLAIM_EXPIRED: &str =
    "UPDATE shards SET owner = ?2, attempt = attempt + 1, lost = lost + 1, lease_expires_at = ?3
   WHERE shard = (SELECT shard FROM shards INDEXED BY shards_claimed
                  WHERE state = 2 AND lease_expires_at <= ?1
                    AND (?4 IS NULL OR EXISTS (SELECT 1 FROM groups g WHERE g.grp = shards.grp AND g.run = ?4))
                  ORDER BY lease_expires_at LIMIT 1)
   RETURNING shard, grp, name, first, last, attempt, deferrals";

/// Nearly every shard: nothing of it failed or was tried in vain, so there is nothing to look up for each member.
const IS_PLAIN: &str = "SELECT NOT EXISTS(SELECT 1 FROM exceptions WHERE seq BETWEEN ?1 AND ?2)
   AND NOT EXISTS(SELECT 1 FROM troubles WHERE seq BETWEEN ?1 AND ?2)";

const PLAIN_MEMBERS: &str = "SELECT seq, microshard_id, uri, rows, bytes, sha256, NULL, NULL
   FROM microshards WHERE seq BETWEEN ?1 AND ?2 ORDER BY seq";

const MEMBERS: &str = "SELECT m.seq, m.microshard_id, m.uri, m.rows, m.bytes, m.sha256, t.tries, t.since
   FROM microshards m LEFT JOIN troubles t ON t.seq = m.seq
   WHERE m.seq BETWEEN ?1 AND ?2 AND NOT EXISTS (SELECT 1 FROM exceptions e WHERE e.seq = m.seq) ORDER BY m.seq";

/// A shard as the claiming update returns it.
struct Claimed {
    shard: i64,
    grp: i64,
    name: String,
    first: i64,
    last: i64,
    attempt: i64,
    deferrals: u32,
}

impl Queue {
    /// Claims the next shard, inside the caller's transaction; `None` where nothing can be claimed now.
    pub fn claim(&self, claimer: Claimer<'_>) -> Result<Option<Job>> {
        self.promote(claimer.now_ms)?;
        let claimed = match self.claim_pending(claimer)? {
            Some(claimed) => Some(claimed),
            None => self.claim_expired(claimer)?,
        };
        claimed.map(|claimed| self.job(claimed)).transpose()
    }

    /// Claims a shard that was pending when `begun` was asked, inside the caller's transaction; `None` where it is not any
    /// more. Its run has had its turn for it.
    pub(crate) fn claim_begun(&self, shard: i64, claimer: Claimer<'_>) -> Result<Option<Job>> {
        let claimed = self.claim_with(CLAIM_BEGUN, params![shard, claimer.owner, claimer.expires_ms()])?;
        claimed.map(|claimed| self.job(claimed)).transpose()
    }

    /// Pending shards that a runner before had claimed, the last first. Reads every pending shard: once a start, not once
    /// a claim (I7).
    pub(crate) fn begun(&self, only: Option<i64>) -> Result<Vec<i64>> {
        self.conn
            .prepare(
                "SELECT shard FROM shards INDEXED BY shards_pending WHERE state = 0 AND attempt > 0
                   AND (?1 IS NULL OR grp IN (SELECT grp FROM groups WHERE run = ?1)) ORDER BY shard DESC",
            )
            .and_then(|mut select| select.query_map([only], |row| row.get(0))?.collect())
            .named("read", &self.path)
    }

    /// Brings deferred shards whose time has come back to pending.
    fn promote(&self, now_ms: i64) -> Result<()> {
        self.conn
            .prepare_cached(PROMOTE)
            .and_then(|mut update| update.execute([now_ms]))
            .named("claim in", &self.path)?;
        Ok(())
    }

    fn claim_pending(&self, claimer: Claimer<'_>) -> Result<Option<Claimed>> {
        let chosen: Option<(i64, i64, f64)> = self
            .conn
            .prepare_cached(CHOOSE)
            .and_then(|mut select| {
                select.query_row([claimer.only], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).optional()
            })
            .named("claim in", &self.path)?;
        let Some((group, run, turn)) = chosen else { return Ok(None) };
        self.conn
            .prepare_cached(TAKE_TURN)
            .and_then(|mut update| update.execute(params![run, turn]))
            .named("claim in", &self.path)?;
        self.claim_with(CLAIM_PENDING, params![group, claimer.owner, claimer.expires_ms()])
    }

    /// Phase 2. A shard whose leases keep getting lost fails here instead of being claimed for ever.
    fn claim_expired(&self, claimer: Claimer<'_>) -> Result<Option<Claimed>> {
        loop {
            let values = params![claimer.now_ms, claimer.owner, claimer.expires_ms(), claimer.only];
            let claimed = self.claim_with(CLAIM_EXPIRED, values)?;
            match claimed {
                Some(claimed) if self.fail_if_lost_too_often(claimed.shard)? => {}
                other => return Ok(other),
            }
        }
    }

    fn claim_with(&self, sql: &'static str, values: &[&dyn ToSql]) -> Result<Option<Claimed>> {
        let mut update = self.conn.prepare_cached(sql).named("claim in", &self.path)?;
        // Read to its end: a cursor that is left open keeps the write lock.
        let claimed = update
            .query_map(values, claimed)
            .and_then(|rows| rows.collect::<rusqlite::Result<Vec<_>>>())
            .named("claim in", &self.path)?;
        Ok(claimed.into_iter().next())
    }

    fn job(&self, claimed: Claimed) -> Result<Job> {
        let (run_id, language) = self
            .conn
            .prepare_cached("SELECT r.run_id, g.language FROM groups g JOIN runs r ON r.run = g.run WHERE g.grp = ?1")
            .and_then(|mut select| select.query_row([claimed.grp], |row| Ok((row.get(0)?, row.get(1)?))))
            .named("read", &self.path)?;
        let members = self.members(claimed.first, claimed.last)?;
        Ok(Job {
            failed_before: claimed.last.abs_diff(claimed.first).saturating_add(1).saturating_sub(members.len() as u64),
            lease: Lease { shard: claimed.shard, attempt: claimed.attempt, pulse: Pulse::default() },
            run_id,
            language,
            name: claimed.name,
            deferrals: claimed.deferrals,
            members,
        })
    }

    /// The microshards of a range in order, without exceptions.
    pub(crate) fn members(&self, first: i64, last: i64) -> Result<Vec<Member>> {
        let read = || -> rusqlite::Result<Vec<Member>> {
            let plain = self.conn.prepare_cached(IS_PLAIN)?.query_row([first, last], |row| row.get(0))?;
            let sql = if plain { PLAIN_MEMBERS } else { MEMBERS };
            self.conn.prepare_cached(sql)?.query_map([first, last], member)?.collect()
        };
        read().named("read", &self.path)
    }

    /// When something can be claimed again, Unix milliseconds: the earliest of deferred shards and leases; `None` where
    /// nothing is live. With `only`, of one run.
    pub fn next_claim_at(&self, only: Option<i64>) -> Result<Option<i64>> {
        self.conn
            .prepare_cached(
                "SELECT min(at) FROM (
                   SELECT min(not_before) AS at FROM shards INDEXED BY shards_waiting WHERE state = 1
                     AND (?1 IS NULL OR grp IN (SELECT grp FROM groups WHERE run = ?1))
                   UNION ALL SELECT min(lease_expires_at) FROM shards INDEXED BY shards_claimed WHERE state = 2
                     AND (?1 IS NULL OR grp IN (SELECT grp FROM groups WHERE run = ?1)))",
            )
            .and_then(|mut select| select.query_row([only], |row| row.get(0)))
            .named("read", &self.path)
    }

    /// A run's row, for `Claimer::only`.
    ///
    /// # Errors
    /// Where there is no such run; names those there are.
    pub fn run_named(&self, run_id: &str) -> Result<i64> {
        let run = self
            .conn
            .query_row("SELECT run FROM runs WHERE run_id = ?1", [run_id], |row| row.get(0))
            .optional()
            .named("read", &self.path)?;
        let Some(run) = run else {
            let runs: std::collections::BTreeSet<_> = self.status()?.into_iter().map(|group| group.run_id).collect();
            let runs: Vec<_> = runs.into_iter().collect();
            return Err(Error::Input(format!("the queue has no run {run_id:?}; it has {}", runs.join(", "))));
        };
        Ok(run)
    }

    /// Gives a run `weight` turns for each turn of a run of weight 1.
    pub fn set_weight(&self, run_id: &str, weight: u32) -> Result<()> {
        let run = self.run_named(run_id)?;
        self.execute("UPDATE runs SET weight = ?2 WHERE run = ?1", params![run, weight])?;
        Ok(())
    }
}

impl Claimer<'_> {
    fn expires_ms(&self) -> i64 {
        self.now_ms + self.lease_ms
    }
}

fn claimed(row: &Row<'_>) -> rusqlite::Result<Claimed> {
    Ok(Claimed {
        shard: row.get(0)?,
        grp: row.get(1)?,
        name: row.get(2)?,
        first: row.get(3)?,
        last: row.get(4)?,
        attempt: row.get(5)?,
        deferrals: row.get(6)?,
    })
}

pub(crate) fn member(row: &Row<'_>) -> rusqlite::Result<Member> {
    Ok(Member {
        seq: row.get(0)?,
        microshard_id: row.get(1)?,
        uri: row.get(2)?,
        rows: row.get::<_, Option<i64>>(3)?.map(|rows| rows as u64),
        bytes: row.get::<_, Option<i64>>(4)?.map(|bytes| bytes as u64),
        sha256: row.get(5)?,
        tries: row.get::<_, Option<u32>>(6)?.unwrap_or(0),
        tried_since_ms: row.get::<_, Option<i64>>(7)?.unwrap_or(0),
    })
}
