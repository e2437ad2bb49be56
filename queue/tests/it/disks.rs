//! Queues on disks that are full or read-only: one clear error each, and nothing of what was accepted is lost (I10).

use std::collections::BTreeSet;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crossbeam_channel::bounded;
use microshard_queue::{Acquired, Claimed, Client, Error, Finish, Finished, Intake, Lock, LockKind, Queue, Result};
use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_gid, set_thread_uid};

use crate::disk::Disk;
use crate::world::{Every, assert_sound, claim, finish, items, published, snapshot};

const KIB: u64 = 1024;
/// What SQLite's log and its index need of a disk so that a queue can be opened at all.
const LEAST: u64 = 128 * KIB;

/// A queue on a small disk.
struct Small {
    disk: Disk,
    path: PathBuf,
}

impl Small {
    fn new(bytes: u64) -> Small {
        let disk = Disk::new(bytes);
        let path = disk.path("queue.db");
        Small { disk, path }
    }

    fn queue(&self) -> Queue {
        Queue::open(&self.path).expect("opens")
    }

    fn names_it_and_what_to_do(&self, error: &Error) {
        let text = error.to_string();
        assert!(text.contains(self.path.to_str().expect("UTF-8")), "no file is named: {text}");
        assert!(text.contains("free some disk space"), "{text}");
    }
}

#[test]
fn a_first_snapshot_that_does_not_fit_leaves_nothing_and_succeeds_once_it_does() {
    let small = Small::new(LEAST);
    let microshards = items("en", 1..=5000);
    let mut kib = 0;
    let planned = loop {
        kib += 96;
        small.disk.resize(kib * KIB);
        match snapshot(&small.path, "run", &microshards, Every(100, false)) {
            Ok(planned) => break planned,
            Err(error) => small.names_it_and_what_to_do(&error),
        }
        assert_eq!(small.disk.files(), ["queue.db.intake-lock"], "{kib} KiB");
    };
    assert!(kib > 1000, "it fits into {kib} KiB: too few sizes have been tried");
    assert_eq!((planned.added, planned.shards), (5000, 50));
    assert_sound(&small.queue());
}

#[test]
fn a_further_snapshot_that_does_not_fit_leaves_the_queue_as_it_was_and_then_all_goes_on() {
    let more = items("de", 101..=21_100);
    let add = |small: &Small| snapshot(&small.path, "run", &more, Every(1000, false));
    // First there is no room to stage them, then for the first of the transactions that copy them, then for the second.
    let mut mib = 2;
    loop {
        mib += 1;
        let small = Small::new(mib * KIB * KIB);
        snapshot(&small.path, "run", &items("en", 1..=2), Every(1, false)).expect("fits");
        let runner = small.queue();
        runner.start_runner("me", "host", &[]).expect("starts");
        let job = claim(&runner);
        let before = runner.status().expect("reads");
        let Err(error) = add(&small) else { break };
        small.names_it_and_what_to_do(&error);
        assert_eq!(runner.status().expect("reads"), before, "{mib} MiB");
        assert_sound(&runner);
        small.disk.resize(100 * KIB * KIB);
        assert_eq!(finish(&runner, &job.lease, published(&job.name)), Finished::Accepted, "{mib} MiB");
        assert_eq!(add(&small).expect("fits now").added, 21_000);
        let groups = runner.status().expect("reads");
        assert_eq!((groups[0].microshards.pending, groups[0].shards.pending), (21_000, 21), "once, and whole");
        claim(&runner);
        assert_sound(&runner);
    }
    assert!(mib > 4, "it fits into {mib} MiB: too few sizes have been tried");
}

/// Works until nothing is left or the writer fails, and fills the disk after so many claims; what was accepted, and the
/// writer's end.
fn work(small: &Small, fill_after: usize) -> (BTreeSet<String>, Result<()>) {
    let queue = small.queue();
    queue.start_runner("me", "host", &[]).expect("starts");
    let (requests, inbox) = bounded(8);
    let (accepted, claims, never) = (Mutex::new(BTreeSet::new()), AtomicUsize::new(0), AtomicBool::new(false));
    // Its end is the proof that every request was answered.
    let served = std::thread::scope(|scope| {
        let never = &never;
        let writer = scope.spawn(move || queue.serve("me", None, &inbox, never, &|_| {}));
        for _ in 0..8 {
            let (client, accepted, claims) = (Client::new(requests.clone()), &accepted, &claims);
            scope.spawn(move || {
                while let Ok(Claimed::Job(job)) = client.claim() {
                    if claims.fetch_add(1, Ordering::SeqCst) == fill_after {
                        small.disk.fill();
                    }
                    let end = Finish { outcome: published(&job.name), failures: vec![], troubles: vec![] };
                    let Ok(finished) = client.finish(job.lease, end) else { return };
                    assert_eq!(finished, Finished::Accepted);
                    accepted.lock().expect("unpoisoned").insert(job.name);
                }
            });
        }
        drop(requests);
        writer.join().expect("no panic")
    });
    (accepted.into_inner().expect("unpoisoned"), served)
}

