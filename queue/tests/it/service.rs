//! The writer: many lanes, one connection; claims wait in it, and everybody is told the truth.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_channel::{Receiver, bounded};
use microshard_queue::{Claimed, Client, Finish, Finished, GroupStatus, Outcome, Request, Waiting, now_ms};

use crate::world::{Every, World, assert_sound, claim, finish, items, published};

/// Runs `lanes` threads of `work` against a served queue.
fn serve(world: &World, lanes: usize, stop: &AtomicBool, work: impl Fn(&Client) + Sync) {
    let queue = world.queue();
    queue.start_runner("me", "host", &[]).expect("starts");
    let (requests, inbox) = bounded(lanes);
    std::thread::scope(|scope| {
        let writer = scope.spawn(move || queue.serve("me", None, &inbox, stop, &|_| {}));
        for _ in 0..lanes {
            let client = Client::new(requests.clone());
            let work = &work;
            scope.spawn(move || work(&client));
        }
        drop(requests);
        writer.join().expect("no panic").expect("serves");
    });
}

fn outcome(outcome: Outcome) -> Finish {
    Finish { outcome, failures: vec![], troubles: vec![] }
}

#[test]
fn sixty_four_lanes_claim_every_shard_once() {
    let world = World::new();
    let all: Vec<_> =
        (0..8).flat_map(|language| items(&format!("l{language}"), language * 1000..language * 1000 + 500)).collect();
    world.snapshot("run", &all, Every(5, false)).expect("plans");
    let seen = Mutex::new(Vec::new());
    serve(&world, 64, &AtomicBool::new(false), |client| {
        while let Claimed::Job(job) = client.claim().expect("claims") {
            seen.lock().expect("unpoisoned").extend(job.members.iter().map(|member| member.microshard_id));
            assert_eq!(client.finish(job.lease, outcome(published(&job.name))).expect("finishes"), Finished::Accepted);
        }
    });
    let seen = seen.into_inner().expect("unpoisoned");
    assert_eq!(seen.len(), 4000);
    assert_eq!(seen.iter().collect::<BTreeSet<_>>().len(), 4000, "none twice");
    let queue = world.queue();
    assert_eq!(GroupStatus::total(&queue.status().expect("reads")).microshards.consumed, 4000);
    assert!(queue.runner().expect("reads").expect("was one").stopped_at_ms.is_some());
    assert_sound(&queue);
}

#[test]
fn a_claim_waits_for_a_deferred_shard_instead_of_hearing_that_nothing_is_left() {
    let world = World::with(2, 2);
    let rounds = Mutex::new(0);
    serve(&world, 3, &AtomicBool::new(false), |client| {
        while let Claimed::Job(job) = client.claim().expect("claims") {
            let mut rounds = rounds.lock().expect("unpoisoned");
            *rounds += 1;
            let end = if *rounds == 1 {
                Outcome::Deferred { until_ms: now_ms() + 50, why: "later".into(), progress: false }
            } else {
                published(&job.name)
            };
            drop(rounds);
            client.finish(job.lease, outcome(end)).expect("finishes");
        }
    });
    assert_eq!(*rounds.lock().expect("unpoisoned"), 2);
    assert_eq!(world.queue().status().expect("reads")[0].shards.published, 1);
}

#[test]
fn when_all_that_is_left_waits_it_is_told_once_until_when_and_why() {
    let world = World::with(4, 2);
    let queue = world.queue();
    queue.start_runner("me", "host", &[]).expect("starts");
    let (requests, inbox) = bounded(2);
    let (told, untils) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        let tell = |waiting: &Waiting| told.lock().expect("unpoisoned").push(waiting.clone());
        let writer = scope.spawn(move || queue.serve("me", None, &inbox, &AtomicBool::new(false), &tell));
        let client = Client::new(requests);
        for wait_ms in [2000, 1000, 0, 0] {
            let Claimed::Job(job) = client.claim().expect("claims") else { panic!("something is left") };
            let end = if wait_ms > 0 {
                let until_ms = now_ms() + wait_ms;
                untils.lock().expect("unpoisoned").push(until_ms);
                Outcome::Deferred { until_ms, why: format!("{wait_ms}"), progress: false }
            } else {
                published(&job.name)
            };
            client.finish(job.lease, outcome(end)).expect("finishes");
        }
        assert!(matches!(client.claim().expect("claims"), Claimed::Drained));
        drop(client);
        writer.join().expect("no panic").expect("serves");
    });
    let untils = untils.into_inner().expect("unpoisoned");
    let expected = [(untils[1], "1000"), (untils[0], "2000")];
    let expected = expected.map(|(until_ms, why)| Waiting { until_ms, why: why.to_owned() });
    assert_eq!(
        told.into_inner().expect("unpoisoned"),
        expected,
        "the earliest, then the other; no nap of the writer's"
    );
}

