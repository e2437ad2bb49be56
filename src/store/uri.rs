//! Names of objects: what `--output`, `--source` and the manifest's uris mean. Nothing is opened here.
//! A relative uri never leaves its base, nothing is percent-encoded twice, and what is printed of a uri has neither
//! its userinfo nor its query: both may be secrets (a presigned url is a password).

use std::fmt;
use std::path::{Component, Path, PathBuf};

use ureq::http::uri::Authority;

use super::{Result, StoreError, Trouble};
use crate::shown::shown_uri;

/// A base for objects: `--output`, `--source`.
#[derive(Clone, PartialEq, Eq)]
pub enum Location {
    /// A directory, absolute.
    Directory(PathBuf),
    /// `https://host/path`, without a final slash; may hold userinfo.
    Http(String),
    /// A bucket and a prefix without slashes at its ends, maybe empty.
    S3 {
        /// The bucket.
        bucket: String,
        /// The prefix.
        prefix: String,
    },
}

impl Location {
    /// Reads a directory (`/data`, `in`, `file:///data`), `http(s)://host/path` or `s3://bucket/prefix`.
    pub fn parse(text: &str) -> Result<Location> {
        let bad = |cause: String| StoreError::new("open", shown_uri(text), Trouble::Misconfigured, cause);
        if text.is_empty() {
            return Err(bad("the location is empty: give a directory, s3://bucket/prefix or https://host/path".into()));
        }
        refuse_control_characters(text).map_err(bad)?;
        match split_scheme(text) {
            None => directory(Path::new(text)).map_err(bad),
            Some(("file", rest)) => directory(Path::new(&file_path(rest).map_err(bad)?)).map_err(bad),
            Some((scheme @ ("http" | "https"), rest)) => {
                let (origin, path) = split_authority(scheme, rest).map_err(bad)?;
                if path.contains(['?', '#']) {
                    return Err(bad("a base has no query: give the uris in full".into()));
                }
                let path = encode(path.trim_matches('/'), LEGAL_IN_PATH);
                refuse_encoded_dot_segments(&path).map_err(bad)?;
                Ok(Location::Http(if path.is_empty() { origin } else { format!("{origin}/{path}") }))
            }
            Some(("s3", rest)) => {
                let (bucket, prefix) = split_bucket(rest).map_err(bad)?;
                let prefix = prefix.trim_matches('/');
                refuse_dot_segments(prefix).map_err(bad)?;
                Ok(Location::S3 { bucket: bucket.into(), prefix: prefix.into() })
            }
            Some((scheme, _)) => Err(bad(unknown_scheme(scheme))),
        }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Location::Directory(path) => write!(f, "{}", path.display()),
            Location::Http(base) => f.write_str(&shown_uri(base)),
            Location::S3 { bucket, prefix } if prefix.is_empty() => write!(f, "s3://{bucket}"),
            Location::S3 { bucket, prefix } => write!(f, "s3://{bucket}/{prefix}"),
        }
    }
}

impl fmt::Debug for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Whom an object is asked of: what shares connections, a concurrency limit and a tally.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum Origin {
    /// A directory tree, absolute.
    Directory(PathBuf),
    /// `https://host:port`; may hold userinfo.
    Http(String),
    /// A bucket.
    S3(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Directory(path) => write!(f, "{}", path.display()),
            Origin::Http(base) => f.write_str(&shown_uri(base)),
            Origin::S3(bucket) => write!(f, "s3://{bucket}"),
        }
    }
}

impl fmt::Debug for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// One object's name, resolved.
#[derive(Clone, PartialEq, Eq)]
pub struct ObjectUri {
    /// Whom to ask.
    pub origin: Origin,
    /// What to ask for: a path in the directory or a key in the bucket, literally; of an http origin the path and query,
    /// percent-encoded.
    pub key: String,
}

impl ObjectUri {
    /// Resolves a uri of the manifest, absolute or relative to `base`.
    pub fn resolve(uri: &str, base: Option<&Location>) -> Result<ObjectUri> {
        let refused = |trouble, cause: String| StoreError::new("resolve", shown_uri(uri), trouble, cause);
        let bad = |cause: String| refused(Trouble::Gone, cause);
        if uri.is_empty() {
            return Err(bad("the uri is empty".into()));
        }
        refuse_control_characters(uri).map_err(bad)?;
        match (split_scheme(uri), base) {
            (Some((scheme, rest)), _) => absolute(scheme, rest).map_err(bad),
            (None, _) if uri.starts_with('/') => rooted(uri).map_err(bad),
            (None, Some(base)) => relative(uri, base).map_err(bad),
            (None, None) => Err(refused(
                Trouble::Misconfigured,
                "the uri is relative: give --source, what it is relative to".into(),
            )),
        }
    }

