//! Which database this is, however it is reached: a claim is known in that one only. Elsewhere, a copy of it say, results
//! would be written or refused, and the queue would take both for final.

use std::fmt;

use anyhow::{Result, ensure};
use postgres::Transaction;
use serde::{Deserialize, Serialize};

use super::{Claim, Postgres};

/// What tells a database from every other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Database {
    /// The server's, the same on its replicas; nothing where the user may not look.
    server: Option<i64>,
    /// Its own on that server.
    oid: u32,
    /// For a person; it may be renamed.
    name: String,
}

impl Database {
    pub(super) fn of(transaction: &mut Transaction<'_>) -> Result<Database> {
        let sql = "SELECT oid, datname::text, has_function_privilege('pg_catalog.pg_control_system()', 'EXECUTE') \
                   FROM pg_catalog.pg_database WHERE datname = current_database()";
        let row = transaction.query_typed_one(sql, &[])?;
        let (oid, name, may_look): (u32, String, bool) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
        let sql = "SELECT system_identifier FROM pg_catalog.pg_control_system()";
        let server = if may_look { Some(transaction.query_typed_one(sql, &[])?.try_get(0)?) } else { None };
        Ok(Database { server, oid, name })
    }

    fn is(&self, other: &Database) -> bool {
        self.oid == other.oid && (self.server == other.server || self.server.is_none() || other.server.is_none())
    }
}

impl fmt::Display for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "database `{}` (oid {}", self.name, self.oid)?;
        match self.server {
            Some(server) => write!(f, ", server {server})"),
            None => f.write_str(")"),
        }
    }
}

impl Postgres {
    /// Refuses another database than the one `claim` was made in. Claims on old records do not say which that was.
    pub fn ensure_home_of(&mut self, claim: &Claim) -> Result<()> {
        let Some(home) = &claim.database else { return Ok(()) };
        let here = self.repeat("look which database this is", |transaction, _, _| Database::of(transaction))?;
        ensure!(
            here.is(home),
            "{} is {here}, and the snapshot was taken from {home}: give that one as --manifest; nothing was written",
            self.redacted()
        );
        Ok(())
    }
}
