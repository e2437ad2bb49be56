//! Turns: runs in one queue are claimed shard by shard in turn, whatever they are and wherever they come from.

use microshard_queue::{Claimer, Item, Outcome, Queue};

use crate::world::{Every, World, claim, claim_at, finish, items, published};

/// The runs of the next `count` claims.
fn turns(queue: &Queue, count: usize) -> Vec<String> {
    (0..count).map(|_| claim(queue).run_id).collect()
}

fn count(turns: &[String], run_id: &str) -> usize {
    turns.iter().filter(|run| *run == run_id).count()
}

#[test]
fn a_small_run_gets_its_turn_next_and_not_after_the_big_one() {
    let world = World::new();
    world.snapshot("big", &items("en", 1..=200), Every(2, false)).expect("plans");
    let queue = world.queue();
    for _ in 0..10 {
        let job = claim(&queue);
        finish(&queue, &job.lease, published(&job.name));
    }
    world.snapshot("small", &items("en", 1..=2), Every(2, false)).expect("plans");
    let next: Vec<String> = (0..2).map(|_| claim(&queue).run_id).collect();
    assert!(next.contains(&"small".to_owned()), "{next:?}");
}

#[test]
fn two_big_runs_take_turns_and_none_catches_up_alone() {
    let world = World::new();
    world.snapshot("one", &items("en", 1..=100), Every(2, false)).expect("plans");
    let queue = world.queue();
    (0..20).for_each(|_| drop(claim(&queue)));
    world.snapshot("two", &items("en", 1..=100), Every(2, false)).expect("plans");
    let turns: Vec<String> = (0..10).map(|_| claim(&queue).run_id).collect();
    assert_eq!(turns.iter().filter(|run| *run == "two").count(), 5, "{turns:?}");
}

#[test]
fn the_language_with_most_left_comes_first() {
    let world = World::new();
    let mut all = items("small", 1..=2);
    all.extend(items("large", 11..=20));
    world.snapshot("run", &all, Every(2, false)).expect("plans");
    let queue = world.queue();
    let mut order = Vec::new();
    while let Some(job) = claim_at(&queue, 0) {
        finish(&queue, &job.lease, published(&job.name));
        order.push(job.language);
    }
    assert_eq!(order[0], "large");
    assert_eq!(order.len(), 6);
}

#[test]
fn a_run_of_weight_three_has_three_turns_for_one() {
    let world = World::new();
    world.snapshot("one", &items("en", 1..=100), Every(2, false)).expect("plans");
    world.snapshot("two", &items("en", 1..=100), Every(2, false)).expect("plans");
    let queue = world.queue();
    queue.set_weight("two", 3).expect("sets");
    let turns: Vec<String> = (0..40).map(|_| claim(&queue).run_id).collect();
    assert_eq!(turns.iter().filter(|run| *run == "two").count(), 30, "{turns:?}");
}

/// Lanes that finish one after the other: each finish is followed by that lane's next claim.
#[test]
fn a_run_of_one_shard_is_published_before_more_than_lanes_and_one_further_shards_of_a_big_run_are() {
    const LANES: usize = 6;
    let world = World::new();
    world.snapshot("big", &items("en", 1..=400), Every(2, false)).expect("plans");
    let queue = world.queue();
    let mut in_flight: std::collections::VecDeque<_> = (0..LANES).map(|_| claim(&queue)).collect();
    let mut order = Vec::new();
    while let Some(job) = in_flight.pop_front() {
        finish(&queue, &job.lease, published(&format!("{}{}", job.run_id, job.name)));
        order.push(job.run_id);
        if [10, 60, 120].contains(&order.len()) {
            let small = format!("small{}", order.len());
            world.snapshot(&small, &items("en", 1..=2), Every(2, false)).expect("plans");
        }
        in_flight.extend(claim_at(&queue, 0));
    }
    assert_eq!(order.len(), 203);
    for added in [10, 60, 120] {
        let waited = order[added..].iter().position(|run| *run == format!("small{added}")).expect("is published");
        assert!(waited <= LANES + 1, "{waited} shards came before the one that was added after {added}");
    }
}

fn with_rows(rows: Option<u32>, ids: std::ops::RangeInclusive<i64>) -> Vec<Item> {
    items("en", ids).into_iter().map(|item| Item { rows, ..item }).collect()
}

#[test]
fn a_run_without_counts_takes_turns_with_one_that_has_them_and_with_one_that_is_empty() {
    let world = World::new();
    world.snapshot("counted", &with_rows(Some(70), 1..=100), Every(2, false)).expect("plans");
    world.snapshot("uncounted", &with_rows(None, 1..=100), Every(2, false)).expect("plans");
    world.snapshot("empty", &with_rows(Some(0), 1..=100), Every(2, false)).expect("plans");
    let turns = turns(&world.queue(), 30);
    for run in ["counted", "uncounted", "empty"] {
        assert_eq!(count(&turns, run), 10, "{turns:?}");
    }
}

#[test]
fn a_run_whose_shards_were_all_deferred_does_not_catch_up_alone() {
    let world = World::new();
    world.snapshot("deferred", &items("en", 1..=20), Every(2, false)).expect("plans");
    let queue = world.queue();
    while let Some(job) = claim_at(&queue, 0) {
        let outcome = Outcome::Deferred { until_ms: 500, why: "503".into(), progress: false };
        finish(&queue, &job.lease, outcome);
    }
    world.snapshot("other", &items("en", 1..=200), Every(2, false)).expect("plans");
    for _ in 0..50 {
        assert_eq!(claim(&queue).run_id, "other");
    }
    let turns: Vec<String> = (0..10).map(|_| claim_at(&queue, 500).expect("pending").run_id).collect();
    assert_eq!(count(&turns, "deferred"), 5, "{turns:?}");
}

#[test]
fn a_run_that_was_passed_over_for_a_while_does_not_catch_up_alone() {
    let world = World::new();
    world.snapshot("one", &items("en", 1..=100), Every(2, false)).expect("plans");
    world.snapshot("two", &items("en", 1..=100), Every(2, false)).expect("plans");
    let queue = world.queue();
    let only = Some(queue.run_named("two").expect("is there"));
    let claimer = Claimer { owner: "me", now_ms: 0, lease_ms: 1000, only };
    for _ in 0..20 {
        queue.transaction(|| queue.claim(claimer)).expect("claims").expect("pending");
    }
    let turns = turns(&queue, 10);
    assert!(count(&turns, "one") <= 6, "one turn more at most: {turns:?}");
}

#[test]
fn a_run_that_is_snapshotted_again_does_not_pay_for_turns_it_had_before_the_others_came() {
    let world = World::new();
    world.snapshot("first", &items("en", 1..=40), Every(2, false)).expect("plans");
    let queue = world.queue();
    while let Some(job) = claim_at(&queue, 0) {
        finish(&queue, &job.lease, published(&job.name));
    }
    world.snapshot("second", &items("en", 1..=100), Every(2, false)).expect("plans");
    world.snapshot("first", &items("en", 41..=50), Every(2, false)).expect("plans");
    let turns = turns(&queue, 10);
    assert_eq!(count(&turns, "first"), 5, "{turns:?}");
}
