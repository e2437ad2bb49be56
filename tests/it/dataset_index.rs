//! `index.json` where no run reaches its end, and where the output is not what it was: it lists what is published, and
//! nothing that is not there.

use compact_local::config::Output;
use compact_local::store::s3::S3Store;
use microshard_queue::Queue;
use serde_json::Value;

use crate::microshards::{check_output, copy_manifest, generated, statuses};
use crate::origin::{Origin, Step, status};
use crate::postgres::database;
use crate::s3;
use crate::world::{World, files};

const DIED: i32 = -6;
/// Four lanes, so that the first shards are on record when the sixth is put.
const RUN: &str = "run --output out --threads 2 --builders 2";

pub(crate) fn index(world: &World, output: &str) -> Value {
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

/// A world with a finished queue, its shards at `output`.
fn finished(environment: Vec<(&'static str, String)>, output: &str) -> World {
    let world = World::with(environment);
    generated(&world.path("input"), 300, 0);
    world.ok("snapshot --manifest input/manifest.csv --source input --shard-rows 1000 --queue q.db");
    world.ok(&format!("run --queue q.db --output {output}"));
    world
}

/// What a command says that must not write an index.
fn refused(world: &World, command: &str) -> String {
    let stderr = world.run(&format!("{command} --queue q.db")).ends(1).stderr;
    assert!(
        stderr.contains("failed to write index.json to ") && stderr.contains("`compact-local verify --queue "),
        "{stderr}"
    );
    stderr
}

/// A disk that was not mounted, or an output that was moved: a run with nothing to do wrote an index of what was not there,
/// and was content.
#[test]
fn no_index_is_written_of_shards_that_are_not_there_any_more() {
    let world = finished(vec![], "out");
    let (out, away) = (world.path("out"), world.path("away"));
    let all = index(&world, "out")["totals"]["shards"].as_u64().unwrap();
    std::fs::rename(&out, &away).unwrap();
    for command in ["run --output out", "sync-back", "release"] {
        let said = refused(&world, command);
        assert!(said.contains(&format!("{all} of {all} published shards")), "{said}");
        assert!(!out.join("index.json").exists(), "{command}");
    }
    std::fs::remove_dir_all(&out).unwrap();
    std::fs::rename(&away, &out).unwrap();
    let shards = files(&out).into_iter().filter(|name| name.ends_with(".zst")).collect::<Vec<_>>();
    let before = std::fs::read(out.join("index.json")).unwrap();
    std::fs::write(out.join(&shards[0]), "cut off").unwrap();
    std::fs::remove_file(out.join(&shards[1])).unwrap();
    let said = refused(&world, "run --output out");
    assert!(said.contains(&format!("2 of {all} published shards")), "{said}");
    assert!(said.contains(&format!("the first: {} has another size, 7 bytes", shards[0])), "{said}");
    assert_eq!(std::fs::read(out.join("index.json")).unwrap(), before);
}

#[test]
fn no_index_is_written_of_shards_that_are_not_in_the_bucket_any_more() {
    let server = s3::server();
    let bucket = server.root.path().join(server.bucket("data"));
    let world = finished(server.environment(), "s3://data/out/v1");
    world.ok("run --queue q.db --output s3://data/out/v1");
    let shard = files(&bucket).into_iter().find(|name| name.ends_with(".zst")).unwrap();
    std::fs::remove_file(bucket.join(&shard)).unwrap();
    std::fs::remove_file(bucket.join("out/v1/index.json")).unwrap();
    let said = refused(&world, "run --output s3://data/out/v1");
    assert!(said.contains("index.json to s3://data/out/v1: 1 of "), "{said}");
    assert!(said.contains(&format!("the first: {} is not there", shard.strip_prefix("out/v1/").unwrap())), "{said}");
    assert!(!bucket.join("out/v1/index.json").exists());
}

#[test]
fn a_bucket_that_may_not_be_listed_is_told_with_the_right_that_is_missing() {
    let world = finished(vec![], "out");
    let origin = Origin::start();
    let denied = "<?xml version=\"1.0\"?>\n<Error><Code>AccessDenied</Code><Message>no</Message></Error>";
    origin.on("/b/", [Step::Answer(403, vec![], denied.into())]);
    origin.on("/b/out/index.json", [status(404)]);
    let store = S3Store::new("b", "out", &s3::settings(&origin.url), 2).unwrap();
    let queue = Queue::open(&world.path("q.db")).unwrap();
    let output = Output::of(&queue).unwrap().unwrap();
    let said = compact_local::index::write(&queue, &store, &output).unwrap_err().to_string();
    assert!(said.starts_with("failed to list s3://b/out/") && said.ends_with("allow s3:ListBucket"), "{said}");
}

/// As README has it: from a listing of just its microshards.
#[test]
fn a_shard_that_is_gone_is_built_again_to_the_byte_from_a_listing_of_its_microshards() {
    let world = finished(vec![], "out");
    world.ok("sync-back --queue q.db");
    let name = "demo-1-en-000-00001";
    let results = std::fs::read_to_string(world.path("out/microshards.csv")).unwrap();
    let members: Vec<&str> =
        results.lines().filter(|line| line.contains(name)).map(|line| line.split(',').next().unwrap()).collect();
    let manifest = std::fs::read_to_string(world.path("input/manifest.csv")).unwrap();
    let is_wanted =
        |line: &&str| line.starts_with("microshard_id") || members.contains(&line.split(',').next().unwrap());
    let listing: Vec<&str> = manifest.lines().filter(is_wanted).collect();
    std::fs::write(world.path("one.csv"), listing.join("\n")).unwrap();
    let shard = world.path(&format!("out/en/{name}.jsonl.zst"));
    std::fs::write(&shard, "damaged").unwrap();
    world.run("verify --queue q.db").ends(1);

    world.ok("snapshot --manifest one.csv --source input --shard-rows 1000 --queue one.db");
    world.ok("run --queue one.db --output one");
    std::fs::rename(world.path("one/en/demo-1-en-000-00000.jsonl.zst"), &shard).unwrap();
    world.ok("verify --queue q.db");
    world.ok("run --queue q.db --output out");
}