#[test]
fn a_disk_that_fills_under_a_runner_ends_it_with_one_error_and_what_was_accepted_is_kept() {
    let small = Small::new(8 * KIB * KIB);
    snapshot(&small.path, "run", &items("en", 1..=3000), Every(5, false)).expect("fits");
    let (accepted, served) = work(&small, 100);
    small.names_it_and_what_to_do(&served.expect_err("the disk is full"));
    assert!((90..600).contains(&accepted.len()), "{} shards", accepted.len());
    small.disk.make_room();
    let mut kept = BTreeSet::new();
    let queue = small.queue();
    queue
        .for_each_shard::<Error>(&mut |shard| {
            kept.extend((shard.state == 3).then_some(shard.name));
            Ok(())
        })
        .expect("reads");
    assert_eq!(kept, accepted);
    assert_sound(&queue);
    drop(queue);
    let (rest, served) = work(&small, usize::MAX);
    served.expect("there is room again");
    assert_eq!(rest.len(), 600 - accepted.len());
    assert!(rest.is_disjoint(&accepted), "none twice");
    assert_sound(&small.queue());
}

#[test]
fn a_full_disk_is_told_when_a_queue_is_opened() {
    let small = Small::new(KIB * KIB);
    snapshot(&small.path, "run", &items("en", 1..=10), Every(1, false)).expect("fits");
    small.disk.fill();
    small.names_it_and_what_to_do(&Queue::open(&small.path).expect_err("there is no room for the log's index"));
    small.disk.make_room();
    assert_sound(&small.queue());
}

#[test]
fn a_read_only_disk_is_told_by_everything_that_would_write_and_harms_nothing() {
    let small = Small::new(KIB * KIB);
    snapshot(&small.path, "run", &items("en", 1..=10), Every(1, false)).expect("fits");
    small.disk.set_read_only(true);
    let errors = [
        ("open", Queue::open(&small.path).map(drop)),
        ("snapshot", Intake::begin(&small.path).map(drop)),
        ("lock", Lock::acquire(&small.path, LockKind::Runner).map(drop)),
    ];
    for (what, result) in errors {
        let error = result.expect_err(what).to_string();
        assert!(error.contains(small.path.to_str().expect("UTF-8")), "{what} names no file: {error}");
        assert!(error.to_lowercase().contains("read-only") && error.contains("writable"), "{what}: {error}");
    }
    small.disk.set_read_only(false);
    assert!(matches!(Lock::acquire(&small.path, LockKind::Runner).expect("locks"), Acquired::Ours(_)));
    let queue = small.queue();
    assert_sound(&queue);
    claim(&queue);
}

/// Does something without root's rights.
fn as_nobody<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    const NOBODY: u32 = 65_534;
    let demoted = || {
        set_thread_gid(Gid::from_raw(NOBODY)).expect("tests that mount run as root");
        set_thread_uid(Uid::from_raw(NOBODY)).expect("tests that mount run as root");
        work()
    };
    std::thread::scope(|scope| scope.spawn(demoted).join().expect("no panic"))
}

#[test]
fn who_may_not_write_to_a_queue_is_told_so_and_may_look_at_it_while_a_runner_works() {
    let small = Small::new(KIB * KIB);
    snapshot(&small.path, "run", &items("en", 1..=10), Every(1, false)).expect("fits");
    std::fs::set_permissions(small.disk.path(""), Permissions::from_mode(0o755)).expect("sets");
    // A queue is its owner's alone, who may let others look.
    as_nobody(|| Queue::open(&small.path).map(drop)).expect_err("it is another's");
    std::fs::set_permissions(&small.path, Permissions::from_mode(0o644)).expect("sets");
    let told = as_nobody(|| Queue::open(&small.path).map(drop)).expect_err("the directory is another's");
    assert!(matches!(told, Error::ReadOnly(_)), "{told:?}");
    let told = as_nobody(|| Lock::acquire(&small.path, LockKind::Runner).map(drop)).expect_err("so is the lock");
    assert!(told.to_string().contains("must be writable for this user"), "{told}");

    let runner = small.queue();
    claim(&runner);
    as_nobody(|| {
        let looking = Queue::open(&small.path).expect("the runner's log can be read");
        assert_eq!(looking.status().expect("reads")[0].shards.claimed, 1);
        let told = looking.set_meta("key", "value").expect_err("it may not");
        assert!(told.to_string().contains("must be writable for this user"), "{told}");
    });
    assert_sound(&runner);
}
