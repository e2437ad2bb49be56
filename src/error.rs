//! What went wrong with one object: operation, object, cause and what to do about it.
//! Trouble with the whole command travels as `anyhow::Error` at the edges. No secret ever enters an error here:
//! objects are named without credentials, query strings or signatures.

use std::fmt;
use std::time::Duration;

/// What the caller can do about a failed operation on an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// Worth another try on a new connection: a 5xx, a reset, a timeout, a short body.
    Transient,
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
        let trouble = if error.kind() == std::io::ErrorKind::NotFound { Trouble::Gone } else { Trouble::Local };
        let cause = error.to_string();
        StoreError { operation, object: object.into(), trouble, cause, source: Some(Box::new(error)) }
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

/// The whole chain of causes in one line; a cause that its effect has already told is left out.
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
    sentence.replace('\n', " ")
}
