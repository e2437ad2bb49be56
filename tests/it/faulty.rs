//! Microshards that are broken: each ends as failed, with a sentence; the rest goes on; and once they are mended `retry`
//! brings them into a shard. The manifest in Postgres follows.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use compact_local::demo::generate::Fault;
use serde_json::Value;

use crate::microshards::{Served, check_output, copy_manifest, served, statuses};
use crate::postgres::{Database, database};
use crate::world::World;

/// A queue over `served`, with its manifest in Postgres.
fn snapshot(served: &Served, database: &Database) -> World {
    let world = World::with(vec![("DATABASE_URL", database.url.clone())]);
    world.ok("init-manifest");
    copy_manifest(&mut database.client(), &served.generated.manifest);
    world.ok(&format!("snapshot --source {} --shard-rows 4000 --queue queue.db", served.nginx.url));
    world
}

/// Failures by microshard.
fn failures(world: &World) -> BTreeMap<i64, Value> {
    let failures = world.json("failures --json --queue queue.db");
    failures.as_array().unwrap().iter().map(|entry| (entry["microshard_id"].as_i64().unwrap(), entry.clone())).collect()
}

/// Objects that were broken, and what they were before.
struct Broken(BTreeMap<i64, (PathBuf, Vec<u8>)>);

impl Broken {
    /// Removes, cuts and changes a microshard in every hundred; takes the one in the middle of the manifest too.
    fn some_of(served: &Served) -> Broken {
        let mut manifest = csv::Reader::from_path(&served.generated.manifest).unwrap();
        let mut broken = BTreeMap::new();
        for (index, line) in manifest.records().enumerate() {
            let line = line.unwrap();
            let path = served.nginx.root.join(&line[4]);
            let mut bytes = std::fs::read(&path).unwrap();
            if index % 100 != 42 || bytes.is_empty() {
                continue;
            }
            broken.insert(line[0].parse().unwrap(), (path.clone(), bytes.clone()));
            let middle = bytes.len() / 2;
            match index / 100 % 3 {
                0 => {
                    std::fs::remove_file(path).unwrap();
                    continue;
                }
                1 => bytes.truncate(middle),
                _ => bytes[middle] ^= 1,
            }
            std::fs::write(path, bytes).unwrap();
        }
        Broken(broken)
    }

    fn mend(&self) {
        for (path, bytes) in self.0.values() {
            std::fs::write(path, bytes).unwrap();
        }
    }
}

#[test]
fn every_kind_of_fault_fails_its_microshard_with_a_sentence_and_no_other() {
    let (served, database) = (served(900, 12), database());
    let world = snapshot(&served, &database);
    let ran = world.run("run --queue queue.db --output out").ends(3);
    assert!(
        ran.stdout.contains("12 microshards failed: see `compact-local failures --queue queue.db`"),
        "{}",
        ran.stdout
    );
    let failures = failures(&world);
    assert_eq!(failures.len(), 12);
    for (id, fault) in &served.generated.faults {
        let sentence = failures[id]["sentence"].as_str().unwrap();
        let expected = match fault {
            Fault::Missing => "404",
            Fault::TruncatedZstd => "incomplete frame",
            Fault::RowsDiffer => "rows, the manifest says",
            // Where the cut goes through a letter, the bytes are what is found first.
            Fault::BrokenLastLine if sentence.contains("is not UTF-8") => "byte offset",
            Fault::BrokenLastLine => "is cut off (byte offset",
            Fault::InvalidUtf8 => "is not UTF-8 (byte offset",
            Fault::DigestDiffers => "has another SHA-256 than the manifest says",
        };
        assert!(sentence.contains(expected), "{fault:?}: {sentence}");
    }
    world.ok("sync-back --queue queue.db");
    let mut client = database.client();
    assert_eq!(statuses(&mut client), [("consumed".to_owned(), 888), ("failed".to_owned(), 12)].into());
    let output = world.path("out");
    check_output(&mut client, &served.nginx.root, output.to_str().unwrap(), &output);
}

