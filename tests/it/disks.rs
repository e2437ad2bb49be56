//! The whole program on a disk that fills up or is read-only: one clear error, no signal, no hang, and it goes on later.

use std::fmt::Write;

use compact_local::slots::Slots;

use crate::disk::Disk;
use crate::origin::{Origin, ok, status};
use crate::s3;
use crate::world::{Ran, World, digest, until};

/// The queue is on a small disk of its own, everything else is not. Four microshards to a shard.
struct Small {
    disk: Disk,
    world: World,
    origin: Origin,
    run: String,
}

const TAKE: &str = "snapshot --manifest listing.csv --run-id r --shard-microshards 4 --queue";

/// Forty microshards of one row, and their listing.
fn listed(world: &World, origin: &Origin, mut row: impl FnMut(u32) -> String) {
    let mut listing = "microshard_id,language,uri\n".to_owned();
    for id in 1..=40 {
        origin.on(&format!("/{id}"), [ok(row(id))]);
        writeln!(listing, "{id},en,{}/{id}", origin.url).unwrap();
    }
    std::fs::write(world.path("listing.csv"), listing).unwrap();
}

/// Rows that make a shard of about 200 KB.
fn bulky() -> impl FnMut(u32) -> String {
    let mut random = fastrand::Rng::with_seed(1);
    move |_| format!("{{\"text\":\"{}\"}}\n", (0..64 << 10).map(|_| random.alphanumeric()).collect::<String>())
}

/// The one error of a command that a disk has refused.
#[track_caller]
fn full(ran: Ran) -> String {
    let told = ran.ends(1).stderr;
    assert_eq!(told.lines().filter(|line| line.starts_with("error: ")).count(), 1, "{told}");
    assert!(told.contains("No space left on device"), "{told}");
    told
}

impl Small {
    fn new() -> Small {
        let (disk, world, origin) = (Disk::new(4 << 20), World::new(), Origin::start());
        listed(&world, &origin, |id| format!("{{\"id\":{id}}}\n"));
        let queue = disk.path("q.db").display().to_string();
        world.ok(&format!("{TAKE} {queue}"));
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
fn a_run_whose_outputs_disk_fills_up_ends_with_one_error_and_the_next_one_leaves_the_same_bytes() {
    let (disk, world, origin) = (Disk::new(1 << 20), World::new(), Origin::start());
    listed(&world, &origin, bulky());
    world.ok(&format!("{TAKE} undisturbed.db"));
    world.ok("run --output undisturbed --queue undisturbed.db");
    world.ok(&format!("{TAKE} q.db"));
    let run = format!("run --output {} --queue q.db", disk.path("out").display());
    let told = full(world.run(&run));
    assert!(told.contains("check free space"), "{told}");
    disk.resize(16 << 20);
    world.ok(&run);
    world.ok("verify --source --queue q.db");
    assert_eq!(digest(&disk.path("out")), world.digest("undisturbed"));
}

#[test]
fn a_disk_for_temporary_files_that_is_full_is_told_by_its_name_and_each_command_goes_on_later() {
    let (disk, origin, server) = (Disk::new(100 << 10), Origin::start(), s3::server());
    let temporary = ("TMPDIR", disk.path("").display().to_string());
    let world = World::with([server.environment(), vec![temporary]].concat());
    listed(&world, &origin, bulky());
    world.ok(&format!("{TAKE} q.db"));
    let run = format!("run --output s3://{}/out --queue q.db", server.bucket("shards"));
    let told = full(world.run(&run));
    assert!(told.contains(&format!("its temporary file in {}", disk.path("").display())), "{told}");
    disk.resize(16 << 20);
    world.ok(&run);
    disk.fill();
    let told = full(world.run("sync-back --queue q.db"));
    assert!(told.contains("microshards.csv (TMPDIR says where)"), "{told}");
    let told = world.run("plan --manifest listing.csv --run-id r").ends(1).stderr;
    assert!(told.contains(&disk.path("").display().to_string()), "{told}");
    disk.make_room();
    world.ok("sync-back --queue q.db");
    world.ok("verify --source --queue q.db");
    assert_eq!(disk.files(), Vec::<String>::new(), "nothing is left");
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
