//! `sync-back`: results to the manifest, chunk by chunk, each idempotent; then marked in the queue; then the index (I4).

use std::io::Write;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use microshard_queue::{PlannedShard, Queue, RunnerState, Snapshot, UnsyncedFailure};
use serde_json::json;

use super::Exit;
use crate::cli;
use crate::config::Output;
use crate::faults::{passed, step};
use crate::hint;
use crate::index;
use crate::manifest::listing::ResultsWriter;
use crate::manifest::{Claim, Held, Member, Postgres, SyncFailure, SyncShard, Synced};
use crate::monitor::human;
use crate::store::{self, ObjectStore, StoreSettings};

/// Microshards in one transaction of Postgres: 1.5 s at most (QUEUE: measured).
const CHUNK_MICROSHARDS: u64 = 50_000;

/// What sync-back did.
#[derive(Debug, Default)]
struct Report {
    shards: u64,
    failures: u64,
    already: u64,
    refused: Vec<String>,
    slices_released: u64,
}

pub(super) fn run(args: &cli::SyncBack, out: &mut dyn Write) -> Result<Exit> {
    let queue = Queue::open(&args.queue.queue.queue)?;
    let mut report = Report::default();
    let mut listed = Vec::new();
    for snapshot in queue.snapshots()? {
        match Held::parse(&snapshot.claim)? {
            Held::Listing { .. } => listed.push(snapshot.snapshot),
            Held::Postgres { claim, server } => {
                let mut postgres = connect(args, &claim, &server)?;
                sync_snapshot(&queue, &snapshot, &claim, &mut postgres, &mut report)?;
            }
        }
    }
    if !listed.is_empty() {
        write_results(&queue, &listed, args, &mut report)?;
    }
    report.refused = queue.refusals()?;
    let indexed = update_index(&queue, args, !report.refused.is_empty());
    // What was written back is told, whatever became of the index.
    print(&report, args.queue.json, out)?;
    indexed?;
    if !report.refused.is_empty() {
        bail!("{} results were refused by the manifest, for the reasons above", report.refused.len());
    }
    Ok(Exit::Done)
}

/// What the manifest knows of belongs into the index, also where no run has reached its end or ever will; a runner at work
/// writes it itself. A shard that was refused is no part of the dataset, and goes at once.
fn update_index(queue: &Queue, args: &cli::SyncBack, is_refused: bool) -> Result<()> {
    let is_at_work = matches!(queue.runner_state()?, RunnerState::Running | RunnerState::Quiet);
    let is_due = (is_refused || !is_at_work) && index::concerns(queue)?;
    let Some(output) = Output::of(queue)?.filter(|_| is_due) else { return Ok(()) };
    let store = open_output(queue, &output, &StoreSettings::from_args(&args.store)?)?;
    passed("sync-back: index");
    index::merge(queue, store.as_ref(), &output)
}

/// Opens the output, and removes what a killed sync-back left there. Its temporary files have a name of their own: a
/// runner may be at work with others.
fn open_output(queue: &Queue, output: &Output, settings: &StoreSettings) -> Result<Arc<dyn ObjectStore>> {
    let store = store::open(&output.location, settings, &format!("{}-results", queue.queue_id()?))?;
    store.sweep()?;
    Ok(store)
}

/// Connects to the manifest a snapshot came from.
pub(super) fn connect(args: &cli::SyncBack, claim: &Claim, server: &str) -> Result<Postgres> {
    let mut postgres = Postgres::connect(args.manifest.as_deref(), claim.names.clone())
        .with_context(|| format!("the snapshot was taken from {server}"))?;
    postgres.ensure_home_of(claim)?;
    Ok(postgres)
}

fn sync_snapshot(
    queue: &Queue,
    snapshot: &Snapshot,
    claim: &Claim,
    postgres: &mut Postgres,
    report: &mut Report,
) -> Result<()> {
    let base = Output::of(queue)?.map(|output| output.location).unwrap_or_default();
    let (mut after_shard, mut after_failure) = (0, 0);
    loop {
        let shards = queue.unsynced_shards(snapshot.snapshot, after_shard, CHUNK_MICROSHARDS)?;
        let failures = queue.unsynced_failures(snapshot.snapshot, after_failure, CHUNK_MICROSHARDS as u32)?;
        if shards.is_empty() && failures.is_empty() {
            break;
        }
        after_shard = shards.last().map_or(after_shard, |shard| shard.shard);
        after_failure = failures.last().map_or(after_failure, |failure| failure.seq);
        sync_chunk(queue, claim, postgres, (&shards, &failures), &base, report)?;
    }
    if snapshot.live_shards == 0 {
        report.slices_released += postgres.release_slices(claim)?;
    }
    Ok(())
}

