//! `run --frames`: the same rows in every mode, the same bytes whatever the threads, a queue bound to its mode, and shards
//! that `verify` reads again to their tables.

use std::collections::BTreeSet;
use std::process::Command;

use clap::Parser;
use compact_local::cli::{Cli, Command as Typed};
use compact_local::config::{Config, Output};
use compact_local::format::Frames;
use compact_local::format::seek::{RowIndex, SeekTable, Tail};
use compact_local::patience::Patience;
use compact_local::store;
use compact_local::verify::Verifier;
use microshard_queue::{PlannedShard, Queue};
use sha2::{Digest, Sha256};

use crate::microshards::{check_output, copy_manifest, decompressed, generated, served, statuses};
use crate::postgres::database;
use crate::world::{World, files, tool};

const MODES: [&str; 3] = ["single", "seekable=64KiB", "splice"];

/// A world with `input`, and `queue.db` over it.
fn world(microshards: u64) -> World {
    let world = World::new();
    generated(&world.path("input"), microshards, 0);
    snapshot(&world, "queue.db");
    world
}

fn snapshot(world: &World, queue: &str) {
    world.ok(&format!("snapshot --manifest input/manifest.csv --source input --shard-rows 2000 --queue {queue}"));
}

fn shards(world: &World, output: &str) -> Vec<String> {
    files(&world.path(output)).into_iter().filter(|name| name.ends_with(".zst")).collect()
}

#[test]
fn one_thread_and_sixty_four_give_the_same_bytes_in_every_mode() {
    let served = served(1_000, 6);
    let world = World::new();
    let mut modes = BTreeSet::new();
    for mode in MODES {
        let digests = [1, 64].map(|threads| {
            let name = format!("{mode}-{threads}");
            world.ok(&format!(
                "snapshot --manifest {} --source {} --shard-rows 2000 --queue {name}.db",
                served.generated.manifest.display(),
                served.nginx.url
            ));
            let (threads, builders) = (format!("--threads {threads}"), format!("--builders {}", threads.min(3)));
            let run = format!("run --frames {mode} {threads} {builders} --queue {name}.db --output {name}");
            world.run(&run).ends(3);
            world.run(&format!("verify --source --queue {name}.db")).ends(3);
            world.digest(&name)
        });
        assert_eq!(digests[0], digests[1], "{mode}");
        assert!(digests[0].len() > 20, "too few shards to tell an order");
        modes.extend(digests);
    }
    assert_eq!(modes.len(), MODES.len());
}

/// Of one frame they are read in `end_to_end`.
#[test]
fn every_row_is_in_one_shard_verbatim_whatever_the_frames() {
    let (served, database) = (served(1_500, 0), database());
    let mut client = database.client();
    for mode in ["seekable=64KiB", "splice"] {
        client.batch_execute("DROP TABLE IF EXISTS final_export_microshards, final_export_shards CASCADE").unwrap();
        let world = World::with(vec![("DATABASE_URL", database.url.clone())]);
        world.ok("init-manifest");
        copy_manifest(&mut client, &served.generated.manifest);
        world.ok(&format!("snapshot --claim none --source {} --queue queue.db", served.nginx.url));
        world.ok(&format!("run --frames {mode} --queue queue.db --output out"));
        world.ok("sync-back --queue queue.db");
        assert_eq!(statuses(&mut client), [("consumed".to_owned(), 1_500)].into());
        let output = world.path("out");
        check_output(&mut client, &served.nginx.root, output.to_str().unwrap(), &output);
        tool(Command::new("zstd").arg("-tqr").args(shards(&world, "out")).current_dir(&output));
    }
}

#[test]
fn a_queue_is_bound_to_its_frames_once_a_shard_is_published() {
    let world = world(60);
    world.ok("run --frames seekable=100kB --queue queue.db --output out");
    world.ok("run --frames seekable=100000 --queue queue.db --output out");
    for (mode, told) in [("splice", "--frames splice"), ("seekable", "--frames seekable=4MiB")] {
        let ran = world.run(&format!("run --frames {mode} --queue queue.db --output out")).ends(1);
        let (bound, typed) = ("started with --frames seekable=100000,", format!("not {told}: "));
        assert!(ran.stderr.contains(bound) && ran.stderr.contains(&typed), "{}", ran.stderr);
    }
    let ran = world.run("run --queue queue.db --output out").ends(1);
    assert!(ran.stderr.contains("not --frames single"), "{}", ran.stderr);
}

