//! Parts of objects: what is asked for, and what an answer must be to be taken for it. Bytes are never guessed: an answer
//! says where it begins and of how large an object, or it is an error; two parts are of one version, or it is an error.
//!
//! The end of an object is asked for as such (`bytes=-N`): one request, its answer tells the size, and it works with
//! urls that are signed for GET alone, which a HEAD does not.

use std::io::{self, Read};

use ureq::Body;
use ureq::http::{HeaderMap, HeaderName, Response, StatusCode, header};

use super::answer::{status_error, transport_error};
use super::{Result, StoreError, Trouble};

/// Which bytes of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Range {
    /// All from this offset on; 0 is the whole object and may be empty.
    From(u64),
    /// `bytes` (at least 1) from `offset` on, every one of which must be there.
    At {
        /// Where they begin.
        offset: u64,
        /// How many.
        bytes: u64,
    },
    /// The last so many (at least 1), or all where there are fewer.
    Last(u64),
}

/// How a `get_range` is made.
#[derive(Debug, Clone, Copy, Default)]
pub struct RangeOptions<'a> {
    /// Any other version than this is an error (`Trouble::Conflict`).
    pub expected: Option<&'a Version>,
    /// Use a connection that has not been used before.
    pub fresh: bool,
}

/// What tells an object from the ones that had its name before, or will have it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Version {
    /// Its size, where the answer told it.
    pub bytes: Option<u64>,
    /// Its ETag.
    pub etag: Option<String>,
    /// When it was last modified, as the server says it.
    pub modified: Option<String>,
}

/// A part of an object, as it arrives.
pub struct Part {
    /// Of which version it is.
    pub version: Version,
    /// Where `body` begins. Where that is 0 and was not asked for, the server knows no ranges and sends the whole object.
    pub offset: u64,
    /// Ends where the part ends, or with an error that holds a `StoreError`. What is not read is not sent.
    pub body: Box<dyn Read>,
}

impl std::fmt::Debug for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Part").field("version", &self.version).field("offset", &self.offset).finish_non_exhaustive()
    }
}

impl Range {
    /// The `Range` header; none for the whole object.
    pub(super) fn header(self) -> Option<String> {
        match self {
            Range::From(0) => None,
            Range::From(offset) => Some(format!("bytes={offset}-")),
            Range::At { offset, bytes } => {
                Some(format!("bytes={offset}-{}", offset.saturating_add(bytes).saturating_sub(1)))
            }
            Range::Last(bytes) => Some(format!("bytes=-{bytes}")),
        }
    }

    /// Where it begins in an object of `size` bytes, and how many bytes it has; `None` where they are not all there.
    pub fn within(self, size: u64) -> Option<(u64, u64)> {
        match self {
            Range::From(0) => Some((0, size)),
            Range::From(offset) => (offset < size).then(|| (offset, size - offset)),
            Range::At { offset, bytes } => (offset.checked_add(bytes)? <= size).then_some((offset, bytes)),
            Range::Last(bytes) => Some((size.saturating_sub(bytes), bytes.min(size))),
        }
    }
}

impl Version {
    fn of(headers: &HeaderMap, bytes: Option<u64>) -> Version {
        let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        Version { bytes, etag: text(header::ETAG), modified: text(header::LAST_MODIFIED) }
    }

    /// What `If-Match` takes: a weak ETag never matches, and what is not quoted is no ETag.
    fn if_match(&self) -> Option<&str> {
        self.etag.as_deref().filter(|etag| etag.starts_with('"'))
    }

    /// Whether nothing speaks against it. A second's resolution makes the time a poor witness, so the ETag goes before it.
    fn may_be(&self, other: &Version) -> bool {
        fn same<T: PartialEq>(one: &Option<T>, other: &Option<T>) -> Option<bool> {
            Some(one.as_ref()? == other.as_ref()?)
        }
        same(&self.bytes, &other.bytes) != Some(false)
            && same(&self.etag, &other.etag).or(same(&self.modified, &other.modified)) != Some(false)
    }
}

/// The headers of a request for a part.
pub(super) fn headers(range: Range, options: RangeOptions<'_>) -> Vec<(&'static str, String)> {
    let if_match = options.expected.and_then(Version::if_match).map(|etag| ("if-match", etag.to_owned()));
    range.header().map(|range| ("range", range)).into_iter().chain(if_match).collect()
}

/// Makes a part of what a server answered to `headers`.
pub(super) fn part_of_answer(
    operation: &'static str,
    object: String,
    range: Range,
    options: RangeOptions<'_>,
    answer: Response<Body>,
) -> Result<Part> {
    let announced = answer.body().content_length();
    let (version, offset, bytes) = match answer.status() {
        StatusCode::PARTIAL_CONTENT => {
            let (offset, bytes, size) = content_range(answer.headers())
                .filter(|(offset, bytes, size)| range.within(*size) == Some((*offset, *bytes)))
                .filter(|(_, bytes, _)| announced.is_none_or(|announced| announced == *bytes))
                .ok_or_else(|| {
                    let cause = "the server sent another part than it was asked for, or does not say which";
                    StoreError::new(operation, object.clone(), Trouble::Gone, cause)
                })?;
            (Version::of(answer.headers(), Some(size)), offset, Some(bytes))
        }
        StatusCode::OK => (Version::of(answer.headers(), announced), 0, announced),
        status => return Err(status_error(operation, object, status.as_u16(), answer.headers())),
    };
    same_version(operation, &object, options, &version)?;
    let reader = answer.into_body().into_with_config().limit(u64::MAX).reader();
    let failed = |operation, object, error: io::Error| transport_error(operation, object, error.into());
    Ok(Part { version, offset, body: Box::new(Exactly { reader, left: bytes, operation, object, failed }) })
}

