//! What comes out: unsynced shards in chunks, failures, retry, release.

use std::collections::BTreeMap;

use microshard_queue::{
    FailedMicroshard, Failure, Finish, GroupStatus, HeldFor, Outcome, Queue, Refused, Result, RetrySelection,
    ShardCounts,
};

use crate::world::{Every, World, assert_sound, claim, claim_at, finish, ids, items, name, published};

fn publish_all(world: &World) {
    let queue = world.queue();
    while let Some(job) = claim_at(&queue, 0) {
        finish(&queue, &job.lease, published(&job.name));
    }
}

/// Why each planned shard is held, in plan order.
fn held_for(queue: &Queue) -> Vec<Option<HeldFor>> {
    let mut all = Vec::new();
    let read: Result<()> = queue.for_each_shard(&mut |shard| {
        all.push(shard.held_for());
        Ok(())
    });
    read.expect("reads");
    all
}

#[test]
fn the_total_counts_every_run_and_language_once() {
    let world = World::new();
    let mut all = items("en", 1..=4);
    all.extend(items("de", 5..=6));
    world.snapshot("one", &all, Every(2, false)).expect("plans");
    world.snapshot("two", &items("en", 1..=3), Every(2, true)).expect("plans");
    let queue = world.queue();
    let jobs = [claim(&queue), claim(&queue), claim(&queue)];
    for job in &jobs[..2] {
        finish(&queue, &job.lease, published(&job.name));
    }
    let total = GroupStatus::total(&queue.status().expect("reads"));
    let (shards, microshards) = (&total.shards, &total.microshards);
    assert_eq!((shards.pending, shards.claimed, shards.published, shards.held), (1, 1, 2, 1));
    assert_eq!((microshards.pending, microshards.claimed, microshards.consumed, microshards.held), (2, 2, 4, 1));
    assert_eq!((shards.total(), microshards.total()), (5, 9));
    assert_eq!((total.rows, total.bytes_in, total.bytes_out), (20, 200, 100));
}

#[test]
fn all_wait_where_nothing_is_left_that_may_be_claimed_or_is() {
    let counts =
        |pending, waiting, claimed| ShardCounts { pending, waiting, claimed, failed: 1, ..ShardCounts::default() };
    assert!(counts(2, 2, 0).all_wait());
    for others in [counts(0, 0, 0), counts(2, 1, 0), counts(2, 2, 1)] {
        assert!(!others.all_wait(), "{others:?}");
    }
}

#[test]
fn unsynced_shards_come_in_chunks_and_once_marked_no_more() {
    let world = World::with(10, 2);
    publish_all(&world);
    let queue = world.queue();
    let snapshot = queue.snapshots().expect("reads")[0].snapshot;
    let chunk = queue.unsynced_shards(snapshot, 0, 5).expect("reads");
    assert_eq!(chunk.len(), 2, "at most 5 microshards");
    assert_eq!(queue.unsynced_shards(snapshot, 0, 1).expect("reads").len(), 1, "at least one shard");
    let member = &queue.consumed(&chunk[0]).expect("reads")[1];
    assert_eq!((member.microshard_id, member.updated_at), (2, Some(4)));
    queue.mark_synced(&[(chunk[0].shard, None), (chunk[1].shard, Some("taken".into()))], &[]).expect("marks");
    assert_eq!(queue.unsynced_shards(snapshot, 0, 99).expect("reads").len(), 3);
    assert_eq!(queue.status().expect("reads")[0].shards.synced, 1, "a refused one is not synced");
    let refused = queue.refused().expect("reads");
    assert_eq!(refused, Refused { shards: 1, failures: 0 });
    assert_eq!(Refused { shards: 2, failures: 3 }.total(), 5);
    assert_sound(&queue);
}

fn fail_one(world: &World, outcome: Outcome) {
    let queue = world.queue();
    let job = claim(&queue);
    let failure = Failure { seq: job.members[0].seq, sentence: "404".into(), tries: 1 };
    let finish = Finish { outcome, failures: vec![failure], troubles: vec![] };
    queue.transaction(|| queue.finish(&job.lease, &finish)).expect("finishes");
}

