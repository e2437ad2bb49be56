//! What may happen to an input on its way through the whole pipeline, and what then becomes of its microshard, its shard
//! and its run (DESIGN's table). The origin does harm; times are short.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use compact_local::compact::{self, Ended};
use compact_local::config::{Config, Output};
use compact_local::format::Frames;
use compact_local::interrupt::Interrupt;
use compact_local::monitor::{Event, Monitor};
use compact_local::naming;
use compact_local::patience::Patience;
use compact_local::plan::{Policy, Remainder};
use compact_local::store::StoreSettings;
use microshard_queue::{Intake, Item, NewSnapshot, Number, Queue, RetrySelection};

use crate::origin::{Origin, Step, ok, status};
use crate::world::until;

pub(crate) const ROW: &str = "{\"a\":1}\n";

/// A queue over an origin, and a run of it inside this process.
pub(crate) struct World {
    directory: tempfile::TempDir,
    pub(crate) origin: Origin,
    pub(crate) monitor: Recorder,
    pub(crate) patience: Patience,
    /// Connect, read and so on.
    pub(crate) answers: compact_local::store::Patience,
    pub(crate) hold_on_failure: bool,
    /// Bytes; a few shards of an unknown size at a time take more than there is at first.
    pub(crate) memory: u64,
    /// Where shards go instead of a directory.
    pub(crate) bucket: Option<(String, StoreSettings)>,
}

/// Keeps every event, and counts how often the run has looked at its interrupt.
#[derive(Default)]
pub(crate) struct Recorder {
    events: Mutex<Vec<Event>>,
    ticks: AtomicU64,
}

impl Recorder {
    pub(crate) fn events(&self) -> Vec<Event> {
        self.events.lock().expect("no panic").clone()
    }

    /// Blocks until the run has looked at its interrupt after this call.
    pub(crate) fn wait_for_tick(&self) {
        let ticks = || self.ticks.load(Ordering::SeqCst);
        // The tick under way may have begun before.
        let before = ticks();
        until("the run has looked at its interrupt", || ticks() > before + 1);
    }
}

impl Monitor for Recorder {
    fn event(&self, event: &Event) {
        self.events.lock().expect("no panic").push(event.clone());
    }

    fn tick(&self, _: Instant) {
        self.ticks.fetch_add(1, Ordering::SeqCst);
    }
}

/// Ten times faster than a user's.
pub(crate) fn quick() -> Patience {
    Patience {
        in_lane_max: Duration::from_millis(60),
        in_lane_first: Duration::from_millis(20),
        deferral_first: Duration::from_millis(20),
        deferral_max: Duration::from_millis(40),
        retry_after_max: Duration::from_secs(1),
        tries_max: 4,
        object_min: Duration::ZERO,
        object_max: Duration::from_secs(60),
        origin_max: Duration::from_millis(300),
        few: 6,
        vain_max: 20,
    }
}

impl World {
    pub(crate) fn new() -> World {
        let directory = tempfile::tempdir().expect("a directory");
        World {
            directory,
            origin: Origin::start(),
            monitor: Recorder::default(),
            patience: quick(),
            answers: compact_local::store::Patience::default(),
            hold_on_failure: false,
            memory: 256 << 20,
            bucket: None,
        }
    }

    pub(crate) fn queue(&self) -> PathBuf {
        self.directory.path().join("queue.db")
    }

    pub(crate) fn output(&self) -> PathBuf {
        self.directory.path().join("out")
    }

    /// A shard of microshards 1 to `count`, all good; a test then spoils what it wants to.
    pub(crate) fn snapshot(&self, count: i64) {
        spoil(&self.origin, 1..=count, ok(ROW));
        self.snapshot_of(&self.origin.url, count);
    }

    pub(crate) fn snapshot_of(&self, base: &str, count: i64) {
        let items = (1..=count).map(|id| Item { rows: Some(1), ..item("en", id, base) });
        self.take(items.collect(), None);
    }

    /// Another snapshot, without counts of rows, of these: each a shard of its own.
    pub(crate) fn add(&self, language: &str, ids: &[i64], step: Step) {
        for id in ids {
            self.origin.on(&format!("/{id}"), [step.clone()]);
        }
        self.take(ids.iter().map(|id| item(language, *id, &self.origin.url)).collect(), Some(1));
    }

