//! `plan`: what would be built, from a queue, or from a manifest that is in no queue yet.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use microshard_queue::Queue;
use serde_json::{Value, json};

use super::Exit;
use super::snapshot::{self, Hold};
use super::table::Table;
use crate::cli;
use crate::monitor::human;

/// What is planned for one (run, language).
#[derive(Debug, Default)]
struct Group {
    microshards: u64,
    shards: u64,
    held_microshards: u64,
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
    let groups = groups(path)?;
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
    for ((run_id, language), group) in &groups {
        let closed: Vec<String> = group.closed_by.iter().map(|(by, count)| format!("{by} {count}")).collect();
        let mut cells = vec![format!("{run_id}/{language}")];
        cells.extend([group.microshards, group.shards].map(human::count));
        let unknown = || "unknown".to_owned();
        cells.extend([group.rows, group.smallest, group.largest].map(|rows| rows.map_or_else(unknown, human::count)));
        cells.push(group.bytes.map_or_else(|| "unknown".to_owned(), human::bytes));
        cells.extend([group.microshards, group.shards, group.held_microshards].map(human::count));
        cells.push(closed.join(", "));
        table.row(cells);
    }
    table.print(out)?;
    let held: u64 = groups.values().map(|group| group.held_microshards).sum();
    if held > 0 {
        writeln!(
            out,
            "{} microshards are held: they do not fill a shard, wait for `retry`, or were released",
            human::count(held)
        )?;
    }
    Ok(())
}

fn groups(path: &Path) -> Result<BTreeMap<(String, String), Group>> {
    let queue = Queue::open(path)?;
    let mut groups: BTreeMap<(String, String), Group> = BTreeMap::new();
    queue.for_each_shard(&mut |shard| -> Result<()> {
        let group = groups.entry((shard.run_id, shard.language)).or_default();
        match shard.state {
            5 => group.held_microshards += shard.members,
            4 => group.failed_shards += 1,
            _ => {
                if group.shards == 0 {
                    (group.rows, group.bytes) = (Some(0), Some(0));
                    (group.smallest, group.largest) = (shard.rows_planned, shard.rows_planned);
                }
                group.shards += 1;
                group.microshards += shard.members;
                group.rows = group.rows.zip(shard.rows_planned).map(|(sum, rows)| sum + rows);
                group.smallest = group.smallest.zip(shard.rows_planned).map(|(smallest, rows)| smallest.min(rows));
                group.largest = group.largest.zip(shard.rows_planned).map(|(largest, rows)| largest.max(rows));
                group.bytes = group.bytes.zip(shard.bytes_planned).map(|(sum, bytes)| sum + bytes);
                *group.closed_by.entry(shard.closed_by).or_default() += 1;
            }
        }
        Ok(())
    })?;
    Ok(groups)
}

fn json(((run_id, language), group): (&(String, String), &Group)) -> Value {
    json!({
        "run_id": run_id, "language": language, "microshards": group.microshards, "shards": group.shards,
        "rows": group.rows, "rows_smallest_shard": group.smallest, "rows_largest_shard": group.largest,
        "bytes_in": group.bytes, "gets": group.microshards, "puts": group.shards,
        "held_microshards": group.held_microshards, "failed_shards": group.failed_shards, "closed_by": group.closed_by,
    })
}