#[test]
fn while_a_lane_works_nobody_is_told_that_all_waits() {
    let world = World::with(4, 2);
    let queue = world.queue();
    queue.start_runner("me", "host", &[]).expect("starts");
    let (requests, inbox) = bounded(2);
    let told = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let tell = |_: &Waiting| told.store(true, Ordering::SeqCst);
        scope.spawn(move || queue.serve("me", None, &inbox, &AtomicBool::new(false), &tell).expect("serves"));
        let client = Client::new(requests);
        let job = || match client.claim().expect("claims") {
            Claimed::Job(job) => job,
            other => panic!("something is left: {other:?}"),
        };
        let (works, waits) = (job(), job());
        let later = Outcome::Deferred { until_ms: now_ms() + 600, why: "later".into(), progress: false };
        client.finish(waits.lease, outcome(later)).expect("finishes");
        for job in [job(), works] {
            client.finish(job.lease, outcome(published(&job.name))).expect("finishes");
        }
    });
    assert!(!told.load(Ordering::SeqCst));
}

#[test]
fn what_a_dead_runner_had_begun_is_claimed_first_whatever_language_is_next() {
    let world = World::new();
    let all = [items("de", 1..=10), items("en", 11..=16)].concat();
    world.snapshot("run", &all, Every(2, false)).expect("plans");
    let queue = world.queue();
    queue.start_runner("first", "host", &[]).expect("starts");
    let held: Vec<_> = (0..2).map(|_| claim(&queue)).collect();
    for _ in 0..3 {
        let job = claim(&queue);
        assert_eq!(job.language, "de");
        finish(&queue, &job.lease, published(&job.name));
    }
    assert_eq!(claim(&queue).language, "en", "the language that has most left, unless something was begun");
    queue.start_runner("second", "host", &[]).expect("starts");
    let (requests, inbox) = bounded(1);
    let claimed = std::thread::scope(|scope| {
        scope.spawn(move || queue.serve("second", None, &inbox, &AtomicBool::new(false), &|_| {}).expect("serves"));
        let client = Client::new(requests);
        let claims = (0..4).map(|_| match client.claim().expect("claims") {
            Claimed::Job(job) => (job.lease.shard, job.lease.attempt),
            other => panic!("something is left: {other:?}"),
        });
        claims.collect::<Vec<_>>()
    });
    let [one, other] = [&held[0], &held[1]].map(|job| (job.lease.shard, 2));
    assert_eq!(claimed, [one, other, (6, 2), (7, 1)]);
}

#[test]
fn a_stopped_runner_claims_no_more_and_waiting_claims_are_told() {
    let world = World::with(20, 2);
    let stop = AtomicBool::new(false);
    let claimed = Mutex::new(0);
    serve(&world, 4, &stop, |client| {
        loop {
            match client.claim().expect("claims") {
                Claimed::Job(job) => {
                    *claimed.lock().expect("unpoisoned") += 1;
                    stop.store(true, Ordering::SeqCst);
                    client.finish(job.lease, outcome(Outcome::Released)).expect("finishes");
                }
                Claimed::Stopped => break,
                Claimed::Drained => panic!("not drained, but stopped"),
            }
        }
    });
    assert!(*claimed.lock().expect("unpoisoned") <= 4);
    let status = &world.queue().status().expect("reads")[0];
    assert_eq!((status.shards.pending, status.shards.claimed), (10, 0));
}

/// Waits until so many requests are in the writer's inbox: the writer does not work yet, so they stay.
fn wait_for_requests(inbox: &Receiver<Request>, count: usize) {
    while inbox.len() < count {
        std::thread::yield_now();
    }
}

#[test]
fn the_claim_that_has_waited_longest_is_answered_first() {
    let world = World::with(2, 2);
    let queue = world.queue();
    queue.start_runner("me", "host", &[]).expect("starts");
    let (requests, inbox) = bounded(3);
    let order = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for lane in 1..=3 {
            let (client, order) = (Client::new(requests.clone()), &order);
            scope.spawn(move || {
                let Claimed::Job(job) = client.claim().expect("claims") else { panic!("the shard is given back") };
                order.lock().expect("unpoisoned").push(lane);
                client.finish(job.lease, outcome(Outcome::Released)).expect("finishes");
            });
            wait_for_requests(&inbox, lane);
        }
        drop(requests);
        queue.serve("me", None, &inbox, &AtomicBool::new(false), &|_| {}).expect("serves");
    });
    assert_eq!(order.into_inner().expect("unpoisoned"), [1, 2, 3]);
}

