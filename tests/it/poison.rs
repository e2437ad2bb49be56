//! A microshard that kills the process, as a bug in a decoder would: found by the crash slots, tried once more alone, then
//! failed; the rest goes on. The process really dies.

use std::collections::BTreeSet;
use std::fmt::Write;

use crossbeam_channel::bounded;

use crate::origin::{Origin, Step, ok};
use crate::world::{World, until};

const POISON: i64 = 17;
const SIGABRT: i32 = -6;

/// Forty microshards in two languages, ten to a shard.
fn world(origin: &Origin) -> World {
    let world = World::with(vec![("COMPACT_LOCAL_TEST_DIE_ON", POISON.to_string())]);
    let mut listing = "microshard_id,language,uri\n".to_owned();
    for id in 1..=40 {
        origin.on(&format!("/{id}"), [ok(format!("{{\"id\":{id}}}\n"))]);
        let language = if id <= 20 { "de" } else { "en" };
        writeln!(listing, "{id},{language},{}/{id}", origin.url).unwrap();
    }
    std::fs::write(world.path("listing.csv"), listing).unwrap();
    world.ok("snapshot --manifest listing.csv --run-id r --shard-microshards 10 --queue q.db");
    world
}

#[test]
fn the_one_microshard_that_kills_the_process_fails_after_it_was_tried_alone_and_the_rest_is_built() {
    let origin = Origin::start();
    let world = world(&origin);
    let run = "run --queue q.db --output out --threads 4 --builders 2";
    assert_eq!(world.run(run).code, SIGABRT, "the first death, with others in flight");
    die_alone(&origin, &world, run);
    let ended = world.run(run).ends(3);
    assert!(ended.stdout.contains("39 microshards"), "{}", ended.stdout);
    let failures = world.json("failures --json --queue q.db");
    assert_eq!(failures.as_array().map(Vec::len), Some(1), "{failures}");
    assert_eq!(failures[0]["microshard_id"], POISON);
    let sentence = failures[0]["sentence"].as_str().unwrap();
    assert!(sentence.contains("the process died while decoding it, and again when it was tried alone"), "{sentence}");
    let status = world.json("status --json --queue q.db");
    assert_eq!(status["microshards"]["consumed"], 39);
    world.run("verify --source --queue q.db").ends(3);
}

/// The second death. Lanes download everything else while the suspect is on its way, and decode nothing before it is tried.
fn die_alone(origin: &Origin, world: &World, run: &str) {
    let (moment, come) = bounded::<()>(0);
    origin.on("/17", [Step::After(come, b"{\"id\":17}\n".to_vec())]);
    let shards = |state: &str| world.json("status --json --queue q.db")["shards"][state].as_u64().unwrap();
    let (asked_before, published_before) = (origin.asked().len(), shards("published"));
    let running = world.start(run);
    let asked = || origin.asked().into_iter().skip(asked_before).collect::<BTreeSet<_>>().len() as u64;
    until("all that is left is asked for", || asked() == 10 * (4 - published_before));
    // All but its own, which still waits for it: no lane is kept for long (I9).
    until("another shard gives its lane back", || published_before == 3 || shards("waiting") > 0);
    assert_eq!(shards("published"), published_before, "something else was decoded");
    drop(moment);
    assert_eq!(running.wait().code, SIGABRT, "the second, alone");
    let slots = std::fs::read(world.path("q.db.slots")).unwrap();
    let held: Vec<&[u8]> = slots.chunks(8).filter(|slot| *slot != [0; 8]).collect();
    assert_eq!(held, [POISON.to_ne_bytes()], "nothing else was being decoded");
    origin.on("/17", [ok("{\"id\":17}\n")]);
}