    fn take(&self, items: Vec<Item>, microshards_max: Option<u64>) {
        let mut intake = Intake::begin(&self.queue()).expect("begins");
        items.iter().for_each(|item| intake.add(item).expect("adds"));
        let policy = Policy { rows_max: 1000, bytes_max: None, microshards_max, remainder: Remainder::Spread };
        let snapshot = NewSnapshot {
            run_id: "run".into(),
            number: Number::From(0),
            claim: String::new(),
            remainders_given_back: false,
        };
        intake.plan(&snapshot, &policy, &naming::shard_name).expect("plans");
    }

    pub(crate) fn run(&self) -> anyhow::Result<Ended> {
        self.run_until(&Interrupt::default())
    }

    pub(crate) fn run_until(&self, interrupt: &Interrupt) -> anyhow::Result<Ended> {
        let store = compact_local::cli::StoreArgs {
            s3_endpoint: None,
            s3_region: None,
            s3_path_style: false,
            s3_unsigned: false,
            s3_part_size: 16 << 20,
        };
        let directory = || (self.output().display().to_string(), StoreSettings::from_args(&store).expect("settings"));
        let (location, store) = self.bucket.clone().unwrap_or_else(directory);
        let config = Config {
            queue: self.queue(),
            threads: 8,
            requests_per_second: None,
            builders: 2,
            memory: self.memory,
            output: Output {
                frames: Frames::Single,
                location,
                level: 1,
                max_microshard_bytes: 1 << 20,
                hold_on_failure: self.hold_on_failure,
            },
            lenient: false,
            only: None,
            weights: Vec::new(),
            store: StoreSettings { patience: self.answers, ..store },
            patience: self.patience.clone(),
        };
        compact::run(&config, &self.monitor, interrupt)
    }

    /// (id, sentence) of all failures.
    pub(crate) fn failures(&self) -> Vec<(i64, String)> {
        let mut failures = Vec::new();
        let queue = Queue::open(&self.queue()).expect("opens");
        queue
            .for_each_failure(&mut |failure| {
                failures.push((failure.microshard_id, failure.sentence));
                Ok(())
            })
            .expect("reads");
        assert_eq!(queue.check().expect("checks"), Vec::<String>::new());
        failures
    }

    pub(crate) fn rows(&self) -> u64 {
        Queue::open(&self.queue()).expect("opens").status().expect("reads").iter().map(|group| group.rows).sum()
    }

    /// How often a shard was put off.
    pub(crate) fn deferrals(&self) -> usize {
        self.monitor.events().iter().filter(|event| matches!(event, Event::ShardDeferred { .. })).count()
    }

    pub(crate) fn asked(&self, path: &str) -> usize {
        self.origin.asked().iter().filter(|asked| asked.ends_with(path)).count()
    }
}

fn item(language: &str, id: i64, base: &str) -> Item {
    let uri = format!("{base}/{id}");
    Item { microshard_id: Some(id), language: language.into(), uri, ..Item::default() }
}

/// Answers every request for these ids with `step`.
pub(crate) fn spoil(origin: &Origin, ids: std::ops::RangeInclusive<i64>, step: Step) {
    ids.for_each(|id| {
        origin.on(&format!("/{id}"), [step.clone()]);
    });
}

#[test]
fn passing_troubles_are_retried_and_cost_nothing() {
    let world = World::new();
    world.snapshot(8);
    let short = || Step::Short { announced: 100, body: ROW.into() };
    world.origin.on("/1", [status(503), ok(ROW)]);
    world.origin.on("/2", [status(500), status(502), ok(ROW)]);
    world.origin.on("/3", [Step::Reset, ok(ROW)]);
    world.origin.on("/4", [short(), ok(ROW)]);
    world.origin.on("/5", [status(429), status(429), status(429), ok(ROW)]);
    world.origin.on("/6", [status(408), ok(ROW)]);
    assert!(matches!(world.run().expect("runs"), Ended::Done(_)));
    assert_eq!((world.rows(), world.failures()), (8, vec![]));
}

