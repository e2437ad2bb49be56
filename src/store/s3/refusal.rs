//! What a refusal of S3 means: its error code first, its status where there is none. Pure. Of the document only code,
//! message and region are taken: the rest may quote what was signed.

use std::time::SystemTime;

use ureq::http::HeaderMap;

use super::xml;
use crate::store::answer::{named, retry_after, trouble_of_status};
use crate::store::{StoreError, Trouble};

/// The store refused a request.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) status: u16,
    pub(super) code: Option<String>,
    pub(super) error: StoreError,
}

impl Refusal {
    /// Credentials that expired are refused so; a HEAD has no body to say it in.
    pub(super) fn may_be_expired(&self) -> bool {
        match self.code.as_deref() {
            Some(code) => matches!(code, "ExpiredToken" | "TokenRefreshRequired" | "ExpiredTokenException"),
            None => self.status == 400,
        }
    }
}

pub(super) fn refusal(
    operation: &'static str,
    object: String,
    status: u16,
    headers: &HeaderMap,
    text: &str,
) -> Refusal {
    let code = xml::text_of(text, "Code").filter(|code| !code.is_empty());
    let wait = retry_after(headers, SystemTime::now());
    let (trouble, advice) = match code.as_deref() {
        Some(
            "SlowDown" | "ServiceUnavailable" | "TooManyRequests" | "RequestLimitExceeded" | "ThrottlingException",
        ) => (Trouble::Throttled(wait), ""),
        Some(
            "RequestTimeout"
            | "InternalError"
            | "OperationAborted"
            | "ConditionalRequestConflict"
            | "BadDigest"
            | "IncompleteBody",
        ) => (Trouble::Transient, ""),
        Some("PreconditionFailed") => (Trouble::Conflict, ""),
        Some("AccessDenied") => (Trouble::Denied, ""),
        Some("InvalidObjectState") => (Trouble::Gone, "it is archived: restore it first"),
        Some("NoSuchBucket" | "InvalidBucketName") => (Trouble::Misconfigured, "check the bucket's name and endpoint"),
        Some("InvalidAccessKeyId" | "InvalidToken" | "NotSignedUp") => (Trouble::Misconfigured, "check the access key"),
        Some("SignatureDoesNotMatch") => (Trouble::Misconfigured, "check the secret key and the region"),
        Some("ExpiredToken" | "TokenRefreshRequired" | "ExpiredTokenException") => {
            (Trouble::Misconfigured, "the credentials have expired: get new ones, then run again")
        }
        Some("RequestTimeTooSkewed") => (Trouble::Misconfigured, "this machine's clock is wrong: set it (NTP)"),
        Some(
            "PermanentRedirect"
            | "TemporaryRedirect"
            | "AuthorizationHeaderMalformed"
            | "IllegalLocationConstraintException",
        ) => (Trouble::Misconfigured, "the bucket is in another region"),
        _ if matches!(status, 301 | 302 | 307 | 308) => (Trouble::Misconfigured, "the bucket is in another region"),
        _ => (trouble_of_status(status, wait), ""),
    };
    let mut cause = format!("the store answered {}", named(status));
    if let Some(code) = &code {
        cause.push_str(&format!(", {}", printable(code)));
    }
    if let Some(message) = xml::text_of(text, "Message").map(|message| printable(&message)).filter(|m| !m.is_empty()) {
        cause.push_str(&format!(" ({message})"));
    }
    if !advice.is_empty() {
        cause.push_str(&format!("; {advice}"));
    }
    if trouble == Trouble::Misconfigured
        && let Some(region) = region(headers, text)
    {
        cause.push_str(&format!(": --s3-region {region}"));
    }
    Refusal { status, code, error: StoreError::new(operation, object, trouble, cause) }
}

/// Where the bucket is, as the answer has it.
fn region(headers: &HeaderMap, text: &str) -> Option<String> {
    let header = headers.get("x-amz-bucket-region").and_then(|value| value.to_str().ok()).map(str::to_owned);
    header
        .or_else(|| xml::text_of(text, "Region"))
        .filter(|region| !region.is_empty() && region.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-'))
}

/// A store's own words, cut short; none that quote a signed url.
fn printable(message: &str) -> String {
    const LONGEST: usize = 200;
    if message.to_ascii_lowercase().contains("x-amz-") {
        return String::new();
    }
    message.chars().filter(|c| !c.is_control()).take(LONGEST).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(status: u16, code: &str) -> StoreError {
        let text = format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>in words</Message></Error>");
        refusal("put", "s3://b/k".into(), status, &HeaderMap::new(), &text).error
    }

    #[test]
    fn a_code_says_more_than_its_status() {
        for (status, code, trouble) in [
            (503, "SlowDown", Trouble::Throttled(None)),
            (404, "NoSuchKey", Trouble::Gone),
            (404, "NoSuchBucket", Trouble::Misconfigured),
            (403, "InvalidAccessKeyId", Trouble::Misconfigured),
            (403, "SignatureDoesNotMatch", Trouble::Misconfigured),
            (400, "ExpiredToken", Trouble::Misconfigured),
            (403, "RequestTimeTooSkewed", Trouble::Misconfigured),
            (403, "AccessDenied", Trouble::Denied),
            (400, "RequestTimeout", Trouble::Transient),
            (500, "InternalError", Trouble::Transient),
            (200, "InternalError", Trouble::Transient),
            (409, "OperationAborted", Trouble::Transient),
            (412, "PreconditionFailed", Trouble::Conflict),
            (501, "NotImplemented", Trouble::Transient),
            (400, "SomethingNew", Trouble::Gone),
        ] {
            assert_eq!(refused(status, code).trouble, trouble, "{status} {code}");
        }
    }

    #[test]
    fn the_right_region_is_named() {
        let headers = HeaderMap::from_iter([(
            ureq::http::HeaderName::from_static("x-amz-bucket-region"),
            ureq::http::HeaderValue::from_static("eu-west-1"),
        )]);
        let error = refusal("get", "s3://b/k".into(), 301, &headers, "").error;
        assert_eq!(error.trouble, Trouble::Misconfigured);
        assert!(error.to_string().contains("--s3-region eu-west-1"), "{error}");
    }

    #[test]
    fn a_message_that_quotes_a_signed_url_is_left_out() {
        let text = "<Error><Code>Odd</Code><Message>bad: /k?X-Amz-Signature=5ec4e7</Message></Error>";
        let error = refusal("get", "s3://b/k".into(), 400, &HeaderMap::new(), text).error;
        assert!(!error.to_string().contains("5ec4e7"), "{error}");
    }
}
