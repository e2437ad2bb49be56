//! What has been published, for `verify`, the dataset index and `sync-back`; and the marks sync-back leaves.

use std::collections::BTreeMap;

use rusqlite::{Row, params};

use crate::claim::Member;
use crate::error::{Named, Result};
use crate::file::{Queue, now_ms};
use crate::finish::Receipt;
use crate::releasing::RELEASED;

/// A snapshot, as sync-back needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Its row.
    pub snapshot: i64,
    /// Its run.
    pub run_id: String,
    /// Its number within the run.
    pub number: u32,
    /// The caller's record of how the manifest is held.
    pub claim: String,
    /// Whether what was unworked has been given back.
    pub released: bool,
    /// Shards that are still pending, waiting, claimed or held.
    pub live_shards: u64,
}

/// A shard of the plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedShard {
    /// Its row: plan order.
    pub shard: i64,
    /// Its run.
    pub run_id: String,
    /// Its snapshot's number within the run.
    pub snapshot: u32,
    /// Its language.
    pub language: String,
    /// Its number within (run, language, snapshot).
    pub number: u32,
    /// The base name of its object.
    pub name: String,
    /// Its microshards that are no exceptions.
    pub members: u64,
    /// Its first and last microshard, by seq.
    pub range: (i64, i64),
    /// Rows planned, where known.
    pub rows_planned: Option<u64>,
    /// Input bytes planned, where known.
    pub bytes_planned: Option<u64>,
    /// Which limit closed it.
    pub closed_by: String,
    /// 0 pending, 1 waiting, 2 claimed, 3 published, 4 failed, 5 held.
    pub state: u8,
    /// Why it failed, waits or is held.
    pub error: Option<String>,
    /// What it is, once published.
    pub receipt: Option<Receipt>,
    /// Whether the manifest knows of it.
    pub synced: bool,
    /// Why sync-back refused it.
    pub refused: Option<String>,
}

/// Why a shard is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeldFor {
    /// A remainder that does not fill a shard: a later snapshot plans it again.
    Remainder,
    /// Some of its microshards failed: `retry` brings it back.
    Retry,
    /// Released: it is the manifest's.
    Manifest,
}

/// What the manifest refused.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Refused {
    /// Published shards: their objects are orphans.
    pub shards: u64,
    /// Failures of microshards.
    pub failures: u64,
}

/// One microshard of a published shard, as sync-back must find it in the manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Consumed {
    /// Its id.
    pub microshard_id: i64,
    /// Unix microseconds, as the snapshot read it.
    pub updated_at: Option<i64>,
}

/// A failure that the manifest does not know of yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnsyncedFailure {
    /// Its place in plan order.
    pub seq: i64,
    /// Its id.
    pub microshard_id: i64,
    /// Unix microseconds, as the snapshot read it.
    pub updated_at: Option<i64>,
    /// Why.
    pub sentence: String,
    /// How often it was tried.
    pub tries: u32,
}

/// Where a microshard stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MicroshardState<'a> {
    /// Its id.
    pub microshard_id: i64,
    /// The base name of its shard's object.
    pub shard: &'a str,
    /// `pending`, `claimed`, `consumed`, `failed`, `held`.
    pub status: &'a str,
    /// Why it failed.
    pub sentence: Option<&'a str>,
}

const SHARD: &str = "SELECT s.shard, r.run_id, n.number, g.language, s.number, s.name, s.members, s.first, s.last, s.rows_planned,
    s.bytes_planned, s.closed_by, s.state, s.error, s.key, s.rows, s.bytes_in, s.bytes_out, s.sha256,
    s.synced_at IS NOT NULL, s.refused
  FROM shards s JOIN groups g ON g.grp = s.grp JOIN runs r ON r.run = g.run JOIN snapshots n ON n.snapshot = s.snapshot";

