//! What can be typed: clap structs, nothing else. What is used is in `config.rs` and beside each command.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::format::Frames;

/// Compacts an export of a million tiny objects into a few thousand training shards, on one machine.
#[derive(Debug, Parser)]
#[command(name = "compact-local", version, max_term_width = 100, after_help = EXIT_CODES)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 done, 1 error, 2 usage, 3 finished, but something is missing from the \
dataset, 4 another runner is at work, 130 interrupted.";

/// The subcommands, in the order a job goes through them.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Create the manifest's tables in Postgres, where they are absent.
    InitManifest(InitManifest),
    /// Copy the manifest into the local queue file and plan the shards.
    Snapshot(Snapshot),
    /// Show what would be built, without building it.
    Plan(Plan),
    /// Build and publish the planned shards.
    Run(Run),
    /// Write the results back to the manifest.
    SyncBack(SyncBack),
    /// Show how far the queue is and whether a runner is at work.
    Status(QueueJson),
    /// List the microshards that failed, and why.
    Failures(QueueJson),
    /// Put failed microshards into new shards.
    Retry(Retry),
    /// Give unworked microshards and slices back to the manifest.
    Release(SyncBack),
    /// Read every published shard again and compare it with the queue and the index.
    Verify(Verify),
    /// Print rows of one shard, reading no more of it than they are in.
    Cat(Cat),
    /// Do the main job on generated microshards, served from inside the process.
    Demo(Demo),
}

/// The queue file, unless told otherwise.
pub const QUEUE_DEFAULT: &str = "compact-queue.db";

/// Where the queue file is.
#[derive(Debug, Clone, Args)]
pub struct QueueFile {
    /// The queue file.
    #[arg(long, value_name = "FILE", default_value = QUEUE_DEFAULT, env = "COMPACT_QUEUE")]
    pub queue: PathBuf,
}

/// A command that reads the queue and may print JSON.
#[derive(Debug, Clone, Args)]
pub struct QueueJson {
    /// The queue.
    #[command(flatten)]
    pub queue: QueueFile,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Where the manifest is and how its tables are named.
#[derive(Debug, Clone, Args)]
pub struct ManifestArgs {
    /// postgres://..., a .csv or .jsonl listing, or a directory; without it DATABASE_URL, then the PG* variables.
    #[arg(long, value_name = "URL|FILE|DIR")]
    pub manifest: Option<String>,
    /// The table of microshards.
    #[arg(long, default_value = "final_export_microshards")]
    pub table: String,
    /// The table of shards.
    #[arg(long, default_value = "final_export_shards")]
    pub shards_table: String,
    /// A column of the microshards table that has another name here: `--column microshard_id=id`. Repeatable.
    #[arg(long, value_name = "NAME=THEIRS")]
    pub column: Vec<String>,
}

/// How objects are reached.
#[derive(Debug, Clone, Args)]
pub struct StoreArgs {
    /// S3 endpoint, for stores other than AWS: http://127.0.0.1:9000.
    #[arg(long, value_name = "URL", env = "AWS_ENDPOINT_URL_S3")]
    pub s3_endpoint: Option<String>,
    /// S3 region; without it AWS_REGION, AWS_DEFAULT_REGION, the profile's, then us-east-1.
    #[arg(long, value_name = "NAME")]
    pub s3_region: Option<String>,
    /// Put the bucket into the path, not the host name; the default with --s3-endpoint.
    #[arg(long)]
    pub s3_path_style: bool,
    /// Do not sign requests: public buckets.
    #[arg(long)]
    pub s3_unsigned: bool,
    /// Objects larger than this are uploaded in parts of this size; at least 5MiB.
    #[arg(long, value_name = "BYTES", default_value = "16MiB", value_parser = bytes)]
    pub s3_part_size: u64,
}

/// Arguments of `init-manifest`.
#[derive(Debug, Args)]
pub struct InitManifest {
    /// The manifest.
    #[command(flatten)]
    pub manifest: ManifestArgs,
    /// Print the SQL and do nothing.
    #[arg(long)]
    pub print: bool,
}

/// How a snapshot takes its microshards, so that several machines share one manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ClaimMode {
    /// Lease hash slices of the run; writes no microshard row.
    Slices,
    /// Mark each row claimed, for a manifest on which others claim row by row.
    Rows,
    /// Read only: this machine works alone.
    None,
}

