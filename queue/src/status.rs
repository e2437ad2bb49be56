//! How far the queue is: read from the counters, O(languages), in one short read that no claim waits for.

use rusqlite::{OptionalExtension, Row};

use crate::error::{Named, Result};
use crate::file::Queue;

/// The counters of one (run, language).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GroupStatus {
    /// The run.
    pub run_id: String,
    /// The language.
    pub language: String,
    /// Shards by state; deferred ones count as pending.
    pub shards: ShardCounts,
    /// Microshards by state.
    pub microshards: MicroshardCounts,
    /// Rows in published shards.
    pub rows: u64,
    /// Bytes of the microshards they were made of.
    pub bytes_in: u64,
    /// Bytes of their objects.
    pub bytes_out: u64,
}

/// Shards by state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ShardCounts {
    /// Can be claimed, now or later.
    pub pending: u64,
    /// Of the pending, those that wait for a time.
    pub waiting: u64,
    /// Being worked.
    pub claimed: u64,
    /// Their object is there.
    pub published: u64,
    /// Came to nothing.
    pub failed: u64,
    /// Of the published, those the manifest knows of.
    pub synced: u64,
    /// Kept back.
    pub held: u64,
}

/// Microshards by state. Their sum is all there are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MicroshardCounts {
    /// In shards that are pending.
    pub pending: u64,
    /// In shards that are being worked.
    pub claimed: u64,
    /// In published shards.
    pub consumed: u64,
    /// With a sentence in `failures`.
    pub failed: u64,
    /// In shards that are held.
    pub held: u64,
}

/// Until when a deferred shard waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// Unix milliseconds; in the past where nobody has taken it up yet.
    pub until_ms: i64,
    /// Why.
    pub why: String,
}

impl ShardCounts {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.pending + self.claimed + self.published + self.failed + self.held
    }

    /// Whether everything that is left to do waits for its time.
    pub fn all_wait(&self) -> bool {
        self.waiting > 0 && self.waiting == self.pending && self.claimed == 0
    }
}

impl MicroshardCounts {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.pending + self.claimed + self.consumed + self.failed + self.held
    }
}

impl GroupStatus {
    /// The counts of all `groups` together; of no run and no language.
    pub fn total<'a>(groups: impl IntoIterator<Item = &'a GroupStatus>) -> GroupStatus {
        let mut total = GroupStatus::default();
        groups.into_iter().for_each(|group| total.add(group));
        total
    }

    fn add(&mut self, other: &GroupStatus) {
        let (s, o) = (&mut self.shards, &other.shards);
        s.pending += o.pending;
        s.waiting += o.waiting;
        s.claimed += o.claimed;
        s.published += o.published;
        s.failed += o.failed;
        s.synced += o.synced;
        s.held += o.held;
        let (m, o) = (&mut self.microshards, &other.microshards);
        m.pending += o.pending;
        m.claimed += o.claimed;
        m.consumed += o.consumed;
        m.failed += o.failed;
        m.held += o.held;
        self.rows += other.rows;
        self.bytes_in += other.bytes_in;
        self.bytes_out += other.bytes_out;
    }
}

impl Queue {
    /// The counters of every (run, language), ordered by both.
    pub fn status(&self) -> Result<Vec<GroupStatus>> {
        self.conn
            .prepare_cached(
                "SELECT r.run_id, g.language, g.pending + g.waiting, g.waiting, g.claimed, g.published, g.failed, g.synced,
                        g.held, g.m_pending, g.m_claimed, g.m_published, g.m_failed, g.m_held, g.rows, g.bytes_in, g.bytes_out
                 FROM groups g JOIN runs r ON r.run = g.run ORDER BY r.run_id, g.language",
            )
            .and_then(|mut select| select.query_map([], group_status)?.collect())
            .named("read", &self.path)
    }

    /// The deferred shard whose time comes first; with `only`, of one run (`Queue::run_named`).
    pub fn next_deferred(&self, only: Option<i64>) -> Result<Option<Waiting>> {
        self.conn
            .prepare_cached(
                "SELECT not_before, coalesce(error, '') FROM shards INDEXED BY shards_waiting
                 WHERE state = 1 AND (?1 IS NULL OR grp IN (SELECT grp FROM groups WHERE run = ?1))
                 ORDER BY not_before LIMIT 1",
            )
            .and_then(|mut select| {
                select.query_row([only], |row| Ok(Waiting { until_ms: row.get(0)?, why: row.get(1)? })).optional()
            })
            .named("read", &self.path)
    }
}

fn group_status(row: &Row<'_>) -> rusqlite::Result<GroupStatus> {
    let count = |index: usize| row.get::<_, i64>(index).map(|value| value as u64);
    Ok(GroupStatus {
        run_id: row.get(0)?,
        language: row.get(1)?,
        shards: ShardCounts {
            pending: count(2)?,
            waiting: count(3)?,
            claimed: count(4)?,
            published: count(5)?,
            failed: count(6)?,
            synced: count(7)?,
            held: count(8)?,
        },
        microshards: MicroshardCounts {
            pending: count(9)?,
            claimed: count(10)?,
            consumed: count(11)?,
            failed: count(12)?,
            held: count(13)?,
        },
        rows: count(14)?,
        bytes_in: count(15)?,
        bytes_out: count(16)?,
    })
}
