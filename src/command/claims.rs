//! A queue's claims in Postgres: those on its record, and the one that a killed snapshot may have left, which only the
//! side file names. That one is given back before the next snapshot claims, and by `release`.

use std::path::Path;

use anyhow::{Context, Error, Result, bail};
use microshard_queue::Queue;

use super::snapshot::Hold;
use crate::manifest::{Claim, Held, HolderFile, Postgres, Selection};

/// What went back to the manifest.
#[derive(Debug)]
pub(super) struct GivenBack {
    pub(super) rows: u64,
    pub(super) slices: u64,
}

/// Who claimed for this queue before, as it says itself.
pub(super) fn on_record(queue: &Path) -> Result<Vec<String>> {
    if !queue.exists() {
        return Ok(Vec::new());
    }
    let mut names = Vec::new();
    for snapshot in Queue::open(queue)?.snapshots()? {
        if let Held::Postgres { claim, .. } = Held::parse(&snapshot.claim)? {
            names.push(claim.claimed_by);
        }
    }
    Ok(names)
}

/// Claims, with the holder's name in the side file first.
pub(super) fn take(queue: &Path, postgres: &mut Postgres, selection: &Selection, hold: &Hold) -> Result<Claim> {
    let file = HolderFile::of(queue);
    let server = postgres.redacted();
    let mut noted = None;
    let claimed = postgres.claim_noted(selection, hold.mode, hold.slices, hold.lease, &mut |claim| {
        noted = Some(claim.clone());
        file.write(&Held::Postgres { claim: claim.clone(), server: server.clone() })
    });
    match (claimed, noted) {
        // It may have been committed although the answer was lost.
        (Err(error), Some(claim)) => Err(abandon(queue, postgres, &claim, error)),
        (claimed, _) => claimed,
    }
}

/// Gives the claim of a snapshot that failed back; what to tell then. Where that fails too, the side file stays.
pub(super) fn abandon(queue: &Path, postgres: &mut Postgres, claim: &Claim, error: Error) -> Error {
    let file = HolderFile::of(queue);
    let mut given_back = || -> Result<()> {
        // The snapshot may have failed after the queue had it: what is on record there is worked on.
        if !on_record(queue)?.contains(&claim.claimed_by) {
            postgres.abandon(claim)?;
        }
        file.remove()
    };
    match given_back() {
        Ok(()) => error,
        Err(second) => error.context(format!(
            "the claim could not be given back ({second:#}): the next snapshot into {}, or `release`, does it",
            queue.display()
        )),
    }
}

/// Gives back what a killed snapshot left claimed; `None` where none did. Callers hold the intake lock, so whoever wrote
/// the side file is dead.
pub(super) fn give_back_lost(queue: &Path, manifest: Option<&str>) -> Result<Option<GivenBack>> {
    let file = HolderFile::of(queue);
    let Some(Held::Postgres { claim, server }) = file.read()? else { return Ok(None) };
    if on_record(queue)?.contains(&claim.claimed_by) {
        // Killed between the queue's record and the removal: nothing is lost.
        file.remove()?;
        return Ok(None);
    }
    let lost = || format!("a snapshot into {} was killed and left a claim at {server}", queue.display());
    let mut postgres = Postgres::connect(manifest, claim.names.clone()).with_context(lost)?;
    if postgres.redacted() != server {
        bail!(
            "{}, and this is {}: run `compact-local release --queue {} --manifest ...` with that one, or remove {} where it \
             is no more",
            lost(),
            postgres.redacted(),
            queue.display(),
            file.path().display()
        );
    }
    let slices = postgres.release_slices(&claim).with_context(lost)?;
    let rows = postgres.abandon(&claim).with_context(lost)?;
    file.remove()?;
    Ok(Some(GivenBack { rows, slices }))
}
