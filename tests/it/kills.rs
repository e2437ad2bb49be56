//! SIGKILL at any moment: what the next run makes is, key by key and byte by byte, what an undisturbed run makes (I3, I4),
//! and nothing is left behind (I6). The moments are random; a failure names their seed.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::{Duration, Instant};

use microshard_queue::Queue;
use rustix::process::Signal;

use crate::microshards::{Served, served};
use crate::origin::{Origin, Step, ok};
use crate::s3;
use crate::world::{World, digest, files, until};

/// What one runner came to.
enum End {
    Killed,
    Finished,
    /// It refused to begin, after so many deaths without progress; the next one may.
    Refused,
    /// A shard was given up after so many deaths: right, but not what is tested here.
    GivenUp,
    /// The second kill hit the very instant in which a suspect was decoded alone: it fails for it, as told.
    Condemned,
}

/// Runs `command` and kills it after `delay`, if it is still at work then; without a delay it is let alone.
fn run_and_kill(world: &World, command: &str, delay: Option<Duration>, why: &str) -> End {
    let mut running = world.start(command);
    if let Some(delay) = delay {
        // A random moment is the point here.
        std::thread::sleep(delay);
        if running.is_at_work() {
            running.signal(Signal::KILL);
        }
    }
    let ran = running.wait();
    match ran.code {
        -9 => End::Killed,
        0 => End::Finished,
        1 if ran.stderr.contains("runs in a row died without publishing a shard") => End::Refused,
        3 if all_failures(world, "the process died while decoding it") => End::Condemned,
        3 if all_failures(world, "the process died or hung while working on its shard") => End::GivenUp,
        _ => panic!("{why}: a run ended with {}: {}{}", ran.code, ran.stdout, ran.stderr),
    }
}

fn all_failures(world: &World, sentence: &str) -> bool {
    world.ok("failures --queue queue.db").lines().all(|line| line.contains(sentence))
}

/// What is killed, and how often.
struct Kills<'a> {
    world: &'a World,
    kills: u32,
    /// A runner is killed at most so many times as long after its start as an undisturbed one takes.
    reach: f64,
    /// The command that makes `queue.db` anew.
    snapshot: &'a str,
    /// The command that is killed; `{}` stands for the number of the round.
    run: &'a str,
    /// Waits until servers have done what the dead runner asked for.
    settle: &'a dyn Fn(),
}