/// Queues and indexes of before there was a choice are gone on with.
#[test]
fn a_queue_and_an_index_that_say_nothing_of_frames_have_one_frame() {
    let world = world(60);
    world.ok("run --queue queue.db --output out");
    let queue = Queue::open(&world.path("queue.db")).unwrap();
    let bound = queue.meta("output").unwrap().unwrap();
    let before = bound.replace(r#","frames":"single""#, "");
    assert_ne!(before, bound);
    queue.set_meta("output", &before).unwrap();
    assert_eq!(Output::of(&queue).unwrap().unwrap().frames, Frames::Single);
    drop(queue);
    let path = world.path("out/index.json");
    let index = std::fs::read_to_string(&path).unwrap();
    let older = index.replace(",\n    \"frames\": \"single\"", "");
    assert_ne!(older, index);
    std::fs::write(&path, older).unwrap();
    world.ok("run --queue queue.db --output out");
    world.ok("verify --queue queue.db");
}

#[test]
fn the_index_names_the_frames_as_they_are_typed() {
    let world = world(60);
    for (mode, told) in [("single", "single"), ("seekable", "seekable=4MiB"), ("splice", "splice")] {
        snapshot(&world, &format!("{mode}.db"));
        world.ok(&format!("run --frames {mode} --queue {mode}.db --output {mode}"));
        let index = std::fs::read(world.path(mode).join("index.json")).unwrap();
        let index: serde_json::Value = serde_json::from_slice(&index).unwrap();
        assert_eq!(index["options"]["frames"], told);
    }
}

#[test]
fn a_size_that_no_frame_may_have_is_refused_with_a_sentence() {
    let world = world(60);
    for (mode, sentence) in [
        ("seekable=65535", "frames are from 64KiB to 1GiB large"),
        ("seekable=1073741825", "frames are from 64KiB to 1GiB large"),
        ("seekable=much", "`much` is no unit of bytes"),
        ("seekable=", "is no number of bytes"),
        ("single=4MiB", "write single, seekable, seekable=SIZE or splice"),
        ("frozen", "write single, seekable, seekable=SIZE or splice"),
    ] {
        let ran = world.run(&format!("run --frames {mode} --queue queue.db --output out")).ends(2);
        assert!(ran.stderr.contains(sentence), "{}", ran.stderr);
    }
    for mode in ["seekable=1GiB", "splice"] {
        let run = format!("run --frames {mode} --queue queue.db --output out --max-microshard-bytes");
        let ran = world.run(&format!("{run} 1GiB")).ends(1);
        assert!(ran.stderr.contains("needs a --max-microshard-bytes below 1GiB"), "{}", ran.stderr);
    }
    for size in ["65536", "1GiB"] {
        snapshot(&world, &format!("{size}.db"));
        world.ok(&format!("run --frames seekable={size} --memory 4GiB --queue {size}.db --output {size}"));
    }
}

/// A large frame must not be filled in more lanes than there is memory for (I8).
#[test]
fn the_frame_that_a_lane_fills_counts_as_memory() {
    let world = world(60);
    let queue = Queue::open(&world.path("queue.db")).unwrap();
    let encoder = |mode: &str| {
        let typed = format!("compact-local run --output out --frames {mode}");
        let Typed::Run(args) = Cli::try_parse_from(typed.split(' ')).unwrap().command else { panic!("not `run`") };
        Config::from_args(&args).unwrap().needs(&queue).unwrap().encoder
    };
    // Its rows, and the frame.
    for (mode, held) in [("seekable=64KiB", 128 << 10), ("seekable=1GiB", 2 << 30), ("splice", 8 << 20)] {
        assert_eq!(encoder(mode) - encoder("single"), held, "{mode}");
    }
}

/// The parts of a shard: its data frames, its row index, and the frames of its seek table.
fn parts(object: &[u8]) -> (Vec<u8>, RowIndex, SeekTable) {
    let Ok(Tail::Table(table)) = SeekTable::read_tail(object) else { panic!("no table") };
    let last = table.index_frame().unwrap();
    let span = table.span(last..last + 1);
    let (data, rest) = object.split_at(span.start as usize);
    let index = RowIndex::read(&rest[..(span.end - span.start) as usize]).unwrap().unwrap();
    (data.to_vec(), index, table)
}

/// The first shard of the queue.
fn first(queue: &Queue) -> PlannedShard {
    let mut shards = Vec::new();
    let keep = &mut |shard| -> microshard_queue::Result<()> {
        shards.push(shard);
        Ok(())
    };
    queue.for_each_shard(keep).unwrap();
    shards.swap_remove(0)
}

/// What `verify` says of the first shard, were its object this one, and its sum on record.
fn verify(world: &World, object: &[u8]) -> Vec<String> {
    let queue = Queue::open(&world.path("queue.db")).unwrap();
    let mut shard = first(&queue);
    let receipt = shard.receipt.as_mut().unwrap();
    (receipt.bytes_out, receipt.sha256) = (object.len() as u64, Sha256::digest(object).into());
    std::fs::write(world.path("out").join(&receipt.key), object).unwrap();
    let settings = crate::verify::settings();
    let output = Output::of(&queue).unwrap().unwrap();
    let store = store::open(&output.location, &settings, &queue.queue_id().unwrap()).unwrap();
    let sources = store::Sources::new(settings, crate::store_sources::bounds(1));
    let patience = Patience::default();
    let verifier = Verifier { store: store.as_ref(), sources: Some(&sources), output: &output, patience: &patience };
    let members = queue.members_of(&shard).unwrap();
    verifier.verify(&shard, &members).wrong
}

#[test]
fn verify_compares_the_tables_with_the_frames_and_the_microshards() {
    let world = world(60);
    world.ok("run --frames splice --queue queue.db --output out");
    let key = first(&Queue::open(&world.path("queue.db")).unwrap()).receipt.unwrap().key;
    let object = std::fs::read(world.path("out").join(key)).unwrap();
    assert_eq!(verify(&world, &object), Vec::<String>::new());
    let (data, index, table) = parts(&object);
    let with = |index: &RowIndex| {
        let (mut object, mut table, mut frame) = (data.clone(), table.clone(), Vec::new());
        index.write(&mut frame).unwrap();
        table.frames.last_mut().unwrap().compressed = frame.len() as u32;
        object.extend_from_slice(&frame);
        table.write(&mut object).unwrap();
        verify(&world, &object).join("; ")
    };
    assert_eq!(with(&index), "");

    let mut other = index.clone();
    other.frame_rows.swap(0, 1);
    other.frame_rows[0] += 1;
    other.microshards[0].1 += 1;
    let wrong = with(&other);
    assert!(wrong.contains("frame 0 has") && wrong.contains("its row index says"), "{wrong}");

    let mut other = index.clone();
    (other.microshards[0].1, other.microshards[1].1) = (index.microshards[0].1 + 1, index.microshards[1].1 - 1);
    let wrong = with(&other);
    let named = format!("microshard {} ", index.microshards[0].0);
    assert!(wrong.contains(&named) && wrong.contains("the shard's row index says otherwise"), "{wrong}");

    let mut other = index.clone();
    other.microshards[2].0 = -7;
    let wrong = with(&other);
    let named = format!("microshard {} ", index.microshards[2].0);
    assert!(wrong.contains(&named) && wrong.contains("the shard's row index says otherwise"), "{wrong}");

    let mut other = index.clone();
    let (_, rows) = other.microshards.pop().unwrap();
    other.microshards.last_mut().unwrap().1 += rows;
    let wrong = with(&other);
    let listed = index.microshards.len();
    assert!(wrong.contains(&format!("lists {} microshards, the queue says {listed}", listed - 1)), "{wrong}");

    let wrong = verify(&world, &data).join("; ");
    assert!(wrong.contains("has no seek table at its end"), "{wrong}");
}

/// A shard that is all of a microshard's frames is read again as a microshard of another export.
#[test]
fn shards_of_several_frames_are_microshards_like_any_other() {
    let world = world(60);
    world.ok("run --frames seekable=64KiB --queue queue.db --output first");
    let texts = |output: &str| -> Vec<Vec<u8>> {
        shards(&world, output).iter().map(|name| decompressed(&world.path(output).join(name))).collect()
    };
    let uris = shards(&world, "first");
    let lines: String = uris.iter().enumerate().map(|(id, uri)| format!("{id},{},{uri}\n", &uri[..2])).collect();
    std::fs::write(world.path("again.csv"), format!("microshard_id,language,uri\n{lines}")).unwrap();
    world.ok("snapshot --manifest again.csv --run-id r --source first --shard-microshards 1 --queue again.db");
    world.ok("run --frames splice --queue again.db --output second");
    world.ok("verify --source --queue again.db");
    let (mut first, mut second) = (texts("first"), texts("second"));
    first.sort();
    second.sort();
    assert!(first == second);
}
