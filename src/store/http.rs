//! Objects of an HTTP origin: read only. Redirects are followed, a few; a body shorter than announced is an error; what
//! an error says of an object has neither its userinfo nor its query.

use ureq::http::{Response, StatusCode, header};
use ureq::{Agent, Body};

use super::agent::{AgentOptions, Network, Patience};
use super::answer::{read_body, status_error, transport_error};
use crate::shown::shown_uri;

use super::{
    Digest, Entry, GetOptions, Head, ObjectStore, Part, Range, RangeOptions, Result, Spool, StoreError, Trouble,
    UploadLog, range,
};

const REDIRECTS_MAX: u32 = 5;

/// What is read of a body that only explains an error: enough to keep the connection.
const EXPLANATION_MAX: u64 = 64 << 10;

/// An HTTP origin, or a path of one.
#[derive(Debug)]
pub struct HttpStore {
    base: String,
    agent: Agent,
    patience: Patience,
}

impl HttpStore {
    /// A store over `base`, `https://host:port/path`, with an agent of its own that keeps `idle_max` connections.
    pub fn new(base: &str, network: &Network, idle_max: usize, patience: Patience) -> HttpStore {
        let options = AgentOptions { idle_max, redirects_max: REDIRECTS_MAX, patience };
        HttpStore { base: base.trim_end_matches('/').into(), agent: network.agent(base, options), patience }
    }

    fn url(&self, key: &str) -> String {
        format!("{}/{key}", self.base)
    }

    fn shown(&self, key: &str) -> String {
        shown_uri(&self.url(key))
    }

    fn send(
        &self,
        operation: &'static str,
        key: &str,
        fresh: bool,
        headers: &[(&'static str, String)],
    ) -> Result<Response<Body>> {
        let url = self.url(key);
        let mut request = if operation == "head" { self.agent.head(&url) } else { self.agent.get(&url) };
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        if fresh {
            // No pooled connection is young enough: a new one is made, and kept.
            request = request.config().max_idle_age(std::time::Duration::ZERO).build();
        }
        request.call().map_err(|error| transport_error(operation, self.shown(key), error))
    }

    /// Reads away what explains the error, so that the connection can be used again.
    fn refused(&self, operation: &'static str, key: &str, mut response: Response<Body>) -> StoreError {
        let mut explanation = Vec::new();
        let drained = read_body(operation, &self.base, &mut response, &mut explanation, EXPLANATION_MAX, self.patience);
        // A connection that cannot be drained is closed: the status is what counts.
        drop(drained);
        status_error(operation, self.shown(key), response.status().as_u16(), response.headers())
    }

    fn read_only(&self, operation: &'static str, object: String) -> StoreError {
        let cause = "an http origin can only be read: give a directory or s3://bucket/prefix";
        StoreError::new(operation, object, Trouble::Misconfigured, cause)
    }
}

impl ObjectStore for HttpStore {
    fn base(&self) -> String {
        shown_uri(&self.base)
    }

    fn get(&self, key: &str, body: &mut Vec<u8>, options: GetOptions) -> Result<()> {
        let mut response = self.send("get", key, options.fresh, &[])?;
        if response.status() != StatusCode::OK {
            return Err(self.refused("get", key, response));
        }
        read_body("get", &self.shown(key), &mut response, body, options.bytes_max, self.patience)
    }

    fn hang_up(&self) {
        self.agent.clone().shutdown();
    }

    fn get_range(&self, key: &str, range: Range, options: RangeOptions<'_>) -> Result<Part> {
        let answer = self.send("get", key, options.fresh, &range::headers(range, options))?;
        match answer.status() {
            StatusCode::OK | StatusCode::PARTIAL_CONTENT => {
                range::part_of_answer("get", self.shown(key), range, options, answer)
            }
            status => Err(range::refused_part(status.as_u16(), self.refused("get", key, answer))),
        }
    }

    fn head(&self, key: &str) -> Result<Option<Head>> {
        let response = self.send("head", key, false, &[])?;
        match response.status() {
            StatusCode::OK => {}
            StatusCode::NOT_FOUND | StatusCode::GONE => return Ok(None),
            _ => return Err(self.refused("head", key, response)),
        }
        let length = response.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
        match length {
            Some(bytes) => Ok(Some(Head { bytes, sha256: None })),
            None => Err(StoreError::new("head", self.shown(key), Trouble::Gone, "the server does not tell its size")),
        }
    }

    fn spool(&self, key: &str) -> Result<Spool> {
        Err(self.read_only("put", self.shown(key)))
    }

    fn put(&self, key: &str, _: Spool, _: &Digest, _: &dyn UploadLog) -> Result<()> {
        Err(self.read_only("put", self.shown(key)))
    }

    fn replace(&self, key: &str, _: &[u8]) -> Result<()> {
        Err(self.read_only("replace", self.shown(key)))
    }

    fn list(&self, _: &str, _: &mut dyn FnMut(Entry) -> Result<()>) -> Result<()> {
        Err(self.read_only("list", self.base()))
    }

    fn abort(&self, key: &str, _: &str) -> Result<()> {
        Err(self.read_only("abort an upload of", self.shown(key)))
    }

    fn sweep(&self) -> Result<u64> {
        Ok(0)
    }

    fn check_writable(&self) -> Result<()> {
        Err(self.read_only("write to", self.base()))
    }
}
