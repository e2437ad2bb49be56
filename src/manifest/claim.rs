//! Claims microshards for one snapshot, so that machines that share a manifest get disjoint ones. Two phases: what is
//! free first, expired leases only when that cannot fill the request. Never more is claimed than was asked for.

use std::hash::{BuildHasher, Hasher};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use postgres::Transaction;
use postgres::types::Type;
use postgres_protocol::escape::escape_literal;

use super::check::{self, Purpose, Shape};
use super::predicate::{of_languages, of_run, required, slice_of, takeable};
use super::{Claim, ClaimMode, Database, Names, Postgres, Selection, release};

/// Slices a run is cut into: finer than any number of machines, and small enough to be one page.
const SLICES: u32 = 64;
/// Runs an error lists.
const RUNS_LISTED: i64 = 10;

impl Postgres {
    /// Claims what `selection` asks for: at most `slices` slices with mode `slices`, `selection.limit` rows with mode
    /// `rows`, nothing with mode `none`. The claim ends by itself after `lease`. An error names what is missing: a run,
    /// a table, a column, a free slice.
    pub fn claim(
        &mut self,
        selection: &Selection,
        mode: ClaimMode,
        slices: Option<u32>,
        lease: Duration,
    ) -> Result<Claim> {
        self.claim_noted(selection, mode, slices, lease, &mut |_| Ok(()))
    }

    /// As `claim`; but first, where anything is going to be claimed, `note` is told who claims, so that a process killed
    /// after it leaves no claim whose holder nobody knows. Only what comes later, number and slices, is not in it yet.
    pub fn claim_noted(
        &mut self,
        selection: &Selection,
        mode: ClaimMode,
        slices: Option<u32>,
        lease: Duration,
        note: &mut dyn FnMut(&Claim) -> Result<()>,
    ) -> Result<Claim> {
        let claimed_by = fresh_name();
        let until = format!("now() + {} * interval '1 microsecond'", lease.as_micros());
        self.repeat("claim microshards", |transaction, names, attempt| {
            let shape = check::microshards(transaction, names, Purpose::Read(mode))?;
            let mut claim = Claim {
                run_id: resolve_run(transaction, names, &shape, selection)?,
                number: 0,
                claimed_by: claimed_by.clone(),
                mode,
                claimed_at: now(transaction)?,
                slices: Vec::new(),
                names: names.clone(),
                database: Some(Box::new(Database::of(transaction)?)),
            };
            if mode != ClaimMode::None {
                note(&claim)?;
            }
            if attempt > 0 {
                // The last try may have been committed although its answer was lost: else that would be claimed twice.
                release::everything(transaction, names, &claim)?;
            }
            match mode {
                ClaimMode::None => claim.number = last_number(transaction, names, &claim.run_id)?.saturating_add(1),
                ClaimMode::Rows => {
                    claim_rows(transaction, names, &shape, &claim, selection, &until)?;
                    claim.number = next_number(transaction, names, &claim.run_id)?;
                }
                ClaimMode::Slices => {
                    // The number's row is a lock: claims of slices of one run come one after the other.
                    claim.number = next_number(transaction, names, &claim.run_id)?;
                    claim.slices = claim_slices(transaction, names, &shape, &claim, selection, slices, &until)?;
                }
            }
            Ok(claim)
        })
    }
}

/// `compact-local:<host>:<16 hex digits>`, never the same twice.
fn fresh_name() -> String {
    // The hasher's keys come from the operating system; they are all the randomness that is needed.
    let random = std::collections::hash_map::RandomState::new().build_hasher().finish();
    format!("compact-local:{}:{random:016x}", rustix::system::uname().nodename().to_string_lossy())
}

/// The server's clock, as unix time in microseconds.
fn now(transaction: &mut Transaction<'_>) -> Result<i64> {
    let sql = "SELECT (extract(epoch FROM now()) * 1000000)::int8";
    Ok(transaction.query_typed_one(sql, &[])?.try_get(0)?)
}