    /// The uri in full: resolving it again, without a base, gives the same. Not for printing: it may hold a secret.
    pub fn absolute(&self) -> String {
        match &self.origin {
            Origin::Directory(root) => root.join(&self.key).to_string_lossy().into_owned(),
            Origin::Http(origin) => format!("{origin}/{}", self.key),
            Origin::S3(bucket) => format!("s3://{bucket}/{}", self.key),
        }
    }
}

impl fmt::Display for ObjectUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&shown_uri(&self.absolute()))
    }
}

impl fmt::Debug for ObjectUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn absolute(scheme: &str, rest: &str) -> std::result::Result<ObjectUri, String> {
    match scheme {
        "file" => rooted(&file_path(rest)?),
        "http" | "https" => {
            let (origin, path) = split_authority(scheme, rest)?;
            Ok(ObjectUri {
                origin: Origin::Http(origin),
                key: http_key(path.strip_prefix('/').unwrap_or(path), LEGAL_IN_PATH)?,
            })
        }
        "s3" => {
            let (bucket, key) = split_bucket(rest)?;
            refuse_dot_segments(key)?;
            Ok(ObjectUri { origin: Origin::S3(bucket.into()), key: named(key)?.into() })
        }
        _ => Err(unknown_scheme(scheme)),
    }
}

fn rooted(path: &str) -> std::result::Result<ObjectUri, String> {
    refuse_dot_segments(path)?;
    Ok(ObjectUri { origin: Origin::Directory("/".into()), key: named(path.trim_start_matches('/'))?.into() })
}

fn relative(uri: &str, base: &Location) -> std::result::Result<ObjectUri, String> {
    // `./en/a.jsonl` is what `find` prints.
    let mut name = uri;
    while let Some(rest) = name.strip_prefix("./") {
        name = rest.trim_start_matches('/');
    }
    refuse_dot_segments(name)?;
    named(name)?;
    Ok(match base {
        Location::Directory(root) => ObjectUri { origin: Origin::Directory(root.clone()), key: name.into() },
        Location::S3 { bucket, prefix } => ObjectUri { origin: Origin::S3(bucket.clone()), key: join(prefix, name) },
        Location::Http(base) => {
            let (scheme, rest) = split_scheme(base).ok_or("the base has no scheme")?;
            let (origin, path) = split_authority(scheme, rest)?;
            // A name, not a url, wrote this: `+` and its like are meant literally, and S3 reads a bare one as a space.
            let key = http_key(name, UNRESERVED)?;
            ObjectUri { origin: Origin::Http(origin), key: join(path.trim_matches('/'), &key) }
        }
    })
}

/// `prefix/name`, or `name` where the prefix is empty.
pub(super) fn join(prefix: &str, name: &str) -> String {
    if prefix.is_empty() { name.into() } else { format!("{prefix}/{name}") }
}

const UNRESERVED: &[u8] = b"-._~/";
const LEGAL_IN_PATH: &[u8] = b"-._~/!$&'()*+,;=:@";
const LEGAL_IN_QUERY: &[u8] = b"-._~/!$&'()*+,;=:@?";

/// Percent-encodes what is neither a letter, a digit nor `legal`; a valid `%XX` is kept, so nothing is encoded twice.
fn encode(text: &str, legal: &[u8]) -> String {
    let bytes = text.as_bytes();
    let is_hex = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_hexdigit);
    let mut encoded = String::with_capacity(text.len());
    for (at, &byte) in bytes.iter().enumerate() {
        let kept =
            byte.is_ascii_alphanumeric() || legal.contains(&byte) || (byte == b'%' && is_hex(at + 1) && is_hex(at + 2));
        if kept {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

/// A fragment is never sent to a server, so a `#` can only be part of a name.
fn http_key(text: &str, legal: &[u8]) -> std::result::Result<String, String> {
    let (path, query) = text.split_once('?').map_or((text, None), |(path, query)| (path, Some(query)));
    let path = encode(named(path)?, legal);
    refuse_encoded_dot_segments(&path)?;
    Ok(match query {
        Some(query) => format!("{path}?{}", encode(query, LEGAL_IN_QUERY)),
        None => path,
    })
}

fn split_scheme(text: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = text.split_once("://")?;
    let is_scheme = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b));
    is_scheme.then_some((scheme, rest))
}

