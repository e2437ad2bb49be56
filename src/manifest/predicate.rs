//! Which rows a statement means, as SQL over the microshards table `t`: of a run, of a slice, held by a claim, free to
//! take. Written once, so that claim, read and sync-back can't disagree on what a row's state is. Pure text.

use anyhow::{Context, Result};
use postgres_protocol::escape::escape_literal;

use super::check::Shape;

/// A column whose existence was checked before.
pub(super) fn required<'a>(shape: &'a Shape, ours: &str) -> Result<&'a str> {
    shape.column(ours).with_context(|| format!("the manifest has no column for {ours}"))
}

/// The row is of the run.
pub(super) fn of_run(shape: &Shape, run_id: &str) -> String {
    shape.column("run_id").map_or("true".to_owned(), |column| format!("{column} = {}", escape_literal(run_id)))
}

/// And of one of the languages, where there are any.
pub(super) fn of_languages(shape: &Shape, languages: &[String]) -> Result<String> {
    if languages.is_empty() {
        return Ok(String::new());
    }
    let languages = languages.iter().map(|language| escape_literal(language)).collect::<Vec<_>>().join(", ");
    Ok(format!(" AND {} IN ({languages})", required(shape, "language")?))
}

/// The slice of the row with this id.
pub(super) fn slice_of(id: &str) -> String {
    format!("(hashtextextended({id}::text, 0) & 63)")
}

/// The row is claimed by this claim.
pub(super) fn held_by(shape: &Shape, claimed_by: &str) -> Result<String> {
    in_state(shape, "claimed", claimed_by)
}

/// The row is in a state that `claimed_by` gave it.
pub(super) fn in_state(shape: &Shape, state: &str, claimed_by: &str) -> Result<String> {
    let (status, by) = (required(shape, "status")?, required(shape, "claimed_by")?);
    Ok(format!("{status} = {} AND {by} = {}", escape_literal(state), escape_literal(claimed_by)))
}

/// Nobody held the row at `claimed_at`: it is pending, or its lease had expired by then. A later claim or renewal sets a
/// later expiry, so the same words decide in sync-back whether the row is as the snapshot left it.
pub(super) fn takeable(shape: &Shape, claimed_at: i64) -> String {
    let Some(status) = shape.column("status") else { return "true".to_owned() };
    match shape.column("lease_expires_at") {
        Some(expiry) => {
            format!("({status} = 'pending' OR {status} = 'claimed' AND {expiry} <= {})", instant(claimed_at))
        }
        None => format!("{status} = 'pending'"),
    }
}

/// A timestamptz, exact to the microsecond.
fn instant(micros: i64) -> String {
    format!("('epoch'::timestamptz + {micros} * interval '1 microsecond')")
}
