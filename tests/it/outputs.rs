//! What may happen to a shard on its way into the output, and what then becomes of the run. Times are short.

use std::time::{Duration, Instant};

use compact_local::compact::Ended;
use compact_local::monitor::Event;
use microshard_queue::{Claimer, Queue, now_ms};

use crate::faults::{ROW, World};
use crate::origin::Step;
use crate::s3;
use crate::world::until;

#[test]
fn an_object_of_somebody_elses_under_a_shards_name_is_never_overwritten() {
    let world = World::new();
    world.snapshot(2);
    let key = world.output().join("en/run-en-000-00000.jsonl.zst");
    std::fs::create_dir_all(world.output().join("en")).expect("creates");
    std::fs::write(&key, "somebody's").expect("writes");
    let error = format!("{:#}", world.run().expect_err("stops"));
    assert!(error.contains("run-en-000-00000") && error.contains("choose another --output"), "{error}");
    assert_eq!(std::fs::read(&key).expect("reads"), b"somebody's");
    std::fs::remove_file(&key).expect("removes");
    assert!(matches!(world.run().expect("runs"), Ended::Done(_)), "moved away, it goes on");
}

#[test]
fn a_bucket_that_asks_for_less_gets_a_shard_later_and_one_that_goes_on_stops_the_run() {
    let server = s3::server();
    let mut world = World::new();
    world.bucket = Some((format!("s3://{}/out", server.bucket("shards")), server.settings()));
    world.snapshot(2);
    // So long that it is refused more than once on any machine.
    world.patience.origin_max = Duration::from_secs(2);
    server.refuse_puts(usize::MAX);
    let started = Instant::now();
    let error = format!("{:#}", world.run().expect_err("stops"));
    assert!(error.contains("503") && error.contains("run again when it does; nothing committed is lost"), "{error}");
    assert!(started.elapsed() > world.patience.origin_max, "it was given time");
    assert_eq!(counted(&world), 1, "it costs the shard nothing");
    let deferrals = world.deferrals();
    assert!(deferrals >= world.patience.tries_max as usize && world.failures().is_empty(), "{deferrals}");
    // Three are too many for so little time, but not for so many tries.
    world.patience.origin_max = Duration::ZERO;
    server.refuse_puts(3);
    assert!(matches!(world.run().expect("the next run begins with fresh patience"), Ended::Done(_)));
    assert_eq!((world.rows(), world.deferrals() - deferrals), (2, 3));
}

#[test]
fn a_bucket_that_has_taken_something_meanwhile_is_given_as_much_time_again() {
    let server = s3::server();
    let mut world = World::new();
    world.bucket = Some((format!("s3://{}/out", server.bucket("shards")), server.settings()));
    world.patience.origin_max = Duration::from_secs(2);
    world.patience.tries_max = 1;
    // So that one shard does not wait for the other.
    world.memory = 4 << 30;
    world.snapshot(1);
    let (held, last) = crossbeam_channel::bounded(0);
    world.add("de", &[9], Step::After(last, ROW.into()));
    server.refuse_puts(1);
    std::thread::scope(|scope| {
        let run = scope.spawn(|| world.run());
        let published = |event: &Event| matches!(event, Event::ShardPublished { .. });
        until("one is published", || world.monitor.events().iter().any(published));
        let now = Instant::now();
        until("the time is over", || now.elapsed() > world.patience.origin_max);
        server.refuse_puts(1);
        drop(held);
        assert!(matches!(run.join().expect("no panic").expect("runs"), Ended::Done(_)));
    });
    assert_eq!((world.rows(), world.deferrals()), (2, 2));
}

/// Deferrals in a row that count towards the shard's failure; claims it.
fn counted(world: &World) -> u32 {
    let queue = Queue::open(&world.queue()).expect("opens");
    let claimer = Claimer { owner: "a test", now_ms: now_ms(), lease_ms: 1000, only: None };
    queue.transaction(|| queue.claim(claimer)).expect("claims").expect("it is pending").deferrals
}

#[test]
fn an_index_that_a_bucket_does_not_take_at_once_is_put_later() {
    let server = s3::server();
    let mut world = World::new();
    world.bucket = Some((format!("s3://{}/out", server.bucket("shards")), server.settings()));
    world.patience.origin_max = Duration::ZERO;
    world.snapshot(1);
    assert!(matches!(world.run().expect("runs"), Ended::Done(_)));
    let index = server.root.path().join("shards/out/index.json");
    std::fs::remove_file(&index).expect("removes");
    server.refuse_puts(usize::MAX);
    let error = format!("{:#}", world.run().expect_err("stops"));
    assert!(error.contains("index.json") && error.contains("nothing committed is lost"), "{error}");
    server.refuse_puts(3);
    assert!(matches!(world.run().expect("runs"), Ended::Done(_)));
    assert!(index.exists());
}
