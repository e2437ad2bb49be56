//! Parts of objects: the right bytes or an error, from a directory, a bucket, nginx, and an origin that errs or lies.

use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use compact_local::store::http::HttpStore;
use compact_local::store::local::LocalStore;
use compact_local::store::s3::S3Store;
use compact_local::store::{
    Network, ObjectStore, Part, Patience, Range, RangeOptions, Result, StoreError, Trouble, Version,
};

use crate::nginx::nginx;
use crate::origin::{Origin, Step, ok, redirect, status};
use crate::s3;
use crate::store_conformance::trouble;

const BYTES: &[u8] = b"0123456789abcdefghij";

fn at(offset: u64, bytes: u64) -> Range {
    Range::At { offset, bytes }
}

fn open(store: &dyn ObjectStore, range: Range) -> Result<Part> {
    store.get_range("a", range, RangeOptions::default())
}

fn again(store: &dyn ObjectStore, range: Range, version: &Version) -> Result<Part> {
    store.get_range("a", range, RangeOptions { expected: Some(version), fresh: false })
}

/// Where the part begins, and all of it; or what is wrong with it, when it is asked for or when it is read.
fn read(part: Result<Part>) -> Result<(u64, Vec<u8>)> {
    let mut part = part?;
    let mut bytes = Vec::new();
    match part.body.read_to_end(&mut bytes) {
        Ok(_) => Ok((part.offset, bytes)),
        Err(error) => Err(*error.into_inner().unwrap().downcast::<StoreError>().unwrap()),
    }
}

/// A store of each kind, over a directory in which a test can do what it likes.
struct Place {
    store: Arc<dyn ObjectStore>,
    root: PathBuf,
    _keep: Box<dyn std::any::Any>,
}

impl Place {
    fn write(&self, bytes: &[u8]) {
        // As tools do it: the new file has another inode, also where the clock has not moved on.
        std::fs::write(self.root.join("new"), bytes).unwrap();
        std::fs::rename(self.root.join("new"), self.root.join("a")).unwrap();
    }
}

fn places() -> [Place; 3] {
    let directory = tempfile::tempdir().unwrap();
    let (server, nginx) = (s3::server(), nginx());
    server.bucket("shards");
    [
        Place {
            store: Arc::new(LocalStore::new(directory.path(), "")),
            root: directory.path().to_owned(),
            _keep: Box::new(directory),
        },
        Place {
            store: Arc::new(S3Store::new("shards", "", &server.settings(), 2).unwrap()),
            root: server.root.path().join("shards"),
            _keep: Box::new(server),
        },
        Place {
            store: Arc::new(HttpStore::new(&nginx.url, &Network::default(), 2, Patience::default())),
            root: nginx.root.clone(),
            _keep: Box::new(nginx),
        },
    ]
}

#[test]
fn every_store_gives_the_part_that_is_asked_for() {
    for place in places() {
        place.write(BYTES);
        for (range, offset, bytes) in [
            (Range::From(0), 0, BYTES),
            (Range::From(18), 18, b"ij"),
            (at(0, 1), 0, b"0"),
            (at(5, 6), 5, b"56789a"),
            (at(19, 1), 19, b"j"),
            (at(0, 20), 0, BYTES),
            (Range::Last(3), 17, b"hij"),
            (Range::Last(20), 0, BYTES),
        ] {
            let part = open(&*place.store, range).unwrap();
            assert_eq!(part.version.bytes, Some(20), "{range:?} of {}", place.store.base());
            assert_eq!(read(Ok(part)).unwrap(), (offset, bytes.to_vec()), "{range:?} of {}", place.store.base());
        }
    }
}