#[test]
fn retry_puts_what_failed_into_a_new_shard_and_keeps_the_old_as_it_was() {
    let world = World::with(4, 4);
    fail_one(&world, published("a"));
    let queue = world.queue();
    let retried = queue.retry(&RetrySelection::default(), &name).expect("retries");
    assert_eq!((retried.microshards, retried.shards), (1, 1));
    let job = claim(&queue);
    assert_eq!((job.name.as_str(), ids(&job), job.failed_before), ("run-en-000-00001", vec![1], 0));
    let status = &queue.status().expect("reads")[0];
    assert_eq!((status.microshards.total(), status.microshards.failed, status.microshards.consumed), (4, 0, 3));
    finish(&queue, &job.lease, published("b"));
    let mut states = Vec::new();
    queue
        .for_each_microshard(&mut |microshard| -> microshard_queue::Result<()> {
            states.push((microshard.microshard_id, microshard.status.to_owned()));
            Ok(())
        })
        .expect("reads");
    states.sort();
    assert_eq!(states, [1, 2, 3, 4].map(|id| (id, "consumed".to_owned())), "each once");
    assert_sound(&queue);
}

#[test]
fn a_job_knows_how_many_of_its_shard_failed_before() {
    let world = World::with(5, 5);
    fail_one(&world, Outcome::Deferred { until_ms: 0, why: "503".into(), progress: false });
    fail_one(&world, Outcome::Deferred { until_ms: 0, why: "503".into(), progress: false });
    let job = claim(&world.queue());
    assert_eq!((ids(&job), job.failed_before), (vec![3, 4, 5], 2));
    assert_eq!(world.queue().left_out().expect("reads"), BTreeMap::from([(job.lease.shard, (20, 200))]));
}

#[test]
fn what_failed_in_many_shards_goes_into_few_and_none_is_larger_than_they_were() {
    let three = vec![vec![1, 5, 9], vec![13, 17], vec![21]];
    let two = vec![vec![1, 5], vec![9, 13], vec![17], vec![21]];
    // What fails has half of its shard's rows, or bytes, where they are counted.
    for (rows, bytes, expected) in [(None, None, three), (Some(10), None, two.clone()), (None, Some(100), two)] {
        let world = World::new();
        let mut all = items("en", 1..=20);
        all.extend(items("de", 21..=24));
        for item in &mut all {
            let share = if item.microshard_id.is_some_and(|id| id % 4 == 1) { 3 } else { 1 };
            item.rows = rows.map(|rows: u32| rows * share);
            item.bytes = bytes.map(|bytes: u64| bytes * u64::from(share));
        }
        world.snapshot("run", &all, Every(4, false)).expect("plans");
        for _ in 0..6 {
            fail_one(&world, published("a"));
        }
        let queue = world.queue();
        let retried = queue.retry(&RetrySelection::default(), &name).expect("retries");
        assert_eq!((retried.microshards, retried.shards), (6, expected.len() as u64));
        let mut again: Vec<_> = expected.iter().map(|_| ids(&claim(&queue))).collect();
        again.sort();
        assert_eq!(again, expected, "no more than the largest, of one language, in plan order");
        assert_sound(&queue);
    }
}

#[test]
fn retry_takes_what_is_selected_and_names_what_has_not_failed() {
    let world = World::new();
    let mut all = items("en", 1..=2);
    all.extend(items("de", 3..=4));
    world.snapshot("run", &all, Every(2, false)).expect("plans");
    fail_one(&world, Outcome::Failed("all".into()));
    fail_one(&world, Outcome::Failed("all".into()));
    let queue = world.queue();
    assert_eq!(GroupStatus::total(&queue.status().expect("reads")).microshards.failed, 4);
    let unknown = RetrySelection { microshard_ids: vec![2, 99, 98, 99], ..RetrySelection::default() };
    let refused = queue.retry(&unknown, &name).expect_err("two have not failed").to_string();
    assert!(refused.starts_with("microshards 98, 99 have not failed here"), "{refused}");
    let german = RetrySelection { languages: vec!["de".into()], ..RetrySelection::default() };
    assert_eq!(queue.retry(&german, &name).expect("retries").microshards, 2);
    let one = RetrySelection { microshard_ids: vec![2, 2], ..RetrySelection::default() };
    assert_eq!(queue.retry(&one, &name).expect("is named twice, and retried").microshards, 1);
    let nothing_left = RetrySelection { languages: vec!["de".into()], ..RetrySelection::default() };
    let refused = queue.retry(&nothing_left, &name).expect_err("none is failed").to_string();
    assert_eq!(refused, "no microshard of language de has failed here");
    assert_sound(&queue);
}

