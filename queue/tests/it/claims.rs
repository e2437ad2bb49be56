//! Claims and how they end: two phases, fences, bounds.

use microshard_queue::{Claimer, DEFERRALS_MAX, Failure, Finish, Finished, LOST_MAX, Outcome};

use crate::world::{Every, World, assert_sound, claim, claim_at, finish, ids, items, published};

#[test]
fn pending_comes_first_and_expired_leases_only_when_nothing_is_pending() {
    let world = World::with(4, 2);
    let queue = world.queue();
    let first = claim_at(&queue, 0).expect("pending");
    let later = claim_at(&queue, 5000).expect("the first lease has expired, but another shard is pending");
    assert_ne!(first.lease.shard, later.lease.shard);
    let again = claim_at(&queue, 5000).expect("the expired one");
    assert_eq!((again.lease.shard, again.lease.attempt), (first.lease.shard, first.lease.attempt + 1));
    assert_eq!(ids(&again), ids(&first), "the same members");
    assert!(claim_at(&queue, 5000).is_none(), "the second lease still holds");
    assert_sound(&queue);
}

#[test]
fn a_late_finisher_is_refused_and_changes_nothing() {
    let world = World::with(2, 2);
    let queue = world.queue();
    let late = claim_at(&queue, 0).expect("pending");
    let now = claim_at(&queue, 5000).expect("expired");
    let failure = Failure { seq: late.members[0].seq, sentence: "x".into(), tries: 1 };
    let with_failure = Finish { outcome: published("late"), failures: vec![failure], troubles: vec![] };
    assert_eq!(queue.transaction(|| queue.finish(&late.lease, &with_failure)).expect("refuses"), Finished::Lost);
    assert_eq!(queue.status().expect("reads")[0].microshards.failed, 0, "nor is its failure taken");
    assert_eq!(finish(&queue, &now.lease, published("now")), Finished::Accepted);
    assert_eq!(finish(&queue, &now.lease, published("twice")), Finished::Lost, "a lease ends once (I5)");
    assert_sound(&queue);
}

#[test]
fn a_deferred_shard_waits_and_is_then_claimed_with_the_same_members() {
    let world = World::with(2, 2);
    let queue = world.queue();
    let job = claim(&queue);
    let trouble = Failure { seq: job.members[1].seq, sentence: "503".into(), tries: 1 };
    let outcome = Outcome::Deferred { until_ms: 100, why: "503".into(), progress: true };
    let with_trouble = Finish { outcome, failures: vec![], troubles: vec![trouble] };
    queue.transaction(|| queue.finish(&job.lease, &with_trouble)).expect("defers");
    assert!(claim_at(&queue, 99).is_none());
    assert_eq!(queue.next_claim_at(None).expect("reads"), Some(100));
    assert_eq!(queue.status().expect("reads")[0].shards.waiting, 1);
    let again = claim_at(&queue, 100).expect("its time has come");
    assert_eq!((ids(&again), again.deferrals), (ids(&job), 1));
    assert_eq!((again.members[0].tries, again.members[1].tries), (0, 1));
    assert!(again.members[1].tried_since_ms > 0);
    assert_sound(&queue);
}

#[test]
fn deferrals_in_a_row_without_progress_are_bounded_and_leave_a_sentence() {
    let world = World::with(2, 2);
    let queue = world.queue();
    for round in 0..=DEFERRALS_MAX {
        let job = claim(&queue);
        let progress = round == 0;
        let outcome = Outcome::Deferred { until_ms: 0, why: "it stalls".into(), progress };
        finish(&queue, &job.lease, outcome);
    }
    assert!(claim_at(&queue, 0).is_none());
    let mut sentences = Vec::new();
    queue
        .for_each_failure(&mut |failure| {
            sentences.push(failure.sentence);
            Ok(())
        })
        .expect("reads");
    assert_eq!(sentences.len(), 2);
    assert!(sentences[0].contains("360 times") && sentences[0].contains("it stalls"), "{sentences:?}");
    assert_sound(&queue);
}

#[test]
fn a_shard_whose_leases_keep_getting_lost_fails_with_a_sentence() {
    let world = World::with(2, 2);
    let queue = world.queue();
    let claims = (0..).take_while(|round| claim_at(&queue, round * 10_000).is_some()).count();
    assert_eq!(claims, LOST_MAX as usize);
    let status = &queue.status().expect("reads")[0];
    assert_eq!((status.shards.failed, status.microshards.failed, status.shards.claimed), (1, 2, 0));
    assert_sound(&queue);
}

#[test]
fn failed_microshards_leave_their_shard_and_the_rest_is_consumed() {
    let world = World::with(3, 3);
    let queue = world.queue();
    let job = claim(&queue);
    let failure = Failure { seq: job.members[1].seq, sentence: "404".into(), tries: 1 };
    let outcome = Finish { outcome: published("a"), failures: vec![failure], troubles: vec![] };
    queue.transaction(|| queue.finish(&job.lease, &outcome)).expect("publishes");
    let status = &queue.status().expect("reads")[0];
    assert_eq!((status.microshards.consumed, status.microshards.failed), (2, 1));
    assert_eq!((status.rows, status.bytes_in, status.bytes_out), (10, 100, 50));
    assert_sound(&queue);
}

#[test]
fn a_released_shard_is_pending_as_if_it_had_not_been_claimed() {
    let world = World::with(2, 2);
    let queue = world.queue();
    let job = claim(&queue);
    finish(&queue, &job.lease, Outcome::Released);
    let again = claim(&queue);
    assert_eq!((ids(&again), again.deferrals), (ids(&job), 0));
    assert!(again.lease.attempt > job.lease.attempt, "but the fence has moved");
}

#[test]
fn only_one_run_is_claimed_when_told_so_and_the_others_do_not_keep_it_waiting() {
    let world = World::new();
    world.snapshot("one", &items("en", 1..=4), Every(2, false)).expect("plans");
    world.snapshot("two", &items("en", 1..=2), Every(2, false)).expect("plans");
    let queue = world.queue();
    let only = Some(queue.run_named("two").expect("is there"));
    let claim = |now_ms| {
        queue.transaction(|| queue.claim(Claimer { owner: "me", now_ms, lease_ms: 1000, only })).expect("claims")
    };
    assert_eq!(claim_at(&queue, 0).expect("pending").run_id, "one");
    let job = claim(0).expect("pending");
    assert_eq!(job.run_id, "two");
    assert!(claim(5000).is_some_and(|again| again.lease.shard == job.lease.shard), "its own expired lease");
    assert!(claim(5000).is_none(), "but not the other run's");
    assert_eq!(queue.next_claim_at(only).expect("reads"), Some(6000));
    let error = queue.run_named("three").expect_err("is none").to_string();
    assert!(error.contains("one, two"), "{error}");
}
