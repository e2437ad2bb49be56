//! Objects that are slow while their origin is not: they are asked for a second time, the first good answer counts, and
//! nothing waits for the other one. The deadline of a read is an hour here, so that whoever waits for it hangs.

use std::fmt::Write;
use std::time::Duration;

use compact_local::compact::Ended;
use compact_local::interrupt::Interrupt;
use compact_local::origins::{self, OriginLoad};
use compact_local::store::{Patience, Sources, StoreSettings, Trouble};
use compact_local::told;
use microshard_queue::Queue;

use crate::faults::{ROW, World, spoil};
use crate::origin::{Origin, Step, ok, status};
use crate::s3;
use crate::store_conformance::{ANY, trouble};
use crate::store_sources::bounds;
use crate::world::until;

/// Whoever waits for an answer in vain waits for an hour; what takes a tenth of a second may be slow.
fn an_hour() -> Patience {
    Patience { read: Duration::from_secs(3600), slow: Duration::from_millis(100), ..Patience::default() }
}

fn world(microshards: i64) -> World {
    let mut world = World::new();
    world.answers = an_hour();
    world.snapshot(microshards);
    world
}

#[test]
fn one_stalled_object_of_250_is_asked_for_again_and_nobody_waits_for_its_deadline() {
    for stalled in [Step::Stall, Step::StallIn { announced: 100, body: ROW.into() }] {
        let world = world(250);
        world.origin.on("/77", [stalled, ok(ROW)]);
        assert!(matches!(world.run().expect("runs"), Ended::Done(_)));
        assert_eq!((world.rows(), world.failures()), (250, vec![]));
        assert_eq!((world.asked("/77"), world.origin.asked().len()), (2, 251), "one request more, and no other");
    }
}

#[test]
fn the_first_request_counts_where_the_second_one_fails() {
    let world = world(50);
    let (let_go, gate) = crossbeam_channel::bounded(0);
    world.origin.on("/7", [Step::After(gate, ROW.into()), status(404)]);
    std::thread::scope(|scope| {
        let run = scope.spawn(|| world.run());
        until("it is asked for again", || world.asked("/7") == 2);
        drop(let_go);
        assert!(matches!(run.join().expect("no panic").expect("runs"), Ended::Done(_)));
    });
    assert_eq!((world.rows(), world.failures(), world.asked("/7")), (50, vec![], 2));
}

#[test]
fn an_object_that_is_broken_off_while_it_is_asked_for_again_is_taken_from_the_second_request() {
    let world = world(50);
    let (let_go, gate) = crossbeam_channel::bounded(0);
    let (let_go_again, gate_again) = crossbeam_channel::bounded(0);
    world.origin.on("/7", [Step::AfterShort(gate), Step::After(gate_again, ROW.into())]);
    std::thread::scope(|scope| {
        let run = scope.spawn(|| world.run());
        until("it is asked for again", || world.asked("/7") == 2);
        drop(let_go);
        world.monitor.wait_for_tick();
        drop(let_go_again);
        assert!(matches!(run.join().expect("no panic").expect("runs"), Ended::Done(_)));
    });
    assert_eq!((world.rows(), world.failures(), world.asked("/7")), (50, vec![], 2));
}

#[test]
fn a_run_that_is_told_to_stop_waits_for_no_repeat_that_is_not_sent() {
    let world = world(200);
    let (let_go, gate) = crossbeam_channel::bounded(0);
    spoil(&world.origin, 193..=200, Step::AfterShort(gate));
    let interrupt = Interrupt::default();
    let queue = Queue::open(&world.queue()).expect("opens");
    let origins = || told::read::<OriginLoad>(&queue, origins::KEY).expect("reads");
    std::thread::scope(|scope| {
        let run = scope.spawn(|| world.run_until(&interrupt));
        // All fetchers are held: what is asked for again waits for one of them.
        until("they are asked for again", || origins().first().is_some_and(|origin| origin.asked_again > 1));
        interrupt.request();
        until("the run ends", || run.is_finished());
        drop(let_go);
        assert!(matches!(run.join().expect("no panic").expect("runs"), Ended::Interrupted(_)));
    });
    assert_eq!((world.origin.asked().len(), world.failures()), (200, vec![]));
}