#[test]
fn what_cannot_be_had_fails_with_its_sentence_and_the_shard_is_built_from_the_rest() {
    let world = World::new();
    world.snapshot(6);
    world.origin.on("/2", [status(404)]).on("/3", [status(410)]).on("/4", [status(403)]);
    let Ended::Done(total) = world.run().expect("runs") else { panic!("done") };
    assert_eq!((total.microshards.failed, total.microshards.consumed, total.rows), (3, 3, 3));
    let failures = world.failures();
    for ((id, sentence), (expected, code)) in failures.iter().zip([(2, "404"), (3, "410"), (4, "403")]) {
        assert!(*id == expected && sentence.contains(code), "{failures:?}");
    }
    assert_eq!(world.asked("/2"), 1, "what is gone is not asked for again");
}

#[test]
fn a_bad_object_is_downloaded_once_more_on_a_new_connection_before_it_fails() {
    let world = World::new();
    world.snapshot(4);
    world.origin.on("/1", [ok("{\"a\":\n"), ok(ROW)]); // a glitch
    world.origin.on("/2", [ok("no JSON")]); // really bad
    world.origin.on("/3", [ok("{}\n{}\n"), ok(ROW)]); // two rows instead of one
    assert!(matches!(world.run().expect("runs"), Ended::Done(_)));
    assert_eq!(world.rows(), 3);
    let failures = world.failures();
    assert_eq!(failures.len(), 1, "{failures:?}");
    assert!(failures[0].0 == 2 && failures[0].1.contains("line 1"), "{failures:?}");
    assert_eq!((world.asked("/1"), world.asked("/2"), world.asked("/4")), (2, 2, 1));
}

#[test]
fn a_bad_object_that_is_not_to_be_had_once_more_is_waited_for_or_judged_by_what_came() {
    let world = World::new();
    world.snapshot(4);
    world.origin.on("/1", [ok("no JSON"), status(503), ok(ROW)]); // not now
    world.origin.on("/2", [ok("no JSON"), status(404)]); // gone meanwhile
    assert!(matches!(world.run().expect("runs"), Ended::Done(_)));
    let failures = world.failures();
    assert!(failures.len() == 1 && failures[0].0 == 2 && failures[0].1.contains("line 1"), "{failures:?}");
    assert_eq!(world.rows(), 3);
    assert!(world.deferrals() > 0, "a lane waits for none of it");
}

#[test]
fn one_object_that_keeps_failing_fails_alone_and_the_others_are_not_downloaded_again() {
    let world = World::new();
    world.snapshot(20);
    world.origin.on("/7", [status(500)]);
    assert!(matches!(world.run().expect("runs"), Ended::Done(_)));
    let failures = world.failures();
    assert_eq!(failures.len(), 1, "{failures:?}");
    assert!(failures[0].1.contains("500") && failures[0].1.contains("4 tries"), "{failures:?}");
    assert_eq!(world.rows(), 19);
    let others: usize = (1..=20).filter(|id| *id != 7).map(|id| world.asked(&format!("/{id}"))).sum();
    assert_eq!(others, 19, "what was fetched is kept while the job waits");
    assert_eq!(world.deferrals(), 3, "each round that waits gives its lane back (I9)");
}

#[test]
fn an_origin_that_denies_everything_stops_the_run_and_fails_nothing() {
    let world = World::new();
    world.snapshot(10);
    spoil(&world.origin, 1..=10, status(403));
    let error = format!("{:#}", world.run().expect_err("stops"));
    assert!(error.contains("403") && error.contains("credentials"), "{error}");
    assert_eq!(world.failures(), vec![]);
    spoil(&world.origin, 1..=10, ok(ROW));
    assert!(matches!(world.run().expect("runs again"), Ended::Done(_)), "set right, it goes on");
    assert_eq!(world.rows(), 10);
}

#[test]
fn an_origin_that_serves_nothing_for_long_stops_the_run_and_fails_nothing() {
    let world = World::new();
    world.snapshot(30);
    spoil(&world.origin, 1..=30, status(503));
    let mut patient = world;
    patient.patience.tries_max = 1000;
    let error = format!("{:#}", patient.run().expect_err("stops"));
    assert!(error.contains("503") && error.contains("no microshard was failed"), "{error}");
    assert_eq!(patient.failures(), vec![]);
}

