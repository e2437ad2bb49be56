//! Uploads in parts. One is in the upload log before its first part is sent, and leaves it when it is completed or
//! aborted: what a killed process began, the next one aborts. A completion that is answered 200 may still have failed.

use std::io;

use base64::prelude::{BASE64_STANDARD, Engine};
use md5::{Digest as _, Md5};
use memmap2::Mmap;
use rusty_s3::S3Action;
use rusty_s3::actions::CreateMultipartUpload;
use ureq::http::{Method, header};

use super::client::{Call, EXPIRY, Failure, Outcome};
use super::refusal::refusal;
use super::{S3Store, SHA256, xml};
use crate::faults::passed;
use crate::store::settings::PART_BYTES_MIN;
use crate::store::{Result, Spool, StoreError, Trouble, UploadLog};

const PARTS_MAX: u64 = 10_000;

/// A spooled shard in memory, without reading it there first.
pub(super) enum Spooled {
    Mapped(Mmap),
    /// Nothing can be mapped of an empty file.
    Empty,
}

impl Spooled {
    pub(super) fn open(spool: Spool) -> io::Result<Spooled> {
        if spool.file.metadata()?.len() == 0 {
            return Ok(Spooled::Empty);
        }
        // SAFETY: the file has no name, so no other process can reach it, and the spool is ours alone from here on: it
        // is neither written nor truncated while mapped.
        Ok(Spooled::Mapped(unsafe { Mmap::map(&spool.file) }?))
    }

    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Spooled::Mapped(map) => map,
            Spooled::Empty => &[],
        }
    }
}

/// The size of all parts but the last: what was asked for, or what 10,000 parts need.
pub(super) fn part_bytes(bytes: u64, asked: u64) -> u64 {
    asked.max(PART_BYTES_MIN).max(bytes.div_ceil(PARTS_MAX))
}

impl S3Store {
    /// `name` is the key as the upload log has it, `key` as the bucket has it.
    pub(super) fn put_parts(
        &self,
        name: &str,
        key: &str,
        bytes: &[u8],
        sha256: &str,
        uploads: &dyn UploadLog,
    ) -> Outcome<()> {
        let upload_id = self.create_upload("put", key, sha256)?;
        passed("parts: begun");
        let sent = match uploads.started(name, &upload_id) {
            Ok(()) => self.send_parts(key, &upload_id, bytes).and_then(|etags| {
                passed("parts: complete");
                self.complete(key, &upload_id, &etags)
            }),
            Err(error) => Err(Failure::Unanswered(error)),
        };
        passed("parts: completed");
        // Of a completion whose answer was lost nothing is known: aborting what it completed is refused, and no harm.
        let ended = match &sent {
            Ok(()) => Ok(()),
            Err(_) => self.abort_parts(key, &upload_id),
        };
        match (sent, ended.and_then(|()| uploads.ended(name, &upload_id))) {
            (Ok(()), Err(error)) => Err(Failure::Unanswered(error)),
            // It stays in the log: the next process aborts it.
            (sent, _) => sent,
        }
    }

    pub(super) fn create_upload(&self, operation: &'static str, key: &str, sha256: &str) -> Outcome<String> {
        let headers = [(SHA256, sha256)];
        let headers = if sha256.is_empty() { &headers[..0] } else { &headers[..] };
        let call = Call { method: Method::POST, headers, body: Some(&[]), ..Call::get(operation, key) };
        let mut answer = self.client.send(&call, |keys| {
            let mut action = self.client.bucket.create_multipart_upload(keys, key);
            for (name, value) in headers {
                action.headers_mut().insert(*name, *value);
            }
            action.sign(EXPIRY).into()
        })?;
        let text = self.client.text(operation, key, &mut answer).map_err(Failure::Unanswered)?;
        match CreateMultipartUpload::parse_response(&xml::with_namespace(&text)) {
            Ok(created) => Ok(created.upload_id().to_owned()),
            Err(_) => Err(Failure::Unanswered(self.client.not_understood(operation, key))),
        }
    }

    fn send_parts(&self, key: &str, upload_id: &str, bytes: &[u8]) -> Outcome<Vec<String>> {
        let size = part_bytes(bytes.len() as u64, self.part_bytes) as usize;
        (1..).zip(bytes.chunks(size)).map(|(number, part)| self.send_part(key, upload_id, number, part)).collect()
    }

    /// Sends one part; returns its ETag.
    fn send_part(&self, key: &str, upload_id: &str, number: u16, part: &[u8]) -> Outcome<String> {
        passed("parts: send");
        let md5 = BASE64_STANDARD.encode(Md5::digest(part));
        let headers = [("content-md5", md5.as_str())];
        let call = Call { method: Method::PUT, headers: &headers, body: Some(part), ..Call::get("put", key) };
        let answer = self
            .client
            .send(&call, |keys| self.client.bucket.upload_part(keys, key, number, upload_id).sign(EXPIRY).into())?;
        match answer.headers().get(header::ETAG).and_then(|etag| etag.to_str().ok()) {
            Some(etag) => Ok(etag.to_owned()),
            None => Err(Failure::Unanswered(self.client.not_understood("put", key))),
        }
    }

    fn complete(&self, key: &str, upload_id: &str, etags: &[String]) -> Outcome<()> {
        let etags = || etags.iter().map(String::as_str);
        let body = self.client.bucket.complete_multipart_upload(None, key, upload_id, etags()).body();
        self.unless_there(true, |guard| {
            let headers: Vec<_> = guard.into_iter().collect();
            let body = Some(body.as_bytes());
            let call = Call { method: Method::POST, headers: &headers, body, ..Call::get("put", key) };
            let mut answer = self.client.send(&call, |keys| {
                self.client.bucket.complete_multipart_upload(keys, key, upload_id, etags()).sign(EXPIRY).into()
            })?;
            let text = self.client.text("put", key, &mut answer).map_err(Failure::Unanswered)?;
            if text.contains("<Error>") {
                let refused = refusal("put", self.client.shown(key), 200, answer.headers(), &text);
                return Err(Failure::Refused(Box::new(refused)));
            }
            Ok(())
        })
    }

    /// Aborts an upload; one that is not there is aborted already.
    pub(super) fn abort_parts(&self, key: &str, upload_id: &str) -> Result<()> {
        let call = Call { method: Method::DELETE, ..Call::get("abort an upload of", key) };
        let sent = self
            .client
            .send(&call, |keys| self.client.bucket.abort_multipart_upload(keys, key, upload_id).sign(EXPIRY).into());
        match sent {
            Ok(_) => Ok(()),
            Err(Failure::Refused(refusal)) if refusal.code.as_deref() == Some("NoSuchUpload") => Ok(()),
            Err(failure) => Err(abort_error(failure.into_error())),
        }
    }
}

fn abort_error(error: StoreError) -> StoreError {
    match error.trouble {
        Trouble::Denied => StoreError { cause: format!("{}: allow s3:AbortMultipartUpload", error.cause), ..error },
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_as_large_as_asked_unless_there_would_be_too_many() {
        const MIB: u64 = 1 << 20;
        assert_eq!(part_bytes(100 * MIB, 16 * MIB), 16 * MIB);
        assert_eq!(part_bytes(100 * MIB, MIB), 5 * MIB);
        let large = 200 * 1024 * MIB;
        assert!(large.div_ceil(part_bytes(large, 5 * MIB)) <= PARTS_MAX);
    }
}