#[test]
fn every_store_says_that_bytes_are_not_there() {
    for place in places() {
        place.write(BYTES);
        for range in [at(20, 1), at(15, 6), at(u64::MAX - 1, 2), Range::From(20), Range::From(1000)] {
            let error = read(open(&*place.store, range)).unwrap_err();
            assert_eq!(error.trouble, Trouble::Gone, "{range:?}: {error}");
        }
        place.write(b"");
        assert_eq!(read(open(&*place.store, Range::From(0))).unwrap(), (0, vec![]), "{}", place.store.base());
        std::fs::remove_file(place.root.join("a")).unwrap();
        for range in [Range::From(0), at(0, 1), Range::Last(9)] {
            assert_eq!(trouble(open(&*place.store, range)), Trouble::Gone, "{range:?} of {}", place.store.base());
        }
    }
}

/// Not asked of the S3 server, whose code for it is at fault: it answers 500.
#[test]
fn the_last_bytes_are_all_there_are_where_there_are_fewer() {
    for place in places().iter().filter(|place| !place.store.base().starts_with("s3://")) {
        place.write(BYTES);
        assert_eq!(read(open(&*place.store, Range::Last(1000))).unwrap(), (0, BYTES.to_vec()));
        place.write(b"");
        assert_eq!(read(open(&*place.store, Range::Last(9))).unwrap(), (0, vec![]), "{}", place.store.base());
    }
}

#[test]
fn every_store_tells_when_the_object_was_replaced_between_two_parts() {
    for place in places() {
        place.write(BYTES);
        let version = open(&*place.store, Range::Last(3)).unwrap().version;
        assert_eq!(read(again(&*place.store, at(0, 2), &version)).unwrap(), (0, b"01".to_vec()));
        let other: Vec<u8> = BYTES.iter().rev().copied().collect();
        place.write(&other);
        // nginx's ETag is made of size and second: nothing tells this file from the one before, unless it is older.
        let before = std::time::SystemTime::now() - Duration::from_secs(3600);
        std::fs::File::options().write(true).open(place.root.join("a")).unwrap().set_modified(before).unwrap();
        let error = again(&*place.store, at(0, 2), &version).unwrap_err();
        assert_eq!(error.trouble, Trouble::Conflict, "{error}");
        assert!(error.to_string().contains("replaced while it was being read"), "{error}");
    }
}

fn store(origin: &Origin) -> HttpStore {
    HttpStore::new(&origin.url, &Network::default(), 2, Patience::default())
}

/// The answer to a range, with headers of a test's making.
fn partial(content_range: &str, body: &[u8]) -> Step {
    let headers = if content_range.is_empty() { vec![] } else { vec![("content-range", content_range.to_owned())] };
    Step::Answer(206, headers, body.to_vec())
}

fn answered(range: Range, step: Step) -> Result<(u64, Vec<u8>)> {
    let origin = Origin::start();
    origin.on("/a", [step]);
    read(open(&store(&origin), range))
}

#[test]
fn an_answer_that_is_not_the_part_that_was_asked_for_is_an_error() {
    for (content_range, body) in [
        ("", &b"56789"[..]),
        ("bytes 4-8/20", b"45678"),
        ("bytes 5-8/20", b"5678"),
        ("bytes 5-9/8", b"56789"),
        ("bytes 5-9/*", b"56789"),
        ("bytes 5-9/20", b"567"),
        ("bytes 5-9/20", b"56789a"),
    ] {
        let error = answered(at(5, 5), partial(content_range, body)).unwrap_err();
        assert_eq!(error.trouble, Trouble::Gone, "{content_range}");
        assert!(error.to_string().contains("another part than it was asked for"), "{error}");
    }
    assert_eq!(answered(at(5, 5), partial("bytes 5-9/20", b"56789")).unwrap(), (5, b"56789".to_vec()));
    let multipart = Step::Answer(206, vec![("content-type", "multipart/byteranges; boundary=x".into())], b"--x".into());
    assert_eq!(trouble(answered(at(5, 5), multipart)), Trouble::Gone);
    // The last three of a larger object are not those of this one.
    assert_eq!(trouble(answered(Range::Last(3), partial("bytes 16-18/20", b"ghi"))), Trouble::Gone);
}