#[test]
fn mended_microshards_are_consumed_after_retry_and_postgres_follows() {
    let (served, database) = (served(600, 0), database());
    let (world, mut client) = (snapshot(&served, &database), database.client());
    let broken = Broken::some_of(&served);
    world.run("run --queue queue.db --output out").ends(3);
    world.ok("sync-back --queue queue.db");
    let count = broken.0.len() as i64;
    assert_eq!(statuses(&mut client), [("consumed".to_owned(), 600 - count), ("failed".to_owned(), count)].into());

    let failures = failures(&world);
    assert!(failures.keys().eq(broken.0.keys()));
    for failure in failures.values() {
        assert_eq!(failure["run_id"], served.generated.run_id.as_str());
        assert!(failure["attempts"].as_u64().unwrap() >= 1, "{failure}");
        for field in ["uri", "language", "shard", "sentence", "at"] {
            assert!(!failure[field].as_str().unwrap().is_empty(), "{field} of {failure}");
        }
    }
    // Not mended yet: nothing changes but that they were tried again.
    assert_eq!(world.json("retry --queue queue.db --json")["microshards"], count);
    world.run("run --queue queue.db --output out").ends(3);
    let again = self::failures(&world);
    assert!(again.keys().eq(broken.0.keys()));
    world.ok("sync-back --queue queue.db");
    for (id, failure) in again {
        let sql = "SELECT attempt_count FROM final_export_microshards WHERE microshard_id = $1";
        let attempts: i32 = client.query_one(sql, &[&id]).unwrap().get(0);
        assert!(attempts > 1 && failure["attempts"] == attempts, "{attempts} in Postgres, {failure}");
    }

    broken.mend();
    world.ok("retry --queue queue.db");
    world.ok("run --queue queue.db --output out");
    world.ok("sync-back --queue queue.db");
    assert_eq!(self::failures(&world).len(), 0);
    assert_eq!(statuses(&mut client), [("consumed".to_owned(), 600)].into());
    let left: i64 = client
        .query_one("SELECT count(*) FROM final_export_microshards WHERE error IS NOT NULL OR shard_id IS NULL", &[])
        .unwrap()
        .get(0);
    assert_eq!(left, 0, "rows that still have an error, or no shard");
    world.ok("verify --source --queue queue.db");
}

#[test]
fn a_held_shard_waits_for_its_failed_microshards_and_is_then_built_whole() {
    let (served, database) = (served(600, 0), database());
    let world = snapshot(&served, &database);
    // What an undisturbed run makes of it.
    world.ok(&format!("snapshot --claim none --source {} --shard-rows 4000 --queue whole.db", served.nginx.url));
    world.ok("run --queue whole.db --output whole --on-failure hold");
    let broken = Broken::some_of(&served);
    let ran = world.run("run --queue queue.db --output out --on-failure hold").ends(3);
    assert!(ran.stdout.contains("are held"), "{}", ran.stdout);
    let shards = world.json("status --json --queue queue.db")["shards"].clone();
    assert!(shards["held"].as_u64() >= Some(2) && shards["published"].as_u64() >= Some(1), "{shards}");

    broken.mend();
    world.ok("retry --queue queue.db");
    world.ok("run --queue queue.db --output out --on-failure hold");
    world.ok("sync-back --queue queue.db");
    let mut client = database.client();
    assert_eq!(statuses(&mut client), [("consumed".to_owned(), 600)].into());
    let output = world.path("out");
    check_output(&mut client, &served.nginx.root, output.to_str().unwrap(), &output);
    let bytes = |output| -> BTreeSet<String> {
        world.digest(output).into_iter().filter(|(name, _)| name != "index.json").map(|(_, sha256)| sha256).collect()
    };
    assert_eq!(bytes("out"), bytes("whole"));
}
