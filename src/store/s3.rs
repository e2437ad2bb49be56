//! Objects of an S3 bucket. A shard is published by one PUT or by a completed upload in parts, never half, never over
//! other bytes: the object is looked for before, `If-None-Match` guards the moment between where the store honours it,
//! and size and SHA-256 are confirmed after. An answer that is lost is no failure: the object itself is asked (I4, I6).

mod client;
mod refusal;
mod upload;
mod xml;

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use base64::prelude::{BASE64_STANDARD, Engine};
use md5::{Digest as _, Md5};
use rusty_s3::actions::ListObjectsV2;
use rusty_s3::{Bucket, S3Action, UrlStyle};
use ureq::http::{Method, header};

use self::client::{Call, Client, EXPIRY, Failure, Outcome};
use super::answer::copy_body;
use crate::hex::{decode_sha256, encode};

use super::{
    Digest, Digester, Entry, GetOptions, Head, ObjectStore, Part, Range, RangeOptions, Result, Spool, StoreError,
    StoreSettings, Trouble, UploadLog, in_tmpdir, proxy, range, uri,
};
use crate::faults::{passed, step};

const SHA256: &str = "x-amz-meta-sha256";

/// A bucket, or a prefix of one.
pub struct S3Store {
    client: Client,
    prefix: String,
    part_bytes: u64,
    /// `If-None-Match` is sent until the store says that it does not know it.
    conditional: AtomicBool,
}

impl S3Store {
    /// A store over `bucket` and `prefix`, with an agent of its own that keeps `idle_max` connections.
    pub fn new(bucket: &str, prefix: &str, settings: &StoreSettings, idle_max: usize) -> anyhow::Result<S3Store> {
        let region = settings.region.as_str();
        let endpoint = settings.endpoint.clone().unwrap_or_else(|| amazon(region));
        // AWS's certificates cover one label before the host, and old buckets' names may not fit into a host's.
        let plain = bucket.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        let style = if settings.path_style || !plain { UrlStyle::Path } else { UrlStyle::VirtualHost };
        let url = endpoint.parse().context("--s3-endpoint is not a valid url")?;
        let bucket = Bucket::new(url, style, bucket.to_owned(), region.to_owned())
            .with_context(|| format!("s3://{bucket} cannot be reached through this --s3-endpoint"))?;
        // Before credentials are asked for, which may be nearer.
        proxy::before(bucket.base_url().host_str().unwrap_or_default())?;
        let client = Client::new(bucket, settings, idle_max);
        let prefix = prefix.trim_matches('/').to_owned();
        Ok(S3Store { client, prefix, part_bytes: settings.part_bytes, conditional: AtomicBool::new(true) })
    }

    /// The key in the bucket. Dot segments would be resolved on the way and name another object.
    fn key(&self, operation: &'static str, key: &str) -> Result<String> {
        let full = uri::join(&self.prefix, key);
        let refused = |cause| StoreError::new(operation, self.client.shown(&full), Trouble::Gone, cause);
        if key.is_empty() || key.contains(char::is_control) {
            return Err(refused("its key is empty or holds control characters".into()));
        }
        uri::refuse_dot_segments(&full).map_err(refused)?;
        Ok(full)
    }

    fn head_of(&self, operation: &'static str, key: &str) -> Result<Option<Head>> {
        let call = Call { method: Method::HEAD, ..Call::get(operation, key) };
        let sent = self.client.send(&call, |keys| self.client.bucket.head_object(keys, key).sign(EXPIRY).into());
        let answer = match sent {
            Ok(answer) => answer,
            Err(Failure::Refused(refusal)) if refusal.status == 404 && refusal.code.is_none() => return Ok(None),
            Err(failure) => return Err(failure.into_error()),
        };
        let text = |name: &str| answer.headers().get(name).and_then(|value| value.to_str().ok());
        let Some(bytes) = text(header::CONTENT_LENGTH.as_str()).and_then(|length| length.parse().ok()) else {
            let cause = "the store does not tell its size";
            return Err(StoreError::new(operation, self.client.shown(key), Trouble::Transient, cause));
        };
        Ok(Some(Head { bytes, sha256: text(SHA256).and_then(decode_sha256) }))
    }

