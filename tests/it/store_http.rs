//! An HTTP origin's faults: what each is taken for, and that connections are kept.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Duration;

use compact_local::store::http::HttpStore;
use compact_local::store::{GetOptions, Network, ObjectStore, Patience, Result, Trouble};

use crate::origin::{Origin, Step, ok, redirect, status};
use crate::store_conformance::{ANY, get, put, trouble};

fn store(origin: &Origin) -> HttpStore {
    HttpStore::new(&origin.url, &Network::default(), 2, Patience::default())
}

fn got(step: Step) -> Result<Vec<u8>> {
    let origin = Origin::start();
    origin.on("/a", [step]);
    get(&store(&origin), "a")
}

#[test]
fn a_status_says_what_can_be_done() {
    let wait = |seconds| Some(Duration::from_secs(seconds));
    let told = |status| Step::Answer(status, vec![("retry-after", "7".into())], vec![]);
    assert_eq!(trouble(got(told(503))), Trouble::Throttled(wait(7)));
    assert_eq!(trouble(got(told(429))), Trouble::Throttled(wait(7)));
    assert_eq!(trouble(got(status(408))), Trouble::Throttled(None));
    assert_eq!(trouble(got(status(500))), Trouble::Transient);
    assert_eq!(trouble(got(status(404))), Trouble::Gone);
    assert_eq!(trouble(got(status(410))), Trouble::Gone);
    assert_eq!(trouble(got(status(403))), Trouble::Denied);
    assert_eq!(trouble(got(status(204))), Trouble::Gone);
    let error = got(status(451)).unwrap_err();
    assert_eq!(error.trouble, Trouble::Gone);
    assert!(error.to_string().contains("451"), "{error}");
}

/// FIELD: a body cut short was taken for whole by more than one well-known client.
#[test]
fn a_body_that_is_cut_short_is_an_error() {
    let short = Step::Short { announced: 10, body: b"12345".to_vec() };
    assert_eq!(trouble(got(short)), Trouble::Transient);
    let chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\n12345\r\n".to_vec();
    assert_eq!(trouble(got(Step::Raw(chunked))), Trouble::Transient);
    assert_eq!(got(Step::Unannounced(b"12345".to_vec())).unwrap(), b"12345");
}

#[test]
fn a_body_over_the_limit_is_refused_whether_announced_or_not() {
    for step in [ok("0123456789"), Step::Unannounced(b"0123456789".to_vec())] {
        let origin = Origin::start();
        origin.on("/a", [step]);
        let limited = |bytes_max| store(&origin).get("a", &mut Vec::new(), GetOptions { bytes_max, fresh: false });
        assert_eq!(trouble(limited(9)), Trouble::TooLarge);
        limited(10).unwrap();
    }
}

#[test]
fn resets_are_transient() {
    for step in [
        Step::Reset,
        Step::Raw(vec![]),
        Step::Raw(b"HTTP/1.1 200 OK\r\ncontent-le".to_vec()),
        Step::Raw(b"SSH-2.0-OpenSSH\r\n\r\n".to_vec()),
    ] {
        let error = got(step).unwrap_err();
        assert_eq!(error.trouble, Trouble::Transient, "{error}");
    }
}

#[test]
fn an_answer_whose_head_has_no_end_is_refused_before_it_fills_the_memory() {
    let long_line = [&b"HTTP/1.1 200 OK\r\nx: "[..], &[b'a'; 4 << 20]].concat();
    let many_lines = [&b"HTTP/1.1 200 OK\r\n"[..], &b"x: y\r\n".repeat(100_000)].concat();
    for head in [long_line, many_lines] {
        let error = got(Step::Raw(head)).unwrap_err();
        assert_eq!(error.trouble, Trouble::Transient, "{error}");
        assert!(error.to_string().len() < 500, "it repeats what it was sent: {error}");
    }
}

/// FIELD: at 99 % for hours, because a read without a timeout never fails.
#[test]
fn stalls_time_out() {
    let patience = Patience { read: Duration::from_millis(200), ..Patience::default() };
    for step in [Step::Stall, Step::StallIn { announced: 10, body: b"12345".to_vec() }] {
        let origin = Origin::start();
        origin.on("/a", [step]);
        let error = get(&HttpStore::new(&origin.url, &Network::default(), 1, patience), "a").unwrap_err();
        assert_eq!(error.trouble, Trouble::TimedOut, "{error}");
    }
}

#[test]
fn an_origin_that_is_not_there_is_unreachable() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let nobody = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    for url in [nobody.as_str(), "http://no-such-host.invalid"] {
        let store = HttpStore::new(url, &Network::default(), 1, Patience::default());
        assert_eq!(trouble(get(&store, "a")), Trouble::Unreachable, "{url}");
    }
}

#[test]
fn a_server_that_does_not_speak_tls_is_misconfigured() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
        // Until the client hangs up: closing with its hello unread would be a reset.
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let error = get(&HttpStore::new(&url, &Network::default(), 1, Patience::default()), "a").unwrap_err();
    assert_eq!(error.trouble, Trouble::Misconfigured, "{error}");
}

