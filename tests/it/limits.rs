//! What the system grants a process (`ulimit`): where that is too little there is one error, no signal and no panic, and it
//! goes on later.

use crate::microshards::generated;
use crate::origin::{Origin, ok};
use crate::postgres::database;
use crate::world::{Ran, World};

/// The one error it ended with.
#[track_caller]
fn refused(ran: Ran) -> String {
    let stderr = ran.ends(1).stderr;
    assert_eq!(stderr.lines().filter(|line| line.starts_with("error: ")).count(), 1, "{stderr}");
    stderr
}

/// The signal that comes with a write beyond the limit ends a process that does not expect it, without a word.
#[test]
fn a_limit_on_the_size_of_files_is_told_like_any_disk_that_refuses() {
    let (world, origin) = (World::new(), Origin::start());
    let mut random = fastrand::Rng::with_seed(1);
    let row = |text: String| ok(format!("{{\"text\":\"{text}\"}}\n"));
    origin.on("/1", [row((0..4 << 20).map(|_| random.alphanumeric()).collect())]);
    std::fs::write(world.path("listing.csv"), format!("microshard_id,language,uri\n1,en,{}/1\n", origin.url)).unwrap();
    let take = "snapshot --manifest listing.csv --run-id r --shard-microshards 1 --queue q.db";
    let told = refused(world.run_limited("-f 2", take));
    assert!(told.contains("q.db"), "{told}");
    world.ok(take);
    let told = refused(world.run_limited("-f 2048", "run --output out --queue q.db"));
    assert!(told.contains("File too large") && told.contains("raise `ulimit -f`"), "{told}");
    world.ok("run --output out --queue q.db");
}

#[test]
fn where_no_thread_may_be_started_each_command_says_which_limit_to_raise() {
    let world = World::new();
    generated(&world.path("input"), 30, 0);
    world.ok("snapshot --manifest input/manifest.csv --source input --queue q.db");
    // No limit on threads holds for root, but nobody is given so large a stack.
    let no_stack = (1_u64 << 46).to_string();
    for command in ["demo --generate-only --microshards 30 --dir demo", "run --output out --queue q.db"] {
        let told = refused(world.run_with(command, "RUST_MIN_STACK", &no_stack));
        assert!(told.contains("failed to start") && told.contains("ulimit -u"), "{told}");
    }
    world.ok("run --output out --queue q.db");
    let told = refused(world.run_with("verify --queue q.db", "RUST_MIN_STACK", &no_stack));
    assert!(told.contains("failed to start") && told.contains("ulimit -u"), "{told}");
    world.ok("verify --queue q.db");
}

#[test]
fn however_few_files_may_be_open_each_command_does_its_work_or_says_which_limit_to_raise() {
    let database = database();
    let world = World::with(vec![("DATABASE_URL", database.url.clone())]);
    database.filled(3);
    generated(&world.path("input"), 30, 0);
    world.ok("snapshot --manifest input/manifest.csv --source input --queue input.db");
    let (mut refusals, mut done) = (0, 0);
    // With fewer not even the dynamic loader gets on.
    for few in [4, 7, 12, 20, 40, 63, 64, 80] {
        let commands = [
            format!("plan --manifest {} --source .", database.url),
            format!("snapshot --claim none --source . --queue {few}.db"),
            format!("demo --generate-only --microshards 3 --dir demo-{few}"),
            "run --threads 4 --queue input.db --output out".to_owned(),
            "verify --queue input.db".to_owned(),
        ];
        for command in commands {
            let ran = world.run_limited(&format!("-n {few}"), &command);
            if ran.code == 0 {
                done += 1;
            } else {
                let told = refused(ran);
                assert!(told.contains("ulimit -n"), "{few}, {command}: {told}");
                refusals += 1;
            }
        }
    }
    assert_eq!((refusals, done), (30, 10));
}
