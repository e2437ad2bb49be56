//! The whole program on a disk that fills up or is read-only: one clear error, no signal, no hang, and it goes on later.

use std::fmt::Write;

use compact_local::slots::Slots;

use crate::disk::Disk;
use crate::origin::{Origin, ok, status};
use crate::world::{World, until};

/// The queue is on a small disk of its own, everything else is not. Forty microshards, four to a shard.
struct Small {
    disk: Disk,
    world: World,
    origin: Origin,
    run: String,
}

impl Small {
    fn new() -> Small {
        let (disk, world, origin) = (Disk::new(4 << 20), World::new(), Origin::start());
        let mut listing = "microshard_id,language,uri\n".to_owned();
        for id in 1..=40 {
            origin.on(&format!("/{id}"), [ok(format!("{{\"id\":{id}}}\n"))]);
            writeln!(listing, "{id},en,{}/{id}", origin.url).unwrap();
        }
        std::fs::write(world.path("listing.csv"), listing).unwrap();
        let queue = disk.path("q.db").display().to_string();
        world.ok(&format!("snapshot --manifest listing.csv --run-id r --shard-microshards 4 --queue {queue}"));
        Small { disk, world, origin, run: format!("run --output out --threads 4 --queue {queue}") }
    }

    fn command(&self, command: &str) -> String {
        format!("{command} --queue {}", self.disk.path("q.db").display())
    }
}

/// The disk fills while a shard waits for its last microshard. The run once hung for ever: the queue's writer had failed,
/// and lanes that had asked it in that moment waited for an answer.
#[test]
fn a_run_whose_queues_disk_fills_up_ends_with_one_error_and_the_next_one_finishes() {
    let small = Small::new();
    small.origin.on("/40", [status(503)]);
    let run = small.world.start(&small.run);
    until("the origin is asked for it", || small.origin.asked().iter().any(|asked| asked == "GET /40"));
    small.disk.fill();
    let ended = run.wait().ends(1);
    let told = "q.db: database or disk is full: free some disk space and run again; nothing committed is lost";
    assert!(ended.stderr.lines().filter(|line| line.ends_with(told)).count() == 1, "{}", ended.stderr);
    small.disk.make_room();
    small.origin.on("/40", [ok("{\"id\":40}\n")]);
    small.world.ok(&small.run);
    small.world.ok(&small.command("verify --source"));
    let status = small.world.json(&small.command("status --json"));
    assert_eq!(status["microshards"]["consumed"], 40, "{status}");
}

#[test]
fn a_read_only_disk_is_told_by_every_command() {
    let small = Small::new();
    small.disk.set_read_only(true);
    for command in [small.run.clone(), small.command("status"), small.command("sync-back"), small.command("retry")] {
        let ended = small.world.run(&command).ends(1);
        assert!(ended.stderr.contains("q.db: it is read-only for this user"), "{command}: {}", ended.stderr);
        assert_eq!((ended.stderr.lines().count(), ended.stdout.as_str()), (1, ""), "{command}: {}", ended.stderr);
    }
    small.disk.set_read_only(false);
    small.world.ok(&small.run);
}

/// A store into a mapped file on a full disk is a signal that no error code tells.
#[test]
fn crash_slots_have_their_room_before_the_disk_fills() {
    let disk = Disk::new(1 << 20);
    let slots = Slots::open(&disk.path("q.db.slots")).unwrap();
    disk.fill();
    let held = slots.hold(1023, 7);
    assert_eq!(slots.suspects(), [7]);
    drop(held);
    disk.make_room();
    drop(slots);
    disk.fill();
    let error = format!("{:#}", Slots::open(&disk.path("other.slots")).unwrap_err());
    assert!(error.contains("other.slots: they need 8 KiB") && error.contains("No space left"), "{error}");
}

/// The signal that comes with a write beyond the limit ends a process that does not expect it, without a word.
#[test]
fn a_limit_on_the_size_of_files_is_told_like_any_disk_that_refuses() {
    let (world, origin) = (World::new(), Origin::start());
    let mut random = fastrand::Rng::with_seed(1);
    let row = |text: String| ok(format!("{{\"text\":\"{text}\"}}\n"));
    origin.on("/1", [row((0..4 << 20).map(|_| random.alphanumeric()).collect())]);
    std::fs::write(world.path("listing.csv"), format!("microshard_id,language,uri\n1,en,{}/1\n", origin.url)).unwrap();
    let limited = |blocks: u32, arguments: &str| {
        let line = format!("ulimit -f {blocks}; exec {} {arguments}", env!("CARGO_BIN_EXE_compact-local"));
        let output =
            std::process::Command::new("sh").args(["-c", &line]).current_dir(world.dir.path()).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "`{arguments}` said: {stderr}");
        assert_eq!(stderr.lines().filter(|line| line.starts_with("error: ")).count(), 1, "{stderr}");
        stderr
    };
    let take = "snapshot --manifest listing.csv --run-id r --shard-microshards 1 --queue q.db";
    let told = limited(2, take);
    assert!(told.contains("q.db"), "{told}");
    world.ok(take);
    let told = limited(2 << 10, "run --output out --queue q.db");
    assert!(told.contains("File too large") && told.contains("raise `ulimit -f`"), "{told}");
    world.ok("run --output out --queue q.db");
}
