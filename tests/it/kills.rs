//! SIGKILL at any moment: what the next run makes is, key by key and byte by byte, what an undisturbed run makes (I3, I4),
//! and nothing is left behind (I6). The moments are random; a failure names their seed.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::microshards::served;
use crate::s3;
use crate::world::{World, digest, files};

/// What one runner came to.
enum End {
    Killed,
    Finished,
    /// The bound on deaths without progress was reached, as it should after so many: it is not what is tested here.
    BoundReached,
    /// The second kill hit the very instant in which a suspect was decoded alone: it fails for it, as told.
    Condemned,
}

/// Runs `command` and kills it after `delay`, if it is still at work then.
fn run_and_kill(world: &World, command: &str, delay: Duration, why: &str) -> End {
    let mut running = world.start(command);
    // A random moment is the point here.
    std::thread::sleep(delay);
    if running.is_at_work() {
        running.signal(Signal::KILL);
    }
    let ran = running.wait();
    match ran.code {
        -9 => End::Killed,
        0 => End::Finished,
        1 if ran.stderr.contains("runs in a row died without publishing a shard") => End::BoundReached,
        3 if world.ok("failures --queue queue.db").lines().all(|line| line.contains("the process died")) => {
            End::Condemned
        }
        _ => panic!("{why}: a run ended with {}: {}{}", ran.code, ran.stdout, ran.stderr),
    }
}

/// Kills `kills` runners in all, each at most `reach` times as long after its start as an undisturbed one takes. Whenever
/// one is finished, calls `check` and begins anew, with a new queue and, for the number of the round, `{}` in `run`.
fn kill(world: &World, kills: u32, reach: f64, snapshot: &str, run: &str, mut check: impl FnMut(&str, &str)) {
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
            if killed == kills {
                world.ok(&command);
                return check(&round.to_string(), &why);
            }
            match run_and_kill(world, &command, undisturbed.mul_f64(reach * random.f64()), &why) {
                End::Killed => killed += 1,
                End::Finished => break check(&round.to_string(), &why),
                End::BoundReached => break,
                End::Condemned => {
                    condemned += 1;
                    assert!(condemned <= 1, "{why}: kills must not make sound microshards fail");
                    break;
                }
            }
        }
    }
}

#[test]
fn twenty_kills_leave_the_bytes_of_an_undisturbed_run() {
    let served = served(1_000, 0);
    let world = World::new();
    let snapshot = format!(
        "snapshot --manifest {} --source {} --shard-rows 1500 --queue queue.db",
        served.generated.manifest.display(),
        served.nginx.url
    );
    kill(&world, 20, 1.0, &snapshot, "run --queue queue.db --output out{}", |round, why| {
        assert_eq!(world.digest(&format!("out{round}")), world.digest("out0"), "{why}, round {round}");
        world.ok("sync-back --queue queue.db");
        let shards = world.json("status --queue queue.db --json")["shards"].clone();
        assert_eq!((&shards["published"], &shards["synced"]), (&shards["total"], &shards["total"]), "{why}: {shards}");
        std::fs::remove_file(world.path(&format!("out{round}/microshards.csv"))).unwrap();
    });
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
    // The runs between are not killed so often that the bound on lost leases is reached.
    kill(&world, 10, 1.5, &snapshot, run, |round, why| {
        assert_eq!(objects(round), objects("0"), "{why}, round {round}");
        let shard = objects(round).into_keys().find(|name| name.ends_with(".zst")).unwrap();
        let bytes = std::fs::metadata(bucket.join(format!("out{round}/{shard}"))).unwrap().len();
        assert!(bytes > 5 << 20, "{shard} does not need a second part");
        // Killed between the upload's creation and its record, a runner leaves an upload without parts, which costs
        // nothing; parts, which do, are never left. (Parts of an upload that is no more are this server's: it ends the
        // upload first and then takes its parts, and a client that is killed cancels it in between.)
        let left = files(server.root.path());
        let parts = left.iter().filter(|name| {
            let upload = name.strip_prefix(".upload_id-").and_then(|name| name.split(".part").next());
            upload.is_some_and(|id| left.contains(&format!(".upload-{id}.json")))
        });
        assert_eq!(parts.collect::<Vec<_>>(), Vec::<&String>::new(), "{why}, round {round}");
    });
}