impl Queue {
    /// The snapshots, oldest first.
    pub fn snapshots(&self) -> Result<Vec<Snapshot>> {
        self.conn
            .prepare(
                "SELECT n.snapshot, r.run_id, n.number, n.claim, n.released_at IS NOT NULL,
                        (SELECT count(*) FROM shards s WHERE s.snapshot = n.snapshot AND s.state IN (0, 1, 2, 5))
                 FROM snapshots n JOIN runs r ON r.run = n.run WHERE n.planned_at IS NOT NULL ORDER BY n.snapshot",
            )
            .and_then(|mut select| {
                select
                    .query_map([], |row| {
                        Ok(Snapshot {
                            snapshot: row.get(0)?,
                            run_id: row.get(1)?,
                            number: row.get(2)?,
                            claim: row.get(3)?,
                            released: row.get(4)?,
                            live_shards: row.get::<_, i64>(5)? as u64,
                        })
                    })?
                    .collect()
            })
            .named("read", &self.path)
    }

    /// Calls `each` for every shard, in plan order.
    pub fn for_each_shard<E: From<crate::Error>>(
        &self,
        each: &mut dyn FnMut(PlannedShard) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let mut select = self.conn.prepare(&format!("{SHARD} ORDER BY s.shard")).named("read", &self.path)?;
        let mut rows = select.query([]).named("read", &self.path)?;
        while let Some(row) = rows.next().named("read", &self.path)? {
            each(planned_shard(row).named("read", &self.path)?)?;
        }
        Ok(())
    }

