//! The main job with the real binary: microshards in nginx or in a bucket, the manifest in Postgres, and every row looked
//! for afterwards by a reader that is not ours.

use std::collections::BTreeSet;

use crate::microshards::{check_output, copy_manifest, generated, served, statuses};
use crate::postgres::{Database, database};
use crate::s3;
use crate::world::World;

/// A world whose commands find the manifest in `DATABASE_URL`.
fn world_with(database: &Database, more: Vec<(&'static str, String)>) -> World {
    World::with([vec![("DATABASE_URL", database.url.clone())], more].concat())
}

/// Both tables as they are, with the transaction that wrote each row.
fn dump(client: &mut postgres::Client) -> Vec<String> {
    let sql = "SELECT m.xmin || m::text AS line FROM final_export_microshards m \
               UNION ALL SELECT s.xmin || s::text FROM final_export_shards s ORDER BY line";
    client.query(sql, &[]).unwrap().iter().map(|row| row.get(0)).collect()
}

#[test]
fn every_row_of_twenty_thousand_microshards_is_in_one_shard_and_the_manifest_says_so() {
    let (served, database) = (served(20_000, 0), database());
    let mut client = database.client();
    let world = world_with(&database, vec![]);
    world.ok("init-manifest");
    copy_manifest(&mut client, &served.generated.manifest);
    world.ok(&format!("snapshot --source {} --queue queue.db", served.nginx.url));
    world.ok("run --queue queue.db --output out");
    world.ok("sync-back --queue queue.db");

    assert_eq!(statuses(&mut client), [("consumed".to_owned(), 20_000)].into());
    let output = world.path("out");
    check_output(&mut client, &served.nginx.root, output.to_str().unwrap(), &output);

    let synced = dump(&mut client);
    assert_eq!(world.json("sync-back --queue queue.db --json")["already"], 0);
    assert!(dump(&mut client) == synced, "the second sync-back wrote rows anew");
}

#[test]
fn microshards_and_shards_in_a_bucket_go_through_signed_requests_and_uploads_in_parts() {
    const PART: u64 = 5 << 20;
    let (server, database) = (s3::server(), database());
    let bucket = server.root.path().join(server.bucket("data"));
    let input = generated(&bucket, 3_000, 0);
    let mut client = database.client();
    let world = world_with(&database, server.environment());
    world.ok("init-manifest");
    copy_manifest(&mut client, &input.manifest);
    world.ok("snapshot --source s3://data --shard-rows 1000000 --queue queue.db");
    world.ok("run --queue queue.db --output s3://data/out/v1 --s3-part-size 5MiB --threads 16");
    world.ok("sync-back --queue queue.db");
    world.ok("verify --queue queue.db");

    assert_eq!(statuses(&mut client), [("consumed".to_owned(), 3_000)].into());
    check_output(&mut client, &bucket, "s3://data/out/v1", &bucket.join("out/v1"));
    let largest: i64 = client.query_one("SELECT max(byte_size) FROM final_export_shards", &[]).unwrap().get(0);
    assert!(largest as u64 > PART, "no shard needs a second part: {largest}");
    assert_eq!(server.unfinished(), 0);
}

#[test]
fn any_number_of_threads_gives_the_same_bytes() {
    let served = served(1_500, 6);
    let world = World::new();
    let mut digests = BTreeSet::new();
    for threads in [1, 16, 256] {
        world.ok(&format!(
            "snapshot --manifest {} --source {} --shard-rows 2000 --queue {threads}.db",
            served.generated.manifest.display(),
            served.nginx.url
        ));
        world.run(&format!("run --threads {threads} --queue {threads}.db --output {threads}")).ends(3);
        digests.insert(world.digest(&threads.to_string()));
    }
    assert_eq!(digests.len(), 1);
    assert!(digests.first().unwrap().len() > 40, "too few shards to tell an order");
}

#[test]
fn a_finished_queue_is_left_as_it_is_by_another_run() {
    use std::os::unix::fs::MetadataExt;
    let served = served(300, 0);
    let world = World::new();
    let manifest = served.generated.manifest.display();
    world.ok(&format!("snapshot --manifest {manifest} --source {} --queue queue.db", served.nginx.url));
    let first = world.ok("run --queue queue.db --output out");
    let shards = || -> Vec<_> {
        let names = crate::world::files(&world.path("out")).into_iter().filter(|name| name != "index.json");
        names.map(|name| (std::fs::metadata(world.path("out").join(&name)).unwrap(), name)).collect()
    };
    let identity = |(file, name): (std::fs::Metadata, String)| (name, file.ino(), file.mtime_nsec());
    let before: Vec<_> = shards().into_iter().map(identity).collect();
    // Without its origin: nothing may be asked for.
    drop(served);
    let summary = |stdout: &str| stdout.lines().next().map(str::to_owned);
    assert_eq!(summary(&world.ok("run --queue queue.db --output out")), summary(&first));
    assert_eq!(shards().into_iter().map(identity).collect::<Vec<_>>(), before);
}

/// Two machines on one manifest and one output: each takes its part, and together they have all of it.
fn two_machines(first: &str, second: &str) {
    let (served, database) = (served(2_000, 0), database());
    let mut client = database.client();
    let world = world_with(&database, vec![]);
    world.ok("init-manifest");
    copy_manifest(&mut client, &served.generated.manifest);
    for (queue, claim) in [("one.db", first), ("two.db", second)] {
        let source = &served.nginx.url;
        world.ok(&format!("snapshot {claim} --source {source} --shard-rows 3000 --queue {queue}"));
    }
    for queue in ["one.db", "two.db"] {
        world.ok(&format!("run --queue {queue} --output shared"));
    }
    let mut taken = 0;
    for queue in ["one.db", "two.db"] {
        let report = world.json(&format!("sync-back --queue {queue} --json"));
        assert_eq!(report["refused"], serde_json::json!([]), "{queue}");
        let consumed = world.json(&format!("status --queue {queue} --json"))["microshards"]["consumed"].as_i64();
        assert!(consumed > Some(100), "{queue} has {consumed:?}");
        taken += consumed.unwrap();
        world.ok(&format!("verify --source --queue {queue}"));
    }
    assert_eq!(taken, 2_000);
    assert_eq!(statuses(&mut client), [("consumed".to_owned(), 2_000)].into());
    let output = world.path("shared");
    // The index, too: every shard of both, or it is not the index of this output.
    check_output(&mut client, &served.nginx.root, output.to_str().unwrap(), &output);
}

#[test]
fn two_machines_share_a_manifest_by_slices() {
    two_machines("--claim slices --slices 32", "--claim slices --slices 32");
}

#[test]
fn two_machines_share_a_manifest_by_rows() {
    two_machines("--claim rows --limit 700", "--claim rows");
}

#[test]
fn results_and_claims_go_to_no_other_database_than_the_one_the_snapshot_was_taken_from() {
    let (home, empty) = (database(), database());
    let world = world_with(&home, vec![]);
    world.ok("init-manifest");
    world.ok(&format!("init-manifest --manifest {}", empty.url));
    copy_manifest(&mut home.client(), &generated(&world.path("input"), 60, 0).manifest);
    world.ok("snapshot --source input --queue queue.db");
    let copy = home.copied();
    let refused = |command: &str, other: &Database| {
        let before = dump(&mut other.client());
        let ran = world.run(&format!("{command} --queue queue.db --manifest {}", other.url)).ends(1);
        let said = format!("the snapshot was taken from database `{}`", home.name);
        assert!(ran.stderr.contains(&said) && ran.stderr.contains(&other.name), "{command}: {}", ran.stderr);
        assert_eq!(dump(&mut other.client()), before);
    };
    for other in [&empty, &copy] {
        refused("release", other);
    }
    world.ok("run --queue queue.db --output out");
    for other in [&empty, &copy] {
        refused("sync-back", other);
    }
    // Nothing was given up for it.
    world.ok("sync-back --queue queue.db");
    assert_eq!(statuses(&mut home.client()), [("consumed".to_owned(), 60)].into());
}
