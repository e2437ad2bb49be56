//! `release`: what is unworked goes back to the manifest, rows and slices, for another machine to take. What is published
//! stays, and is in the index afterwards: no run may ever come that writes it.

use std::io::Write;
use std::path::Path;

use anyhow::{Result, bail};
use microshard_queue::{Acquired, Lock, LockKind, Queue};
use serde_json::json;

use super::sync_back::connect;
use super::{Exit, claims};
use crate::cli;
use crate::config::Output;
use crate::faults::passed;
use crate::hint;
use crate::index;
use crate::leftovers;
use crate::manifest::{Held, HolderFile};
use crate::monitor::human;
use crate::store::{self, StoreSettings};

pub(super) fn run(args: &cli::SyncBack, out: &mut dyn Write) -> Result<Exit> {
    let path = &args.queue.queue.queue;
    let mut released = Released::default();
    if !path.exists() && give_back_lost(args, &mut released)? {
        // The first snapshot was killed: there is no queue.
        return released.print(args.queue.json, out);
    }
    let queue = Queue::open(path)?;
    // A runner would go on with what is given away here.
    let Acquired::Ours(_lock) = Lock::acquire(path, LockKind::Runner)? else {
        bail!("a runner is at work on {}: stop it first (Ctrl-C), then release", path.display());
    };
    refuse_unsynced(&queue, path)?;
    give_back_lost(args, &mut released)?;
    // A snapshot would tell what is given away as known, and then take it apart without having copied it.
    let Acquired::Ours(_intake) = Lock::acquire(path, LockKind::Intake)? else {
        bail!("a snapshot or retry is at work on {}: wait for it to end, then release", path.display());
    };
    for snapshot in queue.snapshots()? {
        let mut home = match Held::parse(&snapshot.claim)? {
            Held::Postgres { claim, server } => Some((connect(args, &claim, &server)?, claim)),
            Held::Listing { .. } => None,
        };
        // The queue first: should the second half fail, the lease runs out, and nothing is worked twice.
        let mut ids = Vec::new();
        passed("release: queue");
        let of_snapshot = queue.release_unworked(snapshot.snapshot, &mut |id| ids.push(id))?;
        released.microshards += of_snapshot.microshards;
        released.failed_again += of_snapshot.failed_again;
        if let Some((postgres, claim)) = &mut home {
            passed("release: give back");
            released.rows += postgres.give_back(claim, &mut ids.into_iter())?;
            released.slices += postgres.release_slices(claim)?;
        }
    }
    let left = leave_output(&queue, args);
    let exit = released.print(args.queue.json, out)?;
    left.map(|()| exit)
}

/// No run may come any more: what a killed one left in the output is removed, and what is published gets into the index.
fn leave_output(queue: &Queue, args: &cli::SyncBack) -> Result<()> {
    let Some(output) = Output::of(queue)? else { return Ok(()) };
    let store = store::open(&output.location, &StoreSettings::from_args(&args.store)?, &queue.queue_id()?)?;
    if !queue.uploads()?.is_empty() {
        store.check_writable()?;
    }
    passed("release: leftovers");
    leftovers::remove(queue, store.as_ref())?;
    passed("release: index");
    if index::concerns(queue)? { index::merge(queue, store.as_ref(), &output) } else { Ok(()) }
}

/// What was released.
#[derive(Debug, Default)]
struct Released {
    microshards: u64,
    failed_again: u64,
    rows: u64,
    slices: u64,
}

impl Released {
    fn print(&self, as_json: bool, out: &mut dyn Write) -> Result<Exit> {
        let Released { microshards, failed_again, rows, slices } = *self;
        if as_json {
            let released = json!({
                "microshards": microshards, "failed_again": failed_again, "rows_given_back": rows,
                "slices_released": slices,
            });
            writeln!(out, "{released}")?;
            return Ok(Exit::Done);
        }
        writeln!(
            out,
            "{} microshards are released; {} rows and {} slices went back to the manifest",
            human::count(microshards),
            human::count(rows),
            human::count(slices)
        )?;
        if failed_again > 0 {
            writeln!(
                out,
                "{} microshards that waited to be retried are failed again: `retry` brings them back in this queue",
                human::count(failed_again)
            )?;
        }
        Ok(Exit::Done)
    }
}

/// Gives back what a killed snapshot left claimed; whether one did.
fn give_back_lost(args: &cli::SyncBack, released: &mut Released) -> Result<bool> {
    let path = &args.queue.queue.queue;
    if !HolderFile::of(path).path().exists() {
        return Ok(false);
    }
    let Acquired::Ours(_lock) = Lock::acquire(path, LockKind::Intake)? else {
        bail!("a snapshot is at work on {}: wait for it to end, then release", path.display());
    };
    let Some(given_back) = claims::give_back_lost(path, args.manifest.as_deref())? else { return Ok(false) };
    released.rows += given_back.rows;
    released.slices += given_back.slices;
    Ok(true)
}

/// What is published but not written back would be built again by whoever takes what is released.
fn refuse_unsynced(queue: &Queue, path: &Path) -> Result<()> {
    for snapshot in queue.snapshots()? {
        let unsynced = queue.unsynced_shards(snapshot.snapshot, 0, u64::MAX)?.len();
        if unsynced > 0 && matches!(Held::parse(&snapshot.claim)?, Held::Postgres { .. }) {
            bail!(
                "{unsynced} published shards are not written back: run `{}` first, then release",
                hint::command("sync-back", path)
            );
        }
    }
    Ok(())
}
