//! S3 credentials: where they come from, and that they are fresh. One provider is shared by all stores; one thread
//! refreshes while the others go on with what they have. No secret is ever printed, not even in `Debug`.

mod profile;
mod remote;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use serde::Deserialize;

pub use self::profile::Profile;
use self::remote::Endpoint;
use super::agent::Network;

/// Reads one environment variable; a parameter, so that tests need not change their process's.
pub type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Refreshed this long before they expire: longer than any request takes.
const MARGIN: Duration = Duration::from_secs(300);

/// Keys, and until when they are good.
pub struct Keys {
    pub(super) signing: rusty_s3::Credentials,
    expires: Option<SystemTime>,
}

impl Keys {
    fn expire_within(&self, margin: Duration) -> bool {
        self.expires.is_some_and(|expires| SystemTime::now() + margin >= expires)
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keys").field("expires", &self.expires).finish_non_exhaustive()
    }
}

/// Why there are no credentials, and what to do.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct CredentialsError(String);

enum Source {
    Unsigned,
    Fixed(Arc<Keys>),
    Process(String),
    Endpoint(Endpoint),
    None(CredentialsError),
}

/// Gives out keys that are good now.
pub struct Provider {
    source: Source,
    current: RwLock<Option<Arc<Keys>>>,
    refreshing: Mutex<()>,
}

impl fmt::Debug for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Provider").finish_non_exhaustive()
    }
}

impl Provider {
    /// Requests are not signed: public buckets.
    pub fn unsigned() -> Provider {
        Provider::of(Source::Unsigned)
    }

    /// The first of: the AWS_* variables, the profile's static keys or `credential_process`, the container's or the
    /// machine's role. Having none is an error only when they are needed.
    pub fn find(environment: Environment, profile: &Profile, network: &Arc<Network>) -> Provider {
        let variable = |name| environment(name).filter(|value| !value.trim().is_empty());
        if let (Some(key), Some(secret)) = (variable("AWS_ACCESS_KEY_ID"), variable("AWS_SECRET_ACCESS_KEY")) {
            return Provider::of(Source::Fixed(Arc::new(Keys::fixed(key, secret, variable("AWS_SESSION_TOKEN")))));
        }
        Provider::of(match profile.source() {
            Ok(Some(source)) => source,
            Ok(None) => Source::Endpoint(Endpoint::find(environment, network)),
            Err(error) => Source::None(error),
        })
    }

    fn of(source: Source) -> Provider {
        Provider { source, current: RwLock::default(), refreshing: Mutex::default() }
    }

    /// Keys that are good for some minutes; `None` where requests are not signed.
    pub fn keys(&self) -> Result<Option<Arc<Keys>>, CredentialsError> {
        match &self.source {
            Source::Unsigned => return Ok(None),
            Source::Fixed(keys) => return Ok(Some(Arc::clone(keys))),
            Source::None(error) => return Err(error.clone()),
            Source::Process(_) | Source::Endpoint(_) => {}
        }
        let old = self.current();
        if let Some(keys) = old.as_ref().filter(|keys| !keys.expire_within(MARGIN)) {
            return Ok(Some(Arc::clone(keys)));
        }
        let usable = old.filter(|keys| !keys.expire_within(Duration::ZERO));
        let _refreshing = match (self.refreshing.try_lock(), &usable) {
            (Ok(refreshing), _) => refreshing,
            (Err(_), Some(keys)) => return Ok(Some(Arc::clone(keys))),
            (Err(_), None) => self.refreshing.lock().unwrap_or_else(PoisonError::into_inner),
        };
        if let Some(keys) = self.current().filter(|keys| !keys.expire_within(MARGIN)) {
            return Ok(Some(keys));
        }
        match (self.load(), usable) {
            (Ok(keys), _) => {
                let keys = Arc::new(keys);
                *self.current.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&keys));
                Ok(Some(keys))
            }
            // They may be had again by the next request, and until then the old ones are good.
            (Err(_), Some(keys)) => Ok(Some(keys)),
            (Err(error), None) => Err(error),
        }
    }

    /// The store says that `keys` have expired: forgets them. Whether other ones can be had.
    pub fn expired(&self, keys: &Arc<Keys>) -> bool {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        if current.as_ref().is_some_and(|current| Arc::ptr_eq(current, keys)) {
            *current = None;
        }
        matches!(self.source, Source::Process(_) | Source::Endpoint(_))
    }

    fn current(&self) -> Option<Arc<Keys>> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn load(&self) -> Result<Keys, CredentialsError> {
        match &self.source {
            Source::Process(command) => run_process(command),
            Source::Endpoint(endpoint) => endpoint.load(),
            Source::Unsigned | Source::Fixed(_) | Source::None(_) => {
                Err(CredentialsError("these credentials cannot be loaded again".into()))
            }
        }
    }
}

impl Keys {
    fn fixed(key: String, secret: String, token: Option<String>) -> Keys {
        let signing = match token {
            Some(token) => rusty_s3::Credentials::new_with_token(key, secret, token),
            None => rusty_s3::Credentials::new(key, secret),
        };
        Keys { signing, expires: None }
    }
}

/// What a `credential_process`, a container and a machine answer, with their two names for the token.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Document {
    access_key_id: String,
    secret_access_key: String,
    #[serde(alias = "Token")]
    session_token: Option<String>,
    expiration: Option<String>,
}

/// The text is never quoted: it is made of secrets. `of` names where it came from.
fn parse_document(text: &[u8], of: &str) -> Result<Keys, CredentialsError> {
    let bad = |what: &str| CredentialsError(format!("{of} answered {what}"));
    let document: Document =
        serde_json::from_slice(text).map_err(|_| bad("something else than credentials as JSON"))?;
    let expires = match document.expiration.as_deref().filter(|text| !text.is_empty()) {
        Some(text) => Some(parse_time(text).ok_or_else(|| bad("an expiration that is not a time"))?),
        None => None,
    };
    Ok(Keys { expires, ..Keys::fixed(document.access_key_id, document.secret_access_key, document.session_token) })
}

fn parse_time(text: &str) -> Option<SystemTime> {
    let utc = text.strip_suffix("+00:00").or(text.strip_suffix("+0000")).map(|text| format!("{text}Z"));
    humantime::parse_rfc3339(utc.as_deref().unwrap_or(text)).ok()
}

fn run_process(command: &str) -> Result<Keys, CredentialsError> {
    let failed =
        |what: String| CredentialsError(format!("the profile's credential_process {what}: run it by hand to see why"));
    let mut process = std::process::Command::new("sh");
    process.arg("-c").arg(command).stdin(std::process::Stdio::null());
    let output = process.output().map_err(|error| failed(format!("cannot be started ({error})")))?;
    if !output.status.success() {
        return Err(failed(format!("ended with {}", output.status)));
    }
    parse_document(&output.stdout, "the profile's credential_process")
}
