//! Reading microshards from many origins with many threads: connections, the shared throttle, the tally.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use compact_local::store::{Bounds, GetOptions, Patience, Reader, Result, Sources, StoreSettings, Tally, Trouble};

use crate::origin::{Origin, Step, ok, status};
use crate::s3;
use crate::store_conformance::{ANY, put, trouble};

fn sources(in_flight_max: usize) -> Arc<Sources> {
    Sources::new(s3::settings("http://127.0.0.1:1"), bounds(in_flight_max))
}

pub(crate) fn bounds(in_flight: usize) -> Bounds {
    Bounds { in_flight, per_second: None, pause: Duration::from_secs(300), wait: Duration::from_secs(3) }
}

fn in_flight(tally: &Tally) -> usize {
    tally.load.as_ref().map_or(0, |load| load.in_flight)
}

fn get(reader: &mut Reader, uri: &str) -> Result<Vec<u8>> {
    let mut body = Vec::new();
    reader.get(uri, &mut body, ANY).map(|()| body)
}

#[test]
fn one_reader_reads_from_a_directory_an_http_origin_and_a_bucket() {
    let (directory, origin, server) = (tempfile::tempdir().unwrap(), Origin::start(), s3::server());
    fs::write(directory.path().join("a b"), "from the directory").unwrap();
    origin.on("/a%20b", [ok("from the origin")]);
    let store =
        compact_local::store::open(&format!("s3://{}", server.bucket("inputs")), &server.settings(), "q").unwrap();
    put(&*store, "a b", b"from the bucket").unwrap();
    let sources = Sources::new(server.settings(), bounds(8));
    let mut reader = sources.reader();
    for (uri, body) in [
        (format!("{}/a b", directory.path().display()), "from the directory"),
        (format!("{}/a b", origin.url), "from the origin"),
        ("s3://inputs/a b".to_owned(), "from the bucket"),
    ] {
        assert_eq!(get(&mut reader, &uri).unwrap(), body.as_bytes());
        assert_eq!(sources.tally(&uri).unwrap().ok, 1, "{uri}");
    }
    assert_eq!(sources.tallies().len(), 3);
}

/// FIELD: 56,460 sockets in CLOSE_WAIT. One kept-alive connection per fetcher is enough, and new ones are counted.
#[test]
fn each_reader_keeps_one_connection() {
    const READERS: usize = 8;
    let origin = Origin::start();
    origin.on("/a", [ok("rows")]);
    let (sources, uri) = (sources(READERS), format!("{}/a", origin.url));
    std::thread::scope(|scope| {
        for _ in 0..READERS {
            scope.spawn(|| {
                let mut reader = sources.reader();
                for _ in 0..1000 {
                    get(&mut reader, &uri).unwrap();
                }
            });
        }
    });
    assert_eq!((origin.connections(), sources.connections()), (READERS, READERS as u64));
    assert_eq!(sources.tally(&uri).unwrap().ok, 8000);
}

#[test]
fn a_plea_for_less_lowers_the_limit_for_everyone_and_growth_goes_on_after_it() {
    let origin = Origin::start();
    origin.on("/busy", [status(503)]).on("/a", [ok("rows")]);
    let (sources, busy, fine) = (sources(64), format!("{}/busy", origin.url), format!("{}/a", origin.url));
    let mut reader = sources.reader();
    assert_eq!(trouble(get(&mut reader, &busy)), Trouble::Throttled(None));
    let tally = sources.tally(&fine).unwrap();
    assert_eq!((in_flight(&tally), tally.throttled), (8, 1));
    for _ in 0..8 {
        get(&mut reader, &fine).unwrap();
    }
    assert_eq!(in_flight(&sources.tally(&fine).unwrap()), 16);
}

#[test]
fn an_origin_that_is_left_alone_keeps_no_more_than_half_of_the_readers_from_another() {
    let (paused, other) = (Origin::start(), Origin::start());
    let busy = Step::Answer(503, vec![("retry-after", "2".into())], vec![]);
    paused.on("/a", [busy, ok("rows")]);
    other.on("/a", [ok("rows")]);
    let (sources, uri) = (sources(2), |origin: &Origin| format!("{}/a", origin.url));
    get(&mut sources.reader(), &uri(&other)).unwrap();
    get(&mut sources.reader(), &uri(&paused)).unwrap_err();
    let ask = || get(&mut sources.reader(), &uri(&paused)).map_err(|error| error.trouble);
    let both = std::thread::scope(|scope| [scope.spawn(ask), scope.spawn(ask)].map(|thread| thread.join().unwrap()));
    let turned_away = both.iter().filter(|got| matches!(got, Err(Trouble::Paused(_)))).count();
    assert!(turned_away == 1 && both.iter().filter(|got| got.is_ok()).count() == 1, "{both:?}");
}

