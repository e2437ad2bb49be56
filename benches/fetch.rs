//! The downloads alone: every microshard of a manifest fetched as `run` fetches it, its SHA-256 compared with the
//! manifest's, and dropped; with `--write` kept as a file, as a downloader does.
//!
//!     compact-local demo --generate-only --microshards 20000 --dir data
//!     cargo bench --bench fetch -- data http://origin-that-serves-data [--threads 256] [--write DIR]

#![expect(clippy::print_stdout, reason = "a bench prints what it measured")]

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use compact_local::cli::StoreArgs;
use compact_local::hex;
use compact_local::store::{Bounds, GetOptions, Reader, Sources, StoreSettings};
use sha2::{Digest, Sha256};

/// As long as it takes until an origin that is new may be asked so much at once.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Parser)]
struct Cli {
    /// A directory made by `compact-local demo --generate-only`.
    data: Option<PathBuf>,
    /// What serves it.
    #[arg(default_value = "http://127.0.0.1:8080")]
    origin: String,
    /// Downloads at the same time.
    #[arg(long, default_value_t = 256)]
    threads: usize,
    /// Keep the objects here.
    #[arg(long)]
    write: Option<PathBuf>,
    /// The defaults of `run`'s flags.
    #[command(flatten)]
    store: StoreArgs,
    /// Given by `cargo bench`.
    #[arg(long, hide = true)]
    bench: bool,
}

struct Microshard {
    uri: String,
    sha256: [u8; 32],
}

fn main() {
    let cli = Cli::parse();
    let Some(data) = &cli.data else {
        println!("fetch: nothing measured; give a directory made by `compact-local demo --generate-only`");
        return;
    };
    let microshards = read_manifest(data);
    let files = cli.write.as_deref().map(|dir| made_for(dir, &microshards));
    let settings = StoreSettings::from_args(&cli.store).expect("has defaults");
    let bounds = Bounds { in_flight: cli.threads, per_second: None, pause: Duration::ZERO, wait: PATIENCE };
    let sources = Sources::new(settings, bounds);
    let next = AtomicUsize::new(0);
    let started = Instant::now();
    let bytes: usize = thread::scope(|scope| {
        let fetch = || fetch(&cli.origin, &microshards, &next, files, sources.reader());
        let threads: Vec<_> = (0..cli.threads).map(|_| scope.spawn(fetch)).collect();
        threads.into_iter().map(|thread| thread.join().expect("ends well")).sum()
    });
    let took_s = started.elapsed().as_secs_f64();
    println!(
        "{} microshards, {:.1} MB in {took_s:.2} s: {:.0} microshards/s with {} threads",
        microshards.len(),
        bytes as f64 / 1e6,
        microshards.len() as f64 / took_s,
        cli.threads
    );
}

/// One thread's share, and its bytes.
fn fetch(
    origin: &str,
    microshards: &[Microshard],
    next: &AtomicUsize,
    files: Option<&Path>,
    mut reader: Reader,
) -> usize {
    let (mut body, mut bytes) = (Vec::new(), 0);
    while let Some(Microshard { uri, sha256 }) = microshards.get(next.fetch_add(1, Ordering::Relaxed)) {
        let options = GetOptions { bytes_max: 1 << 30, fresh: false };
        reader.get(&format!("{origin}/{uri}"), &mut body, options).expect("is served");
        assert_eq!(Sha256::digest(&body).as_slice(), sha256, "{uri}");
        if let Some(dir) = files {
            std::fs::write(dir.join(uri), &body).expect("is written");
        }
        bytes += body.len();
    }
    bytes
}

fn read_manifest(data: &Path) -> Vec<Microshard> {
    let mut manifest = csv::Reader::from_path(data.join("manifest.csv")).expect("opens");
    let column =
        |columns: &csv::StringRecord, name| columns.iter().position(|column| column == name).expect("is there");
    let columns = manifest.headers().expect("reads");
    let (uri, sha256) = (column(columns, "uri"), column(columns, "sha256"));
    let microshard = |line: csv::StringRecord| {
        let sha256 = hex::decode_sha256(&line[sha256]).expect("is a SHA-256");
        Microshard { uri: line[uri].to_owned(), sha256 }
    };
    manifest.records().map(|line| microshard(line.expect("reads"))).collect()
}

/// The directory, with a folder for each of the objects'.
fn made_for<'a>(dir: &'a Path, microshards: &[Microshard]) -> &'a Path {
    for microshard in microshards {
        let file = dir.join(&microshard.uri);
        std::fs::create_dir_all(file.parent().expect("has a folder")).expect("is made");
    }
    dir
}