fn resolve_run(
    transaction: &mut Transaction<'_>,
    names: &Names,
    shape: &Shape,
    selection: &Selection,
) -> Result<String> {
    let Some(column) = shape.column("run_id") else {
        let theirs = names.theirs("run_id");
        let run_id = selection.run_id.clone();
        return run_id.with_context(|| {
            format!("the table `{}` has no column `{theirs}`: name the run with --run-id", names.table)
        });
    };
    let table = names.microshards()?;
    if let Some(run_id) = &selection.run_id {
        let sql = format!("SELECT EXISTS (SELECT FROM {table} AS t WHERE {})", of_run(shape, run_id));
        if transaction.query_typed_one(&sql, &[])?.try_get(0)? {
            return Ok(run_id.clone());
        }
    }
    let sql = format!(
        "SELECT DISTINCT {column}::text AS run FROM {table} AS t WHERE {column} IS NOT NULL ORDER BY run LIMIT $1"
    );
    let rows = transaction.query_typed(&sql, &[(&(RUNS_LISTED + 1), Type::INT8)])?;
    let mut runs = rows.iter().map(|row| row.try_get(0)).collect::<Result<Vec<String>, _>>()?;
    let more = if runs.len() > RUNS_LISTED as usize { ", and more" } else { "" };
    runs.truncate(RUNS_LISTED as usize);
    match (&selection.run_id, runs.as_slice()) {
        (_, []) => bail!("the table `{}` holds no microshard", names.table),
        (Some(run_id), runs) => {
            bail!("there is no run `{run_id}` in `{}`; it holds {}{more}", names.table, runs.join(", "))
        }
        (None, [run]) => Ok(run.clone()),
        (None, runs) => {
            bail!("`{}` holds several runs, name one with --run-id: {}{more}", names.table, runs.join(", "))
        }
    }
}

/// The last number handed out for the run; 0 where there is none, or no table of numbers.
fn last_number(transaction: &mut Transaction<'_>, names: &Names, run_id: &str) -> Result<u32> {
    let table = names.snapshots()?;
    let sql = "SELECT to_regclass($1) IS NOT NULL";
    if !transaction.query_typed_one(sql, &[(&table, Type::TEXT)])?.try_get::<_, bool>(0)? {
        return Ok(0);
    }
    let sql = format!("SELECT last_number FROM {table} WHERE run_id = $1");
    let row = transaction.query_typed_opt(&sql, &[(&run_id, Type::TEXT)])?;
    row.map_or(Ok(0), |row| Ok(u32::try_from(row.try_get::<_, i32>(0)?)?))
}

fn next_number(transaction: &mut Transaction<'_>, names: &Names, run_id: &str) -> Result<u32> {
    let sql = format!(
        "INSERT INTO {} AS s (run_id, last_number) VALUES ($1, 1) \
         ON CONFLICT (run_id) DO UPDATE SET last_number = s.last_number + 1 RETURNING last_number",
        names.snapshots()?
    );
    let row = transaction.query_typed_one(&sql, &[(&run_id, Type::TEXT)])?;
    Ok(u32::try_from(row.try_get::<_, i32>(0)?)?)
}

fn claim_rows(
    transaction: &mut Transaction<'_>,
    names: &Names,
    shape: &Shape,
    claim: &Claim,
    selection: &Selection,
    until: &str,
) -> Result<()> {
    let (table, id) = (names.microshards()?, required(shape, "microshard_id")?);
    let (status, expiry) = (required(shape, "status")?, required(shape, "lease_expires_at")?);
    let attempts = shape.column("attempt_count").unwrap_or_default();
    let set = [
        ("status", "'claimed'"),
        ("claimed_by", &escape_literal(&claim.claimed_by)),
        ("claimed_at", "now()"),
        ("lease_expires_at", until),
        // Counted at the claim: a machine that dies on its claim has tried as well.
        ("attempt_count", &format!("coalesce({attempts}, 0) + 1")),
        ("updated_at", "now()"),
    ];
    let set = shape.set(names, &set);
    let wanted = format!("{}{}", of_run(shape, &claim.run_id), of_languages(shape, &selection.languages)?);
    let mut left = selection.limit;
    for phase in [format!("{status} = 'pending'"), format!("{status} = 'claimed' AND {expiry} <= now()")] {
        if left == Some(0) {
            break;
        }
        let limit = left.map(|left| format!("LIMIT {left}")).unwrap_or_default();
        // A CTE with locks runs once. As `id IN (SELECT .. LIMIT .. FOR UPDATE)` it may run once for every row outside,
        // and each run locks other rows.
        let sql = format!(
            "WITH free AS MATERIALIZED (SELECT {id} AS free_id FROM {table} AS t WHERE {wanted} AND {phase} \
             ORDER BY {id} {limit} FOR UPDATE SKIP LOCKED) UPDATE {table} AS t SET {set} FROM free WHERE {id} = free.free_id"
        );
        let claimed = transaction.execute_typed(&sql, &[])?;
        left = match left {
            Some(left) => {
                Some(left.checked_sub(claimed).context("more rows were claimed than asked for: ids are not unique")?)
            }
            None => None,
        };
    }
    Ok(())
}