#[test]
fn an_origin_that_refuses_connections_is_waited_for_and_then_stops_the_run() {
    // Nobody listens there any more.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("binds");
    let address = listener.local_addr().expect("has one");
    drop(listener);
    let mut world = World::new();
    world.snapshot_of(&format!("http://{address}"), 3);
    world.patience.origin_max = Duration::from_millis(150);
    let error = format!("{:#}", world.run().expect_err("stops"));
    assert!(error.contains("refused") && error.contains(&address.to_string()), "{error}");
    assert_eq!(world.failures(), vec![]);
    // It comes back on the same address.
    let back = Origin::at(address);
    spoil(&back, 1..=3, ok(ROW));
    assert!(matches!(world.run().expect("runs"), Ended::Done(_)));
    assert_eq!(world.rows(), 3);
}

#[test]
fn a_run_that_is_told_to_stop_asks_for_nothing_that_still_waits_and_builds_nothing_from_the_rest() {
    let world = World::new();
    world.snapshot(30);
    let (let_go, gate) = crossbeam_channel::bounded(0);
    spoil(&world.origin, 1..=30, Step::After(gate, ROW.into()));
    let interrupt = Interrupt::default();
    std::thread::scope(|scope| {
        let run = scope.spawn(|| world.run_until(&interrupt));
        // One for each thread.
        until("every thread has asked", || world.origin.asked().len() == 8);
        interrupt.request();
        until("the run ends", || run.is_finished());
        drop(let_go);
        assert!(matches!(run.join().expect("no panic").expect("runs"), Ended::Interrupted(_)));
    });
    assert_eq!((world.origin.asked().len(), world.failures()), (8, vec![]));
    assert!(matches!(world.run().expect("runs"), Ended::Done(_)));
    assert_eq!(world.rows(), 30);
}

#[test]
fn when_all_that_is_left_waits_run_and_status_say_until_when_and_why_and_then_it_goes_on() {
    let mut world = World::new();
    world.snapshot(4);
    let busy = Step::Answer(503, vec![("retry-after", "3600".into())], vec![]);
    spoil(&world.origin, 1..=4, busy);
    let (retry_after_max, in_lane_max) = (Duration::from_secs(3), Duration::from_secs(1));
    world.patience = Patience { retry_after_max, in_lane_max, tries_max: 1000, ..quick() };
    world.patience.origin_max = Duration::from_secs(600);
    let status =
        |flag: &str| crate::world::World::new().ok(&format!("status {flag} --queue {}", world.queue().display()));
    let waits = |events: &[Event]| events.iter().filter(|event| matches!(event, Event::Waiting { .. })).count();
    std::thread::scope(|scope| {
        let run = scope.spawn(|| world.run());
        let asked_at_ms = microshard_queue::now_ms();
        until("all that is left waits", || waits(&world.monitor.events()) > 0);
        let json: serde_json::Value = serde_json::from_str(&status("--json")).expect("JSON");
        let runner = &json["runner"];
        assert!(runner["waiting_until_ms"].as_i64().is_some_and(|at| at >= asked_at_ms + 3000), "{runner}");
        assert!(runner["waiting_why"].as_str().is_some_and(|why| why.contains("503")), "{runner}");
        let text = status("");
        let told = "1 shards wait, and nothing else is left; the next is due ";
        assert!(text.lines().any(|line| line.starts_with(told) && line.contains("503")), "{text}");
        spoil(&world.origin, 1..=4, ok(ROW));
        assert!(matches!(run.join().expect("no panic").expect("runs"), Ended::Done(_)));
    });
    assert_eq!((world.rows(), waits(&world.monitor.events())), (4, 1), "told once");
}

#[test]
fn retry_after_is_honoured() {
    let world = World::new();
    world.snapshot(2);
    let busy = Step::Answer(503, vec![("retry-after", "1".into())], vec![]);
    world.origin.on("/1", [busy, ok(ROW)]);
    let started = std::time::Instant::now();
    assert!(matches!(world.run().expect("runs"), Ended::Done(_)));
    assert!(started.elapsed() >= Duration::from_secs(1), "not before the time that was asked for");
    assert_eq!((world.rows(), world.asked("/1")), (2, 2));
}

