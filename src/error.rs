//! What went wrong with one object: operation, object, cause and what to do about it.
//! Trouble with the whole command travels as `anyhow::Error` at the edges. No secret ever enters an error here:
//! objects are named without credentials, query strings or signatures.

use std::fmt;
use std::time::Duration;

use crate::shown::one_line;

/// What the caller can do about a failed operation on an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// Worth another try on a new connection: a 5xx, a reset, a short body.
    Transient,
    /// Nothing came, or was taken, in time; worth another try on a new connection.
    TimedOut,
    /// Not asked at all: the origin is left alone for this long, because it asked for it or to keep to a ceiling.
    Paused(Duration),
    /// The origin asks for less: 408, 429, 503 SlowDown; with its `Retry-After`, where it sent one.
    Throttled(Option<Duration>),
    /// This object cannot be had: 404, 410, a name the store refuses.
    Gone,
    /// 401 or 403: of this object, or of all; only how the origin serves the others can tell.
    Denied,
    /// The origin cannot be reached: refused, no route, unknown host. Waiting may help.
    Unreachable,
    /// Nothing will work as things are set up: bad credentials, a certificate that is not trusted, no such bucket.
    Misconfigured,
    /// The object is larger than the caller allows.
    TooLarge,
    /// An object with other bytes is there already, and is never overwritten.
    Conflict,
    /// The local file system refused: full, read-only, no permission.
    Local,
}

impl Trouble {
    /// Whether another try, some time later, may go well.
    pub fn is_passing(self) -> bool {
        use Trouble::{Paused, Throttled, TimedOut, Transient, Unreachable};
        matches!(self, Transient | TimedOut | Paused(_) | Throttled(_) | Unreachable)
    }

    /// How long the origin asked to be left alone.
    pub fn asked(self) -> Duration {
        match self {
            Trouble::Throttled(Some(asked)) | Trouble::Paused(asked) => asked,
            _ => Duration::ZERO,
        }
    }
}

/// A failed operation on one object.
#[derive(Debug)]
pub struct StoreError {
    /// What was tried: `get`, `put`, `head`, `list`.
    pub operation: &'static str,
    /// The object's name, without secrets.
    pub object: String,
    /// What can be done about it.
    pub trouble: Trouble,
    /// The cause, a lower-case fragment: `the server answered 404`.
    pub cause: String,
    /// The error underneath, where there is one.
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl StoreError {
    /// An error without another underneath.
    pub fn new(
        operation: &'static str,
        object: impl Into<String>,
        trouble: Trouble,
        cause: impl Into<String>,
    ) -> StoreError {
        StoreError { operation, object: object.into(), trouble, cause: cause.into(), source: None }
    }

    /// A local I/O error.
    pub fn local(operation: &'static str, object: impl Into<String>, error: std::io::Error) -> StoreError {
        let trouble = local_trouble(operation, &error);
        let advice = match error.kind() {
            std::io::ErrorKind::FileTooLarge => ": raise `ulimit -f`",
            _ if trouble == Trouble::Misconfigured => ": raise `ulimit -n`, or lower --threads",
            _ => "",
        };
        let cause = format!("{error}{advice}");
        StoreError { operation, object: object.into(), trouble, cause, source: Some(Box::new(error)) }
    }
}

/// The system's code. A library that wraps the error may keep nothing of it but its text.
fn os_code(error: &std::io::Error) -> Option<i32> {
    let told = || error.to_string().split_once("(os error ")?.1.split_once(')')?.0.parse().ok();
    error.raw_os_error().or_else(told)
}

/// What an error of the file system means: of one file, of what is read in general, or of this process.
fn local_trouble(operation: &str, error: &std::io::Error) -> Trouble {
    // ENOMEM, EAGAIN, ENFILE, EMFILE: this process, or the machine, is at its limits.
    const LIMITS: [i32; 4] = [12, 11, 23, 24];
    // EIO, ENOTCONN, ESTALE: a disk or a network file system that may come back.
    const PASSING: [i32; 3] = [5, 107, 116];
    let code = os_code(error).unwrap_or_default();
    match error.kind() {
        _ if LIMITS.contains(&code) => Trouble::Misconfigured,
        _ if operation == "get" && PASSING.contains(&code) => Trouble::Transient,
        std::io::ErrorKind::NotFound => Trouble::Gone,
        std::io::ErrorKind::PermissionDenied if operation == "get" => Trouble::Denied,
        _ => Trouble::Local,
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "failed to {} {}: {}", self.operation, self.object, self.cause)
    }
}

impl std::error::Error for StoreError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

/// The whole chain of causes in one line that steers no terminal, whatever it names; a cause that its effect has already
/// told is left out.
pub fn sentence(error: &anyhow::Error) -> String {
    let mut sentence = String::new();
    for cause in error.chain() {
        let text = cause.to_string();
        if sentence.is_empty() {
            sentence = text;
        } else if !sentence.contains(&text) {
            sentence = format!("{sentence}: {text}");
        }
    }
    one_line(&sentence.replace('\n', " ")).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_system_error_is_known_by_what_is_left_of_it() {
        let system = std::io::Error::from_raw_os_error(24);
        let wrapped = std::io::Error::other(format!("{system} at path \"/out/x\""));
        for error in [system, wrapped] {
            let told = StoreError::local("put", "a/b", error);
            assert!(told.trouble == Trouble::Misconfigured && told.cause.ends_with("lower --threads"), "{told}");
        }
    }

    #[test]
    fn a_cause_that_its_effect_has_told_is_not_told_again() {
        let io = std::io::Error::other("disk on fire");
        let error = anyhow::Error::from(StoreError::local("put", "a/b", io)).context("the run\nended");
        assert_eq!(sentence(&error), "the run ended: failed to put a/b: disk on fire");
    }
}
