//! I8: `--memory` bounds what is resident, whatever comes; what was held at most is told.

use std::fmt::Write;

use crate::origin::{Origin, ok};
use crate::world::World;

const MB: u64 = 1_000_000;
const MIB: u64 = 1 << 20;

/// Eight microshards, a shard each, that are small and decode to 30 MiB, which are held twice to be repaired.
fn large_when_decoded(world: &World, origin: &Origin) {
    let row = format!("{{\"text\":\"{}\"}}\r\n", "a".repeat(100_000));
    let object = zstd::bulk::compress(row.repeat(30 * MIB as usize / row.len()).as_bytes(), 1).unwrap();
    let mut listing = "microshard_id,language,uri,byte_size\n".to_owned();
    for id in 1..=8 {
        origin.on(&format!("/{id}"), [ok(object.clone())]);
        writeln!(listing, "{id},en,{}/{id},{}", origin.url, object.len()).unwrap();
    }
    std::fs::write(world.path("listing.csv"), listing).unwrap();
    world.ok("snapshot --manifest listing.csv --run-id r --shard-microshards 1 --queue q.db");
}

/// The number of `resident memory: 143 MB at most`.
fn resident(stdout: &str) -> u64 {
    let told = stdout.lines().find_map(|line| line.strip_prefix("resident memory: ")).expect("tells its memory");
    told.split(" MB").next().and_then(|megabytes| megabytes.parse::<f64>().ok()).expect("megabytes") as u64 * MB
}

#[test]
fn a_run_stays_within_its_memory_when_all_builders_have_a_large_microshard() {
    let (world, origin) = (World::new(), Origin::start());
    large_when_decoded(&world, &origin);
    let run = "run --queue q.db --output out --builders 8 --threads 8 --max-microshard-bytes 32MiB --memory";
    let refused = world.run(&format!("{run} 64MiB")).ends(1).stderr;
    assert!(refused.contains("--memory 67.1 MB is too little for 8 download threads, 8 builders"), "{refused}");
    let told = world.ok(&format!("{run} 360MiB"));
    assert!(told.contains("8 of 8 shards published"), "{told}");
    assert!(resident(&told) <= 360 * MIB, "{told}");
    world.ok("verify --source --queue q.db");
}