#[test]
fn a_run_that_is_told_to_stop_gives_up_what_is_on_its_way() {
    let mut world = world(50);
    // Without it the run would wait for longer than this test does.
    world.answers.read = Duration::from_secs(100);
    spoil(&world.origin, 1..=50, Step::Stall);
    let interrupt = Interrupt::default();
    std::thread::scope(|scope| {
        let run = scope.spawn(|| world.run_until(&interrupt));
        until("all threads have asked", || world.origin.asked().len() == 8);
        interrupt.request();
        until("the run ends", || run.is_finished());
        assert!(matches!(run.join().expect("no panic").expect("runs"), Ended::Interrupted(_)));
    });
    assert_eq!((world.origin.asked().len(), world.failures()), (8, vec![]));
}

#[test]
fn status_names_the_shard_and_the_object_that_is_waited_for_without_its_secret() {
    let (world, origin) = (crate::world::World::new(), Origin::start());
    let mut listing = "microshard_id,language,uri\n".to_owned();
    for id in 1..=30 {
        origin.on(&format!("/{id}"), [ok(ROW)]);
        writeln!(listing, "{id},en,{}/{id}?sig=s3cr3t", origin.url).unwrap();
    }
    std::fs::write(world.path("listing.csv"), listing).unwrap();
    world.ok("snapshot --manifest listing.csv --run-id r --shard-microshards 30 --queue q.db");
    let (let_go, gate) = crossbeam_channel::bounded(0);
    origin.on("/7", [Step::After(gate, ROW.into())]);
    let run = world.start("run --queue q.db --output out");
    let waits = || world.json("status --json --queue q.db")["waits"].clone();
    until("status tells of both requests", || waits()[1]["again"] == true);
    let (told, lines) = (waits(), world.ok("status --queue q.db"));
    let uri = format!("{}/7", origin.url);
    for (wait, again) in told.as_array().unwrap().iter().zip([false, true]) {
        assert_eq!((&wait["shard"], &wait["uri"]), (&"r-en-000-00000".into(), &uri.clone().into()), "{told}");
        assert_eq!(wait["again"], again, "{told}");
    }
    assert!(told[0]["since_ms"].as_i64() < told[1]["since_ms"].as_i64(), "{told}");
    assert!(lines.contains("r-en-000-00000 has been waiting for "), "{lines}");
    assert!(lines.contains(&format!("for {uri}, asked for a second time")), "{lines}");
    assert!(lines.contains("1 slow objects asked for a second time"), "{lines}");
    assert!(!format!("{told}{lines}").contains("s3cr3t"), "{told}{lines}");
    drop(let_go);
    run.wait().ends(0);
    assert_eq!(waits(), serde_json::json!([]), "nobody is at work");
}

/// An origin that is known well, and a reader of it.
fn known(origin: &Origin) -> (std::sync::Arc<Sources>, String) {
    let settings = StoreSettings { patience: an_hour(), ..s3::settings("http://127.0.0.1:1") };
    let (sources, uri) = (Sources::new(settings, bounds(8)), format!("{}/a", origin.url));
    origin.on("/a", [ok("rows")]);
    let mut reader = sources.reader();
    (0..100).for_each(|_| reader.get(&uri, &mut Vec::new(), ANY).unwrap());
    (sources, uri)
}

#[test]
fn an_object_is_slow_only_where_its_origin_is_known_to_be_fast() {
    let origin = Origin::start();
    let (sources, uri) = known(&origin);
    assert!(!sources.may_ask_again(&uri, Duration::from_millis(99)), "it takes less than what is ever slow");
    assert!(sources.may_ask_again(&uri, Duration::from_secs(60)));
    let elsewhere = "http://127.0.0.1:1/a";
    assert!(!sources.may_ask_again(elsewhere, Duration::from_secs(60)), "nothing is known of its origin");
}

#[test]
fn no_more_than_one_object_in_fifty_is_asked_for_again() {
    let origin = Origin::start();
    let (sources, uri) = known(&origin);
    let again = (0..1000).filter(|_| sources.may_ask_again(&uri, Duration::from_secs(60))).count();
    assert_eq!(again, 3, "of 100, and one");
    assert_eq!(sources.tally(&uri).unwrap().asked_again, 3);
}

#[test]
fn an_origin_that_asked_for_less_is_asked_for_nothing_twice() {
    let origin = Origin::start();
    let (sources, uri) = known(&origin);
    origin.on("/busy", [status(503)]);
    let busy = format!("{}/busy", origin.url);
    assert_eq!(trouble(sources.reader().get(&busy, &mut Vec::new(), ANY)), Trouble::Throttled(None));
    // Also when it is not left alone any more.
    until("it is asked again", || sources.tally(&uri).unwrap().load.unwrap().pause.is_zero());
    assert!(!sources.may_ask_again(&uri, Duration::from_secs(60)));
}
