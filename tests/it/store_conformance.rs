//! What every store that can be written to must do, run against a directory and against S3.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::{Arc, Mutex};

use compact_local::store::{self, Digest, Digester, GetOptions, ObjectStore, Result, StoreError, Trouble, UploadLog};

use crate::s3;

/// A fresh place, with what keeps it alive.
struct Place {
    store: Arc<dyn ObjectStore>,
    _keep: Box<dyn std::any::Any>,
}

fn local() -> Place {
    let root = tempfile::tempdir().unwrap();
    let settings = s3::settings("http://127.0.0.1:1");
    let base = root.path().join("out/put");
    Place { store: store::open(base.to_str().unwrap(), &settings, "tag").unwrap(), _keep: Box::new(root) }
}

fn bucket() -> Place {
    let server = s3::server();
    server.bucket("shards");
    Place { store: store::open("s3://shards/out/put", &server.settings(), "tag").unwrap(), _keep: Box::new(server) }
}

/// Uploads in parts, as they are told.
#[derive(Default)]
pub(crate) struct Uploads(pub(crate) Mutex<Vec<(&'static str, String, String)>>);

impl UploadLog for Uploads {
    fn started(&self, key: &str, upload_id: &str) -> Result<()> {
        self.0.lock().unwrap().push(("started", key.into(), upload_id.into()));
        Ok(())
    }

    fn ended(&self, key: &str, upload_id: &str) -> Result<()> {
        self.0.lock().unwrap().push(("ended", key.into(), upload_id.into()));
        Ok(())
    }
}

pub(crate) const ANY: GetOptions = GetOptions { bytes_max: 1 << 30, fresh: false };

pub(crate) fn digest(bytes: &[u8]) -> Digest {
    let mut digester = Digester::default();
    digester.write_all(bytes).unwrap();
    digester.finish()
}

pub(crate) fn put(store: &dyn ObjectStore, key: &str, bytes: &[u8]) -> Result<()> {
    put_as(store, key, bytes, &digest(bytes))
}

fn put_as(store: &dyn ObjectStore, key: &str, bytes: &[u8], digest: &Digest) -> Result<()> {
    let mut spool = store.spool(key)?;
    spool.file.write_all(bytes).unwrap();
    store.put(key, spool, digest, &Uploads::default())
}

pub(crate) fn get(store: &dyn ObjectStore, key: &str) -> Result<Vec<u8>> {
    let mut body = b"left over".to_vec();
    store.get(key, &mut body, ANY).map(|()| body)
}

pub(crate) fn list(store: &dyn ObjectStore, prefix: &str) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    let listed = store.list(prefix, &mut |entry| {
        assert_eq!(found.insert(entry.key.clone(), entry.bytes), None, "{} came twice", entry.key);
        Ok(())
    });
    listed.unwrap();
    found
}

pub(crate) fn trouble<T: std::fmt::Debug>(result: Result<T>) -> Trouble {
    result.expect_err("an error").trouble
}

/// FIELD: keys that other tools answer with a 404.
const ODD_KEYS: [&str; 11] = [
    "en/run-en-001-00000.jsonl.zst",
    "with space.jsonl",
    "plus+dollar$at@.jsonl",
    "hundred%.jsonl",
    "%41 is not A.jsonl",
    "question?mark#hash&and=equal",
    "zh-Hant/漢字 🦀.jsonl",
    "dots..in..names...jsonl",
    "quote'\"<>;:,()[]{}|^`~\\",
    "a/b/c/d/e.tar",
    " between spaces ",
];

fn what_was_put_is_read_back(store: &dyn ObjectStore) {
    for key in ODD_KEYS {
        put(store, key, key.as_bytes()).unwrap();
    }
    for key in ODD_KEYS {
        assert_eq!(get(store, key).unwrap(), key.as_bytes(), "{key}");
        let head = store.head(key).unwrap().unwrap();
        let digest = digest(key.as_bytes());
        assert_eq!((head.bytes, head.sha256), (digest.bytes, Some(digest.sha256)), "{key}");
    }
}

fn a_listing_has_every_object_once(store: &dyn ObjectStore) {
    assert_eq!(list(store, ""), BTreeMap::new());
    for key in ODD_KEYS {
        put(store, key, key.as_bytes()).unwrap();
    }
    let _unfinished = store.spool("en/unfinished.jsonl.zst").unwrap();
    let all: BTreeMap<_, _> = ODD_KEYS.iter().map(|key| ((*key).to_owned(), key.len() as u64)).collect();
    assert_eq!(list(store, ""), all);
    assert_eq!(list(store, "en/run-en").len(), 1);
    assert_eq!(list(store, "a/b/").len(), 1);
    assert_eq!(list(store, "nothing/of/it").len(), 0);
}

fn what_each_returns_stops_the_listing(store: &dyn ObjectStore) {
    put(store, "a", b"1").unwrap();
    put(store, "b", b"2").unwrap();
    let mut calls = 0;
    let stopped = store.list("", &mut |_| {
        calls += 1;
        Err(StoreError::new("stop", "it", Trouble::Local, "enough"))
    });
    assert_eq!((stopped.unwrap_err().operation, calls), ("stop", 1));
}

fn an_object_that_is_not_there_is_gone(store: &dyn ObjectStore) {
    put(store, "file", b"x").unwrap();
    for key in ["nothing", "no/such/directory/x", "file/below"] {
        assert_eq!(trouble(get(store, key)), Trouble::Gone, "{key}");
        assert_eq!(store.head(key).unwrap(), None, "{key}");
    }
}

fn the_same_bytes_twice_are_one_object(store: &dyn ObjectStore) {
    put(store, "en/a", b"same").unwrap();
    put(store, "en/a", b"same").unwrap();
    assert_eq!(list(store, ""), BTreeMap::from([("en/a".to_owned(), 4)]));
}

fn other_bytes_are_a_conflict_and_never_overwrite(store: &dyn ObjectStore) {
    put(store, "en/a", b"first").unwrap();
    for other in ["secnd", "longer than the first"] {
        let error = put(store, "en/a", other.as_bytes()).unwrap_err();
        assert_eq!(error.trouble, Trouble::Conflict);
        assert!(error.to_string().contains("en/a"), "{error}");
    }
    assert_eq!(get(store, "en/a").unwrap(), b"first");
    assert_eq!(list(store, "").len(), 1);
}

fn bytes_that_are_not_the_announced_ones_are_never_published(store: &dyn ObjectStore) {
    assert_eq!(trouble(put_as(store, "a", b"flipped", &digest(b"flopped"))), Trouble::Local);
    assert_eq!(store.head("a").unwrap(), None);
    assert_eq!(list(store, "").len(), 0);
}

fn an_empty_object_is_an_object(store: &dyn ObjectStore) {
    put(store, "empty", b"").unwrap();
    assert_eq!(get(store, "empty").unwrap(), b"");
    assert_eq!(list(store, "")["empty"], 0);
}

fn an_object_over_the_limit_is_too_large(store: &dyn ObjectStore) {
    put(store, "a", b"0123456789").unwrap();
    let limited = |bytes_max| store.get("a", &mut Vec::new(), GetOptions { bytes_max, fresh: false });
    assert_eq!(trouble(limited(9)), Trouble::TooLarge);
    limited(10).unwrap();
}

fn replace_replaces(store: &dyn ObjectStore) {
    for bytes in ["{\"shards\": 1}", "{\"shards\": 22}", "{}"] {
        store.replace("index.json", bytes.as_bytes()).unwrap();
        assert_eq!(get(store, "index.json").unwrap(), bytes.as_bytes());
    }
    assert_eq!(list(store, "").len(), 1);
}

fn no_key_leads_out_of_the_base(store: &dyn ObjectStore) {
    put(store, "inside", b"x").unwrap();
    for key in ["../put/inside", "..", "a/../inside", "./inside", "a/..", ""] {
        assert_eq!(trouble(get(store, key)), Trouble::Gone, "{key}");
        assert_eq!(trouble(store.head(key)), Trouble::Gone, "{key}");
        assert_eq!(trouble(put(store, key, b"x")), Trouble::Gone, "{key}");
        assert_eq!(trouble(store.replace(key, b"x")), Trouble::Gone, "{key}");
    }
    assert_eq!(list(store, "").len(), 1);
}

fn a_writable_place_is_left_as_it_was(store: &dyn ObjectStore) {
    store.check_writable().unwrap();
    assert_eq!(list(store, "").len(), 0);
}

fn a_dropped_spool_leaves_nothing(store: &dyn ObjectStore) {
    drop(store.spool("en/a").unwrap());
    assert_eq!(store.sweep().unwrap(), 0);
    assert_eq!(list(store, "").len(), 0);
}

fn many_threads_put_the_same_shard_once(store: &dyn ObjectStore) {
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| put(store, "en/a", b"the same shard").unwrap());
        }
    });
    assert_eq!(get(store, "en/a").unwrap(), b"the same shard");
}

macro_rules! conformance {
    ($($sentence:ident)*) => {
        mod in_a_directory { $(#[test] fn $sentence() { super::$sentence(&*super::local().store); })* }
        mod in_a_bucket { $(#[test] fn $sentence() { super::$sentence(&*super::bucket().store); })* }
    };
}

conformance! {
    what_was_put_is_read_back
    a_listing_has_every_object_once
    what_each_returns_stops_the_listing
    an_object_that_is_not_there_is_gone
    the_same_bytes_twice_are_one_object
    other_bytes_are_a_conflict_and_never_overwrite
    bytes_that_are_not_the_announced_ones_are_never_published
    an_empty_object_is_an_object
    an_object_over_the_limit_is_too_large
    replace_replaces
    no_key_leads_out_of_the_base
    a_writable_place_is_left_as_it_was
    a_dropped_spool_leaves_nothing
    many_threads_put_the_same_shard_once
}
