//! The sums of a run's events and the speeds between two of them. Pure: no clock, the time is given.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{Amount, Event};

/// The sums of all events so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Totals {
    /// What the queue holds, over all languages.
    pub planned: Amount,
    /// What earlier starts have ended.
    pub done_before: Amount,
    /// What is published since this start.
    pub published: Amount,
    /// Shards given up since this start.
    pub shards_failed: u64,
    /// Microshards given up since this start.
    pub microshards_failed: u64,
    /// Microshards held since this start: they are no part of what is planned any more.
    pub microshards_held: u64,
    /// Downloads, also those of shards that were deferred later.
    pub fetched: u64,
    /// Bytes downloaded.
    pub bytes_in: u64,
    /// Rows built, also into shards that are not published yet.
    pub rows_built: u64,
    /// Bytes of published shards.
    pub bytes_out: u64,
    /// Shards that were deferred and have not ended since.
    pub waiting: BTreeSet<String>,
}

impl Totals {
    /// Adds one event.
    pub fn add(&mut self, event: &Event) {
        match event {
            Event::Started { languages } => {
                for language in languages {
                    self.planned += language.planned;
                    self.done_before += language.done;
                }
            }
            Event::Planned { languages } => {
                self.planned = Amount::default();
                languages.iter().for_each(|language| self.planned += language.planned);
            }
            Event::Fetched { bytes } => {
                self.fetched += 1;
                self.bytes_in += bytes;
            }
            Event::RowsBuilt { rows } => self.rows_built += rows,
            Event::ShardPublished { shard, microshards, failed, rows, bytes_out, .. } => {
                self.published += Amount { shards: 1, microshards: *microshards, rows: *rows };
                self.microshards_failed += failed;
                self.bytes_out += bytes_out;
                self.waiting.remove(shard);
            }
            Event::ShardFailed { shard, microshards, .. } => {
                self.shards_failed += 1;
                self.microshards_failed += microshards;
                self.waiting.remove(shard);
            }
            Event::ShardHeld { shard, microshards, failed, .. } => {
                self.microshards_failed += failed;
                self.microshards_held += microshards;
                // As the queue counts it: so it is planned, should the plan be told again, and so it is now.
                self.planned.shards = self.planned.shards.saturating_sub(1);
                self.planned.microshards = self.planned.microshards.saturating_sub(*microshards);
                self.waiting.remove(shard);
            }
            Event::ShardDeferred { shard, .. } => {
                self.waiting.insert(shard.clone());
            }
            // Not sums: a microshard's failure is counted when its shard ends, so that no deferral counts it twice.
            Event::LeaseLost { .. }
            | Event::MicroshardFailed { .. }
            | Event::OriginLimit { .. }
            | Event::Waiting { .. }
            | Event::Finished { .. } => {}
        }
    }

    /// Microshards that have ended, one way or the other, since the queue was made.
    pub fn ended(&self) -> u64 {
        self.done_before.microshards + self.published.microshards + self.microshards_failed
    }

    pub(super) fn sample(&self) -> Sample {
        let ended = self.published.microshards + self.microshards_failed;
        Sample { fetched: self.fetched, ended, bytes_in: self.bytes_in, bytes_out: self.bytes_out }
    }
}

impl std::ops::AddAssign for Amount {
    fn add_assign(&mut self, more: Amount) {
        self.shards += more.shards;
        self.microshards += more.microshards;
        self.rows += more.rows;
    }
}

/// The sums that have a speed, since this start.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sample {
    fetched: u64,
    ended: u64,
    bytes_in: u64,
    bytes_out: u64,
}

/// Speeds, per second.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Rates {
    /// Microshards downloaded.
    pub fetched: f64,
    /// Microshards ended.
    pub ended: f64,
    /// Bytes downloaded.
    pub bytes_in: f64,
    /// Bytes of published shards.
    pub bytes_out: f64,
}

impl Rates {
    /// The speeds at which `from` became `to`; 0 where no time has passed.
    pub(super) fn between(from: Sample, to: Sample, elapsed: Duration) -> Rates {
        let s = elapsed.as_secs_f64();
        let rate = |from: u64, to: u64| if s > 0.0 { (to - from) as f64 / s } else { 0.0 };
        Rates {
            fetched: rate(from.fetched, to.fetched),
            ended: rate(from.ended, to.ended),
            bytes_in: rate(from.bytes_in, to.bytes_in),
            bytes_out: rate(from.bytes_out, to.bytes_out),
        }
    }
}