#[test]
fn a_shard_held_for_its_failures_comes_back_whole() {
    let world = World::with(4, 4);
    fail_one(&world, Outcome::Held("1 failed".into()));
    let queue = world.queue();
    let status = &queue.status().expect("reads")[0];
    assert_eq!((status.microshards.held, status.microshards.failed), (3, 1));
    let snapshot = queue.snapshots().expect("reads")[0].snapshot;
    assert!(queue.unsynced_failures(snapshot, 0, 9).expect("reads").is_empty(), "it may yet be built");
    world.snapshot("run", &items("en", [9]), Every(4, true)).expect("plans");
    assert_eq!(queue.status().expect("reads")[0].microshards.held, 4, "it is no remainder, and is not planned again");
    assert_eq!(held_for(&queue), [Some(HeldFor::Retry), Some(HeldFor::Remainder)]);
    assert_eq!(queue.retry(&RetrySelection::default(), &name).expect("retries").unheld, 1);
    assert_eq!(held_for(&queue), [None, Some(HeldFor::Remainder)]);
    assert_eq!(ids(&claim(&queue)), [1, 2, 3, 4]);
    assert_sound(&queue);
}

#[test]
fn what_is_released_is_never_claimed_and_named_to_be_given_back() {
    let world = World::with(6, 2);
    let queue = world.queue();
    let job = claim(&queue);
    finish(&queue, &job.lease, published("a"));
    let snapshot = queue.snapshots().expect("reads")[0].snapshot;
    let mut released = Vec::new();
    assert_eq!(queue.release_unworked(snapshot, &mut |id| released.push(id)).expect("releases").microshards, 4);
    assert_eq!(released, [3, 4, 5, 6]);
    assert!(claim_at(&queue, i64::MAX / 2).is_none());
    let status = &queue.status().expect("reads")[0];
    assert_eq!((status.microshards.held, status.microshards.consumed), (4, 2));
    assert_sound(&queue);
}

#[test]
fn a_held_shard_that_was_released_is_not_brought_back_by_retry() {
    let world = World::with(4, 4);
    fail_one(&world, Outcome::Held("1 failed".into()));
    let queue = world.queue();
    let snapshot = queue.snapshots().expect("reads")[0].snapshot;
    let mut released = Vec::new();
    queue.release_unworked(snapshot, &mut |id| released.push(id)).expect("releases");
    assert_eq!(released, [2, 3, 4]);
    let retried = queue.retry(&RetrySelection::default(), &name).expect("retries");
    assert_eq!((retried.microshards, retried.unheld), (0, 0));
    assert!(claim_at(&queue, 0).is_none());
    assert_sound(&queue);
    let planned = world.snapshot("run", &items("en", 1..=4), Every(4, false)).expect("plans");
    assert_eq!((planned.added, planned.known), (4, 0), "but by a snapshot that lists it again, whole");
    assert_eq!(ids(&claim(&queue)), [1, 2, 3, 4]);
    assert_sound(&queue);
}

fn failed(queue: &Queue) -> Vec<(i64, String)> {
    let mut failed = Vec::new();
    let each = &mut |failure: FailedMicroshard| -> microshard_queue::Result<()> {
        failed.push((failure.microshard_id, failure.sentence));
        Ok(())
    };
    queue.for_each_failure(each).expect("reads");
    failed
}