/// What was asked for is of the version that is expected.
pub(super) fn same_version(
    operation: &'static str,
    object: &str,
    options: RangeOptions<'_>,
    found: &Version,
) -> Result<()> {
    match options.expected {
        Some(expected) if !found.may_be(expected) => Err(changed(operation, object.to_owned())),
        _ => Ok(()),
    }
}

fn changed(operation: &'static str, object: String) -> StoreError {
    StoreError::new(operation, object, Trouble::Conflict, "it was replaced while it was being read: read it again")
}

/// Says what a refusal means where a part was asked for.
pub(super) fn refused_part(status: u16, error: StoreError) -> StoreError {
    match status {
        412 => changed(error.operation, error.object),
        416 => StoreError {
            cause: format!("{}; it is empty, or shorter than it was or should be", error.cause),
            trouble: Trouble::Gone,
            ..error
        },
        _ => error,
    }
}

/// `Content-Range: bytes 0-99/1000` as offset, length and size of the object.
fn content_range(headers: &HeaderMap) -> Option<(u64, u64, u64)> {
    let (range, size) = headers.get(header::CONTENT_RANGE)?.to_str().ok()?.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (first, last, size): (u64, u64, u64) = (first.parse().ok()?, last.parse().ok()?, size.parse().ok()?);
    Some((first, last.checked_sub(first)?.checked_add(1)?, size))
}

/// Reads as many bytes as were announced: fewer are an error.
pub(super) struct Exactly<R> {
    pub(super) reader: R,
    /// Unknown where the answer does not tell: then its own end is the end.
    pub(super) left: Option<u64>,
    pub(super) operation: &'static str,
    pub(super) object: String,
    pub(super) failed: fn(&'static str, String, io::Error) -> StoreError,
}

impl<R: Read> Read for Exactly<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = self.left.map_or(buffer.len(), |left| buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX)));
        let Some(buffer) = buffer.get_mut(..most).filter(|buffer| !buffer.is_empty()) else { return Ok(0) };
        let read = self.reader.read(buffer);
        let read = read.map_err(|error| io::Error::other((self.failed)(self.operation, self.object.clone(), error)))?;
        self.left = self.left.map(|left| left - read as u64);
        match self.left {
            Some(0) => {
                // Only a body that was read to its end frees its connection for the next request.
                let _ = self.reader.read(&mut [0]);
                Ok(read)
            }
            Some(left) if read == 0 => {
                let cause = format!("its body ended {left} bytes too early");
                Err(io::Error::other(StoreError::new(self.operation, self.object.clone(), Trouble::Transient, cause)))
            }
            _ => Ok(read),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_content_range_is_read_exactly_or_not_at_all() {
        let read = |value: &'static str| {
            let value = header::HeaderValue::from_static(value);
            content_range(&HeaderMap::from_iter([(header::CONTENT_RANGE, value)]))
        };
        assert_eq!(read("bytes 0-99/1000"), Some((0, 100, 1000)));
        assert_eq!(read("bytes 7-7/8"), Some((7, 1, 8)));
        for odd in [
            "bytes */1000",
            "bytes 0-99/*",
            "bytes 9-7/1000",
            "bytes 0-18446744073709551615/1",
            "bytes 0-18446744073709551616/1",
            "items 0-9/10",
            "bytes=0-9/10",
            "",
        ] {
            assert_eq!(read(odd), None, "{odd}");
        }
        assert_eq!(content_range(&HeaderMap::new()), None);
    }

    #[test]
    fn a_range_is_within_an_object_whole_or_not_at_all() {
        let at = |offset, bytes| Range::At { offset, bytes };
        for (range, size, found) in [
            (Range::From(0), 0, Some((0, 0))),
            (Range::From(4), 10, Some((4, 6))),
            (Range::From(10), 10, None),
            (at(4, 6), 10, Some((4, 6))),
            (at(4, 7), 10, None),
            (at(u64::MAX, 2), 10, None),
            (Range::Last(4), 10, Some((6, 4))),
            (Range::Last(11), 10, Some((0, 10))),
            (Range::Last(1), 0, Some((0, 0))),
        ] {
            assert_eq!(range.within(size), found, "{range:?} of {size}");
        }
    }

    #[test]
    fn versions_differ_where_size_or_etag_do_and_without_etags_where_the_time_does() {
        let version = |bytes, etag: &str, modified: &str| Version {
            bytes: Some(bytes),
            etag: (!etag.is_empty()).then(|| etag.into()),
            modified: (!modified.is_empty()).then(|| modified.into()),
        };
        let first = version(10, "\"a\"", "Mon");
        for (other, same) in [
            (version(10, "\"a\"", "Mon"), true),
            (version(10, "\"a\"", "Tue"), true),
            (version(10, "", ""), true),
            (version(11, "\"a\"", "Mon"), false),
            (version(10, "\"b\"", "Mon"), false),
            (version(10, "", "Tue"), false),
        ] {
            assert_eq!(first.may_be(&other), same, "{other:?}");
        }
        assert_eq!(first.if_match(), Some("\"a\""));
        assert_eq!(version(10, "W/\"a\"", "").if_match(), None);
    }
}