#[test]
fn a_missing_object_is_no_reason_to_slow_down() {
    let origin = Origin::start();
    let (sources, uri) = (sources(32), format!("{}/missing", origin.url));
    let mut reader = sources.reader();
    for _ in 0..16 {
        assert_eq!(trouble(get(&mut reader, &uri)), Trouble::Gone);
    }
    let tally = sources.tally(&uri).unwrap();
    assert_eq!((tally.gone, in_flight(&tally)), (16, 32));
}

#[test]
fn the_tally_tells_one_denied_object_from_an_origin_that_denies_all() {
    let (fine, closed) = (Origin::start(), Origin::start());
    fine.on("/a", [ok("rows")]).on("/private", [status(403)]);
    closed.on("/a", [status(403)]);
    let sources = sources(8);
    let mut reader = sources.reader();
    for _ in 0..9 {
        get(&mut reader, &format!("{}/a", fine.url)).unwrap();
        assert_eq!(trouble(get(&mut reader, &format!("{}/a", closed.url))), Trouble::Denied);
    }
    assert_eq!(trouble(get(&mut reader, &format!("{}/private", fine.url))), Trouble::Denied);
    let tally = |origin: &Origin| sources.tally(&format!("{}/any", origin.url)).unwrap();
    assert_eq!((tally(&fine).ok, tally(&fine).denied), (9, 1));
    assert_eq!((tally(&closed).ok, tally(&closed).denied), (0, 9));
}

#[test]
fn an_origin_is_unreachable_from_its_first_refusal_until_it_answers_anything() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let (sources, uri) = (sources(8), format!("http://{address}/a"));
    let mut reader = sources.reader();
    assert_eq!(trouble(get(&mut reader, &uri)), Trouble::Unreachable);
    let since = sources.tally(&uri).unwrap().unreachable_since.unwrap();
    assert_eq!(trouble(get(&mut reader, &uri)), Trouble::Unreachable);
    assert_eq!(sources.tally(&uri).unwrap().unreachable_since, Some(since));
    let origin = Origin::at(address);
    assert_eq!(trouble(get(&mut reader, &uri)), Trouble::Gone);
    assert_eq!(sources.tally(&uri).unwrap().unreachable_since, None);
    drop(origin);
}

#[test]
fn settings_that_cannot_work_are_kept_in_the_tally() {
    let origin = Origin::start();
    let refused = b"<Error><Code>InvalidAccessKeyId</Code></Error>".to_vec();
    origin.on("/b/a", [Step::Answer(403, vec![], refused)]);
    let sources = Sources::new(s3::settings(&origin.url), bounds(8));
    assert_eq!(trouble(get(&mut sources.reader(), "s3://b/a")), Trouble::Misconfigured);
    let why = sources.tally("s3://b/other").unwrap().misconfigured.unwrap();
    assert!(why.contains("InvalidAccessKeyId"), "{why}");
}

#[test]
fn a_stalled_download_gives_its_permit_back() {
    let origin = Origin::start();
    origin.on("/a", [Step::StallIn { announced: 9, body: b"row".to_vec() }, ok("rows")]);
    let patience = Patience { read: Duration::from_secs(1), ..Patience::default() };
    let settings = StoreSettings { patience, ..s3::settings("http://127.0.0.1:1") };
    let (sources, uri) = (Sources::new(settings, bounds(1)), format!("{}/a", origin.url));
    assert_eq!(trouble(get(&mut sources.reader(), &uri)), Trouble::TimedOut);
    assert_eq!(get(&mut sources.reader(), &uri).unwrap(), b"rows");
    let fresh = GetOptions { fresh: true, ..ANY };
    sources.reader().get(&uri, &mut Vec::new(), fresh).unwrap();
}

#[test]
fn a_relative_uri_and_a_bad_one_reach_no_origin() {
    let sources = sources(8);
    assert_eq!(trouble(get(&mut sources.reader(), "en/a.jsonl")), Trouble::Misconfigured);
    assert_eq!(trouble(get(&mut sources.reader(), "odd://x/y")), Trouble::Gone);
    assert!(sources.tallies().is_empty());
}
