//! What each part of the work on a microshard costs in CPU time, one after the other on one thread, with the code that
//! `run` uses: fetch, SHA-256, decode, check, encode. Their sum is what `run` cannot be better than, core for core.
//!
//!     compact-local demo --generate-only --microshards 20000 --dir data
//!     cargo bench --bench parts -- data [http://origin-that-serves-data]

#![expect(clippy::print_stdout, reason = "a bench prints what it measured")]

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Parser as _;
use compact_local::cli::StoreArgs;
use compact_local::format::{Decoder, Frames, JsonlReader, Limits, RowReader};
use compact_local::store::{Bounds, GetOptions, Sources, StoreSettings};
use rustix::time::{ClockId, clock_gettime};
use sha2::{Digest, Sha256};

const LIMITS: Limits = Limits { bytes_max: 1 << 30, lenient: false };
/// Microshards to a shard, for the encoder: about 17,000 rows.
const PER_SHARD: usize = 250;
const LEVEL: i32 = 3;

/// The defaults of `run`'s flags.
#[derive(clap::Parser)]
struct Only {
    #[command(flatten)]
    store: StoreArgs,
}

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|argument| !argument.starts_with("--"));
    let Some(data) = arguments.next().map(PathBuf::from) else {
        println!("parts: nothing measured; give a directory made by `compact-local demo --generate-only`");
        return;
    };
    let uris = uris(&data);
    let objects: Vec<Vec<u8>> = uris.iter().map(|uri| std::fs::read(data.join(uri)).expect("reads")).collect();
    let bytes: usize = objects.iter().map(Vec::len).sum();
    println!("{} microshards, {:.1} KB each\n", objects.len(), bytes as f64 / objects.len() as f64 / 1e3);
    println!("| part | CPU a microshard |\n|---|---:|");
    let mut sum = Duration::ZERO;
    let print = |part: &str, cpu: Duration| {
        println!("| {part} | {:.1} us |", cpu.as_secs_f64() * 1e6 / objects.len() as f64);
    };
    let mut row = |part: &str, cpu: Duration| {
        sum += cpu;
        print(part, cpu);
    };
    if let Some(origin) = arguments.next() {
        row("fetch", fetch(&origin, &uris));
    }
    row("SHA-256", sha256(&objects));
    let decoded = decode(&objects);
    row("decode", decoded);
    row("check", read(&objects).saturating_sub(decoded));
    row("encode", encode(&objects));
    print("all", sum);
}

/// The manifest's uris, relative to the directory.
fn uris(data: &Path) -> Vec<String> {
    let mut manifest = csv::Reader::from_path(data.join("manifest.csv")).expect("opens");
    let uri = manifest.headers().expect("reads").iter().position(|column| column == "uri").expect("a column");
    manifest.records().map(|line| line.expect("reads")[uri].to_owned()).collect()
}

/// CPU time of this thread, kernel included.
fn cpu(work: impl FnOnce()) -> Duration {
    let now = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    };
    let started = now();
    work();
    now() - started
}

fn fetch(origin: &str, uris: &[String]) -> Duration {
    let settings = StoreSettings::from_args(&Only::parse_from(["parts"]).store).expect("has defaults");
    let bounds = Bounds { in_flight: 1, per_second: None, pause: Duration::ZERO, wait: Duration::ZERO };
    let mut reader = Sources::new(settings, bounds).reader();
    let uris: Vec<String> = uris.iter().map(|uri| format!("{origin}/{uri}")).collect();
    let mut body = Vec::new();
    cpu(|| {
        for uri in &uris {
            let options = GetOptions { bytes_max: LIMITS.bytes_max, fresh: false };
            reader.get(uri, &mut body, options).expect("is served");
        }
    })
}

fn sha256(objects: &[Vec<u8>]) -> Duration {
    cpu(|| objects.iter().for_each(|object| _ = black_box(Sha256::digest(object))))
}

fn decode(objects: &[Vec<u8>]) -> Duration {
    let mut decoder = Decoder::default();
    cpu(|| {
        for object in objects {
            black_box(decoder.decode(object, LIMITS).expect("decodes").text.len());
        }
    })
}

fn read(objects: &[Vec<u8>]) -> Duration {
    let mut reader = JsonlReader::default();
    cpu(|| {
        for object in objects {
            black_box(reader.read(object, LIMITS).expect("is good").count());
        }
    })
}

/// Encodes shard by shard; decoding between does not count.
fn encode(objects: &[Vec<u8>]) -> Duration {
    let mut reader = JsonlReader::default();
    let mut spent = Duration::ZERO;
    for shard in objects.chunks(PER_SHARD) {
        let mut writer = Frames::Single.writer(std::io::sink(), LEVEL).expect("creates");
        for object in shard {
            let rows = reader.read(object, LIMITS).expect("is good");
            spent += cpu(|| writer.append(0, rows).expect("encodes"));
        }
        spent += cpu(|| _ = writer.finish().expect("encodes"));
    }
    spent
}