#[test]
fn a_server_that_ignores_the_range_is_found_out_and_nothing_is_mixed_up() {
    for range in [at(5, 5), Range::Last(3), Range::From(7)] {
        assert_eq!(answered(range, ok(BYTES)).unwrap(), (0, BYTES.to_vec()), "{range:?}");
    }
}

#[test]
fn a_refusal_of_a_range_says_what_it_means() {
    let error = answered(at(5, 5), status(416)).unwrap_err();
    assert_eq!(error.trouble, Trouble::Gone);
    assert!(error.to_string().contains("416") && error.to_string().contains("shorter than it was"), "{error}");
    assert_eq!(trouble(answered(at(5, 5), status(412))), Trouble::Conflict);
    assert_eq!(trouble(answered(at(5, 5), status(503))), Trouble::Throttled(None));
    assert_eq!(trouble(answered(at(5, 5), status(204))), Trouble::Gone);
}

#[test]
fn a_part_that_is_cut_short_is_an_error() {
    let head = "HTTP/1.1 206 Partial\r\ncontent-range: bytes 5-9/20\r\n";
    for rest in [
        "content-length: 5\r\n\r\n567",
        "transfer-encoding: chunked\r\n\r\n3\r\n567\r\n",
        "transfer-encoding: chunked\r\n\r\n3\r\n567\r\n0\r\n\r\n",
        "connection: close\r\n\r\n567",
    ] {
        let error = answered(at(5, 5), Step::Raw([head, rest].concat().into())).unwrap_err();
        assert_eq!(error.trouble, Trouble::Transient, "{rest}: {error}");
    }
}

#[test]
fn an_etag_is_asked_for_again_and_compared_too_as_not_every_server_does_it() {
    let origin = Origin::start();
    let tagged = |etag: &str, body: &str| {
        let headers = vec![("content-range", "bytes 5-9/20".into()), ("etag", etag.into())];
        Step::Answer(206, headers, body.into())
    };
    origin.on("/a", [tagged("\"one\"", "56789"), tagged("\"one\"", "56789"), tagged("\"two\"", "abcde")]);
    let store = store(&origin);
    let version = open(&store, at(5, 5)).unwrap().version;
    assert_eq!(read(again(&store, at(5, 5), &version)).unwrap().1, b"56789");
    assert_eq!(trouble(again(&store, at(5, 5), &version)), Trouble::Conflict);
    let requests = origin.requests();
    assert_eq!((requests[0].headers.get("if-match"), &*requests[1].headers["if-match"]), (None, "\"one\""));
    // One that is weak matches nothing, so it is not asked for.
    let weak = Version { etag: Some("W/\"one\"".into()), ..version };
    assert_eq!(trouble(again(&store, at(5, 5), &weak)), Trouble::Conflict);
    assert_eq!(origin.requests()[3].headers.get("if-match"), None);
}

#[test]
fn a_redirect_takes_the_range_along() {
    let (origin, other) = (Origin::start(), Origin::start());
    other.on("/b", [partial("bytes 5-9/20", b"56789")]);
    origin.on("/a", [redirect(&format!("{}/b", other.url))]);
    assert_eq!(read(open(&store(&origin), at(5, 5))).unwrap(), (5, b"56789".to_vec()));
    assert_eq!(other.requests()[0].headers["range"], "bytes=5-9");
}

#[test]
fn parts_that_are_read_to_their_end_take_one_connection() {
    let origin = Origin::start();
    origin.on("/a", [partial("bytes 5-9/20", b"56789")]);
    let store = store(&origin);
    for _ in 0..20 {
        let mut five = [0; 5];
        open(&store, at(5, 5)).unwrap().body.read_exact(&mut five).unwrap();
    }
    assert_eq!(origin.connections(), 1);
}