/// Two lanes and one shard, whose lease runs out while the one works and the other waits; how each lease ended.
fn when_the_lease_runs_out(headway: bool) -> Vec<Finished> {
    let world = World::with(2, 2);
    let queue = world.queue();
    queue.start_runner("me", "host", &[]).expect("starts");
    let (requests, inbox) = bounded(2);
    let ends = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for lane in 1..=2 {
            let (client, world, ends) = (Client::new(requests.clone()), &world, &ends);
            scope.spawn(move || {
                let Claimed::Job(job) = client.claim().expect("claims") else { return };
                if headway {
                    job.lease.pulse.beat();
                }
                let conn = rusqlite::Connection::open(&world.path).expect("opens");
                conn.execute("UPDATE shards SET lease_expires_at = 1 WHERE state = 2", []).expect("ages");
                // Its answer comes after the waiting claim has been looked at.
                client.upload_started(&job.name, "upload").expect("is kept");
                let end = client.finish(job.lease, outcome(published(&job.name))).expect("finishes");
                ends.lock().expect("unpoisoned").push(end);
            });
            wait_for_requests(&inbox, lane);
        }
        drop(requests);
        queue.serve("me", None, &inbox, &AtomicBool::new(false), &|_| {}).expect("serves");
    });
    assert_sound(&world.queue());
    ends.into_inner().expect("unpoisoned")
}

/// A host that slept: all leases are past their time at once, and the lanes go on where they were.
#[test]
fn a_lane_that_makes_headway_keeps_its_shard_although_its_lease_ran_out() {
    assert_eq!(when_the_lease_runs_out(true), [Finished::Accepted]);
}

#[test]
fn a_lane_without_headway_loses_its_shard_to_one_that_waits() {
    let ends = when_the_lease_runs_out(false);
    assert_eq!(ends.len(), 2);
    assert!(ends.contains(&Finished::Accepted) && ends.contains(&Finished::Lost), "{ends:?}");
}

#[test]
fn a_run_added_while_the_runner_works_is_picked_up() {
    let world = World::with(2, 2);
    let added = AtomicBool::new(false);
    let runs = Mutex::new(Vec::new());
    serve(&world, 2, &AtomicBool::new(false), |client| {
        while let Claimed::Job(job) = client.claim().expect("claims") {
            if !added.swap(true, Ordering::SeqCst) {
                world.snapshot("second", &items("fr", 1..=2), Every(2, false)).expect("plans");
            }
            runs.lock().expect("unpoisoned").push(job.run_id.clone());
            client.finish(job.lease, outcome(published(&job.name))).expect("finishes");
        }
    });
    let mut runs = runs.into_inner().expect("unpoisoned");
    runs.sort();
    assert_eq!(runs, ["run", "second"]);
}

/// More than are committed together wait when the writer fails; those it had not taken yet once waited for ever.
#[test]
fn every_lane_is_answered_when_the_writer_fails() {
    let world = World::with(2, 2);
    let queue = world.queue();
    queue.start_runner("new", "host", &[]).expect("starts");
    let (lanes, stop) = (200, AtomicBool::new(false));
    let (requests, inbox) = bounded(lanes);
    std::thread::scope(|scope| {
        let claims: Vec<_> = (0..lanes)
            .map(|_| {
                let client = Client::new(requests.clone());
                scope.spawn(move || client.claim())
            })
            .collect();
        while !inbox.is_full() {
            std::thread::yield_now();
        }
        drop(requests);
        queue.serve("old", None, &inbox, &stop, &|_| {}).expect_err("another runner has taken over");
        claims.into_iter().for_each(|claim| drop(claim.join().expect("no panic").expect_err("nothing is handed out")));
    });
    assert!(stop.load(Ordering::SeqCst), "lanes at work are told");
}

#[test]
fn another_runner_that_took_over_ends_the_service_with_a_sentence() {
    let world = World::with(2, 2);
    let queue = world.queue();
    queue.start_runner("new", "host", &[]).expect("starts");
    let (requests, inbox) = bounded(1);
    let error = std::thread::scope(|scope| {
        let writer = scope.spawn(move || queue.serve("old", None, &inbox, &AtomicBool::new(false), &|_| {}));
        let asked = Client::new(requests).claim();
        assert!(asked.is_err(), "nothing is handed out in another's name");
        writer.join().expect("no panic").expect_err("ends")
    });
    assert!(error.to_string().contains("another runner"), "{error}");
}