    /// Whether the object is there with just these bytes; with others it is a conflict.
    fn is_there(&self, operation: &'static str, key: &str, digest: &Digest) -> Result<bool> {
        let Some(head) = self.head_of(operation, key)? else { return Ok(false) };
        let same = head.bytes == digest.bytes
            && match head.sha256 {
                Some(sha256) => sha256 == digest.sha256,
                // The store does not keep metadata, or somebody else put it: its bytes must tell.
                None => self.read_digest(operation, key, digest.bytes)? == *digest,
            };
        match same {
            true => Ok(true),
            false => {
                let cause = "an object with other bytes is there already";
                Err(StoreError::new(operation, self.client.shown(key), Trouble::Conflict, cause))
            }
        }
    }

    fn read_digest(&self, operation: &'static str, key: &str, bytes_max: u64) -> Result<Digest> {
        let mut digester = Digester::default();
        self.read(operation, key, &mut digester, GetOptions { bytes_max, fresh: false })?;
        Ok(digester.finish())
    }

    fn read<W: std::io::Write>(
        &self,
        operation: &'static str,
        key: &str,
        into: &mut W,
        options: GetOptions,
    ) -> Result<()> {
        let call = Call { fresh: options.fresh, ..Call::get(operation, key) };
        let sent = self.client.send(&call, |keys| self.client.bucket.get_object(keys, key).sign(EXPIRY).into());
        let mut answer = sent.map_err(Failure::into_error)?;
        let patience = self.client.patience;
        copy_body(operation, &self.client.shown(key), &mut answer, into, options.bytes_max, patience).map(drop)
    }

    /// Puts in one request; `digest` only where an object that is there must not be replaced.
    fn put_whole(&self, operation: &'static str, key: &str, bytes: &[u8], sha256: &str, new: bool) -> Outcome<()> {
        let md5 = BASE64_STANDARD.encode(Md5::digest(bytes));
        self.unless_there(new, |guard| {
            let mut headers = vec![("content-md5", md5.as_str()), (SHA256, sha256)];
            headers.extend(guard);
            let call = Call { method: Method::PUT, headers: &headers, body: Some(bytes), ..Call::get(operation, key) };
            let sent = self.client.send(&call, |keys| {
                let mut action = self.client.bucket.put_object(keys, key);
                action.headers_mut().insert(SHA256, sha256);
                action.sign(EXPIRY).into()
            });
            sent.map(drop)
        })
    }

    /// Calls `send` with `If-None-Match: *`, and once without where the store does not know it.
    fn unless_there(
        &self,
        new: bool,
        send: impl Fn(Option<(&'static str, &'static str)>) -> Outcome<()>,
    ) -> Outcome<()> {
        let guarded = new && self.conditional.load(Ordering::Relaxed);
        match send(guarded.then_some(("if-none-match", "*"))) {
            Err(Failure::Refused(refusal)) if guarded && refusal.status == 501 => {
                self.conditional.store(false, Ordering::Relaxed);
                send(None)
            }
            sent => sent,
        }
    }
}

impl ObjectStore for S3Store {
    fn base(&self) -> String {
        self.client.shown(&self.prefix).trim_end_matches('/').to_owned()
    }

    fn get(&self, key: &str, body: &mut Vec<u8>, options: GetOptions) -> Result<()> {
        let key = self.key("get", key)?;
        body.clear();
        self.read("get", &key, body, options)
    }

    fn hang_up(&self) {
        self.client.hang_up();
    }

    fn get_range(&self, key: &str, range: Range, options: RangeOptions<'_>) -> Result<Part> {
        let key = self.key("get", key)?;
        let headers = range::headers(range, options);
        let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let call = Call { headers: &headers, fresh: options.fresh, ..Call::get("get", &key) };
        match self.client.send(&call, |keys| self.client.bucket.get_object(keys, &key).sign(EXPIRY).into()) {
            Ok(answer) => range::part_of_answer("get", self.client.shown(&key), range, options, answer),
            Err(Failure::Refused(refusal)) => Err(range::refused_part(refusal.status, refusal.error)),
            Err(failure) => Err(failure.into_error()),
        }
    }

    fn head(&self, key: &str) -> Result<Option<Head>> {
        self.head_of("head", &self.key("head", key)?)
    }

    fn spool(&self, key: &str) -> Result<Spool> {
        let object = self.client.shown(&self.key("put", key)?);
        let spooled = step("spool: create").and_then(|()| tempfile::tempfile());
        let file = spooled.map_err(|error| in_tmpdir(StoreError::local("put", object, error)))?;
        Ok(Spool { file, path: None })
    }