    /// What the manifest counts for the microshards that are not built with their shard, as they failed: rows and bytes by
    /// shard.
    pub fn left_out(&self) -> Result<BTreeMap<i64, (u64, u64)>> {
        self.conn
            .prepare(
                "SELECT e.shard, coalesce(sum(m.rows), 0), coalesce(sum(m.bytes), 0)
                 FROM exceptions e JOIN microshards m ON m.seq = e.seq GROUP BY e.shard",
            )
            .and_then(|mut select| {
                let sums = |row: &Row<'_>| {
                    let count = |index: usize| row.get::<_, i64>(index).map(|sum| sum as u64);
                    Ok((row.get(0)?, (count(1)?, count(2)?)))
                };
                select.query_map([], sums)?.collect()
            })
            .named("read", &self.path)
    }

    /// Input bytes of the largest shard that is not done, as the manifest counts them; `None` where it doesn't.
    pub fn largest_pending_shard(&self) -> Result<Option<u64>> {
        self.conn
            .query_row("SELECT max(bytes_planned) FROM shards WHERE state < 3", [], |row| row.get::<_, Option<i64>>(0))
            .map(|bytes| bytes.map(|bytes| bytes as u64))
            .named("read", &self.path)
    }

    /// The next published shards of a snapshot that the manifest does not know of, at least one where there are any,
    /// and no more than `microshards_max` microshards in all.
    pub fn unsynced_shards(&self, snapshot: i64, after: i64, microshards_max: u64) -> Result<Vec<PlannedShard>> {
        let sql = format!(
            "{SHARD} WHERE s.state = 3 AND s.synced_at IS NULL AND s.refused IS NULL AND s.shard > ?2 AND s.snapshot = ?1
             ORDER BY s.shard"
        );
        let mut select = self.conn.prepare_cached(&sql).named("read", &self.path)?;
        let mut rows = select.query([snapshot, after]).named("read", &self.path)?;
        let mut shards = Vec::new();
        let mut microshards = 0;
        while let Some(row) = rows.next().named("read", &self.path)? {
            let shard = planned_shard(row).named("read", &self.path)?;
            microshards += shard.members;
            if microshards > microshards_max && !shards.is_empty() {
                break;
            }
            shards.push(shard);
        }
        Ok(shards)
    }

    /// The microshards a shard consumed, in plan order.
    pub fn consumed(&self, shard: &PlannedShard) -> Result<Vec<Consumed>> {
        self.conn
            .prepare_cached(
                "SELECT m.microshard_id, m.updated_at FROM microshards m WHERE m.seq BETWEEN ?1 AND ?2
                 AND NOT EXISTS (SELECT 1 FROM exceptions e WHERE e.seq = m.seq) ORDER BY m.seq",
            )
            .and_then(|mut select| {
                select
                    .query_map([shard.range.0, shard.range.1], |row| {
                        Ok(Consumed { microshard_id: row.get(0)?, updated_at: row.get(1)? })
                    })?
                    .collect()
            })
            .named("read", &self.path)
    }

    /// The microshards of a shard in order, without exceptions.
    pub fn members_of(&self, shard: &PlannedShard) -> Result<Vec<Member>> {
        self.members(shard.range.0, shard.range.1)
    }

    /// Failures of a snapshot that the manifest does not know of, in plan order; not those of shards that may yet be built.
    pub fn unsynced_failures(&self, snapshot: i64, after: i64, most: u32) -> Result<Vec<UnsyncedFailure>> {
        self.conn
            .prepare_cached(
                "SELECT e.seq, m.microshard_id, m.updated_at, e.sentence, e.tries
                 FROM exceptions e INDEXED BY exceptions_unsynced JOIN shards s ON s.shard = e.shard
                 JOIN microshards m ON m.seq = e.seq
                 WHERE e.state = 0 AND e.synced_at IS NULL AND e.refused IS NULL AND e.seq > ?2
                   AND s.snapshot = ?1 AND s.state IN (3, 4) ORDER BY e.seq LIMIT ?3",
            )
            .and_then(|mut select| {
                select
                    .query_map(params![snapshot, after, most], |row| {
                        Ok(UnsyncedFailure {
                            seq: row.get(0)?,
                            microshard_id: row.get(1)?,
                            updated_at: row.get(2)?,
                            sentence: row.get(3)?,
                            tries: row.get(4)?,
                        })
                    })?
                    .collect()
            })
            .named("read", &self.path)
    }

    /// Records what the manifest said: of shards and of failures, each refused with a sentence or taken.
    pub fn mark_synced(&self, shards: &[(i64, Option<String>)], failures: &[(i64, Option<String>)]) -> Result<()> {
        self.transaction(|| {
            for (shard, refused) in shards {
                let at = refused.is_none().then(now_ms);
                self.execute(
                    "UPDATE shards SET synced_at = ?2, refused = ?3 WHERE shard = ?1 AND state = 3",
                    params![shard, at, refused],
                )?;
            }
            for (seq, refused) in failures {
                let at = refused.is_none().then(now_ms);
                self.execute(
                    "UPDATE exceptions SET synced_at = ?2, refused = ?3 WHERE seq = ?1",
                    params![seq, at, refused],
                )?;
            }
            Ok(())
        })
    }

    /// What the manifest refused, shards and failures, each with the reason.
    pub fn refusals(&self) -> Result<Vec<String>> {
        self.conn
            .prepare(
                "SELECT 'shard ' || name || ' (orphan: ' || key || '): ' || refused FROM shards WHERE refused IS NOT NULL
                 UNION ALL SELECT 'failure of microshard ' || m.microshard_id || ': ' || e.refused
                 FROM exceptions e JOIN microshards m ON m.seq = e.seq WHERE e.refused IS NOT NULL",
            )
            .and_then(|mut select| select.query_map([], |row| row.get(0))?.collect())
            .named("read", &self.path)
    }

    /// How much the manifest refused.
    pub fn refused(&self) -> Result<Refused> {
        self.conn
            .query_row(
                "SELECT (SELECT count(*) FROM shards WHERE refused IS NOT NULL),
                        (SELECT count(*) FROM exceptions WHERE refused IS NOT NULL)",
                [],
                |row| Ok(Refused { shards: row.get::<_, i64>(0)? as u64, failures: row.get::<_, i64>(1)? as u64 }),
            )
            .named("read", &self.path)
    }

    /// The ids of a snapshot's microshards that are held, in plan order.
    pub fn for_each_held(&self, snapshot: i64, each: &mut dyn FnMut(i64)) -> Result<u64> {
        let mut select = self
            .conn
            .prepare_cached(
                "SELECT m.microshard_id FROM shards s JOIN microshards m ON m.seq BETWEEN s.first AND s.last
                 WHERE s.snapshot = ?1 AND s.state = 5 AND NOT EXISTS (SELECT 1 FROM exceptions e WHERE e.seq = m.seq)
                 ORDER BY m.seq",
            )
            .named("read", &self.path)?;
        let mut rows = select.query([snapshot]).named("read", &self.path)?;
        let mut count = 0;
        while let Some(row) = rows.next().named("read", &self.path)? {
            each(row.get(0).named("read", &self.path)?);
            count += 1;
        }
        Ok(count)
    }

    /// Calls `each` for every microshard, in plan order; a retried one counts where it is now.
    pub fn for_each_microshard<E: From<crate::Error>>(
        &self,
        each: &mut dyn FnMut(MicroshardState<'_>) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let mut select = self
            .conn
            .prepare(
                "SELECT m.microshard_id, s.name,
                        CASE WHEN s.state = 5 THEN 'held' WHEN e.seq IS NOT NULL THEN 'failed' WHEN s.state < 2 THEN 'pending' WHEN s.state = 2 THEN 'claimed'
                             ELSE 'consumed' END, e.sentence
                 FROM shards s JOIN microshards m ON m.seq BETWEEN s.first AND s.last LEFT JOIN exceptions e ON e.seq = m.seq
                 WHERE e.state IS NULL OR e.state = 0 ORDER BY m.seq",
            )
            .named("read", &self.path)?;
        let mut rows = select.query([]).named("read", &self.path)?;
        while let Some(row) = rows.next().named("read", &self.path)? {
            let state = (|| -> rusqlite::Result<MicroshardState<'_>> {
                Ok(MicroshardState {
                    microshard_id: row.get(0)?,
                    shard: row.get_ref(1)?.as_str()?,
                    status: row.get_ref(2)?.as_str()?,
                    sentence: row.get_ref(3)?.as_str_or_null()?,
                })
            })();
            each(state.named("read", &self.path)?)?;
        }
        Ok(())
    }
}

