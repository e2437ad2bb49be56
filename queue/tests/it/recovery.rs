//! Runners that die: their claims are pending at once, suspects are tried again, and deaths are bounded.

use microshard_queue::{DEATHS_MAX, Lock, LockKind, Outcome, RunnerState, now_ms};

use crate::world::{World, assert_sound, claim, claim_at, finish, ids, published};

#[test]
fn the_claims_of_a_dead_runner_are_pending_at_once_with_the_same_members() {
    let world = World::with(4, 2);
    let queue = world.queue();
    queue.start_runner("first", "host", &[]).expect("starts");
    let job = claim(&queue);
    assert_eq!(queue.runner_state().expect("looks"), RunnerState::Dead, "claims left, lock free");
    let recovery = queue.start_runner("second", "host", &[]).expect("starts");
    assert_eq!(recovery.shards, 1);
    let again = claim(&queue);
    assert_eq!((again.lease.shard, ids(&again)), (job.lease.shard, ids(&job)));
    assert!(again.lease.attempt > job.lease.attempt);
    assert_sound(&queue);
}

#[test]
fn a_microshard_that_the_process_dies_on_twice_fails_and_the_rest_goes_on() {
    let world = World::with(4, 2);
    let queue = world.queue();
    let job = claim(&queue);
    let suspect = job.members[0].seq;
    assert_eq!(queue.start_runner("a", "h", &[suspect]).expect("starts").suspects, 1);
    let job = claim(&queue);
    assert_eq!(job.members.len(), 2, "tried once more");
    assert_eq!(queue.suspects().expect("reads").iter().map(|member| member.seq).collect::<Vec<_>>(), [suspect]);
    queue.start_runner("b", "h", &[suspect]).expect("starts");
    let job = claim(&queue);
    assert_eq!(ids(&job), [2], "it has failed");
    let mut failures = Vec::new();
    queue
        .for_each_failure(&mut |failure| {
            failures.push((failure.microshard_id, failure.sentence));
            Ok(())
        })
        .expect("reads");
    assert_eq!(failures.len(), 1);
    assert!(failures[0].0 == 1 && failures[0].1.contains("died"), "{failures:?}");
    assert_sound(&queue);
}

#[test]
fn a_slot_that_names_no_microshard_of_a_pending_shard_is_ignored() {
    let world = World::with(4, 2);
    let queue = world.queue();
    let job = claim(&queue);
    finish(&queue, &job.lease, published("a"));
    let recovery = queue.start_runner("a", "h", &[job.members[0].seq, 999, -5]).expect("starts");
    assert_eq!(recovery.suspects, 0);
    assert_sound(&queue);
}

#[test]
fn deaths_in_a_row_without_a_shard_published_stop_the_queue_with_a_sentence() {
    let world = World::with(20, 2);
    let queue = world.queue();
    let mut deaths = 0;
    let error = loop {
        match queue.start_runner("x", "h", &[]) {
            Ok(_) => drop(claim(&queue)),
            Err(error) => break error,
        }
        deaths += 1;
        assert!(deaths <= DEATHS_MAX);
    };
    assert!(error.to_string().contains("died"), "{error}");
    queue.start_runner("y", "h", &[]).expect("somebody has looked: another try is allowed");
    assert_sound(&queue);
}

#[test]
fn a_shard_published_in_between_ends_the_row_of_deaths() {
    let world = World::with(40, 2);
    let queue = world.queue();
    for _ in 0..2 * DEATHS_MAX {
        queue.start_runner("x", "h", &[]).expect("starts");
        let done = claim_at(&queue, 0).expect("pending");
        finish(&queue, &done.lease, published(&done.name));
        claim_at(&queue, 0);
    }
}

