//! One connection to the manifest in Postgres. Every piece of work is one transaction, which is repeated on a deadlock,
//! a serialization failure or a lost connection, a bounded number of times; so every piece must be safe to repeat.
//! No session state is relied upon (a pooler may change the session between transactions): settings are SET LOCAL,
//! temporary tables end with their transaction, and parameters go with unnamed statements.

use std::time::Duration;

use anyhow::{Context, Result};
use postgres::{Client, Transaction};

use super::conninfo::{self, Conninfo};
use super::{Names, explain, probe, tls};

use crate::faults::passed;

/// Tries of one transaction, with waits of 0.1 s, 0.2 s, ... between them: 1.5 s in all, beside the lock timeout.
const TRIES: u32 = 5;

/// First in every transaction. A read or a claim of a million rows may take long, a wait for a lock may not: behind a
/// forgotten session we would wait for ever. The last one ends us, should we hang while holding locks.
const LIMITS: &str = "SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = '30s'; \
                      SET LOCAL idle_in_transaction_session_timeout = '10min'";

/// The manifest in Postgres.
pub struct Postgres {
    conninfo: Conninfo,
    pub(super) names: Names,
    client: Option<Client>,
}

/// Whether `--manifest` means Postgres: a URL, `key=value` pairs, or nothing (DATABASE_URL, the PG* variables).
pub fn is_postgres(manifest: &Option<String>) -> bool {
    manifest.as_deref().is_none_or(conninfo::is_conninfo)
}

impl Postgres {
    /// Connects to `url`, or without one to DATABASE_URL, or to what the PG* variables say. An error names host, port,
    /// user, database and what to do, never a password.
    pub fn connect(url: Option<&str>, names: Names) -> Result<Postgres> {
        let conninfo = Conninfo::resolve(url, &|variable| std::env::var(variable).ok())?;
        let client = open(&conninfo)?;
        Ok(Postgres { conninfo, names, client: Some(client) })
    }

    /// `postgres://user@host:port/db`, without secrets.
    pub fn redacted(&self) -> String {
        self.conninfo.to_string()
    }

    /// Runs `work` in a transaction and commits it; again, where that may help. `work` is told which try it is, from 0:
    /// an earlier try may have been committed although its answer was lost.
    pub(super) fn repeat<T>(
        &mut self,
        operation: &str,
        mut work: impl FnMut(&mut Transaction<'_>, &Names, u32) -> Result<T>,
    ) -> Result<T> {
        let mut attempt = 0;
        loop {
            let error = match self.once(|transaction, names| work(transaction, names, attempt)) {
                Ok(done) => return Ok(done),
                Err(error) => error,
            };
            attempt += 1;
            if attempt == TRIES || !explain::find(&error).is_some_and(explain::is_transient) {
                let tried = if attempt > 1 { format!(" (tried {attempt} times)") } else { String::new() };
                return Err(explain::working(&self.conninfo, &format!("{operation}{tried}"), error));
            }
            let wait = Duration::from_millis(100 << (attempt - 1));
            std::thread::sleep(wait.mul_f64(0.5 + fastrand::f64() / 2.0));
        }
    }

    /// Runs `work` in a transaction, once: for work whose effects outside Postgres cannot be repeated.
    pub(super) fn attempt<T>(
        &mut self,
        operation: &str,
        work: impl FnOnce(&mut Transaction<'_>, &Names) -> Result<T>,
    ) -> Result<T> {
        let done = self.once(work);
        done.map_err(|error| explain::working(&self.conninfo, operation, error))
    }

    fn once<T>(&mut self, work: impl FnOnce(&mut Transaction<'_>, &Names) -> Result<T>) -> Result<T> {
        let client = match self.client.take().filter(|client| !client.is_closed()) {
            Some(client) => self.client.insert(client),
            None => self.client.insert(open(&self.conninfo)?),
        };
        passed("postgres: begin");
        let mut transaction = client.transaction()?;
        transaction.batch_execute(LIMITS)?;
        let done = work(&mut transaction, &self.names)?;
        passed("postgres: commit");
        transaction.commit()?;
        passed("postgres: committed");
        Ok(done)
    }
}

fn open(conninfo: &Conninfo) -> Result<Client> {
    let connector = tls::connector(conninfo).with_context(|| format!("failed to connect to {conninfo}"))?;
    probe::check(conninfo)?;
    conninfo.config.connect(connector).map_err(|error| explain::connecting(conninfo, error).into())
}