impl PlannedShard {
    /// Why it is held; `None` where it is not.
    pub fn held_for(&self) -> Option<HeldFor> {
        (self.state == 5).then_some(match self.error.as_deref() {
            None => HeldFor::Remainder,
            Some(RELEASED) => HeldFor::Manifest,
            Some(_) => HeldFor::Retry,
        })
    }
}

impl Refused {
    /// Results of either kind.
    pub fn total(&self) -> u64 {
        self.shards + self.failures
    }
}

fn planned_shard(row: &Row<'_>) -> rusqlite::Result<PlannedShard> {
    let key: Option<String> = row.get(14)?;
    let receipt = match (key, row.get::<_, Option<[u8; 32]>>(18)?) {
        (Some(key), Some(sha256)) => Some(Receipt {
            key,
            rows: row.get::<_, i64>(15)? as u64,
            bytes_in: row.get::<_, i64>(16)? as u64,
            bytes_out: row.get::<_, i64>(17)? as u64,
            sha256,
        }),
        _ => None,
    };
    Ok(PlannedShard {
        shard: row.get(0)?,
        run_id: row.get(1)?,
        snapshot: row.get(2)?,
        language: row.get(3)?,
        number: row.get(4)?,
        name: row.get(5)?,
        members: row.get::<_, i64>(6)? as u64,
        range: (row.get(7)?, row.get(8)?),
        rows_planned: row.get::<_, Option<i64>>(9)?.map(|rows| rows as u64),
        bytes_planned: row.get::<_, Option<i64>>(10)?.map(|bytes| bytes as u64),
        closed_by: row.get(11)?,
        state: row.get(12)?,
        error: row.get(13)?,
        receipt,
        synced: row.get(19)?,
        refused: row.get(20)?,
    })
}
