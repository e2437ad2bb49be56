//! Origins that misbehave, in one run of the real binary: each object is answered in a way of its own, and ends either in
//! the shard or among the failures, with a sentence. Then what takes short times to be seen: the deadlines.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, SystemTime};

use compact_local::compact::Ended;
use compact_local::monitor::Event;
use compact_local::store::http::HttpStore;
use compact_local::store::{Network, Patience, StoreError, Trouble};

use crate::faults::{ROW, World as InProcess};
use crate::origin::{Origin, Step, announcing, ok, redirect, status};
use crate::store_conformance::get;
use crate::world::{World, sha256};

/// What one object's origin does, and the beginning of how it ends: nothing where it is consumed.
struct Case {
    name: &'static str,
    steps: Vec<Step>,
    /// The manifest knows its size and sum.
    known: bool,
    fails: &'static str,
}

fn good(name: &'static str, steps: impl Into<Vec<Step>>) -> Case {
    Case { name, steps: steps.into(), known: true, fails: "" }
}

fn bad(name: &'static str, steps: impl Into<Vec<Step>>, fails: &'static str) -> Case {
    Case { fails, ..good(name, steps) }
}

fn with(name: &'static str, value: impl Into<String>, status: u16, body: impl Into<Vec<u8>>) -> Step {
    Step::Answer(status, vec![(name, value.into())], body.into())
}

fn raw(head: &str, body: &str) -> Step {
    Step::Raw(format!("HTTP/{head}\r\n\r\n{body}").into())
}

fn cases() -> Vec<Case> {
    let half = &ROW[..ROW.len() / 2];
    let chunk = |text: &str| format!("{:x}\r\n{text}\r\n", text.len());
    let chunked = "1.1 200 OK\r\ntransfer-encoding: chunked";
    let zipped = || {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(ROW.as_bytes()).unwrap();
        with("content-encoding", "gzip", 200, encoder.finish().unwrap())
    };
    let refusal = "<?xml version=\"1.0\"?>\n<Error><Code>SlowDown</Code></Error>";
    let past = httpdate::fmt_http_date(SystemTime::UNIX_EPOCH);
    let wrong = || ok("{\"a\":2}\n");
    let mut cases = vec![
        good("http-1.0", [raw(&format!("1.0 200 OK\r\ncontent-length: {}", ROW.len()), ROW)]),
        good("http-1.0-without-length", [raw("1.0 200 OK", ROW)]),
        good("chunked", [raw(chunked, &format!("{}{}0\r\n\r\n", chunk(half), chunk(&ROW[half.len()..])))]),
        good("chunked-cut", [raw(chunked, &chunk(half)), ok(ROW)]),
        good("closed-after-the-answer", [with("connection", "close", 200, ROW)]),
        good("unannounced-and-cut", [Step::Unannounced(half.into()), ok(ROW)]),
        good("short", [Step::Short { announced: ROW.len(), body: half.into() }, ok(ROW)]),
        good("reset", [Step::Reset, ok(ROW)]),
        good("no-answer", [Step::Raw(vec![]), ok(ROW)]),
        good("no-http", [Step::Raw(b"SSH-2.0-OpenSSH\r\n\r\n".to_vec()), ok(ROW)]),
        good("500", [status(500), ok(ROW)]),
        good("408", [status(408), ok(ROW)]),
        good("429-in-words", [with("retry-after", "soon", 429, ""), ok(ROW)]),
        good("503-past", [with("retry-after", past, 503, ""), ok(ROW)]),
        good("503-no-number", [with("retry-after", "9".repeat(40), 503, ""), ok(ROW)]),
        good("wrong-once", [wrong(), ok(ROW)]),
        bad("wrong-always", [wrong()], "has another SHA-256 than the manifest says"),
        bad("too-long", [ok(ROW.repeat(2))], "has 16 bytes, the manifest says 8"),
        good("redirected", [redirect("/there")]),
        bad("redirected-for-ever", [redirect("/for-ever")], "the server redirects again and again"),
        bad("no-content", [status(204)], "the server answered 204"),
        bad("gone", [status(410)], "the server answered 410"),
        good("refusal-as-200-once", [ok(refusal), ok(ROW)]),
        bad("refusal-as-200", [ok(refusal)], "has 58 bytes"),
        bad("encoded-on-the-way", [zipped()], "has 28 bytes"),
        Case { known: false, ..good("encoded-and-size-unknown", [zipped()]) },
        Case { known: false, ..bad("refusal-and-size-unknown", [ok(refusal)], "line 1") },
    ];
    for to in ["ftp://127.0.0.1/a", "gopher://127.0.0.1/a"] {
        cases.push(bad(to, [redirect(to)], "its uri, or the one that the server redirects to, is not valid"));
    }
    // Without a host they are paths at the origin.
    for to in ["file:///etc/passwd", "data:,a", "http://"] {
        cases.push(bad(to, [redirect(to)], "the server answered 404"));
    }
    cases
}

