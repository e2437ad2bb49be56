//! What an HTTP answer, or none, means: one table from status to what can be done, one from a transport's error.
//! Never matches on an error's text, and never passes a url on: an error of the HTTP library may quote one in full.

use std::error::Error;
use std::io::{self, Read};
use std::time::{Duration, Instant, SystemTime};

use ureq::Timeout;
use ureq::http::{HeaderMap, Response, header};

use super::agent::Patience;
use super::home::{LedAstray, LedNear};
use super::names::LookupFailed;
use super::proxy::BadProxy;
use super::{Result, StoreError, Trouble};

/// What can be done about a status that is not success.
pub fn trouble_of_status(status: u16, retry_after: Option<Duration>) -> Trouble {
    match status {
        408 | 429 | 503 => Trouble::Throttled(retry_after),
        401 | 403 | 407 => Trouble::Denied,
        500.. => Trouble::Transient,
        // 404, 410, and all that will be the same next time: 400, 405, 416, 451, an unexpected 204 or 304.
        _ => Trouble::Gone,
    }
}

/// The error for a status that is not success.
pub(super) fn status_error(operation: &'static str, object: String, status: u16, headers: &HeaderMap) -> StoreError {
    let trouble = trouble_of_status(status, retry_after(headers, SystemTime::now()));
    StoreError::new(operation, object, trouble, format!("the server answered {}", named(status)))
}

/// `404 Not Found`.
pub(super) fn named(status: u16) -> String {
    match ureq::http::StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason()) {
        Some(reason) => format!("{status} {reason}"),
        None => status.to_string(),
    }
}

/// Nobody waits longer, and a time that is added to another one must not be beyond all times.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(24 * 3600);

/// `Retry-After`, in seconds or as a date; a date in the past is no wait at all.
pub(super) fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let value = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim();
    let asked = match value.parse() {
        Ok(seconds) => Duration::from_secs(seconds),
        // More than fits.
        Err(_) if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) => RETRY_AFTER_MAX,
        Err(_) => httpdate::parse_http_date(value).ok()?.duration_since(now).unwrap_or_default(),
    };
    Some(asked.min(RETRY_AFTER_MAX))
}

/// The error for a request that brought no answer, or half of one.
pub(super) fn transport_error(operation: &'static str, object: String, error: ureq::Error) -> StoreError {
    use ureq::Error;
    let plain = |trouble, cause: &str| StoreError::new(operation, object.clone(), trouble, cause);
    match error {
        Error::Io(error) => io_error(operation, object, error),
        Error::Timeout(Timeout::Connect | Timeout::Resolve) => plain(Trouble::Unreachable, "connecting timed out"),
        Error::Timeout(Timeout::PerWrite | Timeout::SendBody | Timeout::SendRequest) => {
            plain(Trouble::TimedOut, "the server took no more bytes (timed out)")
        }
        Error::Timeout(_) => plain(Trouble::TimedOut, "the server sent no more bytes (timed out)"),
        Error::HostNotFound => plain(Trouble::Unreachable, "the host is not known"),
        Error::Other(source) => other_error(operation, object, source),
        Error::Rustls(error) => tls_error(operation, object, &error),
        Error::Tls(_) | Error::Pem(_) | Error::TlsRequired => plain(Trouble::Misconfigured, "TLS cannot be set up"),
        Error::ConnectionFailed => plain(Trouble::Unreachable, "no connection"),
        Error::ConnectProxyFailed(_) => plain(Trouble::Unreachable, "the proxy refused the connection"),
        Error::InvalidProxyUrl => plain(Trouble::Misconfigured, "the proxy's url is not valid: check HTTPS_PROXY"),
        Error::TooManyRedirects => plain(Trouble::Gone, "the server redirects again and again"),
        Error::RedirectFailed => plain(Trouble::Gone, "the server redirects an upload"),
        Error::RequireHttpsOnly(_) => {
            plain(Trouble::Gone, "the server redirects from https to http, which is not followed")
        }
        Error::BadUri(_) | Error::Http(_) => {
            plain(Trouble::Gone, "its uri, or the one that the server redirects to, is not valid in a request")
        }
        Error::Protocol(_) | Error::LargeResponseHeader(..) => {
            plain(Trouble::Transient, "the answer is not valid HTTP")
        }
        _ => plain(Trouble::Transient, "the request failed"),
    }
}

/// Errors of our own, on their way through the library.
fn other_error(operation: &'static str, object: String, source: Box<dyn Error + Send + Sync>) -> StoreError {
    let plain = |trouble, cause: String| StoreError::new(operation, object.clone(), trouble, cause);
    if source.is::<LedNear>() {
        return plain(Trouble::Gone, source.to_string());
    }
    if source.is::<BadProxy>() {
        return plain(Trouble::Misconfigured, source.to_string());
    }
    let source = match source.downcast::<LedAstray>() {
        Ok(astray) => {
            let LedAstray { host, error } = *astray;
            let error = transport_error(operation, object, error);
            // The origin has answered: this is the object's trouble, whatever it would be of an origin.
            let cause = format!("the server redirects to {host}: {}", error.cause);
            return StoreError { trouble: Trouble::Transient, cause, ..error };
        }
        Err(source) => source,
    };
    match source.downcast::<LookupFailed>() {
        Ok(failed) => {
            let cause = "the host's name cannot be resolved: check the name and the name server";
            StoreError { source: Some(failed), ..plain(Trouble::Unreachable, cause.to_owned()) }
        }
        Err(_) => plain(Trouble::Transient, "the request failed".to_owned()),
    }
}