/// What happens to the rest that does not fill a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PartialShards {
    /// The shards of one language are as even as whole microshards allow.
    Spread,
    /// Fill every shard to the target; the last one is short.
    Emit,
    /// Keep the remainder back for a later snapshot.
    Hold,
}

/// How shards are cut.
#[derive(Debug, Clone, Args)]
pub struct PlanArgs {
    /// Rows a shard holds at most.
    #[arg(long, value_name = "N", default_value_t = 17_000, value_parser = whole)]
    pub shard_rows: u64,
    /// Input bytes a shard holds at most, as the manifest counts them.
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub shard_bytes: Option<u64>,
    /// Microshards a shard holds at most; needed where the manifest has no counts.
    #[arg(long, value_name = "N", value_parser = whole)]
    pub shard_microshards: Option<u64>,
    /// What happens to the rest that does not fill a shard.
    #[arg(long, value_enum, default_value = "spread")]
    pub partial_shards: PartialShards,
    /// The same as --partial-shards emit.
    #[arg(long, conflicts_with = "partial_shards")]
    pub allow_partial_shards: bool,
}

/// Which microshards are taken, and how they are planned.
#[derive(Debug, Clone, Args)]
pub struct Intake {
    /// The manifest.
    #[command(flatten)]
    pub manifest: ManifestArgs,
    /// The run to take; may be left out where the manifest holds one run only.
    #[arg(long, value_name = "ID")]
    pub run_id: Option<String>,
    /// What relative uris are relative to: https://host/path, s3://bucket/prefix or a directory.
    #[arg(long, value_name = "BASE")]
    pub source: Option<String>,
    /// Take these languages only.
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    pub language: Vec<String>,
    /// Take at most this many microshards.
    #[arg(long, value_name = "N", value_parser = whole)]
    pub limit: Option<u64>,
    /// How shards are cut.
    #[command(flatten)]
    pub plan: PlanArgs,
}

/// Arguments of `snapshot`.
#[derive(Debug, Args)]
pub struct Snapshot {
    /// The queue.
    #[command(flatten)]
    pub queue: QueueFile,
    /// What to take.
    #[command(flatten)]
    pub intake: Intake,
    /// How microshards are claimed in Postgres.
    #[arg(long, value_enum, default_value = "slices")]
    pub claim: ClaimMode,
    /// With `--claim slices`: take at most this many of the run's 64 slices.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub slices: Option<u32>,
    /// How long the claim in Postgres holds.
    #[arg(long, value_name = "TIME", default_value = "8h", value_parser = lease)]
    pub lease: Duration,
}

