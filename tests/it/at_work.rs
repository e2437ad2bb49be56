//! What happens to a runner at work: another one comes, Ctrl-C, a second Ctrl-C. An origin that does not answer holds the
//! runner where the test wants it.

use microshard_queue::{Acquired, Lock, LockKind};
use rustix::process::Signal;

use crate::microshards::generated;
use crate::origin::{Origin, Step, ok, status};
use crate::world::{World, until};

const RUN: &str = "run --queue queue.db --output out --threads 32";

/// A world with a queue over an origin; the uri of one microshard in the middle of the plan is `path`.
struct Held {
    world: World,
    origin: Origin,
    path: String,
    body: Vec<u8>,
}

impl Held {
    fn new() -> Held {
        let (world, origin) = (World::new(), Origin::start());
        let input = world.path("input");
        let generated = generated(&input, 300, 0);
        let mut manifest = csv::Reader::from_path(&generated.manifest).unwrap();
        let uris: Vec<String> = manifest.records().map(|line| line.unwrap()[4].to_owned()).collect();
        for uri in &uris {
            origin.on(&format!("/{uri}"), [ok(std::fs::read(input.join(uri)).unwrap())]);
        }
        for queue in ["queue.db", "undisturbed.db"] {
            let manifest = generated.manifest.display();
            world.ok(&format!(
                "snapshot --manifest {manifest} --source {} --shard-rows 1000 --queue {queue}",
                origin.url
            ));
        }
        world.ok("run --queue undisturbed.db --output undisturbed");
        let (path, body) = (format!("/{}", uris[150]), std::fs::read(input.join(&uris[150])).unwrap());
        Held { world, origin, path, body }
    }

    /// What the origin does with the one microshard from now on.
    fn answer(&self, step: Step) {
        self.origin.on(&self.path, [step]);
    }

    fn mend(&self) {
        self.answer(ok(self.body.clone()));
    }

    /// Waits until the origin has been asked for the one microshard once more.
    fn asked(&self) {
        let count = || self.origin.asked().iter().filter(|asked| asked.ends_with(&self.path)).count();
        let before = 1; // the undisturbed run
        until("the origin is asked", || count() > before);
    }

    fn status(&self) -> serde_json::Value {
        self.world.json("status --queue queue.db --json")
    }

    /// The queue can be finished, and it makes no difference that it was disturbed.
    fn finish(self) {
        self.mend();
        self.world.ok(RUN);
        assert_eq!(self.world.digest("out"), self.world.digest("undisturbed"));
    }
}

#[test]
fn a_second_runner_names_the_first_and_leaves() {
    let held = Held::new();
    held.answer(Step::Stall);
    let mut first = held.world.start(RUN);
    first.at_work();
    let second = held.world.run(RUN).ends(4);
    let host = rustix::system::uname().nodename().to_str().unwrap().to_owned();
    let who = format!("process {} on {host}", first.pid());
    assert!(second.stdout.contains(&who), "{} names not {who}", second.stdout);
    assert!(held.world.ok("status --queue queue.db").contains(&format!("running, {who}")));
    assert!(first.is_at_work(), "the first was disturbed");
    first.signal(Signal::KILL);
    assert_eq!(first.wait().code, -9);
    held.finish();
}

#[test]
fn an_interrupted_run_gives_its_shards_back_and_the_next_one_finishes() {
    let held = Held::new();
    held.answer(status(503));
    let mut run = held.world.start(RUN);
    run.at_work();
    held.asked();
    run.signal(Signal::TERM);
    let ran = run.wait().ends(130);
    assert!(ran.stdout.starts_with("interrupted; "), "{}", ran.stdout);
    let status = held.status();
    assert_eq!(status["runner"]["state"], "idle");
    let shards = &status["shards"];
    assert_eq!((&shards["claimed"], &shards["failed"]), (&0.into(), &0.into()), "{shards}");
    let [pending, published, total] = ["pending", "published", "total"].map(|state| shards[state].as_u64().unwrap());
    assert!(pending > 0 && pending + published == total, "{shards}");
    held.finish();
}

#[test]
fn a_second_interrupt_ends_the_process_where_it_is() {
    let held = Held::new();
    held.answer(Step::Stall);
    let mut run = held.world.start(RUN);
    run.at_work();
    held.asked();
    // Two signals that come at the same time are one, so they are sent until it is gone. The origin never answers: with
    // one signal only, the runner would wait for it and then give the shard back.
    until("the process is gone", || {
        if run.is_at_work() {
            run.signal(Signal::INT);
        }
        !run.is_at_work()
    });
    assert_eq!(run.wait().code, 130);
    let status = held.status();
    assert_eq!(status["runner"]["state"], "dead", "{status}");
    held.finish();
}

/// Half of the dataset would be listed, and the runner's own index might be replaced by it.
#[test]
fn a_sync_back_beside_a_runner_leaves_the_index_to_it() {
    let held = Held::new();
    held.answer(Step::Stall);
    let mut run = held.world.start(RUN);
    run.at_work();
    until("a shard is published", || held.status()["shards"]["published"].as_u64() > Some(0));
    held.world.ok("sync-back --queue queue.db");
    assert!(!held.world.path("out/index.json").exists());
    run.signal(Signal::KILL);
    run.wait();
    held.world.ok("sync-back --queue queue.db");
    assert!(held.world.path("out/index.json").exists());
    std::fs::remove_file(held.world.path("out/microshards.csv")).unwrap();
    held.finish();
}

#[test]
fn a_symbolic_link_to_the_queue_is_the_same_queue() {
    let held = Held::new();
    held.answer(Step::Stall);
    let mut first = held.world.start(RUN);
    first.at_work();
    std::os::unix::fs::symlink("queue.db", held.world.path("link.db")).unwrap();
    let second = held.world.run("run --queue link.db --output out").ends(4);
    assert!(second.stdout.contains(&format!("process {}", first.pid())), "{}", second.stdout);
    first.signal(Signal::KILL);
    first.wait();
    held.finish();
}

#[test]
fn nothing_is_released_while_a_snapshot_is_at_work() {
    let held = Held::new();
    let path = held.world.path("queue.db");
    let Acquired::Ours(snapshot) = Lock::acquire(&path, LockKind::Intake).unwrap() else { panic!("it is free") };
    let before = held.status();
    let refused = held.world.run("release --queue queue.db").ends(1);
    assert!(refused.stderr.contains("a snapshot or retry is at work"), "{}", refused.stderr);
    assert_eq!(held.status(), before);
    drop(snapshot);
    held.finish();
}

#[test]
fn a_queue_that_is_removed_under_a_runner_ends_it_with_an_error_and_not_in_silence() {
    let held = Held::new();
    held.answer(Step::Stall);
    let run = held.world.start(RUN);
    held.asked();
    std::fs::remove_file(held.world.path("queue.db")).unwrap();
    held.mend();
    let ended = run.wait().ends(1);
    assert!(ended.stderr.contains("queue.db was removed or replaced while the runner worked"), "{}", ended.stderr);
}
