//! Deaths and refusals at every step, with a listing as the manifest: what the next run makes is byte by byte what an
//! undisturbed one makes (I3, I4), nothing is left behind (I6), and a refusal is one sentence (I10). The processes really die.

use std::cell::OnceCell;
use std::fmt::{Debug, Write};
use std::path::Path;

use crate::matrix::Matrix;
use crate::s3;
use crate::world::{World, digest, files};

const RUN: &str = "run --queue q.db --output out --threads 2 --builders 2";
const SYNC_BACK: &str = "sync-back --queue q.db";

/// Twelve microshards in two languages, and the snapshot of them, three to a shard; the fifth is broken for good.
fn listing(dir: &Path) -> String {
    let rows = |id| if id == 5 { "{\"cut".to_owned() } else { format!("{{\"id\":{id}}}\n") };
    list(dir, 12, &rows);
    let listing = dir.join("listing.csv");
    format!("snapshot --manifest {} --run-id r --shard-microshards 3 --queue q.db", listing.display())
}

fn list(dir: &Path, count: u32, rows: &dyn Fn(u32) -> String) {
    let mut listing = "microshard_id,language,uri\n".to_owned();
    for id in 1..=count {
        std::fs::write(dir.join(id.to_string()), rows(id)).unwrap();
        writeln!(listing, "{id},{},{}/{id}", if id <= count / 2 { "de" } else { "en" }, dir.display()).unwrap();
    }
    std::fs::write(dir.join("listing.csv"), listing).unwrap();
}

