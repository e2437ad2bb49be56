//! `index.json` where no run reaches its end, and where the output is not what it was: it lists what is published, and
//! nothing that is not there.

use serde_json::Value;

use crate::microshards::{check_output, copy_manifest, generated, statuses};
use crate::postgres::database;
use crate::world::{World, files};

const DIED: i32 = -6;
/// Four lanes, so that the first shards are on record when the sixth is put.
const RUN: &str = "run --output out --threads 2 --builders 2";

fn index(world: &World, output: &str) -> Value {
    serde_json::from_slice(&std::fs::read(world.path(output).join("index.json")).unwrap()).unwrap()
}

fn published(world: &World, queue: &str) -> u64 {
    world.json(&format!("status --queue {queue} --json"))["shards"]["published"].as_u64().unwrap()
}

/// Temporary files below an output.
fn unfinished(world: &World, output: &str) -> Vec<String> {
    files(&world.path(output)).into_iter().filter(|name| name.contains(".compact-local-")).collect()
}

/// Shards that were put in the moment of death, before the queue knew: released like all that is unworked.
fn remove_orphans(world: &World, output: &str) {
    let index = index(world, output);
    let listed: Vec<_> =
        index["shards"].as_array().unwrap().iter().map(|shard| shard["uri"].as_str().unwrap()).collect();
    for name in files(&world.path(output)).iter().filter(|name| name.ends_with(".zst")) {
        if !listed.contains(&name.as_str()) {
            std::fs::remove_file(world.path(output).join(name)).unwrap();
        }
    }
}

/// What one machine had published when it stopped for good was in Postgres and in the output, and not in the index: a
/// reader who went by the index missed half of the rows, and nobody was told.
#[test]
fn what_a_machine_has_published_that_stopped_for_good_is_in_the_index_with_what_another_one_does() {
    let database = database();
    let world = World::with(vec![("DATABASE_URL", database.url.clone())]);
    let mut client = database.client();
    world.ok("init-manifest");
    let input = world.path("input");
    copy_manifest(&mut client, &generated(&input, 600, 0).manifest);
    let snapshot = "snapshot --source input --shard-rows 1000 --queue";
    world.ok(&format!("{snapshot} one.db --slices 32"));
    let died = world.run_with(&format!("{RUN} --queue one.db"), "QUEUE_TEST_FAULT", "put: rename;6;die");
    assert_eq!(died.code, DIED, "{died:?}");
    let of_first = published(&world, "one.db");
    assert!(of_first > 0 && !world.path("out/index.json").exists(), "{of_first}");

    world.ok("sync-back --queue one.db");
    assert_eq!(index(&world, "out")["totals"]["shards"], of_first);
    assert_ne!(unfinished(&world, "out"), [""; 0]);
    world.ok("release --queue one.db");
    assert_eq!(unfinished(&world, "out"), [""; 0]);
    remove_orphans(&world, "out");
    world.ok(&format!("{snapshot} two.db"));
    world.ok("run --queue two.db --output out");
    world.ok("sync-back --queue two.db");
    assert_eq!(statuses(&mut client), [("consumed".to_owned(), 600)].into());
    let output = world.path("out");
    check_output(&mut client, &input, output.to_str().unwrap(), &output);
    for queue in ["one.db", "two.db"] {
        // What was released is in no shard of the first.
        world.run(&format!("verify --queue {queue}")).ends(if queue == "one.db" { 3 } else { 0 });
    }
}

/// Nothing is written back to a listing before it is released.
#[test]
fn a_release_alone_brings_what_is_published_into_the_index() {
    let world = World::new();
    generated(&world.path("input"), 300, 0);
    world.ok("snapshot --manifest input/manifest.csv --source input --shard-rows 1000 --queue q.db");
    world.run_with(&format!("{RUN} --queue q.db"), "QUEUE_TEST_FAULT", "put: rename;6;die");
    let of_first = published(&world, "q.db");
    world.ok("release --queue q.db");
    assert_eq!(index(&world, "out")["totals"]["shards"], of_first);
    assert_eq!(unfinished(&world, "out"), [""; 0]);
}

#[test]
fn a_queue_that_has_published_nothing_writes_no_index_and_needs_no_output() {
    let database = database();
    let world = World::with(vec![("DATABASE_URL", database.url.clone())]);
    world.ok("init-manifest");
    copy_manifest(&mut database.client(), &generated(&world.path("input"), 30, 0).manifest);
    world.ok("snapshot --source input --queue q.db");
    let died = world.run_with("run --queue q.db --output out", "QUEUE_TEST_FAULT", "run: started;1;die");
    assert_eq!(died.code, DIED, "{died:?}");
    std::fs::remove_dir_all(world.path("out")).unwrap();
    world.ok("sync-back --queue q.db");
    world.ok("release --queue q.db");
    assert!(!world.path("out").exists());
}