#[test]
fn redirects_are_followed_but_not_for_ever() {
    let (origin, other) = (Origin::start(), Origin::start());
    other.on("/b", [ok("there")]);
    origin.on("/a", [redirect(&format!("{}/b", other.url))]).on("/loop", [redirect("/loop")]);
    assert_eq!(get(&store(&origin), "a").unwrap(), b"there");
    assert_eq!(trouble(get(&store(&origin), "loop")), Trouble::Gone);
    assert_eq!(origin.requests().iter().filter(|request| request.target == "/loop").count(), 6);
}

/// FIELD: 28,000 ports in TIME_WAIT, because bodies were not read to their end.
#[test]
fn a_thousand_gets_take_one_connection() {
    let origin = Origin::start();
    origin.on("/a", [ok("rows")]).on("/busy", [status(503)]);
    let (network, mut body) = (Network::default(), Vec::new());
    let store = HttpStore::new(&origin.url, &network, 2, Patience::default());
    for _ in 0..500 {
        store.get("a", &mut body, ANY).unwrap();
        store.get("busy", &mut body, ANY).unwrap_err();
    }
    assert_eq!((origin.connections(), network.connections()), (1, 1));
}

#[test]
fn a_fresh_get_takes_a_new_connection_and_keeps_it() {
    let origin = Origin::start();
    origin.on("/a", [ok("rows")]);
    let store = store(&origin);
    get(&store, "a").unwrap();
    store.get("a", &mut Vec::new(), GetOptions { fresh: true, ..ANY }).unwrap();
    assert_eq!(origin.connections(), 2);
    get(&store, "a").unwrap();
    assert_eq!(origin.connections(), 2);
}

#[test]
fn a_connection_that_the_server_closed_meanwhile_is_no_error() {
    let origin = Origin::start();
    let closing = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nrows".to_vec();
    origin.on("/a", [Step::Raw(closing)]);
    let store = store(&origin);
    for _ in 0..20 {
        // The end of the connection may arrive before or after the next request begins; both are survived.
        match get(&store, "a") {
            Ok(body) => assert_eq!(body, b"rows"),
            Err(error) => assert_eq!(error.trouble, Trouble::Transient, "{error}"),
        }
    }
}

/// A `.jsonl.gz` must arrive as it is stored, whatever headers an origin adds.
#[test]
fn nothing_is_decoded_behind_our_back() {
    let origin = Origin::start();
    let zipped = b"\x1f\x8b\x08 not really".to_vec();
    origin.on("/a.gz", [Step::Answer(200, vec![("content-encoding", "gzip".into())], zipped.clone())]);
    assert_eq!(get(&store(&origin), "a.gz").unwrap(), zipped);
    let headers = &origin.requests()[0].headers;
    assert_eq!(headers["accept-encoding"], "identity");
    assert_eq!(headers["user-agent"], concat!("compact-local/", env!("CARGO_PKG_VERSION")));
}

#[test]
fn a_head_tells_the_size() {
    let origin = Origin::start();
    origin.on("/a", [ok("rows")]).on("/gone", [status(410)]).on("/denied", [status(403)]);
    let store = store(&origin);
    assert_eq!(store.head("a").unwrap().unwrap().bytes, 4);
    assert_eq!(store.head("gone").unwrap(), None);
    assert_eq!(store.head("nothing").unwrap(), None);
    assert_eq!(trouble(store.head("denied")), Trouble::Denied);
}

#[test]
fn an_http_origin_cannot_be_written_to() {
    let store = HttpStore::new("http://127.0.0.1:1", &Network::default(), 1, Patience::default());
    for error in [store.check_writable().unwrap_err(), put(&store, "a", b"x").unwrap_err()] {
        assert_eq!(error.trouble, Trouble::Misconfigured);
        assert!(error.to_string().contains("only be read"), "{error}");
    }
}

#[test]
fn no_error_prints_a_password_or_a_presigned_query() {
    let origin = Origin::start();
    let base = origin.url.replace("http://", "http://me:s3cr3t@");
    origin
        .on("/loop", [redirect("/loop?X-Amz-Signature=s3cr3t")])
        .on("/busy", [status(503)])
        .on("/reset", [Step::Reset]);
    origin.on("/odd", [redirect("ht!tp://s3cr3t/\u{1}")]);
    origin.on("/short", [Step::Short { announced: 10, body: b"1".to_vec() }]);
    let store = HttpStore::new(&base, &Network::default(), 2, Patience::default());
    for key in ["loop", "busy", "reset", "odd", "short", "missing", "bad uri \u{7f}"] {
        let error = get(&store, &format!("{key}?X-Amz-Signature=s3cr3t")).unwrap_err();
        let text = format!("{error} {error:?} {:?}", std::error::Error::source(&error));
        assert!(!text.contains("s3cr3t"), "{text}");
    }
    assert!(!store.base().contains("s3cr3t"));
    assert_eq!(origin.requests()[0].headers["authorization"], "Basic bWU6czNjcjN0");
}