/// `https://host:port` (the host in lower case) and what follows it.
fn split_authority<'a>(scheme: &str, rest: &'a str) -> std::result::Result<(String, &'a str), String> {
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let (userinfo, host) = authority.rsplit_once('@').map_or((None, authority), |(user, host)| (Some(user), host));
    let host = host.to_ascii_lowercase();
    let valid: std::result::Result<Authority, _> = host.parse();
    if host.is_empty() || host.starts_with(':') || valid.is_err() {
        return Err("its host is not valid".into());
    }
    // An IPv6 address has colons of its own, in brackets.
    let port = host.rsplit_once(':').map(|(_, port)| port).filter(|port| !port.contains(']'));
    if port.is_some_and(|port| !matches!(port.parse::<u16>(), Ok(1..))) {
        return Err(
            "its port is not a number from 1 to 65535; a `/`, `?` or `#` in a password must be percent-encoded".into(),
        );
    }
    Ok(match userinfo {
        Some(userinfo) => (format!("{scheme}://{userinfo}@{host}"), path),
        None => (format!("{scheme}://{host}"), path),
    })
}

fn split_bucket(rest: &str) -> std::result::Result<(&str, &str), String> {
    let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
    if bucket.is_empty() || !bucket.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b)) {
        return Err("its bucket's name is not valid: write s3://bucket/key".into());
    }
    Ok((bucket, key))
}

/// The path of `file:///path` or `file://localhost/path`.
fn file_path(rest: &str) -> std::result::Result<String, String> {
    let path = rest.strip_prefix("localhost").unwrap_or(rest);
    if !path.starts_with('/') {
        return Err("a file uri names a path of this machine: file:///path".into());
    }
    let decoded = percent_encoding::percent_decode_str(path).decode_utf8().map_err(|_| "its path is not UTF-8")?;
    refuse_control_characters(&decoded)?;
    Ok(decoded.into())
}

fn directory(path: &Path) -> std::result::Result<Location, String> {
    without_dots(path).map(Location::Directory).map_err(|error| error.to_string())
}

/// The absolute path without `..`, which uris of objects must not hold. What it means depends on links, so the disk is
/// asked about all that comes before it.
pub fn without_dots(path: &Path) -> std::io::Result<PathBuf> {
    let mut path = std::path::absolute(path)?;
    if path.as_os_str().as_encoded_bytes().starts_with(b"//") {
        // The same as one slash, but it would be another name.
        path = path.components().collect();
    }
    let parts: Vec<_> = path.components().collect();
    let Some(last) = parts.iter().rposition(|part| *part == Component::ParentDir) else { return Ok(path) };
    let (above, below) = parts.split_at(last + 1);
    let above = std::fs::canonicalize(above.iter().collect::<PathBuf>())?;
    Ok(below.iter().fold(above, |path, part| path.join(part)))
}

fn named(key: &str) -> std::result::Result<&str, String> {
    if key.is_empty() { Err("it names no object".into()) } else { Ok(key) }
}

/// Clients and servers resolve these segments: the object asked for would be another one, maybe outside the base.
pub(super) fn refuse_dot_segments(key: &str) -> std::result::Result<(), String> {
    match key.split('/').find(|segment| matches!(*segment, "." | "..")) {
        Some(segment) => Err(format!("its path has the segment `{segment}`, which could lead out of its base")),
        None => Ok(()),
    }
}

/// Of an http path an encoded dot is a dot.
fn refuse_encoded_dot_segments(path: &str) -> std::result::Result<(), String> {
    refuse_dot_segments(&percent_encoding::percent_decode_str(path).decode_utf8_lossy())
}

fn refuse_control_characters(text: &str) -> std::result::Result<(), String> {
    match text.chars().find(|c| c.is_control()) {
        Some(c) => Err(format!("it holds the control character {}", c.escape_default())),
        None => Ok(()),
    }
}

fn unknown_scheme(scheme: &str) -> String {
    format!("the scheme `{scheme}` is not known: use a path, file://, http://, https:// or s3://")
}
