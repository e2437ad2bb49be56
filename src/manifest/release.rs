//! Gives back what a claim holds: rows to pending, slices to free. Guarded by `claimed_by`, so it never touches what
//! somebody else has taken since; running it twice changes nothing the second time.

use anyhow::Result;
use postgres::Transaction;
use postgres::types::Type;

use super::check::{self, Purpose, Shape};
use super::predicate::{held_by, required};
use super::{Claim, ClaimMode, Names, Postgres};

/// Ids given back in one transaction.
const CHUNK: usize = 50_000;

impl Postgres {
    /// Gives `ids` back to pending, those of them that `claim` still holds; returns how many. Only with mode `rows` is
    /// there anything to give back.
    pub fn give_back(&mut self, claim: &Claim, ids: &mut dyn Iterator<Item = i64>) -> Result<u64> {
        let mut given = 0;
        loop {
            let mut chunk: Vec<i64> = ids.take(CHUNK).collect();
            chunk.sort_unstable();
            let (Some(first), Some(last)) = (chunk.first(), chunk.last()) else { return Ok(given) };
            if claim.mode != ClaimMode::Rows {
                return Ok(given);
            }
            given += self.repeat("give microshards back", |transaction, names, _| {
                let shape = check::microshards(transaction, names, Purpose::Sync(claim.mode))?;
                let id = required(&shape, "microshard_id")?;
                // The range lets the planner walk the key's index once, not the table.
                let range = format!("{id} BETWEEN {first} AND {last}");
                let sql = format!("{} AND {range} AND {id} = ANY ($1)", to_pending(names, &shape, claim)?);
                Ok(transaction.execute_typed(&sql, &[(&chunk, Type::INT8_ARRAY)])?)
            })?;
        }
    }

    /// Frees the slices that `claim` still leases; returns how many.
    pub fn release_slices(&mut self, claim: &Claim) -> Result<u64> {
        if claim.mode != ClaimMode::Slices {
            return Ok(0);
        }
        self.repeat("release slices", |transaction, _, _| slices(transaction, &claim.names, claim))
    }

    /// Gives back everything that `claim` holds, rows and slices: for a snapshot that failed. Returns how many rows.
    pub fn abandon(&mut self, claim: &Claim) -> Result<u64> {
        // By its own names: a claim that was lost may be of another table than this connection's.
        self.repeat("give the claim back", |transaction, _, _| everything(transaction, &claim.names, claim))
    }
}

/// In a transaction of the caller's.
pub(super) fn everything(transaction: &mut Transaction<'_>, names: &Names, claim: &Claim) -> Result<u64> {
    match claim.mode {
        ClaimMode::None => Ok(0),
        ClaimMode::Slices => slices(transaction, names, claim).map(|_| 0),
        ClaimMode::Rows => {
            let shape = check::microshards(transaction, names, Purpose::Sync(claim.mode))?;
            Ok(transaction.execute_typed(&to_pending(names, &shape, claim)?, &[])?)
        }
    }
}

/// SQL: every row of the table `t` that the claim holds goes back to pending.
pub(super) fn to_pending(names: &Names, shape: &Shape, claim: &Claim) -> Result<String> {
    let set = [
        ("status", "'pending'"),
        ("claimed_by", "NULL"),
        ("claimed_at", "NULL"),
        ("lease_expires_at", "NULL"),
        ("updated_at", "now()"),
    ];
    let held = held_by(shape, &claim.claimed_by)?;
    Ok(format!("UPDATE {} AS t SET {} WHERE {held}", names.microshards()?, shape.set(names, &set)))
}

fn slices(transaction: &mut Transaction<'_>, names: &Names, claim: &Claim) -> Result<u64> {
    let sql = format!(
        "UPDATE {} SET claimed_by = NULL, lease_expires_at = NULL WHERE run_id = $1 AND claimed_by = $2",
        names.slices()?
    );
    let (run_id, claimed_by) = (claim.run_id.as_str(), claim.claimed_by.as_str());
    Ok(transaction.execute_typed(&sql, &[(&run_id, Type::TEXT), (&claimed_by, Type::TEXT)])?)
}