/// Parses a time; where a lease has ended as soon as it is taken, two machines take the same microshards.
fn lease(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(lease) if lease >= Duration::from_secs(60) => Ok(lease),
        Ok(_) => Err("a lease is a minute at least".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Arguments of `plan`.
#[derive(Debug, Args)]
pub struct Plan {
    /// The queue, where no --manifest is given.
    #[command(flatten)]
    pub queue: QueueJson,
    /// What would be taken: plans a manifest that is not in a queue yet, claiming nothing.
    #[command(flatten)]
    pub intake: Intake,
}

/// What a shard does when some of its microshards failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OnFailure {
    /// It is built from the rest.
    Skip,
    /// It waits, for `retry`.
    Hold,
}

/// zstd's level, unless told otherwise.
pub const LEVEL_DEFAULT: i32 = 3;
/// What a microshard decodes to at most, unless told otherwise.
pub const MICROSHARD_BYTES_DEFAULT: &str = "64MiB";

/// Arguments of `run`.
#[derive(Debug, Clone, Args)]
pub struct Run {
    /// The queue.
    #[command(flatten)]
    pub queue: QueueFile,
    /// Download threads.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub threads: u16,
    /// Ask each origin for no more than so many objects a second.
    #[arg(long, value_name = "N", value_parser = rate)]
    pub max_requests_per_second: Option<f64>,
    /// Threads that decode and encode; the default is the number of cores.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub builders: Option<u16>,
    /// Where shards go: a directory or s3://bucket/prefix.
    #[arg(long, value_name = "DIR|URL")]
    pub output: String,
    /// Compression level of zstd.
    #[arg(long, value_name = "N", default_value_t = LEVEL_DEFAULT, value_parser = clap::value_parser!(i32).range(1..=22))]
    pub level: i32,
    /// How a shard is cut into zstd frames: one; whole rows of at most SIZE (4MiB) a frame, to read a few of them alone; or
    /// the microshards' own, not encoded again.
    #[arg(long, value_name = "single|seekable[=SIZE]|splice", default_value = "single", value_parser = frames)]
    pub frames: Frames,
    /// Memory that may be resident.
    #[arg(long, value_name = "BYTES", default_value = "2GiB", value_parser = bytes)]
    pub memory: u64,
    /// A microshard that is larger than this when decoded fails.
    #[arg(long, value_name = "BYTES", default_value = MICROSHARD_BYTES_DEFAULT, value_parser = bytes)]
    pub max_microshard_bytes: u64,
    /// Keep rows that readers of JSON refuse or differ about: a key twice, a lone surrogate, an integer of more than 64 bits,
    /// a number beyond a double. For this run only.
    #[arg(long)]
    pub lenient: bool,
    /// What a shard does when some of its microshards failed.
    #[arg(long, value_enum, default_value = "skip")]
    pub on_failure: OnFailure,
    /// Work on this run only; the others in the queue wait.
    #[arg(long, value_name = "RUN_ID")]
    pub only: Option<String>,
    /// Give a run N turns for each turn of another: `--weight urgent=4`. Repeatable; kept in the queue.
    #[arg(long, value_name = "RUN_ID=N", value_parser = weight)]
    pub weight: Vec<(String, u32)>,
    /// How objects are reached.
    #[command(flatten)]
    pub store: StoreArgs,
}

/// Parses `single`, `seekable`, `seekable=SIZE`, `splice`.
fn frames(text: &str) -> Result<Frames, String> {
    match text.split_once('=') {
        None if text == "single" => Ok(Frames::Single),
        None if text == "seekable" => Ok(Frames::Seekable(Frames::BYTES_DEFAULT)),
        None if text == "splice" => Ok(Frames::Splice),
        Some(("seekable", size)) => Frames::seekable(bytes(size)?),
        _ => Err("write single, seekable, seekable=SIZE or splice".to_owned()),
    }
}

/// Parses a number of requests a second, 0.5 or 500.
fn rate(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(rate) if (0.01..=1e6).contains(&rate) => Ok(rate),
        _ => Err("write a number from 0.01 to 1000000".to_owned()),
    }
}

/// Parses `RUN_ID=N`.
fn weight(text: &str) -> Result<(String, u32), String> {
    let parsed = text.rsplit_once('=').and_then(|(run_id, weight)| Some((run_id, weight.parse().ok()?)));
    match parsed {
        Some((run_id, weight @ 1..=1000)) if !run_id.is_empty() => Ok((run_id.to_owned(), weight)),
        _ => Err("write RUN_ID=N, N from 1 to 1000".to_owned()),
    }
}

/// Arguments of `sync-back` and `release`.
#[derive(Debug, Args)]
pub struct SyncBack {
    /// The queue.
    #[command(flatten)]
    pub queue: QueueJson,
    /// Postgres, where it is not DATABASE_URL or the PG* variables; a listing needs none.
    #[arg(long, value_name = "URL")]
    pub manifest: Option<String>,
    /// How the output is reached, for a listing's microshards.csv.
    #[command(flatten)]
    pub store: StoreArgs,
}

