//! `plan`: what would be built, from a queue, or from a manifest that is in no queue yet.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use microshard_queue::{GroupStatus, HeldFor, PlannedShard, Queue};
use serde_json::{Value, json};

use super::Exit;
use super::snapshot::{self, Hold};
use super::table::Table;
use crate::cli;
use crate::monitor::human;

/// Microshards that are held, by the reason.
#[derive(Debug, Default, Clone, Copy)]
struct Held {
    remainders: u64,
    for_retry: u64,
    released: u64,
}

impl Held {
    fn add(&mut self, shard: &PlannedShard, why: HeldFor) {
        match why {
            HeldFor::Remainder => self.remainders += shard.members,
            HeldFor::Retry => self.for_retry += shard.members,
            HeldFor::Manifest => self.released += shard.members,
        }
    }

    fn total(&self) -> u64 {
        self.remainders + self.for_retry + self.released
    }

    fn line(&self) -> String {
        let reasons = [
            (self.remainders, "do not fill a shard"),
            (self.for_retry, "wait for `retry`"),
            (self.released, "were released"),
        ];
        let reasons = reasons.iter().filter(|(count, _)| *count > 0);
        let reasons: Vec<_> = reasons.map(|(count, why)| format!("{} {why}", human::count(*count))).collect();
        format!("{} microshards are held: {}", human::count(self.total()), reasons.join(", "))
    }
}

/// What is planned for one (run, language): of all shards that are not held and have not come to nothing, without the
/// microshards that failed.
#[derive(Debug, Default)]
struct Group {
    microshards: u64,
    shards: u64,
    held: Held,
    failed_shards: u64,
    /// `None` where the manifest has no counts.
    rows: Option<u64>,
    smallest: Option<u64>,
    largest: Option<u64>,
    bytes: Option<u64>,
    closed_by: BTreeMap<String, u64>,
}

pub(super) fn run(args: &cli::Plan, out: &mut dyn Write) -> Result<Exit> {
    if args.intake.manifest.manifest.is_none() {
        print(&args.queue.queue.queue, args.queue.json, out)?;
        return Ok(Exit::Done);
    }
    let directory = tempfile::tempdir().context("failed to make a temporary queue")?;
    let queue = directory.path().join("plan.db");
    snapshot::take(&queue, &args.intake, &Hold::NONE)?;
    print(&queue, args.queue.json, out)?;
    Ok(Exit::Done)
}

fn print(path: &Path, as_json: bool, out: &mut dyn Write) -> Result<()> {
    let queue = Queue::open(path)?;
    let groups = groups(&queue)?;
    let failed = GroupStatus::total(&queue.status()?).microshards.failed;
    if as_json {
        writeln!(out, "{:#}", groups.iter().map(json).collect::<Value>())?;
        return Ok(());
    }
    let mut table = Table::new(&[
        "run/language",
        "microshards",
        "shards",
        "rows",
        "smallest",
        "largest",
        "in",
        "GETs",
        "PUTs",
        "held",
        "closed by",
    ]);
    let all = Group::all(groups.values());
    let named = groups.iter().map(|((run_id, language), group)| (format!("{run_id}/{language}"), group));
    for (name, group) in named.chain([("all".to_owned(), &all)]) {
        let closed: Vec<String> = group.closed_by.iter().map(|(by, count)| format!("{by} {count}")).collect();
        let mut cells = vec![name];
        cells.extend([group.microshards, group.shards].map(human::count));
        let unknown = || "unknown".to_owned();
        cells.extend([group.rows, group.smallest, group.largest].map(|rows| rows.map_or_else(unknown, human::count)));
        cells.push(group.bytes.map_or_else(|| "unknown".to_owned(), human::bytes));
        cells.extend([group.microshards, group.shards, group.held.total()].map(human::count));
        cells.push(closed.join(", "));
        table.row(cells);
    }
    table.print(out)?;
    if all.held.total() > 0 {
        writeln!(out, "{}", all.held.line())?;
    }
    if failed > 0 {
        writeln!(out, "{} microshards failed and are not counted", human::count(failed))?;
    }
    Ok(())
}

fn groups(queue: &Queue) -> Result<BTreeMap<(String, String), Group>> {
    let left_out = queue.left_out()?;
    let mut groups: BTreeMap<(String, String), Group> = BTreeMap::new();
    queue.for_each_shard(&mut |shard| -> Result<()> {
        let group = groups.entry((shard.run_id.clone(), shard.language.clone())).or_default();
        match (shard.held_for(), shard.state) {
            (Some(why), _) => group.held.add(&shard, why),
            (None, 4) => group.failed_shards += 1,
            (None, _) => group.add(&Group::of(shard, &left_out)),
        }
        Ok(())
    })?;
    Ok(groups)
}

impl Group {
    /// One shard, without what failed of it.
    fn of(shard: PlannedShard, left_out: &BTreeMap<i64, (u64, u64)>) -> Group {
        let (rows, bytes) = left_out.get(&shard.shard).copied().unwrap_or_default();
        let rows = shard.rows_planned.map(|planned| planned.saturating_sub(rows));
        Group {
            microshards: shard.members,
            shards: 1,
            rows,
            smallest: rows,
            largest: rows,
            bytes: shard.bytes_planned.map(|planned| planned.saturating_sub(bytes)),
            closed_by: BTreeMap::from([(shard.closed_by, 1)]),
            ..Group::default()
        }
    }

    fn all<'a>(groups: impl Iterator<Item = &'a Group>) -> Group {
        let mut all = Group::default();
        groups.for_each(|group| all.add(group));
        all
    }

    fn add(&mut self, other: &Group) {
        self.held.remainders += other.held.remainders;
        self.held.for_retry += other.held.for_retry;
        self.held.released += other.held.released;
        self.failed_shards += other.failed_shards;
        if other.shards == 0 {
            return;
        }
        if self.shards == 0 {
            (self.rows, self.bytes) = (Some(0), Some(0));
            (self.smallest, self.largest) = (other.smallest, other.largest);
        }
        self.shards += other.shards;
        self.microshards += other.microshards;
        self.rows = self.rows.zip(other.rows).map(|(sum, rows)| sum + rows);
        self.smallest = self.smallest.zip(other.smallest).map(|(smallest, rows)| smallest.min(rows));
        self.largest = self.largest.zip(other.largest).map(|(largest, rows)| largest.max(rows));
        self.bytes = self.bytes.zip(other.bytes).map(|(sum, bytes)| sum + bytes);
        for (by, count) in &other.closed_by {
            *self.closed_by.entry(by.clone()).or_default() += count;
        }
    }
}

fn json(((run_id, language), group): (&(String, String), &Group)) -> Value {
    json!({
        "run_id": run_id, "language": language, "microshards": group.microshards, "shards": group.shards,
        "rows": group.rows, "rows_smallest_shard": group.smallest, "rows_largest_shard": group.largest,
        "bytes_in": group.bytes, "gets": group.microshards, "puts": group.shards,
        "held_microshards": group.held.total(),
        "held_for": {
            "remainder": group.held.remainders, "retry": group.held.for_retry, "released": group.held.released,
        },
        "failed_shards": group.failed_shards, "closed_by": group.closed_by,
    })
}