#[test]
fn whatever_an_origin_does_each_object_is_consumed_once_or_fails_with_its_sentence() {
    let (world, origin, cases) = (World::new(), Origin::start(), cases());
    origin.on("/there", [ok(ROW)]).on("/for-ever", [redirect("/for-ever")]);
    let mut listing = "microshard_id,language,uri,segment_count,byte_size,sha256\n".to_owned();
    for (id, case) in cases.iter().enumerate() {
        origin.on(&format!("/{id}"), case.steps.clone());
        let known = if case.known { format!("{},{}", ROW.len(), sha256(ROW.as_bytes())) } else { ",".into() };
        writeln!(listing, "{id},en,{}/{id},1,{known}", origin.url).unwrap();
    }
    std::fs::write(world.path("listing.csv"), listing).unwrap();
    world.ok("snapshot --manifest listing.csv --run-id r --queue q.db");
    world.run("run --queue q.db --output out").ends(3);
    let failures = world.json("failures --json --queue q.db");
    let failed: BTreeMap<_, _> = failures
        .as_array()
        .unwrap()
        .iter()
        .map(|failure| (failure["microshard_id"].as_u64().unwrap(), failure["sentence"].as_str().unwrap()))
        .collect();
    for (id, case) in cases.iter().enumerate() {
        let sentence = failed.get(&(id as u64)).copied().unwrap_or_default();
        let is_right = if case.fails.is_empty() { sentence.is_empty() } else { sentence.contains(case.fails) };
        assert!(is_right, "{}: `{sentence}`, not `{}`", case.name, case.fails);
    }
    let good = cases.iter().filter(|case| case.fails.is_empty()).count();
    let status = world.json("status --json --queue q.db");
    assert_eq!((&status["rows"], &status["microshards"]["consumed"]), (&good.into(), &good.into()), "{status}");
    world.run("verify --queue q.db").ends(3);
}

/// A page of somebody else's, or lengths that are lies: that is the origin's trouble, not that of each microshard.
#[test]
fn an_origin_whose_every_object_is_too_large_stops_the_run_and_fails_no_microshard() {
    let (world, origin) = (World::new(), Origin::start());
    let mut listing = "microshard_id,language,uri,segment_count\n".to_owned();
    for id in 0..40 {
        origin.on(&format!("/{id}"), [Step::Short { announced: 1 << 40, body: ROW.into() }, ok(ROW)]);
        writeln!(listing, "{id},en,{}/{id},1", origin.url).unwrap();
    }
    std::fs::write(world.path("listing.csv"), listing).unwrap();
    world.ok("snapshot --manifest listing.csv --run-id r --queue q.db");
    let stopped = world.run("run --queue q.db --output out").ends(1).stderr;
    assert!(stopped.contains("too large") && stopped.contains("--max-microshard-bytes"), "{stopped}");
    assert_eq!(world.json("status --json --queue q.db")["microshards"]["failed"], 0);
    // Each was asked for once, and is what it should be now.
    world.ok("run --queue q.db --output out");
    assert_eq!(world.json("status --json --queue q.db")["rows"], 40);
}

/// Whoever reads is patient for an hour, but for what a test says.
fn an_hour() -> Patience {
    let hour = Duration::from_secs(3600);
    Patience { connect: hour, read: hour, write: hour, slow: hour }
}

const SHORT: Duration = Duration::from_millis(50);

fn refused(url: &str, patience: Patience) -> StoreError {
    get(&HttpStore::new(url, &Network::default(), 1, patience), "a").unwrap_err()
}

#[test]
fn a_server_that_takes_the_connection_and_says_nothing_to_tls_is_left_after_the_time_to_connect() {
    // The kernel takes it; nobody reads.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let error = refused(&url, Patience { connect: SHORT, ..an_hour() });
    assert_eq!((error.trouble, error.cause.as_str()), (Trouble::Unreachable, "connecting timed out"));
}

#[test]
fn a_server_that_takes_no_connection_is_left_after_the_time_to_connect() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // As many as wait to be accepted; the kernel answers the next one not at all.
    let full: Vec<_> = std::iter::from_fn(|| TcpStream::connect_timeout(&address, SHORT).ok()).take(10_000).collect();
    let error = refused(&format!("http://{address}"), Patience { connect: SHORT, ..an_hour() });
    assert_eq!((error.trouble, error.cause.as_str()), (Trouble::Unreachable, "connecting timed out"));
    drop(full);
}

