//! Files that are no queue, damaged, or of another version: one clear error each.

use microshard_queue::{Acquired, Error, Failure, Finish, Intake, Lock, LockKind, Queue, with_suffix};

use crate::world::{Every, World, assert_sound, claim, items, published};

#[test]
fn a_missing_queue_is_told_with_the_command_that_makes_one() {
    let world = World::new();
    let error = Queue::open(&world.path).expect_err("there is none");
    assert!(matches!(error, Error::Missing(_)), "{error:?}");
    assert!(error.to_string().contains("compact-local snapshot"), "{error}");
    assert!(!world.path.exists(), "looking made no file");
}

#[test]
fn what_is_no_queue_is_refused_and_left_as_it_was() {
    let world = World::new();
    for bytes in [
        b"hello, I am a text file that is longer than a header of SQLite, which has a hundred bytes........".to_vec(),
        vec![],
    ] {
        std::fs::write(&world.path, &bytes).expect("writes");
        let error = Queue::open(&world.path).expect_err("is none");
        assert!(matches!(error, Error::Foreign(_)), "{error:?}");
        assert!(Intake::begin(&world.path).is_err(), "nor can a snapshot be taken into it");
        assert_eq!(std::fs::read(&world.path).expect("reads"), bytes, "untouched");
    }
    let other = world.directory.path().join("other.db");
    let conn = rusqlite::Connection::open(&other).expect("opens");
    conn.execute_batch("CREATE TABLE t(x)").expect("creates");
    drop(conn);
    assert!(matches!(Queue::open(&other), Err(Error::Foreign(_))), "another program's database");
    assert!(matches!(Queue::open(world.directory.path()), Err(Error::Foreign(_))), "a directory");
}

#[test]
fn a_newer_schema_is_refused() {
    let world = World::with(4, 2);
    let conn = rusqlite::Connection::open(&world.path).expect("opens");
    conn.pragma_update(None, "user_version", 99).expect("updates");
    drop(conn);
    let error = Queue::open(&world.path).expect_err("is newer");
    assert!(matches!(error, Error::Newer { found: 99, .. }), "{error:?}");
}

#[test]
fn a_truncated_queue_is_an_error_and_never_a_shorter_queue() {
    let world = World::with(5000, 10);
    let bytes = std::fs::read(&world.path).expect("reads");
    std::fs::write(&world.path, &bytes[..bytes.len() / 2]).expect("writes");
    let wrong = match Queue::open(&world.path) {
        Ok(queue) => match queue.check() {
            Ok(wrong) => wrong.join("; "),
            Err(error) => error.to_string(),
        },
        Err(error) => error.to_string(),
    };
    assert!(wrong.contains("malformed") || wrong.contains("damaged"), "{wrong:?}");
}

#[test]
fn the_log_of_a_queue_that_was_removed_never_becomes_part_of_a_new_one() {
    let world = World::with(5000, 10);
    let queue = world.queue();
    claim(&queue);
    let log = with_suffix(&world.path, "-wal");
    let left = std::fs::read(&log).expect("the queue is open, so it has a log");
    assert!(!left.is_empty());
    std::fs::remove_file(&world.path).expect("removes");
    let error = world.snapshot("other", &items("de", 1..=5000), Every(7, false)).expect_err("the log lies there");
    assert!(error.to_string().contains("queue.db-wal") && error.to_string().contains("remove it"), "{error}");
    assert!(!world.path.exists(), "no queue was made");
    drop(queue);
    std::fs::write(&log, left).expect("as a killed runner leaves it");
    assert!(Intake::begin(&world.path).is_err(), "told before anything is claimed in the manifest");
    std::fs::remove_file(&log).expect("removes");
    world.snapshot("other", &items("de", 1..=5000), Every(7, false)).expect("plans");
    assert_sound(&world.queue());
}

#[test]
fn a_queue_with_a_second_name_is_refused_for_whoever_writes() {
    let world = World::with(4, 2);
    let other = world.directory.path().join("other.db");
    std::fs::hard_link(&world.path, &other).expect("links");
    for path in [&world.path, &other] {
        let error = Lock::acquire(path, LockKind::Runner).expect_err("two names").to_string();
        assert!(error.contains("one of 2 hard links"), "{error}");
        assert!(Intake::begin(path).is_err());
        assert_eq!(Queue::open(path).expect("opens").status().expect("reads").len(), 1, "reading does no harm");
    }
    std::fs::remove_file(&other).expect("removes");
    assert!(matches!(Lock::acquire(&world.path, LockKind::Runner), Ok(Acquired::Ours(_))));
}

#[test]
fn the_second_name_that_a_killed_snapshot_left_is_removed() {
    let world = World::with(4, 2);
    let loading = world.directory.path().join("queue.db.loading");
    std::fs::hard_link(&world.path, &loading).expect("links");
    assert!(matches!(Lock::acquire(&world.path, LockKind::Runner), Ok(Acquired::Ours(_))));
    assert!(!loading.exists());
    assert_sound(&world.queue());
}

#[test]
fn one_process_holds_a_lock_and_its_end_frees_it() {
    let world = World::with(4, 2);
    let runner = || Lock::acquire(&world.path, LockKind::Runner).expect("tries");
    let held = runner();
    assert!(matches!(held, Acquired::Ours(_)));
    assert_eq!(Lock::is_held(&world.path, LockKind::Runner).expect("looks"), Some(true));
    assert!(matches!(runner(), Acquired::Busy));
    assert!(matches!(Lock::acquire(&world.path, LockKind::Intake).expect("tries"), Acquired::Ours(_)), "another lock");
    drop(held);
    assert_eq!(Lock::is_held(&world.path, LockKind::Runner).expect("looks"), Some(false));
    assert!(matches!(runner(), Acquired::Ours(_)));
}

#[test]
fn a_counter_that_lies_is_found() {
    let world = World::with(20, 5);
    let queue = world.queue();
    assert_sound(&queue);
    for lie in [
        "UPDATE groups SET pending = pending + 1",
        "UPDATE groups SET pending = pending - 1, m_pending = m_pending + 1",
        "UPDATE groups SET m_pending = m_pending - 1, m_failed = 1",
        "UPDATE groups SET m_failed = 0; UPDATE shards SET last = last + 1 WHERE shard = 1",
    ] {
        let conn = rusqlite::Connection::open(&world.path).expect("opens");
        conn.execute_batch(lie).expect("lies");
        assert_ne!(queue.check().expect("checks"), Vec::<String>::new(), "{lie}");
    }
}

#[test]
fn a_file_that_lets_no_lease_end_is_an_error_and_nothing_of_the_end_is_kept() {
    let world = World::with(4, 2);
    let conn = rusqlite::Connection::open(&world.path).expect("opens");
    let deaf = "CREATE TRIGGER deaf BEFORE UPDATE ON shards WHEN new.state = 3 BEGIN SELECT RAISE(IGNORE); END";
    conn.execute_batch(deaf).expect("creates");
    let queue = world.queue();
    let job = claim(&queue);
    let failure = Failure { seq: job.members[0].seq, sentence: "bad".to_owned(), tries: 1 };
    let finish = Finish { outcome: published("a"), failures: vec![failure], troubles: Vec::new() };
    let error = queue.transaction(|| queue.finish(&job.lease, &finish)).expect_err("it changes nothing").to_string();
    assert!(error.contains("queue.db is damaged") && error.contains("changed 0 shards"), "{error}");
    let status = &queue.status().expect("reads")[0];
    assert_eq!((status.shards.claimed, status.shards.published, status.microshards.failed), (1, 0, 0));
}