/// Kills runners. Whenever one is finished, calls `check` with the round and begins the next one, with a new queue.
fn kill(what: &Kills<'_>, mut check: impl FnMut(&str, &str)) {
    let Kills { world, kills, reach, snapshot, run, settle } = *what;
    let seed = std::env::var("KILL_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(|| fastrand::u64(..));
    let why = format!("KILL_SEED={seed}");
    #[expect(clippy::print_stdout, reason = "shown with whatever assertion fails")]
    {
        println!("{why}");
    }
    let mut random = fastrand::Rng::with_seed(seed);
    let begin = |round: u32| {
        for file in ["queue.db", "queue.db-wal", "queue.db-shm", "queue.db.slots"] {
            let _ = std::fs::remove_file(world.path(file)); // the first time there is none
        }
        world.ok(snapshot);
        run.replace("{}", &round.to_string())
    };
    let command = begin(0);
    let started = Instant::now();
    world.ok(&command);
    let undisturbed = started.elapsed();
    check("0", &why);

    let (mut killed, mut condemned) = (0, 0);
    for round in 1.. {
        let command = begin(round);
        loop {
            let delay = (killed < kills).then(|| undisturbed.mul_f64(reach * random.f64()));
            match run_and_kill(world, &command, delay, &why) {
                End::Killed => {
                    killed += 1;
                    settle();
                }
                End::Finished => {
                    check(&round.to_string(), &why);
                    if killed == kills {
                        return;
                    }
                    break;
                }
                End::Refused => {}
                End::GivenUp => break,
                End::Condemned => {
                    condemned += 1;
                    assert!(condemned <= 1, "{why}: kills must not make sound microshards fail");
                    break;
                }
            }
        }
    }
}

fn snapshot_of(served: &Served) -> String {
    let (manifest, url) = (served.generated.manifest.display(), &served.nginx.url);
    format!("snapshot --manifest {manifest} --source {url} --shard-rows 1500 --queue queue.db")
}

#[test]
fn twenty_kills_leave_the_bytes_of_an_undisturbed_run() {
    let served = served(1_000, 0);
    let world = World::new();
    let snapshot = snapshot_of(&served);
    let run = "run --queue queue.db --output out{}";
    // nginx only reads.
    let kills = Kills { world: &world, kills: 20, reach: 1.0, snapshot: &snapshot, run, settle: &|| {} };
    kill(&kills, |round, why| {
        assert_eq!(world.digest(&format!("out{round}")), world.digest("out0"), "{why}, round {round}");
        world.ok("sync-back --queue queue.db");
        let shards = world.json("status --queue queue.db --json")["shards"].clone();
        assert_eq!((&shards["published"], &shards["synced"]), (&shards["total"], &shards["total"]), "{why}: {shards}");
        std::fs::remove_file(world.path(&format!("out{round}/microshards.csv"))).unwrap();
    });
}

#[test]
fn kills_leave_the_bytes_of_an_undisturbed_run_whatever_the_frames() {
    let served = served(1_000, 0);
    let world = World::new();
    let snapshot = snapshot_of(&served);
    for mode in ["seekable=64KiB", "splice"] {
        let run = format!("run --frames {mode} --queue queue.db --output {mode}-{{}}");
        let kills = Kills { world: &world, kills: 8, reach: 1.0, snapshot: &snapshot, run: &run, settle: &|| {} };
        kill(&kills, |round, why| {
            assert_eq!(
                world.digest(&format!("{mode}-{round}")),
                world.digest(&format!("{mode}-0")),
                "{why}, {mode}, round {round}"
            );
        });
    }
}

#[test]
fn kills_during_uploads_in_parts_leave_neither_parts_nor_other_bytes() {
    let server = s3::server();
    let bucket = server.root.path().join(server.bucket("data"));
    let served = served(3_000, 0);
    let world = World::with(server.environment());
    // The one shard is uploaded in two parts.
    let snapshot = format!(
        "snapshot --manifest {} --source {} --language en --shard-rows 1000000 --queue queue.db",
        served.generated.manifest.display(),
        served.nginx.url
    );
    let run = "run --queue queue.db --output s3://data/out{} --s3-part-size 5MiB";
    let objects = |round: &str| {
        let mut objects = digest(&bucket.join(format!("out{round}")));
        objects.retain(|name, _| !name.contains(".bucket-"));
        objects
    };
    // Not so often between two runs that are finished that the bound on lost leases is reached.
    let kills = Kills { world: &world, kills: 10, reach: 1.5, snapshot: &snapshot, run, settle: &|| server.settle() };
    kill(&kills, |round, why| {
        assert_eq!(objects(round), objects("0"), "{why}, round {round}");
        let shard = objects(round).into_keys().find(|name| name.ends_with(".zst")).unwrap();
        let bytes = std::fs::metadata(bucket.join(format!("out{round}/{shard}"))).unwrap().len();
        assert!(bytes > 5 << 20, "{shard} does not need a second part");
        // Killed between the upload's creation and its record, a runner leaves an upload without parts, which costs
        // nothing; parts, which do, are never left.
        let left = files(server.root.path()).into_iter().filter(|name| name.starts_with(".upload_id-"));
        assert_eq!(left.collect::<Vec<_>>(), Vec::<String>::new(), "{why}, round {round}");
    });
}

/// Ten shards of four microshards, each with one that the origin does not answer for.
fn stalled(origin: &Origin) -> World {
    let world = World::new();
    let mut listing = "microshard_id,language,uri\n".to_owned();
    for id in 1..=40 {
        let step = if is_held(id) { Step::Stall } else { ok(format!("{{\"id\":{id}}}\n")) };
        origin.on(&format!("/{id}"), [step]);
        writeln!(listing, "{id},en,{}/{id}", origin.url).unwrap();
    }
    std::fs::write(world.path("listing.csv"), listing).unwrap();
    world.ok("snapshot --manifest listing.csv --run-id r --shard-microshards 4 --queue queue.db");
    world
}

fn is_held(id: u32) -> bool {
    id.is_multiple_of(4)
}

/// The shards that a dead runner held, with the attempt it held each at.
fn claimed(world: &World) -> BTreeMap<i64, i64> {
    let queue = Queue::open(&world.path("queue.db")).unwrap();
    let mut claimed = BTreeMap::new();
    let mut keep = |shard: microshard_queue::PlannedShard| -> microshard_queue::Result<()> {
        if shard.state == 2 {
            claimed.insert(shard.shard, queue.attempt_of(shard.shard).unwrap());
        }
        Ok(())
    };
    queue.for_each_shard(&mut keep).unwrap();
    claimed
}

/// Were leases waited for, which hold for ten minutes, the second runner would take other shards, and then wait.
#[test]
fn the_shards_that_a_killed_runner_held_are_the_first_that_the_next_one_takes() {
    let origin = Origin::start();
    let world = stalled(&origin);
    let run = "run --queue queue.db --output out --threads 8 --builders 2";
    let lanes = 4;
    let held = || origin.asked().iter().filter(|asked| is_held(asked["GET /".len()..].parse().unwrap())).count();
    let mut rounds = Vec::new();
    for round in 1..=3 {
        let runner = world.start(run);
        until("every lane holds a shard", || held() == lanes * round);
        runner.signal(Signal::KILL);
        assert_eq!(runner.wait().code, -9);
        rounds.push(claimed(&world));
    }
    let at = |attempt| (1..=lanes as i64).map(|shard| (shard, attempt)).collect();
    assert_eq!(rounds, [at(1), at(2), at(3)] as [BTreeMap<i64, i64>; 3]);
    for id in 1..=40 {
        origin.on(&format!("/{id}"), [ok(format!("{{\"id\":{id}}}\n"))]);
    }
    world.ok(run);
    let status = world.json("status --queue queue.db --json");
    assert_eq!((&status["shards"]["published"], &status["rows"]), (&10.into(), &40.into()), "{status}");
}
