//! What only S3 has: uploads in parts, answers that are lost, refusals, signatures. Against the real server where it can
//! be made to happen there, else against an origin that says what S3 says.

use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};

use compact_local::store::s3::S3Store;
use compact_local::store::{ObjectStore, Result, StoreError, StoreSettings, Trouble, UploadLog};

use crate::origin::{Origin, Step, ok, status};
use crate::s3;
use crate::store_conformance::{Uploads, digest, get, list, put, trouble};

fn open(bucket: &str, settings: &StoreSettings) -> S3Store {
    S3Store::new(bucket, "out", settings, 2).unwrap()
}

/// S3 as the origin plays it: the bucket `b`, and every request's path under `/b/out/`.
fn played() -> (Origin, S3Store) {
    let origin = Origin::start();
    let store = open("b", &s3::settings(&origin.url));
    (origin, store)
}

fn refusal(status: u16, code: &str) -> Step {
    let body = format!("<?xml version=\"1.0\"?>\n<Error><Code>{code}</Code><Message>so it is</Message></Error>");
    Step::Answer(status, vec![], body.into())
}

fn head_of(bytes: &[u8]) -> Step {
    let sha256: String = digest(bytes).sha256.iter().map(|byte| format!("{byte:02x}")).collect();
    Step::Answer(200, vec![("x-amz-meta-sha256", sha256)], bytes.into())
}

fn put_logged(store: &S3Store, key: &str, bytes: &[u8], uploads: &dyn UploadLog) -> Result<()> {
    let mut spool = store.spool(key).unwrap();
    spool.file.write_all(bytes).unwrap();
    store.put(key, spool, &digest(bytes), uploads)
}