/// Arguments of `retry`.
#[derive(Debug, Args)]
pub struct Retry {
    /// The queue.
    #[command(flatten)]
    pub queue: QueueJson,
    /// Only the failed microshards of these languages.
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    pub language: Vec<String>,
    /// Only these microshards.
    #[arg(long, value_name = "ID,ID", value_delimiter = ',')]
    pub microshard: Vec<i64>,
}

/// Arguments of `verify`.
#[derive(Debug, Args)]
pub struct Verify {
    /// The queue.
    #[command(flatten)]
    pub queue: QueueJson,
    /// Also read every microshard again and compare every row.
    #[arg(long)]
    pub source: bool,
    /// Shards read at the same time; the default is the number of cores.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: Option<u16>,
    /// How objects are reached.
    #[command(flatten)]
    pub store: StoreArgs,
}

/// Arguments of `cat`.
#[derive(Debug, Args)]
pub struct Cat {
    /// The shard: a file, https://host/path or s3://bucket/key.
    #[arg(value_name = "SHARD")]
    pub shard: String,
    /// These rows, counted from 0: A..B (without B), A.., ..B, or A alone. Default: all.
    #[arg(long, value_name = "A..B", value_parser = rows, conflicts_with = "microshard", allow_hyphen_values = true)]
    pub rows: Option<(u64, Option<u64>)>,
    /// The rows of this microshard; needs a shard of `run --frames seekable` or `--frames splice`.
    #[arg(long, value_name = "ID", allow_hyphen_values = true)]
    pub microshard: Option<i64>,
    /// How objects are reached.
    #[command(flatten)]
    pub store: StoreArgs,
}

/// Parses `A..B`, `A..`, `..B` and `A`: the first row, and the one behind the last.
fn rows(text: &str) -> Result<(u64, Option<u64>), String> {
    let number = |text: &str| text.parse::<u64>().ok();
    let parsed = match text.split_once("..") {
        Some(("", "")) => None,
        Some((start, "")) => number(start).map(|start| (start, None)),
        Some(("", end)) => number(end).map(|end| (0, Some(end))),
        Some((start, end)) => number(start).zip(number(end).map(Some)),
        None => number(text).and_then(|row| Some((row, Some(row.checked_add(1)?)))),
    };
    parsed
        .filter(|(start, end)| end.is_none_or(|end| *start <= end))
        .ok_or_else(|| "write A..B (without row B), A.., ..B or A; the first row is 0".to_owned())
}

/// Arguments of `demo`.
#[derive(Debug, Args)]
pub struct Demo {
    /// How many microshards to generate.
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub microshards: u64,
    /// Where they go, and the queue and the shards.
    #[arg(long, value_name = "DIR", default_value = "compact-demo")]
    pub dir: PathBuf,
    /// Write the microshards and manifest.csv, and stop.
    #[arg(long)]
    pub generate_only: bool,
    /// The same seed gives the same bytes.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Microshards that are faulty on purpose; the default is a few, none with --generate-only.
    #[arg(long, value_name = "N")]
    pub faulty: Option<u64>,
    /// Download threads.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub threads: u16,
}

/// Parses a whole number from 1 on.
fn whole(text: &str) -> Result<u64, String> {
    text.parse()
        .ok()
        .filter(|number| *number > 0)
        .ok_or_else(|| "write a whole number from 1 on, such as 5000".to_owned())
}

/// Parses `64MiB`, `2GiB`, `500kB`, `1000`.
pub fn bytes(text: &str) -> Result<u64, String> {
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let factor: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return Err(format!("`{unit}` is no unit of bytes: use kB, MB, GB, KiB, MiB or GiB")),
    };
    let number: f64 = number.parse().map_err(|_| format!("`{text}` is no number of bytes: write 64MiB or 2GiB"))?;
    let bytes = number * factor as f64;
    if bytes < 1.0 || bytes > u64::MAX as f64 {
        return Err(format!("`{text}` is out of range"));
    }
    Ok(bytes as u64)
}
