//! How many microshards of a run have which status: asked only where a snapshot found nothing to take.

use anyhow::Result;

use super::check::{self, Purpose};
use super::predicate::{of_languages, of_run};
use super::{ClaimMode, Postgres, Selection};

/// Microshards by status.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Free, or in slices that somebody leases.
    pub pending: u64,
    /// Held by somebody, row by row.
    pub claimed: u64,
    /// In a shard.
    pub consumed: u64,
    /// Failed: taken by no snapshot.
    pub failed: u64,
}

impl Postgres {
    /// The run's microshards, of the selection's languages, by status.
    pub fn tally(&mut self, run_id: &str, selection: &Selection) -> Result<Tally> {
        self.repeat("count the manifest's microshards", |transaction, names, _| {
            let shape = check::microshards(transaction, names, Purpose::Read(ClaimMode::None))?;
            let status = shape.column("status").map_or("'pending'".to_owned(), |column| format!("{column}::text"));
            let sql = format!(
                "SELECT {status} AS status, count(*) FROM {} AS t WHERE {}{} GROUP BY 1",
                names.microshards()?,
                of_run(&shape, run_id),
                of_languages(&shape, &selection.languages)?
            );
            let mut tally = Tally::default();
            for row in transaction.query_typed(&sql, &[])? {
                let count = u64::try_from(row.try_get::<_, i64>(1)?)?;
                match row.try_get::<_, Option<&str>>(0)? {
                    Some("pending") => tally.pending += count,
                    Some("claimed") => tally.claimed += count,
                    Some("consumed") => tally.consumed += count,
                    Some("failed") => tally.failed += count,
                    _ => {}
                }
            }
            Ok(tally)
        })
    }
}