fn sync_chunk(
    queue: &Queue,
    claim: &Claim,
    postgres: &mut Postgres,
    (shards, failures): (&[PlannedShard], &[UnsyncedFailure]),
    base: &str,
    report: &mut Report,
) -> Result<()> {
    let to_sync = shards.iter().map(|shard| sync_shard(queue, shard, base)).collect::<Result<Vec<_>>>()?;
    let failed: Vec<SyncFailure> = failures.iter().map(sync_failure).collect();
    passed("sync-back: chunk");
    let (of_shards, of_failures) = postgres.sync_back(claim, &to_sync, &failed)?;
    let mut mark_shards = Vec::new();
    for (shard, synced) in shards.iter().zip(of_shards) {
        mark_shards.push((shard.shard, report.count(synced, true)));
    }
    let mut mark_failures = Vec::new();
    for (failure, synced) in failures.iter().zip(of_failures) {
        mark_failures.push((failure.seq, report.count(synced, false)));
    }
    passed("sync-back: mark");
    queue.mark_synced(&mark_shards, &mark_failures).map_err(Into::into)
}

impl Report {
    /// Counts one answer; returns why it was refused, if it was.
    fn count(&mut self, synced: Synced, is_shard: bool) -> Option<String> {
        match synced {
            Synced::Written if is_shard => self.shards += 1,
            Synced::Written => self.failures += 1,
            Synced::Already => self.already += 1,
            Synced::Refused(why) => return Some(why),
        }
        None
    }
}

fn sync_shard(queue: &Queue, shard: &PlannedShard, base: &str) -> Result<SyncShard> {
    let receipt =
        shard.receipt.as_ref().with_context(|| format!("shard {} is published without a receipt", shard.name))?;
    let member = |consumed: &microshard_queue::Consumed| Member {
        microshard_id: consumed.microshard_id,
        updated_at: consumed.updated_at,
    };
    Ok(SyncShard {
        shard_id: shard.name.clone(),
        language: shard.language.clone(),
        seq: shard.number,
        uri: if receipt.rows == 0 { String::new() } else { format!("{}/{}", base.trim_end_matches('/'), receipt.key) },
        rows: receipt.rows,
        bytes: receipt.bytes_out,
        sha256: receipt.sha256,
        members: queue.consumed(shard)?.iter().map(member).collect(),
    })
}

fn sync_failure(failure: &UnsyncedFailure) -> SyncFailure {
    SyncFailure {
        member: Member { microshard_id: failure.microshard_id, updated_at: failure.updated_at },
        sentence: failure.sentence.clone(),
        attempts: failure.tries,
    }
}

/// A listing cannot be written to: its results go beside the dataset index, as `microshards.csv`.
fn write_results(queue: &Queue, listed: &[i64], args: &cli::SyncBack, report: &mut Report) -> Result<()> {
    const KEY: &str = "microshards.csv";
    let Some(output) = Output::of(queue)? else {
        bail!("nothing has been built yet: `{}` comes before `sync-back`", hint::run(&args.queue.queue.queue, None));
    };
    let store = open_output(queue, &output, &StoreSettings::from_args(&args.store)?)?;
    let file = step("results: create")
        .and_then(|()| tempfile::tempfile())
        .context("failed to make the temporary file of microshards.csv (TMPDIR says where)")?;
    let mut results = ResultsWriter::create(file)?;
    queue.for_each_microshard(&mut |microshard| -> Result<()> {
        match microshard.status {
            "consumed" => results.consumed(microshard.microshard_id, microshard.shard),
            "failed" => results.failed(microshard.microshard_id, microshard.sentence.unwrap_or_default()),
            _ => Ok(()),
        }
    })?;
    // SAFETY: the file has no name, so nobody else can open it; it is not written to any more.
    let mapped = unsafe { memmap2::Mmap::map(&results.finish()?) }.context("failed to map microshards.csv")?;
    store.replace(KEY, &mapped)?;
    passed("results: written");
    for snapshot in listed {
        let shards = queue.unsynced_shards(*snapshot, 0, u64::MAX)?;
        let failures = queue.unsynced_failures(*snapshot, 0, u32::MAX)?;
        report.shards += shards.len() as u64;
        report.failures += failures.len() as u64;
        let shards: Vec<_> = shards.iter().map(|shard| (shard.shard, None)).collect();
        let failures: Vec<_> = failures.iter().map(|failure| (failure.seq, None)).collect();
        queue.mark_synced(&shards, &failures)?;
    }
    Ok(())
}

fn print(report: &Report, as_json: bool, out: &mut dyn Write) -> Result<()> {
    if as_json {
        let report = json!({
            "shards": report.shards, "failures": report.failures, "already": report.already, "refused": report.refused,
            "slices_released": report.slices_released,
        });
        writeln!(out, "{report}")?;
        return Ok(());
    }
    for refused in &report.refused {
        writeln!(out, "{refused}")?;
    }
    writeln!(
        out,
        "{} shards and {} failures written back, {} were there already, {} refused",
        human::count(report.shards),
        human::count(report.failures),
        human::count(report.already),
        human::count(report.refused.len() as u64)
    )?;
    Ok(())
}