/// 10,000 bytes at a byte each few milliseconds come whole in a minute; the deadline is three times that of a read.
#[test]
fn an_object_that_trickles_in_is_left_after_its_own_deadline_though_each_byte_is_in_time() {
    let origin = Origin::start();
    origin.on("/a", [Step::Trickle(announcing(10_000, &[b'x'; 10_000]))]);
    let error = refused(&origin.url, Patience { read: Duration::from_millis(100), ..an_hour() });
    assert_eq!((error.trouble, error.cause.as_str()), (Trouble::TimedOut, "its body comes too slowly"));
}

#[test]
fn the_head_of_an_answer_that_trickles_in_is_left_too() {
    let origin = Origin::start();
    let head = format!("HTTP/1.1 200 OK\r\nx-padding: {}\r\ncontent-length: 0\r\n\r\n", "x".repeat(10_000));
    origin.on("/a", [Step::Trickle(head.into())]);
    let short = Duration::from_millis(100);
    let error = refused(&origin.url, Patience { read: short, write: short, ..an_hour() });
    assert_eq!(error.trouble, Trouble::TimedOut, "{error}");
}

#[test]
fn a_retry_after_without_measure_is_cut_to_what_is_honoured_wherever_it_is_met() {
    let in_ten_years = SystemTime::now() + Duration::from_secs(10 * 365 * 86_400);
    for value in [u64::MAX.to_string(), "10000000000".to_owned(), httpdate::fmt_http_date(in_ten_years)] {
        let busy = with("retry-after", value, 503, "");
        // The second time it is met when a doubtful object is asked for anew.
        for steps in [vec![busy.clone(), ok(ROW)], vec![ok("no JSON"), busy, ok(ROW)]] {
            let mut world = InProcess::new();
            world.patience.retry_after_max = Duration::from_millis(100);
            world.snapshot(1);
            world.origin.on("/1", steps);
            assert!(matches!(world.run().expect("runs"), Ended::Done(_)));
            assert_eq!((world.rows(), world.failures()), (1, vec![]));
            let second = Duration::from_secs(1);
            for event in world.monitor.events() {
                assert!(!matches!(event, Event::ShardDeferred { delay, .. } if delay > second), "{event:?}");
            }
        }
    }
}

/// A run ended with an error, each time anew, where its last object answered 500 for two minutes: it was asked for so often
/// that its origin was taken to be lost.
#[test]
fn the_last_objects_of_a_run_fail_alone_however_often_they_are_asked_for_in_vain() {
    let mut world = InProcess::new();
    world.snapshot(10);
    world.origin.on("/3", [status(500)]).on("/4", [Step::Reset]).on("/5", [status(302)]);
    world.patience.object_min = world.patience.origin_max * 4;
    let Ended::Done(total) = world.run().expect("runs") else { panic!("done") };
    assert_eq!((total.rows, total.microshards.failed), (7, 3), "{:?}", world.failures());
    let asked: usize = ["/3", "/4", "/5"].map(|path| world.asked(path)).iter().sum();
    assert!(asked as u64 > world.patience.vain_max, "{asked}");
}

/// Once such an object stopped the whole run, at each start again: its origin was taken for unreachable.
#[test]
fn an_object_whose_redirect_leads_to_nobody_fails_alone_and_only_the_host_is_told() {
    let nobody = TcpListener::bind("127.0.0.1:0").expect("binds").local_addr().expect("has one");
    let mut world = InProcess::new();
    world.snapshot(6);
    let login = "me:SECRET@";
    world.origin.on("/2", [redirect(&format!("http://{login}{nobody}/SECRET?sig=SECRET"))]);
    world.origin.on("/4", [redirect(&format!("http://{login}nosuch.invalid/SECRET?sig=SECRET"))]);
    // Passing trouble: the second try is served.
    world.origin.on("/5", [redirect(&format!("http://{nobody}/")), ok(ROW)]);
    // Were the origin taken for unreachable, the run would end at once.
    world.patience.origin_max = Duration::ZERO;
    let Ended::Done(total) = world.run().expect("runs") else { panic!("done") };
    assert_eq!((total.microshards.failed, total.microshards.consumed, total.rows), (2, 4, 4));
    let failures = world.failures();
    let told = [
        (2, format!("the server redirects to {nobody}: the connection was refused (4 tries)")),
        (4, "the server redirects to nosuch.invalid: the host's name cannot be resolved".to_owned()),
    ];
    for ((id, sentence), (expected, words)) in failures.iter().zip(&told) {
        assert!(id == expected && sentence.contains(words) && !sentence.contains("SECRET"), "{failures:?}");
    }
    assert_eq!(failures.len(), 2);
}
