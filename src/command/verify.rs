//! `verify`: reads every published shard again, and compares it with the queue, the index and, with `--source`, its
//! microshards. Writes nothing.

use std::collections::{HashMap, HashSet};
use std::io::Write;

use anyhow::{Context, Result, bail, ensure};
use microshard_queue::{GroupStatus, PlannedShard, Queue};
use rayon::prelude::*;
use serde_json::json;

use super::Exit;
use crate::cli;
use crate::config::Output;
use crate::hex;
use crate::hint;
use crate::index::{self, Index};
use crate::monitor::human;
use crate::patience::Patience;
use crate::store::{self, Bounds, Sources, StoreSettings};
use crate::verify::{Verified, Verifier};

pub(super) fn run(args: &cli::Verify, out: &mut dyn Write) -> Result<Exit> {
    let path = &args.queue.queue.queue;
    let queue = Queue::open(path)?;
    let mut wrong = queue.check()?;
    let Some(output) = Output::of(&queue)? else {
        ensure!(wrong.is_empty(), "{}", wrong.join("; "));
        bail!("nothing has been built yet: `{}` comes before `verify`", hint::run(path, None));
    };
    let settings = StoreSettings::from_args(&args.store)?;
    let store = store::open(&output.location, &settings, &queue.queue_id()?)?;
    let threads = args.threads.map_or_else(|| std::thread::available_parallelism().map_or(1, usize::from), usize::from);
    let shards = published(&queue)?;
    let missing = Missing::of(&queue)?;
    if missing.pending == 0 {
        match index::read(store.as_ref())? {
            Some(index) => wrong.extend(compare_index(&shards, &index, &queue.queue_id()?)),
            None => wrong.push(format!("there is no dataset index: `{}` writes it", hint::run(path, Some(&output)))),
        }
    }
    let patience = Patience::default();
    let (pause, wait) = (patience.retry_after_max, patience.in_lane_max);
    let bounds = Bounds { in_flight: threads, per_second: None, pause, wait };
    let sources = args.source.then(|| Sources::new(settings, bounds));
    let verifier = Verifier { store: store.as_ref(), sources: sources.as_ref(), output: &output, patience: &patience };
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
    let pool = pool.context("failed to start threads: lower --threads or raise the limit (ulimit -u)")?;
    // Each thread reads members with a connection of its own.
    let path = queue.path();
    let open = || args.source.then(|| Queue::open(path)).transpose();
    let verified: Vec<Verified> = pool.install(|| {
        shards.par_iter().map_init(open, |queue, shard| verify_one(&verifier, queue, shard)).collect::<Result<_>>()
    })?;
    let (mut rows, mut bytes, mut not_compared) = (0, 0, Vec::new());
    for shard in verified {
        rows += shard.rows;
        bytes += shard.bytes;
        wrong.extend(shard.wrong);
        not_compared.extend(shard.not_compared);
    }
    if args.queue.json {
        let found = json!({
            "shards": shards.len(), "rows": rows, "bytes": bytes, "wrong": wrong, "not_compared": not_compared,
            "not_in_it": {
                "failed": missing.failed, "held": missing.held, "pending": missing.pending, "refused": missing.refused,
            },
        });
        writeln!(out, "{found}")?;
    } else {
        wrong.iter().try_for_each(|wrong| writeln!(out, "{wrong}"))?;
        let (shards, rows, bytes) = (human::count(shards.len() as u64), human::count(rows), human::bytes(bytes));
        writeln!(out, "{shards} shards with {rows} rows and {bytes} read again, {} faults", wrong.len())?;
        writeln!(
            out,
            "not in it: {} microshards failed, {} held, {} pending, {} results refused by the manifest",
            human::count(missing.failed),
            human::count(missing.held),
            human::count(missing.pending),
            human::count(missing.refused)
        )?;
    }
    if let Some(first) = wrong.first() {
        bail!("the dataset does not verify: {} faults, the first: {first}", wrong.len());
    }
    if let Some(first) = not_compared.first() {
        bail!("{} shards could not be compared with their microshards: {first}", not_compared.len());
    }
    // What is there is right; nobody shall take it for all there is.
    Ok(if missing.is_nothing() { Exit::Done } else { Exit::Incomplete })
}

/// What the plan has and the dataset has not.
struct Missing {
    failed: u64,
    held: u64,
    pending: u64,
    refused: u64,
}

impl Missing {
    fn of(queue: &Queue) -> Result<Missing> {
        let microshards = GroupStatus::total(&queue.status()?).microshards;
        Ok(Missing {
            failed: microshards.failed,
            held: microshards.held,
            pending: microshards.pending + microshards.claimed,
            refused: queue.refused()?.total(),
        })
    }

    fn is_nothing(&self) -> bool {
        self.failed + self.held + self.pending + self.refused == 0
    }
}

fn verify_one(
    verifier: &Verifier<'_>,
    queue: &mut microshard_queue::Result<Option<Queue>>,
    shard: &PlannedShard,
) -> Result<Verified> {
    let members = match queue {
        Ok(Some(queue)) => queue.members_of(shard)?,
        Ok(None) => Vec::new(),
        Err(error) => bail!("{error}"),
    };
    Ok(verifier.verify(shard, &members))
}

fn published(queue: &Queue) -> Result<Vec<PlannedShard>> {
    let mut shards = Vec::new();
    queue.for_each_shard(&mut |shard| -> Result<()> {
        if shard.receipt.as_ref().is_some_and(|receipt| receipt.rows > 0) && shard.refused.is_none() {
            shards.push(shard);
        }
        Ok(())
    })?;
    Ok(shards)
}

/// What the index says against what the queue says.
fn compare_index(shards: &[PlannedShard], index: &Index, queue_id: &str) -> Vec<String> {
    let mut wrong = index.faults();
    let by_uri: HashMap<&str, &index::Shard> = index.shards.iter().map(|entry| (entry.uri.as_str(), entry)).collect();
    let published: HashSet<&str> =
        shards.iter().filter_map(|shard| shard.receipt.as_ref()).map(|receipt| receipt.key.as_str()).collect();
    for entry in index.shards.iter().filter(|entry| entry.queue == queue_id && !published.contains(entry.uri.as_str()))
    {
        wrong.push(format!("{}: the index lists it, the queue has not published it", entry.uri));
    }
    for shard in shards {
        let Some(receipt) = &shard.receipt else { continue };
        let same = by_uri.get(receipt.key.as_str()).is_some_and(|entry| {
            (entry.rows, entry.bytes, entry.microshards) == (receipt.rows, receipt.bytes_out, shard.members)
                && entry.sha256 == hex::encode(&receipt.sha256)
        });
        if !same {
            wrong.push(format!("{}: the index says otherwise, or nothing", receipt.key));
        }
    }
    wrong
}
