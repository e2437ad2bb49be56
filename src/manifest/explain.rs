//! What an error of Postgres means and what to do about it, in one sentence. Decides by SQLSTATE and kind, never by an
//! error's text. A password is in no error of the client library, and none is added here.

use std::error::Error as _;
use std::{fmt, io};

use anyhow::anyhow;
use postgres::Error;
use postgres::error::SqlState;

use super::conninfo::Conninfo;

/// A connection that could not be made. Its text says all there is; the cause is kept to decide about another try.
#[derive(Debug)]
pub(super) struct NotConnected {
    text: String,
    cause: Error,
}

impl fmt::Display for NotConnected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for NotConnected {}

/// Why a connection could not be made.
pub(super) fn connecting(conninfo: &Conninfo, error: Error) -> NotConnected {
    let advice = match error.code() {
        Some(code) => refused(conninfo, code),
        None if is_io(&error) => {
            format!(
                "nothing usable answers at {}: check host and port, that the server runs, and the way to it",
                conninfo.address
            )
        }
        None => without_code(conninfo),
    };
    let text = format!("failed to connect to {conninfo}: {}: {advice}", cause(&error));
    NotConnected { text, cause: error }
}

fn refused(conninfo: &Conninfo, code: &SqlState) -> String {
    if *code == SqlState::INVALID_PASSWORD || *code == SqlState::INVALID_AUTHORIZATION_SPECIFICATION {
        return format!("check user `{}` and {}", conninfo.user, where_passwords_are(conninfo));
    }
    if *code == SqlState::INVALID_CATALOG_NAME {
        return format!("check the database's name at {}, or create it", conninfo.address);
    }
    if *code == SqlState::TOO_MANY_CONNECTIONS || *code == SqlState::CANNOT_CONNECT_NOW {
        return "try again when it has room".to_owned();
    }
    format!("the server refused user `{}` and database `{}`", conninfo.user, conninfo.database)
}

fn without_code(conninfo: &Conninfo) -> String {
    if conninfo.has_password {
        return "check sslmode, sslrootcert and that this is a Postgres server".to_owned();
    }
    format!(
        "check sslmode and sslrootcert; no password is set, so if one is needed, use {}",
        where_passwords_are(conninfo)
    )
}

fn where_passwords_are(conninfo: &Conninfo) -> String {
    let ignored = conninfo.passfile_ignored.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
    format!("the password in the URL, PGPASSWORD or .pgpass{ignored}")
}

/// Adds what to do to an error of a statement; an error of ours stays as it is.
pub(super) fn working(conninfo: &Conninfo, operation: &str, error: anyhow::Error) -> anyhow::Error {
    if error.is::<NotConnected>() {
        return error.context(format!("failed to {operation}"));
    }
    let Some(of_postgres) = find(&error) else { return error.context(format!("failed to {operation} at {conninfo}")) };
    let advice = match of_postgres.code() {
        Some(code) if *code == SqlState::INSUFFICIENT_PRIVILEGE => format!(": grant it to user `{}`", conninfo.user),
        Some(code) if *code == SqlState::LOCK_NOT_AVAILABLE => {
            ": another session holds locks on these rows; look into pg_stat_activity, then run it again".to_owned()
        }
        Some(code) if *code == SqlState::UNDEFINED_TABLE => {
            ": create what is missing with `compact-local init-manifest`, which leaves existing tables alone".to_owned()
        }
        _ if is_transient(of_postgres) => ": run it again, nothing was half-done".to_owned(),
        _ => String::new(),
    };
    anyhow!("failed to {operation} at {conninfo}: {}{advice}", cause(of_postgres))
}

/// The error of Postgres in a chain, where there is one.
pub(super) fn find(error: &anyhow::Error) -> Option<&Error> {
    error.chain().find_map(|cause| {
        // COPY hides it inside an I/O error, which does not show it as its source.
        let inside =
            cause.downcast_ref::<io::Error>().and_then(|io| io.get_ref()).and_then(|inner| inner.downcast_ref());
        let connecting = cause.downcast_ref::<NotConnected>().map(|failed| &failed.cause);
        cause.downcast_ref::<Error>().or(inside).or(connecting)
    })
}

/// Whether the same transaction may succeed when it is run again: deadlock, serialization, a lost connection, a lock
/// that came too late, a server that restarts.
pub(super) fn is_transient(error: &Error) -> bool {
    let Some(code) = error.code() else { return error.is_closed() || is_io(error) };
    // 08 connection, 40 rollback, 57P01-57P03 the server goes down or comes up, 55P03 lock not available.
    let class = code.code().get(..2);
    class == Some("08") || class == Some("40") || ["57P01", "57P02", "57P03", "55P03"].contains(&code.code())
}

fn is_io(error: &Error) -> bool {
    error.source().is_some_and(|source| source.is::<io::Error>())
}

/// The whole chain in one line; the library's own words stop at "db error".
fn cause(error: &Error) -> String {
    if let Some(db) = error.as_db_error() {
        let detail = db.detail().map(|detail| format!(" ({detail})")).unwrap_or_default();
        return format!("{}{detail} [{}]", db.message(), db.code().code());
    }
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text.push_str(&format!(": {inner}"));
        source = inner.source();
    }
    text
}
