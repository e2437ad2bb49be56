//! `verify --source` and an origin that has a bad moment: as patient as `run`, and no more. Times are short.

use std::fmt::Write;
use std::time::Duration;

use compact_local::cli::StoreArgs;
use compact_local::config::Output;
use compact_local::patience::Patience;
use compact_local::store::{self, Bounds, Sources, StoreSettings};
use compact_local::verify::{Verified, Verifier};
use microshard_queue::Queue;

use crate::origin::{Origin, Step, ok, status};
use crate::world::World;

const ROW: &str = "{\"a\":1}\n";

/// Nothing is waited for long.
pub(crate) fn quick() -> Patience {
    Patience {
        in_lane_first: Duration::from_millis(2),
        deferral_first: Duration::from_millis(2),
        deferral_max: Duration::from_millis(4),
        retry_after_max: Duration::from_millis(5),
        tries_max: 4,
        ..Patience::default()
    }
}

/// One shard of microshards 1 to 5, published.
fn published(origin: &Origin) -> World {
    let world = World::new();
    let mut listing = "microshard_id,language,uri\n".to_owned();
    for id in 1..=5 {
        origin.on(&format!("/{id}"), [ok(ROW)]);
        writeln!(listing, "{id},en,{}/{id}", origin.url).unwrap();
    }
    std::fs::write(world.path("listing.csv"), listing).unwrap();
    world.ok("snapshot --manifest listing.csv --run-id r --shard-microshards 5 --queue q.db");
    world.ok("run --queue q.db --output out");
    world
}

/// The shard, compared with its microshards.
fn verify(world: &World, patience: &Patience) -> Verified {
    let queue = Queue::open(&world.path("q.db")).unwrap();
    let mut shards = Vec::new();
    let mut keep = |shard| -> microshard_queue::Result<()> {
        shards.push(shard);
        Ok(())
    };
    queue.for_each_shard(&mut keep).unwrap();
    let settings = settings();
    let output = Output::of(&queue).unwrap().unwrap();
    let store = store::open(&output.location, &settings, &queue.queue_id().unwrap()).unwrap();
    let bounds = Bounds { pause: patience.retry_after_max, ..crate::store_sources::bounds(1) };
    let sources = Sources::new(settings, bounds);
    let verifier = Verifier { store: store.as_ref(), sources: Some(&sources), output: &output, patience };
    verifier.verify(&shards[0], &queue.members_of(&shards[0]).unwrap())
}

/// Without a flag.
pub(crate) fn settings() -> StoreSettings {
    let args = StoreArgs {
        s3_endpoint: None,
        s3_region: None,
        s3_path_style: false,
        s3_unsigned: false,
        s3_part_size: 16 << 20,
    };
    StoreSettings::from_args(&args).unwrap()
}

fn asked(origin: &Origin, path: &str) -> usize {
    origin.asked().iter().filter(|asked| asked.ends_with(path)).count()
}

#[test]
fn a_microshard_that_has_a_bad_moment_is_asked_for_again_and_the_shard_compared() {
    let origin = Origin::start();
    let world = published(&origin);
    // Honoured in full, that would outlast the test.
    let busy = || Step::Answer(503, vec![("retry-after", "3600".to_owned())], vec![]);
    origin.on("/1", [status(503), status(500), ok(ROW)]);
    origin.on("/2", [Step::Reset, ok(ROW)]);
    origin.on("/3", [busy(), busy(), busy(), ok(ROW)]);
    origin.on("/4", [Step::Short { announced: 100, body: ROW.into() }, ok(ROW)]);
    let verified = verify(&world, &quick());
    assert_eq!((verified.not_compared, verified.wrong, verified.rows), (None, vec![], 5));
    assert_eq!(["/1", "/2", "/3", "/4", "/5"].map(|path| asked(&origin, path)), [4, 3, 5, 3, 2]);
}

#[test]
fn a_microshard_that_keeps_failing_is_given_up_with_one_sentence_that_is_no_fault_of_the_shard() {
    let origin = Origin::start();
    let world = published(&origin);
    origin.on("/2", [status(503)]);
    let verified = verify(&world, &quick());
    let why = verified.not_compared.unwrap();
    assert!(why.contains("/2") && why.contains("503") && why.ends_with("(4 tries)"), "{why}");
    assert_eq!((verified.wrong, asked(&origin, "/2")), (vec![], 1 + 4));
}

#[test]
fn a_microshard_that_is_gone_is_not_asked_for_again() {
    let origin = Origin::start();
    let world = published(&origin);
    origin.on("/2", [status(404)]);
    let why = verify(&world, &quick()).not_compared.unwrap();
    assert!(why.contains("404"), "{why}");
    assert_eq!(asked(&origin, "/2"), 1 + 1);
}

/// Else each of thousands of shards would be waited for as long as one is.
#[test]
fn an_origin_that_has_served_nothing_for_long_is_asked_once_for_each_microshard() {
    let origin = Origin::start();
    let world = published(&origin);
    origin.on("/1", [status(503)]);
    verify(&world, &Patience { origin_max: Duration::ZERO, vain_max: 1, few: 0, tries_max: 100, ..quick() });
    assert_eq!(asked(&origin, "/1"), 1 + 2);
}

#[test]
fn the_command_is_patient_too() {
    let origin = Origin::start();
    let world = published(&origin);
    origin.on("/3", [status(503), ok(ROW)]);
    world.ok("verify --source --queue q.db");
}