fn claim_slices(
    transaction: &mut Transaction<'_>,
    names: &Names,
    shape: &Shape,
    claim: &Claim,
    selection: &Selection,
    slices: Option<u32>,
    until: &str,
) -> Result<Vec<i16>> {
    let table = names.slices()?;
    let run_id = claim.run_id.as_str();
    let sql = format!(
        "INSERT INTO {table} (run_id, slice) SELECT $1, generate_series(0, {SLICES} - 1) ON CONFLICT DO NOTHING"
    );
    transaction.execute_typed(&sql, &[(&run_id, Type::TEXT)])?;
    // Free ones first, then those this queue has already, then expired ones, the oldest first.
    let sql = format!(
        "SELECT slice FROM {table} WHERE run_id = $1 \
         AND (claimed_by IS NULL OR claimed_by = ANY ($2) OR lease_expires_at <= now()) \
         ORDER BY claimed_by IS NOT NULL, claimed_by = ANY ($2) DESC, lease_expires_at, slice FOR UPDATE"
    );
    let rows = transaction.query_typed(&sql, &[(&run_id, Type::TEXT), (&selection.earlier, Type::TEXT_ARRAY)])?;
    let mut chosen = rows.iter().map(|row| row.try_get(0)).collect::<Result<Vec<i16>, _>>()?;
    if chosen.is_empty() {
        bail!("{}", all_leased(transaction, &table, run_id)?);
    }
    chosen.truncate(slices.unwrap_or(SLICES) as usize);
    if let Some(limit) = selection.limit {
        let enough = slices_for(transaction, names, shape, claim, selection, &chosen, limit)?;
        chosen.truncate(enough);
    }
    let sql = format!(
        "UPDATE {table} SET claimed_by = $1, lease_expires_at = {until} WHERE run_id = $2 AND slice = ANY ($3)"
    );
    let claimed_by = claim.claimed_by.as_str();
    let updated = transaction
        .execute_typed(&sql, &[(&claimed_by, Type::TEXT), (&run_id, Type::TEXT), (&chosen, Type::INT2_ARRAY)])?;
    ensure!(updated == chosen.len() as u64, "{updated} slices were leased instead of {}", chosen.len());
    chosen.sort_unstable();
    Ok(chosen)
}

/// How many of the slices, in this order, hold `limit` microshards; at least one.
fn slices_for(
    transaction: &mut Transaction<'_>,
    names: &Names,
    shape: &Shape,
    claim: &Claim,
    selection: &Selection,
    slices: &[i16],
    limit: u64,
) -> Result<usize> {
    let sql = format!(
        "SELECT {}::int2, count(*) FROM {} AS t WHERE {}{} AND {} GROUP BY 1",
        slice_of(required(shape, "microshard_id")?),
        names.microshards()?,
        of_run(shape, &claim.run_id),
        of_languages(shape, &selection.languages)?,
        takeable(shape, claim.claimed_at),
    );
    let mut counts = [0_u64; SLICES as usize];
    for row in transaction.query_typed(&sql, &[])? {
        let slice = usize::try_from(row.try_get::<_, i16>(0)?)?;
        *counts.get_mut(slice).context("a slice out of range")? = u64::try_from(row.try_get::<_, i64>(1)?)?;
    }
    let mut held = 0;
    let enough = slices.iter().position(|slice| {
        held += usize::try_from(*slice).ok().and_then(|slice| counts.get(slice)).copied().unwrap_or_default();
        held >= limit
    });
    Ok(enough.map_or(slices.len(), |last| last + 1))
}

fn all_leased(transaction: &mut Transaction<'_>, table: &str, run_id: &str) -> Result<String> {
    let sql = format!(
        "SELECT claimed_by, count(*), to_char(max(lease_expires_at) AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') \
         FROM {table} WHERE run_id = $1 GROUP BY claimed_by ORDER BY claimed_by"
    );
    let mut holders = Vec::new();
    for row in transaction.query_typed(&sql, &[(&run_id, Type::TEXT)])? {
        let (claimed_by, slices, until): (String, i64, String) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
        holders.push(format!("{slices} by {claimed_by} until {until} UTC"));
    }
    Ok(format!(
        "every slice of run `{run_id}` is leased: {}; wait, or run `compact-local release` there",
        holders.join(", ")
    ))
}