/// Its retry was in a shard of its own, which `release` held: then it was neither failed, nor could it be retried, nor was
/// it planned by another snapshot.
#[test]
fn what_is_released_before_it_is_retried_is_failed_again_and_can_be_retried_under_another_name() {
    let world = World::with(4, 4);
    fail_one(&world, published("a"));
    let queue = world.queue();
    let snapshot = queue.snapshots().expect("reads")[0].snapshot;
    queue.mark_synced(&[], &[(1, None)]).expect("marks");
    for (name_of_retry, wait) in [("run-en-000-00001", true), ("run-en-000-00002", false), ("run-en-000-00003", true)] {
        assert_eq!(queue.retry(&RetrySelection::default(), &name).expect("retries").microshards, 1);
        let job = claim(&queue);
        assert_eq!((job.name.as_str(), ids(&job)), (name_of_retry, vec![1]));
        if wait {
            finish(&queue, &job.lease, Outcome::Deferred { until_ms: 9, why: "later".into(), progress: false });
        }
        let mut ids = Vec::new();
        let released = queue.release_unworked(snapshot, &mut |id| ids.push(id)).expect("releases");
        assert_eq!((released.microshards, released.failed_again, ids), (0, 1, vec![]));
        assert_eq!(failed(&queue), [(1, "404".to_owned())]);
        assert!(queue.unsynced_failures(snapshot, 0, 9).expect("reads").is_empty(), "the manifest has it as it is");
        assert_sound(&queue);
    }
}

#[test]
fn a_retry_of_a_retry_is_undone_step_by_step() {
    let world = World::with(4, 4);
    let queue = world.queue();
    let job = claim(&queue);
    let failure = |index: usize| Failure { seq: job.members[index].seq, sentence: format!("{index}"), tries: 1 };
    let finish_with = Finish { outcome: published("a"), failures: vec![failure(0), failure(1)], troubles: vec![] };
    queue.transaction(|| queue.finish(&job.lease, &finish_with)).expect("finishes");
    queue.retry(&RetrySelection::default(), &name).expect("retries");
    // One of them fails again while the other waits, is retried alone, and is built.
    fail_one(&world, Outcome::Deferred { until_ms: i64::MAX, why: "later".into(), progress: false });
    queue.retry(&RetrySelection::default(), &name).expect("retries");
    let job = claim(&queue);
    assert_eq!(ids(&job), [1]);
    finish(&queue, &job.lease, published("b"));
    let snapshot = queue.snapshots().expect("reads")[0].snapshot;
    assert_eq!(queue.release_unworked(snapshot, &mut |_| {}).expect("releases").failed_again, 1);
    assert_eq!(failed(&queue), [(2, "1".to_owned())], "1 is in a shard");
    assert_eq!(queue.status().expect("reads")[0].microshards.total(), 4);
    assert_sound(&queue);
}

#[test]
fn what_was_released_is_taken_again_when_the_manifest_lists_it_again() {
    let world = World::with(4, 2);
    let queue = world.queue();
    let snapshot = queue.snapshots().expect("reads")[0].snapshot;
    queue.release_unworked(snapshot, &mut |_| {}).expect("releases");
    let planned = world.snapshot("run", &items("en", [2, 3, 4]), Every(3, false)).expect("plans");
    assert_eq!((planned.added, planned.known), (3, 0));
    assert_eq!(ids(&claim(&queue)), [2, 3, 4]);
    assert_eq!(queue.status().expect("reads")[0].microshards.total(), 3, "1 is the manifest's");
    assert_sound(&queue);
}

#[test]
fn what_the_manifest_refused_stays_on_record() {
    let world = World::with(2, 2);
    publish_all(&world);
    let queue = world.queue();
    queue.mark_synced(&[(1, Some("microshard 1 is somebody else's".into()))], &[]).expect("marks");
    let refusals = queue.refusals().expect("reads");
    assert_eq!(refusals.len(), 1);
    assert!(refusals[0].contains("run-en-000-00000") && refusals[0].contains("somebody else's"), "{refusals:?}");
}