    fn put(&self, key: &str, spool: Spool, digest: &Digest, uploads: &dyn UploadLog) -> Result<()> {
        let full = self.key("put", key)?;
        let spooled = step("spool: map")
            .and_then(|()| upload::Spooled::open(spool))
            .map_err(|error| StoreError::local("put", self.client.shown(&full), error))?;
        let bytes = spooled.bytes();
        let refused = |trouble, cause: &str| StoreError::new("put", self.client.shown(&full), trouble, cause);
        let mut digester = Digester::default();
        std::io::Write::write_all(&mut digester, bytes)
            .map_err(|error| StoreError::local("put", self.client.shown(&full), error))?;
        if digester.finish() != *digest {
            return Err(refused(Trouble::Local, "its spooled bytes are not the ones that were built: check the disk"));
        }
        passed("put: look");
        if self.is_there("put", &full, digest)? {
            return Ok(());
        }
        passed("put: send");
        let sha256 = encode(&digest.sha256);
        let sent = match digest.bytes <= self.part_bytes {
            true => self.put_whole("put", &full, bytes, &sha256, true),
            false => self.put_parts(key, &full, bytes, &sha256, uploads),
        };
        passed("put: sent");
        match (sent, self.is_there("put", &full, digest)) {
            // Whatever was answered, or nothing: it is there, whole.
            (_, Ok(true)) => Ok(()),
            (_, Err(conflict)) if conflict.trouble == Trouble::Conflict => Err(conflict),
            (Err(failure), _) => Err(failure.into_error()),
            (Ok(()), Err(error)) => Err(error),
            (Ok(()), Ok(false)) => Err(refused(Trouble::Transient, "the store took it, and then did not have it")),
        }
    }

    fn replace(&self, key: &str, bytes: &[u8]) -> Result<()> {
        let key = self.key("replace", key)?;
        let sha256 = encode(&sha2::Sha256::digest(bytes));
        passed("replace: send");
        self.put_whole("replace", &key, bytes, &sha256, false).map_err(Failure::into_error)
    }

    fn list(&self, prefix: &str, each: &mut dyn FnMut(Entry) -> Result<()>) -> Result<()> {
        let base = if self.prefix.is_empty() { String::new() } else { format!("{}/", self.prefix) };
        let prefix = format!("{base}{prefix}");
        let mut token: Option<String> = None;
        loop {
            let sent = self.client.send(&Call::get("list", &prefix), |keys| {
                let mut action = self.client.bucket.list_objects_v2(keys);
                // Stores differ in how they encode a space and a `+`; unasked, they all send plain XML.
                action.query_mut().remove("encoding-type");
                action.with_prefix(prefix.as_str());
                if let Some(token) = &token {
                    action.with_continuation_token(token.as_str());
                }
                action.sign(EXPIRY).into()
            });
            let mut answer = sent.map_err(Failure::into_error)?;
            let text = self.client.text("list", &prefix, &mut answer)?;
            let page = ListObjectsV2::parse_response(&xml::with_namespace(&text))
                .map_err(|_| self.client.not_understood("list", &prefix))?;
            for content in page.contents {
                let Some(key) = content.key.strip_prefix(&base) else {
                    return Err(self.client.not_understood("list", &prefix));
                };
                let bytes = content.size.ok_or_else(|| self.client.not_understood("list", &prefix))?;
                // The marker of a directory that some tools write is no object of anybody's data.
                if !(bytes == 0 && (key.is_empty() || key.ends_with('/'))) {
                    each(Entry { key: key.to_owned(), bytes })?;
                }
            }
            match page.next_continuation_token {
                // Else it would go on for ever.
                Some(next) if Some(&next) == token.as_ref() => return Err(self.client.not_understood("list", &prefix)),
                Some(next) => token = Some(next),
                None => return Ok(()),
            }
        }
    }

    fn abort(&self, key: &str, upload_id: &str) -> Result<()> {
        self.abort_parts(&self.key("abort an upload of", key)?, upload_id)
    }

    fn sweep(&self) -> Result<u64> {
        // Spooled files have no name, and uploads in parts are in the upload log.
        Ok(0)
    }

    fn check_writable(&self) -> Result<()> {
        // An upload in parts that is begun and aborted needs the right to put, and leaves nothing behind.
        let key = self.key("write to", ".compact-local-check")?;
        let upload_id = self.create_upload("write to", &key, "").map_err(Failure::into_error)?;
        self.abort_parts(&key, &upload_id)
    }
}

fn amazon(region: &str) -> String {
    let domain = if region.starts_with("cn-") { "amazonaws.com.cn" } else { "amazonaws.com" };
    format!("https://s3.{region}.{domain}")
}