/// Two parts: one of 5 MiB, and a short one.
fn large() -> Vec<u8> {
    (0..(5 << 20) + 1000).map(|at: u32| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

#[test]
fn a_large_shard_is_uploaded_in_parts_and_read_back_whole() {
    let server = s3::server();
    let store = open(server.bucket("shards"), &server.settings());
    let (uploads, bytes) = (Uploads::default(), large());
    put_logged(&store, "en/large", &bytes, &uploads).unwrap();
    assert!(get(&store, "en/large").unwrap() == bytes);
    assert_eq!(store.head("en/large").unwrap().unwrap().sha256, Some(digest(&bytes).sha256));
    let log = uploads.0.into_inner().unwrap();
    assert_eq!(
        log.iter().map(|(what, key, _)| (*what, key.as_str())).collect::<Vec<_>>(),
        [("started", "en/large"), ("ended", "en/large")]
    );
    assert_eq!(log[0].2, log[1].2);
    assert_eq!(server.unfinished(), 0);
    put_logged(&store, "en/large", &bytes, &Uploads::default()).unwrap();
    let mut other = bytes;
    other[0] ^= 1;
    assert_eq!(trouble(put_logged(&store, "en/large", &other, &Uploads::default())), Trouble::Conflict);
    assert_eq!(server.unfinished(), 0);
}

/// The process dies when the upload has been begun and logged.
struct Killed(Uploads);

impl UploadLog for Killed {
    fn started(&self, key: &str, upload_id: &str) -> Result<()> {
        self.0.started(key, upload_id)?;
        panic!("killed");
    }

    fn ended(&self, key: &str, upload_id: &str) -> Result<()> {
        self.0.ended(key, upload_id)
    }
}

#[test]
fn a_killed_upload_is_aborted_by_what_the_log_has_and_published_once() {
    let server = s3::server();
    let store = open(server.bucket("shards"), &server.settings());
    let killed = Killed(Uploads::default());
    let died = catch_unwind(AssertUnwindSafe(|| put_logged(&store, "large", &large(), &killed)));
    died.expect_err("killed");
    assert!(server.unfinished() > 0);
    assert_eq!(store.head("large").unwrap(), None);
    for (_, key, upload_id) in killed.0.0.into_inner().unwrap() {
        store.abort(&key, &upload_id).unwrap();
    }
    assert_eq!(server.unfinished(), 0);
    put(&store, "large", &large()).unwrap();
}

/// A log that cannot be written to must stop the upload before its first part.
struct FullLog;

impl UploadLog for FullLog {
    fn started(&self, key: &str, _: &str) -> Result<()> {
        Err(StoreError::new("log", key, Trouble::Local, "the disk is full"))
    }

    fn ended(&self, _: &str, _: &str) -> Result<()> {
        Ok(())
    }
}

#[test]
fn no_part_is_sent_that_the_log_does_not_know() {
    let server = s3::server();
    let store = open(server.bucket("shards"), &server.settings());
    assert_eq!(trouble(put_logged(&store, "large", &large(), &FullLog)), Trouble::Local);
    assert_eq!((server.unfinished(), store.head("large").unwrap()), (0, None));
}

#[test]
fn a_lost_answer_to_an_upload_is_settled_by_looking() {
    for (after, settled) in [(head_of(b"rows"), true), (status(404), false)] {
        let (origin, store) = played();
        origin.on("HEAD /b/out/a", [status(404), after]).on("PUT /b/out/a", [Step::Raw(vec![])]);
        match put(&store, "a", b"rows") {
            Ok(()) => assert!(settled),
            Err(error) => assert!(!settled && error.trouble == Trouble::Transient, "{error}"),
        }
        assert_eq!(origin.asked(), ["HEAD /b/out/a", "PUT /b/out/a", "HEAD /b/out/a"]);
    }
}

#[test]
fn an_upload_that_the_store_accepts_and_then_does_not_have_is_an_error() {
    let (origin, store) = played();
    origin.on("HEAD /b/out/a", [status(404)]).on("PUT /b/out/a", [ok("")]);
    assert_eq!(trouble(put(&store, "a", b"rows")), Trouble::Transient);
}

#[test]
fn whoever_puts_other_bytes_in_between_is_not_overwritten() {
    let (origin, store) = played();
    origin.on("HEAD /b/out/a", [status(404), head_of(b"others")]);
    origin.on("PUT /b/out/a", [refusal(412, "PreconditionFailed")]);
    assert_eq!(trouble(put(&store, "a", b"rows")), Trouble::Conflict);
    assert_eq!(origin.requests()[1].headers["if-none-match"], "*");
}

#[test]
fn a_store_that_does_not_know_if_none_match_is_asked_without_it() {
    let (origin, store) = played();
    origin.on("HEAD /b/out/a", [status(404), head_of(b"rows"), status(404), head_of(b"rows")]);
    origin.on("PUT /b/out/a", [refusal(501, "NotImplemented"), ok("")]);
    put(&store, "a", b"rows").unwrap();
    put(&store, "a", b"rows").unwrap();
    let puts: Vec<_> = origin.requests().into_iter().filter(|request| request.method == "PUT").collect();
    let guarded: Vec<_> = puts.iter().map(|request| request.headers.contains_key("if-none-match")).collect();
    assert_eq!(guarded, [true, false, false]);
    assert_eq!(puts[1].headers["content-md5"], "3zR6NzuPkqoK492SCl7C9g==", "of `rows`");
}

/// Some stores drop metadata, and an object may stem from elsewhere: then its bytes decide.
#[test]
fn without_our_digest_the_object_itself_is_read() {
    for (there, expected) in [("rows", None), ("wors", Some(Trouble::Conflict))] {
        let (origin, store) = played();
        origin.on("/b/out/a", [ok(there)]);
        assert_eq!(put(&store, "a", b"rows").err().map(|error| error.trouble), expected);
        assert_eq!(origin.asked(), ["HEAD /b/out/a", "GET /b/out/a"]);
    }
}

/// The origin plays an upload in parts; `complete` is what its completion is answered.
fn played_in_parts(complete: Step, after: Step) -> (Origin, S3Store) {
    let (origin, store) = played();
    origin.on("HEAD /b/out/a", [status(404), after]);
    let created = "<InitiateMultipartUploadResult><UploadId>an/id+</UploadId></InitiateMultipartUploadResult>";
    origin.on("POST /b/out/a", [ok(created), complete]);
    origin.on("PUT /b/out/a", [Step::Answer(200, vec![("etag", "\"part\"".into())], vec![])]);
    origin.on("DELETE /b/out/a", [Step::Answer(204, vec![], vec![])]);
    (origin, store)
}

/// S3 answers 200 before it knows whether the completion succeeds.
#[test]
fn a_completion_that_fails_after_its_200_is_a_failure_and_is_aborted() {
    let (origin, store) = played_in_parts(refusal(200, "InternalError"), status(404));
    let uploads = Uploads::default();
    assert_eq!(trouble(put_logged(&store, "a", &large(), &uploads)), Trouble::Transient);
    assert_eq!(origin.asked().iter().filter(|asked| *asked == "DELETE /b/out/a").count(), 1);
    let log = uploads.0.into_inner().unwrap();
    assert_eq!(
        log.iter().map(|(what, _, id)| (*what, id.as_str())).collect::<Vec<_>>(),
        [("started", "an/id+"), ("ended", "an/id+")]
    );
}

#[test]
fn a_completion_whose_answer_is_lost_is_settled_by_looking() {
    let bytes = large();
    let (_origin, store) = played_in_parts(Step::Raw(vec![]), head_of(&bytes));
    put_logged(&store, "a", &bytes, &Uploads::default()).unwrap();
}

/// What a server sends is not kept without bound: neither an answer's XML nor an explanation.
#[test]
fn xml_without_end_is_read_up_to_a_limit() {
    let padding = " ".repeat(9 << 20);
    let created =
        format!("<InitiateMultipartUploadResult>{padding}<UploadId>id</UploadId></InitiateMultipartUploadResult>");
    let (origin, store) = played();
    origin.on("HEAD /b/out/a", [status(404)]).on("POST /b/out/a", [ok(created)]);
    let error = put_logged(&store, "a", &large(), &Uploads::default()).unwrap_err();
    assert!(error.trouble == Trouble::TooLarge && error.to_string().contains("larger than 8388608 bytes"), "{error}");
    assert!(!origin.asked().iter().any(|asked| asked.starts_with("PUT")), "{:?}", origin.asked());
    let refused = format!("<Error><Code>AccessDenied</Code>{padding}</Error>");
    let (origin, store) = played();
    origin.on("GET /b/out/a", [Step::Answer(403, vec![], refused.into())]);
    let error = get(&store, "a").unwrap_err();
    assert!(error.trouble == Trouble::Denied && !error.to_string().contains("AccessDenied"), "{error}");
}

#[test]
fn a_listing_that_leads_back_to_itself_ends() {
    let page = "<ListBucketResult><Name>b</Name><Prefix></Prefix><KeyCount>0</KeyCount><MaxKeys>1000</MaxKeys>\
                <IsTruncated>true</IsTruncated><NextContinuationToken>again</NextContinuationToken></ListBucketResult>";
    let (origin, store) = played();
    origin.on("GET /b", [ok(page)]).on("GET /b/", [ok(page)]);
    assert_eq!(trouble(store.list("", &mut |_| Ok(()))), Trouble::Misconfigured);
    assert_eq!(origin.requests().len(), 2, "{:?}", origin.asked());
}

#[test]
fn an_upload_that_cannot_be_aborted_stays_in_the_log() {
    let (origin, store) = played_in_parts(refusal(500, "InternalError"), status(404));
    origin.on("DELETE /b/out/a", [refusal(500, "InternalError")]);
    let uploads = Uploads::default();
    assert_eq!(trouble(put_logged(&store, "a", &large(), &uploads)), Trouble::Transient);
    assert_eq!(uploads.0.into_inner().unwrap().len(), 1);
}

#[test]
fn aborting_twice_is_aborting_once() {
    let (origin, store) = played();
    origin.on("DELETE /b/out/a", [Step::Answer(204, vec![], vec![]), refusal(404, "NoSuchUpload")]);
    store.abort("a", "id").unwrap();
    store.abort("a", "id").unwrap();
    origin.on("DELETE /b/out/a", [refusal(403, "AccessDenied")]);
    assert_eq!(trouble(store.abort("a", "id")), Trouble::Denied);
}

#[test]
fn a_refusal_says_what_to_do() {
    for (step, expected, says) in [
        (refusal(503, "SlowDown"), Trouble::Throttled(None), "SlowDown"),
        (refusal(404, "NoSuchKey"), Trouble::Gone, "NoSuchKey"),
        (refusal(404, "NoSuchBucket"), Trouble::Misconfigured, "bucket"),
        (refusal(403, "AccessDenied"), Trouble::Denied, "AccessDenied"),
        (refusal(403, "RequestTimeTooSkewed"), Trouble::Misconfigured, "clock"),
        (refusal(400, "ExpiredToken"), Trouble::Misconfigured, "expired"),
        (
            Step::Answer(301, vec![("x-amz-bucket-region", "eu-west-1".into()), ("location", "/x".into())], vec![]),
            Trouble::Misconfigured,
            "--s3-region eu-west-1",
        ),
        (Step::Reset, Trouble::Transient, "s3://b/out/a"),
    ] {
        let (origin, store) = played();
        origin.on("GET /b/out/a", [step]);
        let error = get(&store, "a").unwrap_err();
        assert_eq!(error.trouble, expected, "{error}");
        assert!(error.to_string().contains(says), "{error}");
        assert_eq!(origin.requests().len(), 1, "neither followed nor retried");
    }
}

#[test]
fn wrong_keys_are_told_and_never_shown() {
    let server = s3::server();
    server.bucket("shards");
    for (key, secret) in [(s3::ACCESS_KEY, "wr0ng-s3cr3t"), ("AKIDWRONG", s3::SECRET_KEY)] {
        let keys = [("AWS_ACCESS_KEY_ID", key), ("AWS_SECRET_ACCESS_KEY", secret), ("AWS_SESSION_TOKEN", "t0ken")];
        let settings = s3::settings_with(&server.endpoint, &keys);
        let store = open("shards", &settings);
        let errors = [
            get(&store, "a").unwrap_err(),
            store.check_writable().unwrap_err(),
            store.list("", &mut |_| Ok(())).unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.trouble, Trouble::Misconfigured, "{error}");
            let text = format!("{error} {error:?} {:?} {settings:?}", std::error::Error::source(&error));
            for secret in [secret, "t0ken", "X-Amz-", "Signature="] {
                assert!(!text.contains(secret), "{secret} in {text}");
            }
        }
    }
}

#[test]
fn a_bucket_that_is_not_there_is_told_at_once() {
    let (origin, store) = played();
    origin.on("POST /b/out/.compact-local-check", [refusal(404, "NoSuchBucket")]);
    let error = store.check_writable().unwrap_err();
    assert_eq!(error.trouble, Trouble::Misconfigured);
    assert!(error.to_string().contains("s3://b/"), "{error}");
}

#[test]
fn a_listing_goes_on_to_its_last_page_whatever_its_namespace() {
    let (origin, store) = played();
    let page = |root: &str, keys: &[&str], next: &str| {
        let contents: String =
            keys.iter().map(|key| format!("<Contents><Key>out/{key}</Key><Size>7</Size></Contents>")).collect();
        let truncated = !next.is_empty();
        let next =
            if truncated { format!("<NextContinuationToken>{next}</NextContinuationToken>") } else { next.into() };
        ok(format!("<{root}><IsTruncated>{truncated}</IsTruncated>{next}{contents}</ListBucketResult>"))
    };
    origin.on(
        "GET /b/",
        [
            page("ListBucketResult xmlns='http://doc.s3.amazonaws.com/2006-03-01'", &["a", "b&amp;c"], "to/ken+"),
            page("ListBucketResult", &["d"], ""),
        ],
    );
    let keys: Vec<_> = list(&store, "").into_keys().collect();
    assert_eq!(keys, ["a", "b&c", "d"]);
    let second = &origin.requests()[1].target;
    assert!(second.contains("continuation-token=to%2Fken%2B&") && second.contains("prefix=out%2F"), "{second}");
}

#[test]
fn a_listing_that_is_cut_short_is_an_error() {
    let (origin, store) = played();
    origin.on("GET /b/", [ok("<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>")]);
    assert_eq!(trouble(store.list("", &mut |_| Ok(()))), Trouble::Misconfigured);
    origin.on("GET /b/", [Step::Short { announced: 100, body: b"<ListBucketResult>".to_vec() }]);
    assert_eq!(trouble(store.list("", &mut |_| Ok(()))), Trouble::Transient);
}

#[test]
fn a_public_bucket_is_read_without_a_signature() {
    let origin = Origin::start();
    origin.on("/b/out/a", [ok("rows")]);
    let args = compact_local::cli::StoreArgs { s3_unsigned: true, ..s3::args(Some(&origin.url)) };
    let store = open("b", &StoreSettings::new(&args, &|_| None).unwrap());
    assert_eq!(get(&store, "a").unwrap(), b"rows");
    assert_eq!(origin.requests()[0].target, "/b/out/a");
}

#[test]
fn a_child_process_reaches_the_server_by_its_environment() {
    let server = s3::server();
    server.bucket("shards");
    let environment = server.environment();
    let variables: Vec<_> = environment.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let store = open("shards", &s3::settings_with(&server.endpoint, &variables));
    put(&store, "a", b"rows").unwrap();
}
