//! `snapshot`: claim in the manifest, stream it into the queue, plan the shards.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use microshard_queue::{Intake, Item, NewSnapshot, Number, Planned, Queue};

use super::{Exit, claims};
use crate::cli;
use crate::faults::passed;
use crate::hint;
use crate::manifest::listing::Listing;
use crate::manifest::{Claim, ClaimMode, Held, HolderFile, Names, Postgres, Record, Selection, Tally, is_postgres};
use crate::monitor::human;
use crate::naming;
use crate::plan::{Policy, Remainder};
use crate::shown::one_line;
use crate::store::{Location, ObjectUri};

pub(super) fn run(args: &cli::Snapshot, out: &mut dyn Write) -> Result<Exit> {
    let hold = Hold { mode: claim_mode(args.claim), slices: args.slices, lease: args.lease };
    let path = &args.queue.queue;
    let taken = take(path, &args.intake, &hold)?;
    writeln!(out, "{}", summary(&taken, path))?;
    Ok(Exit::Done)
}

/// How the manifest is held for this machine.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hold {
    /// By what.
    pub(super) mode: ClaimMode,
    /// At most this many slices.
    pub(super) slices: Option<u32>,
    /// For how long.
    pub(super) lease: Duration,
}

impl Hold {
    /// Not at all.
    pub(super) const NONE: Hold = Hold { mode: ClaimMode::None, slices: None, lease: Duration::ZERO };
}

/// What a snapshot took.
#[derive(Debug)]
pub(super) struct Taken {
    planned: Planned,
    /// Why there was nothing to take, where there was nothing.
    nothing: Option<String>,
}

/// Takes a snapshot into the queue file. Where there is nothing to take, no queue is made.
pub(super) fn take(queue: &Path, intake: &cli::Intake, hold: &Hold) -> Result<Taken> {
    if is_postgres(&intake.manifest.manifest) {
        take_postgres(queue, intake, hold)
    } else {
        take_listing(queue, intake)
    }
}

fn take_listing(path: &Path, args: &cli::Intake) -> Result<Taken> {
    let location = args.manifest.manifest.as_deref().unwrap_or_default();
    let names = Names::from_args(&args.manifest.table, &args.manifest.shards_table, &args.manifest.column)?;
    let listing = Listing::open(location)?.with_columns(&names.columns)?;
    let mut intake = Intake::begin(path)?;
    let mut run_id = args.run_id.clone();
    let base = base(args)?;
    let mut read = 0_u64;
    listing.read(&selection(args), &mut |record| {
        read += 1;
        if run_id.is_none() {
            run_id = Some(record.run_id.clone());
        }
        Ok(intake.add(&item(&record, base.as_ref())?)?)
    })?;
    let nothing = (read == 0).then(|| format!("{location} lists nothing to take: check --run-id and --language"));
    if let (Some(nothing), false) = (&nothing, path.exists()) {
        bail!("{nothing}");
    }
    let run_id = run_id.context("the listing holds nothing to take, so its run is unknown: name it with --run-id")?;
    let absolute = std::path::absolute(location).with_context(|| format!("failed to make {location} absolute"))?;
    let held = Held::Listing { listing: absolute.display().to_string() };
    let snapshot = NewSnapshot {
        run_id,
        number: Number::From(0),
        claim: serde_json::to_string(&held)?,
        remainders_given_back: false,
    };
    let planned = intake.plan(&snapshot, &policy(&args.plan), &naming::shard_name)?;
    Ok(Taken { planned, nothing })
}

fn take_postgres(path: &Path, args: &cli::Intake, hold: &Hold) -> Result<Taken> {
    let names = Names::from_args(&args.manifest.table, &args.manifest.shards_table, &args.manifest.column)?;
    let base = base(args)?;
    let mut intake = Intake::begin(path)?;
    let manifest = args.manifest.manifest.as_deref();
    claims::give_back_lost(path, manifest)?;
    let mut postgres = Postgres::connect(manifest, names)?;
    let selection = Selection { earlier: claims::on_record(path)?, ..selection(args) };
    let claim = claims::take(path, &mut postgres, &selection, hold)?;
    passed("snapshot: claimed");
    let taken = postgres
        .read(&claim, &selection, &mut |record| {
            #[cfg(feature = "test-faults")]
            record.microshard_id.into_iter().for_each(crate::faults::before_take);
            Ok(intake.add(&item(&record, base.as_ref())?)?)
        })
        .and_then(|read| {
            let tally = (read == 0).then(|| postgres.tally(&claim.run_id, &selection)).transpose()?;
            let nothing = tally.map(|tally| nothing_to_take(&claim.run_id, &tally));
            if let (Some(nothing), false) = (&nothing, path.exists()) {
                bail!("{nothing}");
            }
            Ok(Taken { planned: plan_claimed(intake, &claim, &postgres, args)?, nothing })
        });
    match taken {
        Ok(taken) => {
            passed("snapshot: planned");
            HolderFile::of(path).remove()?;
            give_back_held(path, &claim, &mut postgres)?;
            passed("snapshot: held back");
            if taken.planned.added == 0 && is_finished(path)? {
                // Nothing was taken and nothing is left to do: nobody must wait for this claim to end.
                postgres.abandon(&claim)?;
            }
            Ok(taken)
        }
        // What this snapshot claimed must not wait for its lease to run out.
        Err(error) => Err(claims::abandon(path, &mut postgres, &claim, error)),
    }
}

