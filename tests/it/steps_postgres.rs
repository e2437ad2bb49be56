//! Deaths and refusals at every step, with Postgres as the manifest: it and the queue agree afterwards, each microshard
//! counts once (I1, I4), no claim is left that nobody works on, and nothing beside the queue. The processes really die.

use std::cell::{OnceCell, RefCell};
use std::path::Path;

use compact_local::manifest::Held;
use microshard_queue::Queue;
use postgres::Client;

use crate::matrix::Matrix;
use crate::microshards::{copy_manifest, generated};
use crate::postgres::{Database, database};
use crate::steps::{copy, leftovers, same};
use crate::world::{World, files};

const TABLES: [&str; 4] = [
    "final_export_microshards",
    "final_export_shards",
    "final_export_microshards_slices",
    "final_export_microshards_snapshots",
];

/// A manifest that is as it was for each world. `template` has input and, where `before` made them, queue and output.
pub(crate) struct Manifest {
    pub(crate) database: Database,
    /// How commands reach it.
    url: String,
    template: World,
}

impl Manifest {
    /// Thirty microshards, one of them broken, after the commands `before`.
    fn new(before: &[&str]) -> Manifest {
        let database = database();
        let url = database.url.clone();
        Manifest::at(database, &url, before)
    }

    /// The same, for commands that reach it by this url.
    pub(crate) fn at(database: Database, url: &str, before: &[&str]) -> Manifest {
        let template = World::with(vec![("DATABASE_URL", url.to_owned())]);
        template.ok("init-manifest");
        copy_manifest(&mut database.client(), &generated(&template.path("input"), 30, 1).manifest);
        for command in before {
            let code = if command.starts_with("run") { 3 } else { 0 };
            template.run(&with_input(command, template.dir.path())).ends(code);
        }
        let mut client = database.client();
        for table in TABLES {
            client.batch_execute(&format!("CREATE TABLE kept_{table} AS SELECT * FROM {table}")).unwrap();
        }
        Manifest { database, url: url.to_owned(), template }
    }

    /// The same tables and files once more.
    pub(crate) fn world(&self) -> World {
        let mut client = self.database.client();
        for table in TABLES {
            let again = format!("TRUNCATE {table}; INSERT INTO {table} SELECT * FROM kept_{table}");
            client.batch_execute(&again).unwrap();
        }
        copy(&self.template, vec![("DATABASE_URL", self.url.clone())])
    }

    /// The same, but for the index. The output of each is the template's: the queue keeps where it is.
    fn world_without_index(&self) -> World {
        std::fs::remove_file(self.template.path("out/index.json")).unwrap();
        self.world()
    }

    /// The index as it is, with nothing left beside it.
    fn index(&self) -> String {
        let out = self.template.path("out");
        assert!(files(&out).iter().all(|name| !name.contains(".compact-local-")), "{:?}", files(&out));
        std::fs::read_to_string(out.join("index.json")).unwrap()
    }

    /// A command with the template's input for its source.
    pub(crate) fn with_input(&self, command: &str) -> String {
        with_input(command, self.template.dir.path())
    }
}

fn with_input(command: &str, dir: &Path) -> String {
    command.replace("INPUT", dir.join("input").to_str().unwrap())
}

/// What Postgres says, but for names and times, which are others each time.
pub(crate) fn told(client: &mut Client) -> Vec<String> {
    let sql = "SELECT concat_ws(' ', microshard_id, status, claimed_by IS NULL, regexp_replace(shard_id, '-\\d+-', '-N-'), error) AS line \
               FROM final_export_microshards \
               UNION ALL SELECT concat_ws(' ', regexp_replace(shard_id, '-\\d+-', '-N-'), segment_count, microshard_count, byte_size, sha256) \
               FROM final_export_shards \
               UNION ALL SELECT concat_ws(' ', slice, claimed_by IS NULL) FROM final_export_microshards_slices ORDER BY line";
    client.query(sql, &[]).unwrap().iter().map(|row| row.get(0)).collect()
}

/// Who holds something.
fn holders(client: &mut Client) -> Vec<String> {
    let sql = "SELECT claimed_by FROM final_export_microshards_slices WHERE claimed_by IS NOT NULL \
               UNION SELECT claimed_by FROM final_export_microshards WHERE status = 'claimed'";
    client.query(sql, &[]).unwrap().iter().map(|row| row.get(0)).collect()
}

