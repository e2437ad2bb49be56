//! A microshard that kills the process, as a bug in a decoder would: found by the crash slots, tried once more alone, then
//! failed; the rest goes on. The process really dies.

use std::fmt::Write;

use crate::origin::{Origin, ok};
use crate::world::World;

const POISON: i64 = 17;

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
    let sigabrt = -6;
    assert_eq!(world.run(run).code, sigabrt, "the first death, with others in flight");
    assert_eq!(world.run(run).code, sigabrt, "the second, alone");
    let slots = std::fs::read(world.path("q.db.slots")).unwrap();
    let held: Vec<&[u8]> = slots.chunks(8).filter(|slot| *slot != [0; 8]).collect();
    assert_eq!(held, [17_u64.to_ne_bytes()], "nothing else was being decoded");
    let ended = world.run(run).ends(3);
    assert!(ended.stdout.contains("39 microshards"), "{}", ended.stdout);
    let failures = world.json("failures --json --queue q.db");
    assert_eq!(failures.as_array().map(Vec::len), Some(1), "{failures}");
    assert_eq!(failures[0]["microshard_id"], POISON);
    let sentence = failures[0]["sentence"].as_str().unwrap();
    assert!(sentence.contains("the process died while decoding it, and again when it was tried alone"), "{sentence}");
    let status = world.json("status --json --queue q.db");
    assert_eq!(status["microshards"]["consumed"], 39);
    world.ok("verify --source --queue q.db");
}
