//! `release`: what is unworked goes back to the manifest, rows and slices, for another machine to take.

use std::io::Write;

use anyhow::{Result, bail};
use microshard_queue::{Acquired, Lock, LockKind, Queue};
use serde_json::json;

use super::Exit;
use super::sync_back::connect;
use crate::cli;
use crate::manifest::Held;

pub(super) fn run(args: &cli::SyncBack, out: &mut dyn Write) -> Result<Exit> {
    let path = &args.queue.queue.queue;
    let queue = Queue::open(path)?;
    // A runner would go on with what is given away here.
    let Acquired::Ours(_lock) = Lock::acquire(path, LockKind::Runner)? else {
        bail!("a runner is at work on {}: stop it first (Ctrl-C), then release", path.display());
    };
    // A snapshot would tell what is given away as known, and then take it apart without having copied it.
    let Acquired::Ours(_intake) = Lock::acquire(path, LockKind::Intake)? else {
        bail!("a snapshot or retry is at work on {}: wait for it to end, then release", path.display());
    };
    let (mut microshards, mut rows, mut slices) = (0, 0, 0);
    refuse_unsynced(&queue)?;
    for snapshot in queue.snapshots()? {
        // The queue first: should the second half fail, the lease runs out, and nothing is worked twice.
        let mut ids = Vec::new();
        microshards += queue.release_unworked(snapshot.snapshot, &mut |id| ids.push(id))?;
        if let Held::Postgres { claim, server } = Held::parse(&snapshot.claim)? {
            let mut postgres = connect(args, &claim, &server)?;
            rows += postgres.give_back(&claim, &mut ids.into_iter())?;
            slices += postgres.release_slices(&claim)?;
        }
    }
    if args.queue.json {
        writeln!(out, "{}", json!({"microshards": microshards, "rows_given_back": rows, "slices_released": slices}))?;
    } else {
        writeln!(
            out,
            "{microshards} microshards are released; {rows} rows and {slices} slices went back to the manifest"
        )?;
    }
    Ok(Exit::Done)
}

/// What is published but not written back would be built again by whoever takes what is released.
fn refuse_unsynced(queue: &Queue) -> Result<()> {
    for snapshot in queue.snapshots()? {
        let unsynced = queue.unsynced_shards(snapshot.snapshot, 0, u64::MAX)?.len();
        if unsynced > 0 && matches!(Held::parse(&snapshot.claim)?, Held::Postgres { .. }) {
            bail!(
                "{unsynced} published shards are not written back: run `compact-local sync-back` first, then release"
            );
        }
    }
    Ok(())
}