/// Who claimed what the queue works on, and who claimed for it in all.
fn on_record(world: &World) -> (Vec<String>, Vec<String>) {
    let (mut with_shards, mut all) = (Vec::new(), Vec::new());
    for snapshot in Queue::open(&world.path("q.db")).unwrap().snapshots().unwrap() {
        let Held::Postgres { claim, .. } = Held::parse(&snapshot.claim).unwrap() else { panic!("{}", snapshot.claim) };
        if snapshot.live_shards > 0 {
            with_shards.push(claim.claimed_by.clone());
        }
        all.push(claim.claimed_by);
    }
    (with_shards, all)
}

pub(crate) fn counts(world: &World) -> String {
    let status = world.json("status --queue q.db --json");
    format!("{} {}", status["shards"], status["microshards"])
}

/// A claim that is given back while a queue works on it would be built twice, and then refused.
fn snapshots(claim: &str) {
    let manifest = Manifest::new(&[]);
    let snapshot =
        manifest.with_input(&format!("snapshot --claim {claim} --source INPUT --shard-rows 500 --queue q.db"));
    let (seen, client) = (OnceCell::new(), RefCell::new(manifest.database.client()));
    let check = |world: &World, why: &str| {
        let client = &mut client.borrow_mut();
        same(&seen, (told(client), counts(world)), why);
        assert_eq!(leftovers(world), Vec::<String>::new(), "{why}");
        // A row must be held by just the snapshot that has it; a slice may be leased again by a later one.
        let (with_shards, all) = on_record(world);
        let right = if claim == "rows" { with_shards } else { all };
        let holders = holders(client);
        assert!(!holders.is_empty() && holders.iter().all(|holder| right.contains(holder)), "{why}: {holders:?}");
    };
    let world = || manifest.world();
    Matrix { world: &world, command: &snapshot, code: 0, but: &|_| false, check: &check }.run();
}

#[test]
fn a_snapshot_by_slices_that_dies_or_is_refused_at_any_step_is_taken_again_at_once() {
    snapshots("slices");
}

#[test]
fn a_snapshot_by_rows_that_dies_or_is_refused_at_any_step_is_taken_again_at_once() {
    snapshots("rows");
}

#[test]
fn a_sync_back_that_dies_or_is_refused_at_any_step_is_done_once() {
    let snapshot = "snapshot --claim rows --source INPUT --shard-rows 500 --queue q.db";
    let manifest = Manifest::new(&[snapshot, "run --queue q.db --output out"]);
    let (seen, client) = (OnceCell::new(), RefCell::new(manifest.database.client()));
    let check = |world: &World, why: &str| {
        same(&seen, (told(&mut client.borrow_mut()), counts(world), manifest.index()), why);
        let again = world.json("sync-back --queue q.db --json");
        assert_eq!((&again["shards"], &again["refused"]), (&0.into(), &serde_json::json!([])), "{why}");
    };
    // As if no run had reached its end.
    let world = || manifest.world_without_index();
    Matrix { world: &world, command: "sync-back --queue q.db", code: 0, but: &|_| false, check: &check }.run();
}

#[test]
fn a_release_that_dies_or_is_refused_at_any_step_leaves_nothing_held() {
    for claim in ["slices", "rows"] {
        let snapshot = format!("snapshot --claim {claim} --source INPUT --shard-rows 500 --queue q.db");
        // Some of it is published and written back, the rest is unworked.
        let (run, first) = ("run --queue q.db --output out", format!("{snapshot} --limit 20"));
        let manifest = Manifest::new(&[&first, run, "sync-back --queue q.db", &snapshot]);
        let (seen, client) = (OnceCell::new(), RefCell::new(manifest.database.client()));
        let check = |world: &World, why: &str| {
            let client = &mut client.borrow_mut();
            same(&seen, (told(client), counts(world), manifest.index()), why);
            assert_eq!(holders(client), [""; 0], "{claim}: {why}");
        };
        let world = || manifest.world_without_index();
        Matrix { world: &world, command: "release --queue q.db", code: 0, but: &|_| false, check: &check }.run();
    }
}
