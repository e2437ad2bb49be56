//! The connection to Postgres is cut where it hurts most. Whether a COMMIT was carried out whose answer is lost is settled
//! by looking: what the manifest says at the end is the same in both cases, each microshard once.

use std::cell::OnceCell;
use std::collections::BTreeSet;

use crate::manifest_sync::kill_the_one_that_waits;
use crate::postgres::{Database, database};
use crate::proxy::{Cut, Proxy};
use crate::steps::same;
use crate::steps_postgres::{Manifest, counts, told};
use crate::world::World;

const SNAPSHOTS: [&str; 2] = [
    "snapshot --claim rows --limit 20 --source INPUT --shard-rows 500 --queue q.db",
    "snapshot --claim slices --limit 20 --source INPUT --shard-rows 500 --queue q.db",
];
const SYNC_BACK: &str = "sync-back --queue q.db";
/// More connections than any command makes.
const DOWN: u32 = 1_000;

/// A manifest behind a proxy, and the command that is cut there.
struct Behind {
    proxy: Proxy,
    manifest: Manifest,
    command: String,
}

impl Behind {
    fn new(before: &[&str], command: &str) -> Behind {
        let database: Database = database();
        let proxy = Proxy::start(database.port);
        let url = database.url.replace(&format!(":{}/", database.port), &format!(":{}/", proxy.port));
        let manifest = Manifest::at(database, &url, before);
        let command = manifest.with_input(command);
        Behind { proxy, manifest, command }
    }

    /// What there is after the undisturbed command, and the COMMITs and bytes that it took.
    fn undisturbed(&self) -> (Vec<String>, u32, u64) {
        let world = self.manifest.world();
        self.proxy.cut(Cut::Never, 0);
        world.ok(&self.command);
        let (commits, bytes, _) = self.proxy.seen();
        (self.state(&world), commits, bytes)
    }

    fn state(&self, world: &World) -> Vec<String> {
        let mut state = told(&mut self.manifest.database.client());
        state.push(counts(world));
        state
    }

    /// The world in which the command was cut, how it ended, and what it said.
    fn cut(&self, cut: Cut, refusals: u32) -> (World, i32, String) {
        let world = self.manifest.world();
        self.proxy.cut(cut, refusals);
        let ran = world.run(&self.command);
        assert!(self.proxy.seen().2, "`{}` was not cut {cut:?}", self.command);
        self.proxy.cut(Cut::Never, 0);
        (world, ran.code, ran.stderr)
    }
}

fn all() -> Vec<Behind> {
    let run = "run --queue q.db --output out";
    let mut all: Vec<Behind> = SNAPSHOTS.iter().map(|snapshot| Behind::new(&[], snapshot)).collect();
    all.extend(SNAPSHOTS.iter().map(|snapshot| Behind::new(&[snapshot, run], SYNC_BACK)));
    all.extend(SNAPSHOTS.iter().map(|snapshot| Behind::new(&[snapshot], "release --queue q.db")));
    all
}

#[test]
fn a_commit_whose_answer_is_lost_and_one_that_never_came_end_in_the_same() {
    for behind in all() {
        let (seen, (state, commits, _)) = (OnceCell::new(), behind.undisturbed());
        same(&seen, state, "");
        assert!(commits > 0);
        for cut in (1..=commits).flat_map(|commit| [Cut::BeforeCommit(commit), Cut::AfterCommit(commit)]) {
            let (world, code, stderr) = behind.cut(cut, 0);
            let why = format!("`{}` {cut:?}: {stderr}", behind.command);
            if code != 0 {
                // What is streamed into the queue cannot be repeated: it is told, and the next one does it.
                assert!(code == 1 && stderr.contains("run it again, nothing was half-done"), "{why}");
                world.ok(&behind.command);
            }
            same(&seen, behind.state(&world), &why);
        }
    }
}

#[test]
fn a_server_that_is_down_after_a_commit_is_told_and_the_next_command_finds_what_was_committed() {
    // Each waits for the server as long as it is willing to, so one kind of claim must do.
    for behind in all().into_iter().step_by(2) {
        let (seen, (state, commits, _)) = (OnceCell::new(), behind.undisturbed());
        same(&seen, state, "");
        for cut in BTreeSet::from([1, commits]).into_iter().map(Cut::AfterCommit) {
            let (world, code, stderr) = behind.cut(cut, DOWN);
            let why = format!("`{}` {cut:?}: {stderr}", behind.command);
            assert!(code == 1 && stderr.matches("error: ").count() == 1, "{why}");
            assert!(stderr.contains(&format!("127.0.0.1:{}", behind.proxy.port)), "{why}");
            world.ok(&behind.command);
            same(&seen, behind.state(&world), &why);
        }
    }
}

#[test]
fn a_snapshot_that_is_cut_in_the_middle_of_its_reading_is_taken_again_whole() {
    for snapshot in SNAPSHOTS {
        let behind = Behind::new(&[], snapshot);
        let (seen, (state, _, bytes)) = (OnceCell::new(), behind.undisturbed());
        same(&seen, state, "");
        for (part, refusals) in [(4, 0), (5, 0), (6, 0), (7, 0), (6, DOWN)] {
            let (world, code, stderr) = behind.cut(Cut::AfterBytes(bytes * part / 8), refusals);
            let why = format!("`{}` after {part}/8: {stderr}", behind.command);
            if code != 0 {
                assert!(code == 1 && stderr.matches("error: ").count() == 1, "{why}");
                world.ok(&behind.command);
            }
            same(&seen, behind.state(&world), &why);
        }
    }
}

#[test]
fn a_snapshot_whose_connection_is_terminated_while_it_claims_claims_once() {
    for snapshot in SNAPSHOTS {
        let behind = Behind::new(&[], snapshot);
        let (state, ..) = behind.undisturbed();
        let world = behind.manifest.world();
        // Our lock holds it in the middle of its transaction, with its rows claimed; there it is killed.
        let mut client = behind.manifest.database.client();
        let mut lock = client.transaction().unwrap();
        lock.batch_execute("LOCK TABLE final_export_microshards_snapshots IN EXCLUSIVE MODE").unwrap();
        let running = world.start(&behind.command);
        kill_the_one_that_waits(&behind.manifest.database);
        lock.rollback().unwrap();
        running.wait().ends(0);
        assert_eq!(behind.state(&world), state, "{snapshot}");
    }
}
