//! Origins that ask for less, and a ceiling of one's own: all is published, little is refused, and `status` tells.

use std::fmt::Write;

use rustix::process::Signal;

use crate::nginx::{Nginx, nginx, nginx_that_pushes_back};
use crate::world::{World, until};

const MICROSHARDS: usize = 3_000;

/// A snapshot of microshards of one row.
fn world(nginx: &Nginx) -> World {
    let world = World::new();
    let mut listing = "microshard_id,language,uri\n".to_owned();
    for id in 1..=MICROSHARDS {
        std::fs::write(nginx.root.join(format!("{id}.jsonl")), format!("{{\"id\":{id}}}\n")).unwrap();
        writeln!(listing, "{id},en,{}/{id}.jsonl", nginx.url).unwrap();
    }
    std::fs::write(world.path("listing.csv"), listing).unwrap();
    world.ok("snapshot --manifest listing.csv --run-id r --shard-microshards 250 --queue q.db");
    world
}

#[test]
fn an_origin_that_serves_so_many_a_second_refuses_few_and_all_is_published() {
    let nginx = nginx_that_pushes_back();
    let world = world(&nginx);
    let ran = world.ok("run --queue q.db --output out --threads 256");
    assert!(ran.contains("12 of 12 shards published: 3,000 microshards"), "{ran}");
    let answers = std::fs::read_to_string(nginx.root.with_file_name("answers")).unwrap();
    let (refused, all) = (answers.lines().filter(|status| *status == "503").count(), answers.lines().count());
    assert!(refused > 0 && refused * 20 < all, "{refused} of {all}");
}

#[test]
fn a_ceiling_is_kept_and_status_tells_it_while_the_run_is_at_work() {
    let nginx = nginx();
    let world = world(&nginx);
    let run = world.start("run --queue q.db --output out --max-requests-per-second 20");
    let origins = || world.json("status --json --queue q.db")["origins"].clone();
    until("status tells of the origin", || origins()[0]["per_second"] == 20.0);
    let (told, lines) = (origins(), world.ok("status --queue q.db"));
    assert_eq!((&told[0]["origin"], &told[0]["asked_for_less"]), (&nginx.url.clone().into(), &false.into()), "{told}");
    assert!(lines.contains("20.0 a second by --max-requests-per-second"), "{lines}");
    run.signal(Signal::TERM);
    run.wait().ends(130);
    assert_eq!(origins(), serde_json::json!([]), "nobody is at work");
    for bad in ["0", "-1", "many", "NaN"] {
        world.run(&format!("run --queue q.db --output out --max-requests-per-second={bad}")).ends(2);
    }
}