#[test]
fn the_state_of_the_runner_is_judged_by_lock_and_beat() {
    let world = World::with(4, 2);
    let queue = world.queue();
    assert_eq!(queue.runner_state().expect("looks"), RunnerState::Idle);
    let _lock = Lock::acquire(&world.path, LockKind::Runner).expect("locks");
    queue.start_runner("x", "h", &[]).expect("starts");
    assert_eq!(queue.runner_state().expect("looks"), RunnerState::Running);
    let conn = rusqlite::Connection::open(&world.path).expect("opens");
    conn.execute("UPDATE runner SET beat_at = beat_at - 16000", []).expect("writes");
    assert_eq!(queue.runner_state().expect("looks"), RunnerState::Quiet);
}

#[test]
fn uploads_are_on_record_until_they_end() {
    let world = World::with(4, 2);
    let conn = rusqlite::Connection::open(&world.path).expect("opens");
    conn.execute("INSERT INTO uploads VALUES('k', 'id')", []).expect("writes");
    let queue = world.queue();
    assert_eq!(queue.uploads().expect("reads"), [("k".to_owned(), "id".to_owned())]);
    queue.upload_ended("k", "id").expect("ends");
    assert!(queue.uploads().expect("reads").is_empty());
}

#[test]
fn a_suspect_that_was_tried_alone_and_lived_is_suspect_no_more() {
    let world = World::with(4, 2);
    let queue = world.queue();
    let seq = claim(&queue).members[0].seq;
    queue.start_runner("a", "h", &[seq]).expect("starts");
    queue.acquit(seq).expect("acquits");
    assert!(queue.suspects().expect("reads").is_empty());
    claim(&queue);
    queue.start_runner("b", "h", &[seq]).expect("starts");
    assert_eq!(claim(&queue).members.len(), 2, "a first death again, not a second");
}

#[test]
fn where_there_are_no_locks_the_beat_tells_and_a_long_quiet_runner_may_be_taken_over() {
    let world = World::with(4, 2);
    let queue = world.queue();
    assert!(!queue.may_be_at_work().expect("looks"), "there never was one");
    queue.start_runner("x", "h", &[]).expect("starts");
    assert!(queue.may_be_at_work().expect("looks"));
    let conn = rusqlite::Connection::open(&world.path).expect("opens");
    conn.execute("UPDATE runner SET beat_at = beat_at - 14 * 60000", []).expect("writes");
    assert!(queue.may_be_at_work().expect("looks"), "quiet, but not for long");
    conn.execute("UPDATE runner SET beat_at = beat_at - 2 * 60000", []).expect("writes");
    assert!(!queue.may_be_at_work().expect("looks"));
}

#[test]
fn a_runner_that_could_not_start_leaves_the_queue_as_it_was_and_can_try_again() {
    let world = World::with(4, 2);
    let queue = world.queue();
    let job = claim(&queue);
    let other = rusqlite::Connection::open(&world.path).expect("opens");
    other
        .execute_batch("CREATE TRIGGER full BEFORE INSERT ON runner BEGIN SELECT RAISE(ABORT, 'disk full'); END")
        .expect("creates");
    queue.start_runner("a", "h", &[]).expect_err("cannot be written");
    assert_eq!(queue.status().expect("reads")[0].shards.claimed, 1, "nothing was taken back");
    other.execute_batch("DROP TRIGGER full").expect("nobody holds the write lock");
    assert_eq!(queue.start_runner("a", "h", &[]).expect("starts").shards, 1);
    assert_eq!(ids(&claim(&queue)), ids(&job));
    assert_sound(&queue);
}

#[test]
fn a_time_from_before_the_clock_was_set_back_is_not_waited_for() {
    let world = World::with(4, 2);
    let queue = world.queue();
    let minute = 60_000;
    for wait in [minute, 120 * minute] {
        let deferred = Outcome::Deferred { until_ms: now_ms() + wait, why: "later".into(), progress: false };
        finish(&queue, &claim(&queue).lease, deferred);
    }
    queue.start_runner("me", "host", &[]).expect("starts");
    assert!(claim_at(&queue, now_ms()).is_some(), "two hours are longer than anything is deferred for");
    assert!(claim_at(&queue, now_ms()).is_none(), "a minute is not");
    assert_sound(&queue);
}