/// A world with queue and output of another one.
pub(crate) fn copy(of: &World, environment: Vec<(&'static str, String)>) -> World {
    let world = World::with(environment);
    for name in files(of.dir.path()).iter().filter(|name| name.starts_with("q.db") || name.starts_with("out/")) {
        let to = world.path(name);
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::copy(of.path(name), to).unwrap();
    }
    world
}

/// What a queue holds, as far as it is the same in every world.
fn state(world: &World) -> [String; 3] {
    let mut status = world.json("status --queue q.db --json");
    let status = ["shards", "microshards", "rows"].map(|name| status[name].take());
    [format!("{status:?}"), world.ok("failures --queue q.db"), world.ok("plan --queue q.db")]
}

/// Files beside the queue that are no one's any more. What SQLite keeps goes when the queue is closed.
pub(crate) fn leftovers(world: &World) -> Vec<String> {
    let names = files(world.dir.path()).into_iter().filter(|name| name.starts_with("q.db") || name.starts_with('.'));
    names.filter(|name| !["q.db", "q.db.lock", "q.db.intake-lock", "q.db.slots"].contains(&name.as_str())).collect()
}

/// Asserts that what comes is always what came first.
pub(crate) fn same<T: PartialEq + Debug>(first: &OnceCell<T>, now: T, why: &str) {
    if let Err(now) = first.set(now) {
        assert_eq!(Some(&now), first.get(), "{why}");
    }
}

#[test]
fn a_snapshot_that_dies_or_is_refused_at_any_step_is_taken_again_whole() {
    let input = World::new();
    let (snapshot, seen) = (listing(input.dir.path()), OnceCell::new());
    let check = |world: &World, why: &str| {
        same(&seen, state(world), why);
        assert_eq!(leftovers(world), Vec::<String>::new(), "{why}");
    };
    Matrix { world: &World::new, command: &snapshot, code: 0, but: &|_| false, check: &check }.run();
}

/// The same into a queue that has been worked on: there microshards are copied beside those that are there.
#[test]
fn a_second_snapshot_that_dies_or_is_refused_at_any_step_is_taken_again_whole() {
    let input = World::new();
    let (snapshot, seen) = (listing(input.dir.path()), OnceCell::new());
    let template = World::new();
    template.ok(&format!("{snapshot} --limit 4"));
    template.run(RUN).ends(0);
    let check = |world: &World, why: &str| {
        same(&seen, state(world), why);
        assert_eq!(leftovers(world), Vec::<String>::new(), "{why}");
    };
    let world = || copy(&template, Vec::new());
    Matrix { world: &world, command: &snapshot, code: 0, but: &|_| false, check: &check }.run();
}

#[test]
fn a_run_into_a_directory_that_dies_or_is_refused_at_any_step_is_finished_with_the_same_bytes() {
    let template = World::new();
    template.ok(&listing(template.dir.path()));
    let seen = OnceCell::new();
    let check = |world: &World, why: &str| {
        same(&seen, (world.digest("out"), state(world)), why);
        assert_eq!(leftovers(world), Vec::<String>::new(), "{why}");
    };
    let world = || copy(&template, Vec::new());
    Matrix { world: &world, command: RUN, code: 3, but: &|_| false, check: &check }.run();
}

/// Two shards, one of which is put in two parts.
#[test]
fn a_run_into_a_bucket_that_dies_or_is_refused_at_any_step_is_finished_with_the_same_bytes() {
    let (server, template) = (s3::server(), World::new());
    let bucket = server.root.path().join(server.bucket("data"));
    let mut random = fastrand::Rng::with_seed(1);
    let large: String = (0..7 << 20).map(|_| random.alphanumeric()).collect();
    let rows = |id| if id == 1 { "{\"id\":1}\n".to_owned() } else { format!("{{\"id\":{id},\"text\":\"{large}\"}}\n") };
    list(template.dir.path(), 2, &rows);
    template.ok("snapshot --manifest listing.csv --run-id r --shard-microshards 1 --queue q.db");
    let seen = OnceCell::new();
    let world = || {
        server.settle();
        for name in files(server.root.path()) {
            std::fs::remove_file(server.root.path().join(name)).unwrap();
        }
        copy(&template, server.environment())
    };
    let check = |world: &World, why: &str| {
        server.settle();
        let mut objects = digest(&bucket.join("out"));
        objects.retain(|name, _| !name.contains(".bucket-"));
        same(&seen, (objects, state(world)), why);
        let left = files(server.root.path()).into_iter().filter(|name| name.starts_with(".upload_id-"));
        assert_eq!(left.collect::<Vec<_>>(), Vec::<String>::new(), "{why}");
    };
    // A directory's test has tried what comes before a shard is sent.
    let but = |step: &str| ["queue: ", "slots: ", "build: ", "fetch: "].iter().any(|part| step.starts_with(part));
    let run = "run --queue q.db --output s3://data/out --s3-part-size 5MiB --threads 2 --builders 2";
    Matrix { world: &world, command: run, code: 0, but: &but, check: &check }.run();
}

#[test]
fn a_sync_back_to_a_listing_that_dies_or_is_refused_at_any_step_says_the_same_when_it_is_done() {
    let template = World::new();
    template.ok(&listing(template.dir.path()));
    let seen = OnceCell::new();
    let check = |world: &World, why: &str| {
        same(&seen, (world.digest("out"), state(world)), why);
        assert_eq!(world.json("sync-back --queue q.db --json")["shards"], 0, "{why}");
    };
    let world = || {
        // The queue keeps where its output is: each world has one of its own.
        let world = copy(&template, Vec::new());
        world.run(RUN).ends(3);
        world
    };
    Matrix { world: &world, command: SYNC_BACK, code: 0, but: &|_| false, check: &check }.run();
}

/// A retry that has been done finds nothing to do, and says so: only what it left in the queue is compared.
#[test]
fn a_retry_that_dies_or_is_refused_at_any_step_brings_each_failure_back_once() {
    let template = World::new();
    template.ok(&listing(template.dir.path()));
    template.run(RUN).ends(3);
    let seen = OnceCell::new();
    let check = |world: &World, why: &str| same(&seen, state(world), why);
    let world = || copy(&template, Vec::new());
    Matrix { world: &world, command: "retry --queue q.db", code: 0, but: &|_| false, check: &check }.run();
}

#[test]
fn a_release_that_dies_or_is_refused_at_any_step_gives_back_all_that_is_unworked() {
    let template = World::new();
    template.ok(&listing(template.dir.path()));
    let seen = OnceCell::new();
    let check = |world: &World, why: &str| same(&seen, state(world), why);
    let world = || copy(&template, Vec::new());
    Matrix { world: &world, command: "release --queue q.db", code: 0, but: &|_| false, check: &check }.run();
}