#[test]
fn microshards_without_rows_are_consumed_and_a_shard_without_rows_is_never_published() {
    let world = World::new();
    world.snapshot(2);
    world.add("de", &[8, 9], ok("\n"));
    let Ended::Done(total) = world.run().expect("runs") else { panic!("done") };
    assert_eq!((total.microshards.consumed, total.microshards.failed, total.rows), (4, 0, 2));
    assert_eq!(total.bytes_in, 2 * ROW.len() as u64 + 2, "what was downloaded counts");
    assert!(!world.output().join("de").join("run-de-001-00000.jsonl.zst").exists());
    let index = std::fs::read_to_string(world.output().join("index.json")).expect("reads");
    assert!(index.contains("run-en-000-00000") && !index.contains("run-de"), "{index}");
}

#[test]
fn a_shard_of_which_everything_failed_fails_and_has_no_object() {
    let world = World::new();
    world.snapshot(3);
    spoil(&world.origin, 1..=3, ok("bad"));
    let Ended::Done(total) = world.run().expect("runs") else { panic!("done") };
    assert_eq!((total.shards.failed, total.microshards.failed), (1, 3));
    assert!(!world.output().join("en/run-en-000-00000.jsonl.zst").exists());
}

#[test]
fn on_failure_hold_keeps_the_shard_back_until_retry_and_then_builds_it_whole() {
    let mut world = World::new();
    world.hold_on_failure = true;
    world.snapshot(3);
    world.origin.on("/2", [status(404)]);
    let Ended::Done(total) = world.run().expect("runs") else { panic!("done") };
    assert_eq!((total.shards.held, total.microshards.held, total.microshards.failed), (1, 2, 1));
    world.origin.on("/2", [ok(ROW)]);
    let queue = Queue::open(&world.queue()).expect("opens");
    queue.retry(&RetrySelection::default(), &naming::shard_name).expect("retries");
    let Ended::Done(total) = world.run().expect("runs") else { panic!("done") };
    assert_eq!((total.shards.published, total.rows, total.microshards.failed), (1, 3, 0));
}

#[test]
fn a_failure_before_a_deferral_still_holds_the_shard() {
    let mut world = World::new();
    world.hold_on_failure = true;
    world.snapshot(3);
    world.origin.on("/2", [status(404)]);
    let busy = || status(503);
    world.origin.on("/3", [busy(), busy(), busy(), busy(), busy(), ok(ROW)]);
    let Ended::Done(total) = world.run().expect("runs") else { panic!("done") };
    assert_eq!((total.shards.held, total.shards.published, total.microshards.failed), (1, 0, 1));
}

#[test]
fn a_bomb_fails_and_the_rest_goes_on() {
    let world = World::new();
    world.snapshot(3);
    let bomb = zstd::encode_all(vec![b' '; 4 << 20].as_slice(), 1).expect("encodes");
    world.origin.on("/2", [ok(bomb)]);
    let Ended::Done(total) = world.run().expect("runs") else { panic!("done") };
    assert_eq!((total.rows, total.microshards.failed), (2, 1));
    assert!(world.failures()[0].1.contains("--max-microshard-bytes"), "{:?}", world.failures());
}

#[test]
fn an_origin_where_everything_is_missing_stops_the_run_and_fails_nothing() {
    let world = World::new();
    world.snapshot(10);
    spoil(&world.origin, 1..=10, status(404));
    let error = format!("{:#}", world.run().expect_err("stops"));
    assert!(error.contains("404") && error.contains("--source"), "{error}");
    assert_eq!(world.failures(), vec![]);
}

#[test]
fn the_last_few_objects_of_a_queue_may_all_be_denied_and_fail_alone() {
    let world = World::new();
    world.snapshot(3);
    spoil(&world.origin, 2..=3, status(403));
    // One of three is not served for nearly all: together with the two it is judged by the first.
    spoil(&world.origin, 1..=1, ok(ROW));
    let first = world.run();
    assert!(first.is_err(), "nothing had been served before, and most is denied");
    spoil(&world.origin, 2..=3, ok(ROW));
    assert!(matches!(world.run().expect("runs"), Ended::Done(_)));
    world.add("en", &[9], status(403));
    assert!(matches!(world.run().expect("runs"), Ended::Done(_)), "a queue that was served before ends");
    let failures = world.failures();
    assert!(failures.len() == 1 && failures[0].1.contains("403"), "{failures:?}");
}
