//! One signed request to S3 and its answer. Signatures live in the url's query, so no url ever enters an error: objects
//! are named `s3://bucket/key`. Redirects are not followed. Only expired credentials are tried again, once, with new ones.

use std::sync::Arc;
use std::time::Duration;

use rusty_s3::{Bucket, Credentials};
use ureq::http::{self, Method, Response, StatusCode};
use ureq::{Agent, Body};

use super::refusal::{Refusal, refusal};
use crate::store::agent::{AgentOptions, Patience};
use crate::store::answer::{read_body, transport_error};
use crate::store::credentials::{Keys, Provider};
use crate::store::{Result, StoreError, StoreSettings, Trouble};

/// How long a signed url is good: it is used at once, so only clocks that differ need it.
pub(super) const EXPIRY: Duration = Duration::from_secs(900);

/// A page of a listing has 1,000 keys of 1 KiB, each byte encoded as three.
const TEXT_MAX: u64 = 8 << 20;

/// Why there is no good answer.
pub(super) enum Failure {
    /// The store refused: nothing was done.
    Refused(Box<Refusal>),
    /// No answer came, or no request was sent: what was asked for may have been done.
    Unanswered(StoreError),
}

impl Failure {
    pub(super) fn into_error(self) -> StoreError {
        match self {
            Failure::Refused(refusal) => refusal.error,
            Failure::Unanswered(error) => error,
        }
    }
}

pub(super) type Outcome<T> = std::result::Result<T, Failure>;

/// A request, but for its url.
pub(super) struct Call<'a> {
    pub(super) operation: &'static str,
    /// The key in the bucket, for errors.
    pub(super) key: &'a str,
    pub(super) method: Method,
    pub(super) headers: &'a [(&'static str, &'a str)],
    pub(super) body: Option<&'a [u8]>,
    pub(super) fresh: bool,
}

impl<'a> Call<'a> {
    pub(super) fn get(operation: &'static str, key: &'a str) -> Call<'a> {
        Call { operation, key, method: Method::GET, headers: &[], body: None, fresh: false }
    }
}

pub(super) struct Client {
    pub(super) bucket: Bucket,
    pub(super) patience: Patience,
    agent: Agent,
    credentials: Arc<Provider>,
}

impl Client {
    pub(super) fn new(bucket: Bucket, settings: &StoreSettings, idle_max: usize) -> Client {
        let patience = settings.patience;
        let options = AgentOptions { idle_max, redirects_max: 0, patience };
        let agent = settings.network.agent(bucket.base_url().as_str(), options);
        Client { bucket, patience, agent, credentials: Arc::clone(&settings.credentials) }
    }

    pub(super) fn hang_up(&self) {
        self.agent.clone().shutdown();
    }

    pub(super) fn shown(&self, key: &str) -> String {
        format!("s3://{}/{}", self.bucket.name(), key.escape_debug())
    }

    /// Sends `call` to the url that `sign` makes; a refusal is read and understood.
    pub(super) fn send(&self, call: &Call, sign: impl Fn(Option<&Credentials>) -> String) -> Outcome<Response<Body>> {
        let keys = self.keys(call)?;
        match self.send_once(call, sign(keys.as_deref().map(|keys| &keys.signing))) {
            Err(Failure::Refused(refusal)) if refusal.may_be_expired() => {
                let Some(keys) = keys.filter(|keys| self.credentials.expired(keys)) else {
                    return Err(Failure::Refused(refusal));
                };
                drop(keys);
                let keys = self.keys(call)?;
                self.send_once(call, sign(keys.as_deref().map(|keys| &keys.signing)))
            }
            sent => sent,
        }
    }

    fn keys(&self, call: &Call) -> Outcome<Option<Arc<Keys>>> {
        self.credentials.keys().map_err(|error| {
            let object = self.shown(call.key);
            Failure::Unanswered(StoreError::new(call.operation, object, Trouble::Misconfigured, error.to_string()))
        })
    }

    fn send_once(&self, call: &Call, url: String) -> Outcome<Response<Body>> {
        let mut request = http::Request::builder().method(&call.method).uri(url);
        for (name, value) in call.headers {
            request = request.header(*name, *value);
        }
        let sent = match call.body {
            Some(body) => request.body(body).map_err(ureq::Error::from).and_then(|request| self.upload(request)),
            None => request.body(()).map_err(ureq::Error::from).and_then(|request| self.ask(request, call.fresh)),
        };
        let failed = |error| Failure::Unanswered(transport_error(call.operation, self.shown(call.key), error));
        let mut answer = sent.map_err(failed)?;
        let of_part =
            answer.status() == StatusCode::PARTIAL_CONTENT && call.headers.iter().any(|(name, _)| *name == "range");
        if of_part || matches!(answer.status().as_u16(), 200 | 204) {
            return Ok(answer);
        }
        // What cannot be read of an explanation is done without: the status is what counts.
        let text = self.text(call.operation, call.key, &mut answer).unwrap_or_default();
        let refusal = refusal(call.operation, self.shown(call.key), answer.status().as_u16(), answer.headers(), &text);
        Err(Failure::Refused(Box::new(refusal)))
    }

    /// A store takes its time to answer an upload, or to put its parts together.
    fn upload(&self, request: http::Request<&[u8]>) -> std::result::Result<Response<Body>, ureq::Error> {
        let patient = self.agent.configure_request(request).timeout_per_read(Some(self.patience.write));
        self.agent.run(patient.build())
    }

    fn ask(&self, request: http::Request<()>, fresh: bool) -> std::result::Result<Response<Body>, ureq::Error> {
        if fresh {
            let request = self.agent.configure_request(request).max_idle_age(Duration::ZERO).build();
            return self.agent.run(request);
        }
        self.agent.run(request)
    }

    /// The body of an answer that is XML.
    pub(super) fn text(&self, operation: &'static str, key: &str, answer: &mut Response<Body>) -> Result<String> {
        let mut text = Vec::new();
        read_body(operation, &self.shown(key), answer, &mut text, TEXT_MAX, self.patience)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    pub(super) fn not_understood(&self, operation: &'static str, key: &str) -> StoreError {
        let cause = "its answer is not S3's: check --s3-endpoint";
        StoreError::new(operation, self.shown(key), Trouble::Misconfigured, cause)
    }
}