fn io_error(operation: &'static str, object: String, error: io::Error) -> StoreError {
    use io::ErrorKind;
    if let Some(tls) = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        return tls_error(operation, object, tls);
    }
    let trouble = match error.kind() {
        ErrorKind::ConnectionRefused
        | ErrorKind::HostUnreachable
        | ErrorKind::NetworkUnreachable
        | ErrorKind::NetworkDown => Trouble::Unreachable,
        ErrorKind::TimedOut => Trouble::TimedOut,
        _ => Trouble::Transient,
    };
    let cause = match error.kind() {
        ErrorKind::ConnectionRefused => "the connection was refused".into(),
        ErrorKind::UnexpectedEof => "the connection was closed before the whole answer was there".into(),
        _ => error.to_string(),
    };
    StoreError { operation, object, trouble, cause, source: Some(Box::new(error)) }
}

fn tls_error(operation: &'static str, object: String, error: &rustls::Error) -> StoreError {
    let cause =
        format!("TLS: {error}; check the host's name, its certificate, and SSL_CERT_FILE for a private authority");
    StoreError { operation, object, trouble: Trouble::Misconfigured, cause, source: Some(Box::new(error.clone())) }
}

/// Reads a body of at most `bytes_max` into `body`, which is cleared first. A body that is shorter than announced, or
/// that dribbles on without end, is an error.
pub(super) fn read_body(
    operation: &'static str,
    object: &str,
    response: &mut Response<ureq::Body>,
    body: &mut Vec<u8>,
    bytes_max: u64,
    patience: Patience,
) -> Result<()> {
    /// Room made before the first byte is there: an announced length is only a claim.
    const TRUSTED_LENGTH: u64 = 1 << 20;
    body.clear();
    body.reserve(response.body().content_length().unwrap_or(0).min(bytes_max).min(TRUSTED_LENGTH) as usize);
    copy_body(operation, object, response, body, bytes_max, patience).map(drop)
}

/// Like `read_body`, into anything that takes bytes without fail; returns how many there were.
pub(super) fn copy_body<W: io::Write>(
    operation: &'static str,
    object: &str,
    response: &mut Response<ureq::Body>,
    into: &mut W,
    bytes_max: u64,
    patience: Patience,
) -> Result<u64> {
    let failed = |trouble, cause| StoreError::new(operation, object, trouble, cause);
    let too_large = || failed(Trouble::TooLarge, format!("it is larger than {bytes_max} bytes"));
    let announced = response.body().content_length();
    if announced.is_some_and(|bytes| bytes > bytes_max) {
        return Err(too_large());
    }
    let reader = response.body_mut().with_config().limit(u64::MAX).reader();
    let reader = Hasty { reader, until: Instant::now() + patience.whole(announced.unwrap_or(bytes_max)) };
    // The library wraps its own errors in io errors; unwrapped, a timeout can be told from a reset.
    let copied = io::copy(&mut reader.take(bytes_max.saturating_add(1)), into);
    let bytes = copied.map_err(|error| transport_error(operation, object.to_owned(), error.into()))?;
    match announced {
        _ if bytes > bytes_max => Err(too_large()),
        Some(announced) if bytes != announced => {
            Err(failed(Trouble::Transient, format!("its body ended after {bytes} of {announced} bytes")))
        }
        _ => Ok(bytes),
    }
}

/// Ends a body that arrives a byte at a time, each in time, for hours.
struct Hasty<R> {
    reader: R,
    until: Instant,
}

impl<R: Read> Read for Hasty<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if Instant::now() > self.until {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "its body comes too slowly"));
        }
        self.reader.read(buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_has_its_trouble() {
        let wait = Some(Duration::from_secs(7));
        for status in [408, 429, 503] {
            assert_eq!(trouble_of_status(status, wait), Trouble::Throttled(wait), "{status}");
        }
        for status in [500, 502, 504, 507, 520, 599] {
            assert_eq!(trouble_of_status(status, wait), Trouble::Transient, "{status}");
        }
        for status in [401, 403, 407] {
            assert_eq!(trouble_of_status(status, None), Trouble::Denied, "{status}");
        }
        for status in [204, 304, 400, 404, 405, 410, 416, 451] {
            assert_eq!(trouble_of_status(status, None), Trouble::Gone, "{status}");
        }
    }

    #[test]
    fn retry_after_is_read_as_seconds_and_as_a_date() {
        let now = httpdate::parse_http_date("Tue, 06 Jan 2026 10:00:00 GMT").unwrap();
        let read = |value: &'static str| {
            let headers = HeaderMap::from_iter([(header::RETRY_AFTER, header::HeaderValue::from_static(value))]);
            retry_after(&headers, now)
        };
        assert_eq!(read("120"), Some(Duration::from_secs(120)));
        assert_eq!(read("Tue, 06 Jan 2026 10:00:30 GMT"), Some(Duration::from_secs(30)));
        assert_eq!(read("Tue, 06 Jan 2026 09:00:00 GMT"), Some(Duration::ZERO));
        for seconds in ["18446744073709551615", "99999999999999999999999"] {
            assert_eq!(read(seconds), Some(RETRY_AFTER_MAX));
        }
        assert_eq!(read("Fri, 31 Dec 9999 23:59:59 GMT"), Some(RETRY_AFTER_MAX));
        assert_eq!(read("soon"), None);
        assert_eq!(read(""), None);
        assert_eq!(read("-1"), None);
    }
}
