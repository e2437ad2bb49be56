//! What only a directory has: temporary names, links, permissions, a disk that refuses.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use compact_local::store::local::LocalStore;
use compact_local::store::{ObjectStore, Trouble};

use crate::store_conformance::{Uploads, digest, get, list, put, trouble};

fn files(directory: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Killed processes leave their temporary files, here made by forgetting the spool.
#[test]
fn a_sweep_removes_our_own_queues_leftovers_and_no_others() {
    let base = tempfile::tempdir().unwrap();
    let ours = LocalStore::new(base.path(), "queue-7");
    let theirs = LocalStore::new(base.path(), "queue-77");
    for (store, key) in [(&ours, "en/a"), (&ours, "de/b"), (&theirs, "en/c")] {
        std::mem::forget(store.spool(key).unwrap());
    }
    put(&ours, "en/.compact-local-of-somebody", b"x").unwrap();
    assert_eq!(ours.sweep().unwrap(), 2);
    assert_eq!(ours.sweep().unwrap(), 0);
    assert_eq!(files(&base.path().join("en")).len(), 2);
    assert_eq!(theirs.sweep().unwrap(), 1);
    assert_eq!(files(&base.path().join("en")), [".compact-local-of-somebody"]);
}

/// Two sync-backs may be at work on one queue.
#[test]
fn a_sweep_leaves_what_another_process_is_about_to_put_in_place() {
    let base = tempfile::tempdir().unwrap();
    let store = LocalStore::new(base.path(), "q");
    let file = fs::File::create(base.path().join(".compact-local-q-abc.part")).unwrap();
    file.try_lock().unwrap();
    assert_eq!(store.sweep().unwrap(), 0);
    drop(file);
    assert_eq!(store.sweep().unwrap(), 1);
}

#[test]
fn nothing_stands_under_the_final_name_before_it_is_put() {
    let base = tempfile::tempdir().unwrap();
    let store = LocalStore::new(base.path(), "q");
    let mut spool = store.spool("en/a.jsonl.zst").unwrap();
    spool.file.write_all(b"half").unwrap();
    let unfinished = files(&base.path().join("en"));
    assert!(unfinished[0].starts_with(".compact-local-q-") && unfinished[0].ends_with(".part"), "{unfinished:?}");
    spool.file.write_all(b" whole").unwrap();
    store.put("en/a.jsonl.zst", spool, &digest(b"half whole"), &Uploads::default()).unwrap();
    assert_eq!(files(&base.path().join("en")), ["a.jsonl.zst"]);
}

#[test]
fn a_link_that_leads_out_of_the_base_is_refused() {
    let (base, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(outside.path().join("secret"), "x").unwrap();
    symlink(outside.path(), base.path().join("out")).unwrap();
    symlink(outside.path().join("secret"), base.path().join("file")).unwrap();
    symlink(outside.path().join("new"), base.path().join("dangling")).unwrap();
    let store = LocalStore::new(base.path(), "q");
    for key in ["out/secret", "out/new", "file"] {
        assert_eq!(trouble(get(&store, key)), Trouble::Gone, "{key}");
        assert_eq!(trouble(put(&store, key, b"y")), Trouble::Gone, "{key}");
        assert_eq!(trouble(store.replace(key, b"y")), Trouble::Gone, "{key}");
    }
    put(&store, "dangling", b"y").unwrap_err();
    assert_eq!(files(outside.path()), ["secret"]);
    assert_eq!(fs::read(outside.path().join("secret")).unwrap(), b"x");
    assert_eq!(trouble(store.list("", &mut |_| Ok(()))), Trouble::Local);
}

#[test]
fn links_inside_the_base_and_a_base_that_is_a_link_are_followed() {
    let place = tempfile::tempdir().unwrap();
    fs::create_dir(place.path().join("real")).unwrap();
    symlink(place.path().join("real"), place.path().join("base")).unwrap();
    let store = LocalStore::new(&place.path().join("base"), "q");
    put(&store, "a", b"x").unwrap();
    symlink("a", place.path().join("real/b")).unwrap();
    assert_eq!(get(&store, "b").unwrap(), b"x");
    let keys: Vec<_> = list(&store, "").into_keys().collect();
    assert_eq!(keys, ["a", "b"]);
}

#[test]
fn a_pipe_is_not_waited_for() {
    let base = tempfile::tempdir().unwrap();
    let made = std::process::Command::new("mkfifo").arg(base.path().join("pipe")).status().unwrap();
    assert!(made.success());
    assert_eq!(trouble(get(&LocalStore::new(base.path(), "q"), "pipe")), Trouble::Gone);
}

#[test]
fn a_shard_is_as_readable_as_any_new_file() {
    let base = tempfile::tempdir().unwrap();
    fs::write(base.path().join("plain"), "x").unwrap();
    put(&LocalStore::new(base.path(), "q"), "shard", b"x").unwrap();
    let mode = |name| fs::metadata(base.path().join(name)).unwrap().permissions().mode();
    assert_eq!(mode("shard"), mode("plain"));
}

/// Whoever runs the tests may be root, whom permissions do not stop: so what is in the way is a file.
#[test]
fn a_base_that_cannot_be_written_is_told_at_once() {
    let base = tempfile::tempdir().unwrap();
    fs::write(base.path().join("file"), "x").unwrap();
    let error = LocalStore::new(&base.path().join("file/out"), "q").check_writable().unwrap_err();
    assert_eq!(error.trouble, Trouble::Local);
    assert!(error.to_string().contains("file/out"), "{error}");
}
