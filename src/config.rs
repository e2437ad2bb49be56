//! What a run works with: validated settings, the options a queue is bound to by its first run, and the sums that follow.

use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use microshard_queue::Queue;
use serde::{Deserialize, Serialize};

use crate::cli;
use crate::format::seek::FRAME_BYTES_MAX;
use crate::format::{Frames, Limits, encoder_bytes};
use crate::memory::Needs;
use crate::patience::Patience;
use crate::store::{Bounds, Location, StoreSettings};

/// Where the queue keeps the options of its first run.
const OUTPUT_KEY: &str = "output";
/// Memory a job is taken to need where the manifest has no byte sizes.
const JOB_BYTES_UNKNOWN: u64 = 32 << 20;

/// The settings of one run.
#[derive(Debug, Clone)]
pub struct Config {
    /// The queue file.
    pub queue: PathBuf,
    /// Download threads.
    pub threads: usize,
    /// Requests a second of each origin at most.
    pub requests_per_second: Option<f64>,
    /// Threads that decode and encode.
    pub builders: usize,
    /// Bytes that may be resident.
    pub memory: u64,
    /// What shards are like and where they go.
    pub output: Output,
    /// Rows need only be right by JSON's grammar. Not bound to the queue: it lets in what failed, and changes nothing else.
    pub lenient: bool,
    /// Work on this run only.
    pub only: Option<String>,
    /// Turns of a run for each turn of another.
    pub weights: Vec<(String, u32)>,
    /// How objects are reached.
    pub store: StoreSettings,
    /// How long is waited for what.
    pub patience: Patience,
}

/// What decides over the bytes and keys of shards (I3). The first run binds the queue to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Output {
    /// A directory, absolute, or `s3://bucket/prefix`.
    pub location: String,
    /// Compression level of zstd.
    pub level: i32,
    /// How a shard is cut into zstd frames. Queues that were bound before there was a choice have one frame.
    #[serde(default)]
    pub frames: Frames,
    /// A microshard that is larger than this when decoded fails.
    pub max_microshard_bytes: u64,
    /// A shard with failed microshards waits, instead of being built from the rest.
    pub hold_on_failure: bool,
}

impl Config {
    /// The settings of what was typed.
    pub fn from_args(args: &cli::Run) -> Result<Config> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let location = match Location::parse(&args.output).context("--output cannot be used")? {
            Location::Directory(path) => {
                let absolute = std::path::absolute(&path);
                let absolute = absolute.with_context(|| format!("--output {} cannot be used", path.display()))?;
                // Without a final slash: the same directory is the same option.
                let plain: PathBuf = absolute.components().collect();
                plain.to_str().with_context(|| format!("--output {} is not UTF-8", plain.display()))?.to_owned()
            }
            other => other.to_string(),
        };
        ensure!(
            !args.frames.has_tables() || args.max_microshard_bytes < FRAME_BYTES_MAX,
            "--frames {} needs a --max-microshard-bytes below 1GiB: a row is never cut, and a frame holds no more",
            args.frames
        );
        Ok(Config {
            queue: args.queue.queue.clone(),
            threads: usize::from(args.threads),
            requests_per_second: args.max_requests_per_second,
            builders: args.builders.map_or(cores, usize::from),
            memory: args.memory,
            output: Output {
                location,
                level: args.level,
                frames: args.frames,
                max_microshard_bytes: args.max_microshard_bytes,
                hold_on_failure: args.on_failure == cli::OnFailure::Hold,
            },
            lenient: args.lenient,
            only: args.only.clone(),
            weights: args.weight.clone(),
            store: StoreSettings::from_args(&args.store)?,
            patience: Patience::default(),
        })
    }

    /// What a microshard may be like.
    pub fn limits(&self) -> Limits {
        Limits { bytes_max: self.output.max_microshard_bytes, lenient: self.lenient }
    }

    /// How each origin is asked at most.
    pub fn bounds(&self) -> Bounds {
        Bounds {
            in_flight: self.threads,
            per_second: self.requests_per_second,
            pause: self.patience.retry_after_max,
            wait: self.patience.in_lane_max,
        }
    }

    /// What the run holds at most. A job holds the microshards of the largest planned shard; the shard itself is on disk,
    /// and mapped while it is sent.
    pub fn needs(&self, queue: &Queue) -> Result<Needs> {
        let job = queue.largest_pending_shard()?.unwrap_or(JOB_BYTES_UNKNOWN).max(1);
        Ok(Needs {
            memory: self.memory,
            threads: self.threads,
            builders: self.builders,
            job,
            encoder: encoder_bytes(self.output.level)? + self.output.frames.held_bytes(),
            sent: if self.output.location.starts_with("s3://") { job } else { 0 },
            microshard_max: self.output.max_microshard_bytes,
        })
    }
}

impl Output {
    /// Binds the queue to these options, or finds that shards with others have been published.
    pub fn bind(&self, queue: &Queue) -> Result<()> {
        let published = queue.status()?.iter().any(|group| group.shards.published > 0);
        match Output::of(queue)? {
            Some(bound) if bound == *self => Ok(()),
            Some(bound) if published => bail!(
                "the queue was started with {}, not {}: a queue's shards all have the same options, so repeat the first \
                 ones, or snapshot into a new queue",
                bound.differing(self),
                self.differing(&bound)
            ),
            _ => queue.set_meta(OUTPUT_KEY, &serde_json::to_string(self)?).map_err(Into::into),
        }
    }

    /// The options the queue is bound to; `None` before its first run.
    pub fn of(queue: &Queue) -> Result<Option<Output>> {
        let text = queue.meta(OUTPUT_KEY)?;
        text.map(|text| serde_json::from_str(&text).context("the queue's output options cannot be read")).transpose()
    }

    /// What `run --output` alone means.
    pub fn unless_told_otherwise(location: String) -> Output {
        Output {
            location,
            level: cli::LEVEL_DEFAULT,
            frames: Frames::default(),
            max_microshard_bytes: cli::bytes(cli::MICROSHARD_BYTES_DEFAULT).unwrap_or(u64::MAX),
            hold_on_failure: false,
        }
    }

    /// The flags of `run` that mean this output, each with its value; without those that say what is the default.
    pub fn flags(&self) -> Vec<(&'static str, String)> {
        let mut flags = self.differing_flags(&Output::unless_told_otherwise(self.location.clone()));
        flags.insert(0, ("--output", self.location.clone()));
        flags
    }

    /// As flags, those that differ from `other`'s.
    fn differing(&self, other: &Output) -> String {
        let flags = self.differing_flags(other);
        flags.iter().map(|(flag, value)| format!("{flag} {value}")).collect::<Vec<_>>().join(" ")
    }

    fn differing_flags(&self, other: &Output) -> Vec<(&'static str, String)> {
        let mut flags = Vec::new();
        if self.location != other.location {
            flags.push(("--output", self.location.clone()));
        }
        if self.level != other.level {
            flags.push(("--level", self.level.to_string()));
        }
        if self.frames != other.frames {
            flags.push(("--frames", self.frames.to_string()));
        }
        if self.max_microshard_bytes != other.max_microshard_bytes {
            flags.push(("--max-microshard-bytes", self.max_microshard_bytes.to_string()));
        }
        if self.hold_on_failure != other.hold_on_failure {
            flags.push(("--on-failure", if self.hold_on_failure { "hold" } else { "skip" }.to_owned()));
        }
        flags
    }
}