/// Why a snapshot has nothing: where the run's microshards are.
fn nothing_to_take(run_id: &str, tally: &Tally) -> String {
    let Tally { pending, claimed, consumed, failed } = *tally;
    if pending + claimed + consumed + failed == 0 {
        return format!("run {} has no such microshard: check --language", one_line(run_id));
    }
    let mut text = format!(
        "run {} has nothing to take: of its microshards {} are consumed, {} failed, {} claimed, {} pending",
        one_line(run_id),
        human::count(consumed),
        human::count(failed),
        human::count(claimed),
        human::count(pending)
    );
    if pending > 0 {
        text += "; those pending are in slices that others lease";
    }
    text
}

fn plan_claimed(intake: Intake, claim: &Claim, postgres: &Postgres, args: &cli::Intake) -> Result<Planned> {
    let number = match claim.mode {
        ClaimMode::None => Number::From(claim.number),
        _ => Number::Given(claim.number),
    };
    let held = Held::Postgres { claim: claim.clone(), server: postgres.redacted() };
    let snapshot = NewSnapshot {
        run_id: claim.run_id.clone(),
        number,
        claim: serde_json::to_string(&held)?,
        remainders_given_back: claim.mode == ClaimMode::Rows,
    };
    Ok(intake.plan(&snapshot, &policy(&args.plan), &naming::shard_name)?)
}

/// A remainder that is held back stays pending in the manifest, for whoever comes next.
fn give_back_held(path: &Path, claim: &Claim, postgres: &mut Postgres) -> Result<()> {
    if claim.mode != ClaimMode::Rows {
        return Ok(());
    }
    let queue = Queue::open(path)?;
    let Some(snapshot) = queue.snapshots()?.pop() else { return Ok(()) };
    let mut ids = Vec::new();
    queue.for_each_held(snapshot.snapshot, &mut |id| ids.push(id))?;
    postgres.give_back(claim, &mut ids.into_iter())?;
    Ok(())
}

fn is_finished(path: &Path) -> Result<bool> {
    let groups = Queue::open(path)?.status()?;
    Ok(groups.iter().all(|group| group.shards.pending + group.shards.claimed == 0))
}

fn claim_mode(typed: cli::ClaimMode) -> ClaimMode {
    match typed {
        cli::ClaimMode::Slices => ClaimMode::Slices,
        cli::ClaimMode::Rows => ClaimMode::Rows,
        cli::ClaimMode::None => ClaimMode::None,
    }
}

fn selection(args: &cli::Intake) -> Selection {
    Selection { run_id: args.run_id.clone(), languages: args.language.clone(), limit: args.limit, earlier: Vec::new() }
}

fn base(args: &cli::Intake) -> Result<Option<Location>> {
    let Some(source) = args.source.as_deref() else { return Ok(None) };
    let base = Location::parse(source).context("--source cannot be used")?;
    if let Location::Directory(path) = &base {
        // Uris are text: a directory that is none would be looked for under another name.
        path.to_str().with_context(|| format!("--source {} is not UTF-8", path.display()))?;
    }
    Ok(Some(base))
}

fn policy(typed: &cli::PlanArgs) -> Policy {
    let remainder = match typed.partial_shards {
        _ if typed.allow_partial_shards => Remainder::Emit,
        cli::PartialShards::Spread => Remainder::Spread,
        cli::PartialShards::Emit => Remainder::Emit,
        cli::PartialShards::Hold => Remainder::Hold,
    };
    Policy {
        rows_max: typed.shard_rows,
        bytes_max: typed.shard_bytes,
        microshards_max: typed.shard_microshards,
        remainder,
    }
}

/// A record as the queue keeps it: with an absolute uri, so that `run` needs no `--source`.
fn item(record: &Record, base: Option<&Location>) -> Result<Item> {
    let named = || match record.microshard_id {
        Some(id) => format!("microshard {id} cannot be taken"),
        None => "an object cannot be taken".to_owned(),
    };
    Ok(Item {
        microshard_id: record.microshard_id,
        language: record.language.clone(),
        uri: ObjectUri::resolve(&record.uri, base).with_context(named)?.absolute(),
        rows: record.segment_count,
        bytes: record.byte_size,
        sha256: record.sha256,
        created_at: record.created_at,
        updated_at: record.updated_at,
    })
}

/// What was taken, in a few sentences.
fn summary(taken: &Taken, path: &Path) -> String {
    let planned = &taken.planned;
    let rows = planned.rows.map_or_else(|| "an unknown number of".to_owned(), human::count);
    let mut text = format!(
        "snapshot {}: {} microshards with {rows} rows, planned into {} shards.",
        planned.number,
        human::count(planned.added),
        human::count(planned.shards)
    );
    if let Some(nothing) = &taken.nothing {
        text += &format!(" There is nothing new: {nothing}.");
    }
    if planned.known > 0 {
        text += &format!(" {} were in the queue already.", human::count(planned.known));
    }
    if planned.known_elsewhere > 0 {
        text += &format!(
            " {} of these have other uris now (another --source?), which are not taken: to read what is not built yet from \
             there, run `{}`, then this snapshot again.",
            human::count(planned.known_elsewhere),
            hint::command("release", path)
        );
    }
    if planned.held > 0 {
        text += &format!(" {} microshards are held back as remainders.", human::count(planned.held));
    }
    text
}
