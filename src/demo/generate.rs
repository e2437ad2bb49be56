//! The demo's generator: `dir/microshards/<language>/<nn>/<id>.jsonl[.zst|.gz]` and `dir/manifest.csv`, streamed.
//! The same seed gives the same bytes, whatever the number of threads. The manifest gets its name last, so a killed
//! generation leaves none; the microshards themselves are not synced to the disk: they can be generated again.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use rayon::prelude::*;
use sha2::{Digest, Sha256};

pub use super::blemish::{Fault, Oddity};
use super::microshard::{Encoder, Made, Role, Stored, make, mixed};

/// What to generate.
#[derive(Debug, Clone)]
pub struct Generate {
    /// How many microshards.
    pub microshards: u64,
    /// The same seed gives the same bytes.
    pub seed: u64,
    /// How many of them are faulty on purpose.
    pub faulty: u64,
    /// Where they go; created where it is absent.
    pub dir: PathBuf,
}

/// What was generated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Generated {
    /// The manifest, a CSV listing with uris relative to `dir`.
    pub manifest: PathBuf,
    /// The run all of them belong to.
    pub run_id: String,
    /// How many microshards the manifest names.
    pub microshards: u64,
    /// The sum of its `segment_count`.
    pub rows: u64,
    /// The sum of its `byte_size`.
    pub bytes: u64,
    /// Which microshards are faulty, and how.
    pub faults: Vec<(i64, Fault)>,
    /// Which are unusual but must be taken, and how.
    pub oddities: Vec<(i64, Oddity)>,
}

/// Microshards in flight between two stretches of the manifest; bounds the memory.
const CHUNK: u64 = 1024;
/// One microshard in so many is unusual.
const ODD_ONE_IN: u64 = 50;
/// The first id; ids need not start at 1.
const FIRST_ID: u64 = 100_001;

/// Generates the data set; `progress` hears how many microshards are written, now and then.
pub fn generate(plan: &Generate, progress: &mut dyn FnMut(u64)) -> Result<Generated> {
    let objects = plan.dir.join("microshards");
    ensure!(
        plan.faulty <= plan.microshards,
        "{} of {} microshards cannot be faulty: lower --faulty",
        plan.faulty,
        plan.microshards
    );
    ensure!(!objects.exists(), "{} is there already: remove it, or generate into another --dir", objects.display());
    fs::create_dir_all(&objects).with_context(|| format!("failed to create {}", objects.display()))?;

    let manifest = plan.dir.join("manifest.csv");
    // A server that runs as somebody else must be able to read it, as it can the microshards.
    let readable = fs::Permissions::from_mode(0o666);
    let draft = tempfile::Builder::new()
        .permissions(readable)
        .tempfile_in(&plan.dir)
        .with_context(|| format!("failed to create a file in {}", plan.dir.display()))?;
    let mut done = Generated {
        manifest: manifest.clone(),
        run_id: format!("demo-{}", plan.seed),
        microshards: 0,
        rows: 0,
        bytes: 0,
        faults: Vec::new(),
        oddities: Vec::new(),
    };
    write_all(plan, draft.as_file(), &mut done, progress)
        .with_context(|| format!("failed to generate microshards in {}", plan.dir.display()))?;
    publish(draft, &manifest).with_context(|| format!("failed to write {}", manifest.display()))?;
    Ok(done)
}

fn write_all(plan: &Generate, manifest: &File, done: &mut Generated, progress: &mut dyn FnMut(u64)) -> Result<()> {
    let mut listing = csv::Writer::from_writer(BufWriter::new(manifest));
    listing.write_record(COLUMNS)?;
    // A pool of its own: rayon's common one panics where it cannot start its threads.
    let pool =
        rayon::ThreadPoolBuilder::new().build().context("failed to start threads: raise the limit (ulimit -u)")?;
    let mut first = 0;
    while first < plan.microshards {
        let chunk = first..plan.microshards.min(first + CHUNK);
        let written: Vec<Line> = pool.install(|| write_chunk(plan, chunk.clone()))?;
        for line in &written {
            line.append(&done.run_id, &mut listing)?;
            done.count(line);
        }
        first = chunk.end;
        progress(first);
    }
    listing.into_inner().map_err(|error| error.into_error())?.flush()?;
    Ok(())
}

fn write_chunk(plan: &Generate, numbers: Range<u64>) -> Result<Vec<Line>> {
    let one = |encoder: &mut io::Result<Encoder>, number| {
        let encoder = encoder.as_mut().map_err(|error| anyhow::anyhow!("failed to set up zstd: {error}"))?;
        write_one(plan, number, encoder)
    };
    numbers.into_par_iter().map_init(Encoder::new, one).collect()
}

/// Makes and stores one microshard, and gives its line in the manifest.
fn write_one(plan: &Generate, number: u64, encoder: &mut Encoder) -> Result<Line> {
    let role = role_of(plan, number);
    let made = make(plan.seed, number, role, encoder)?;
    let line = Line::new(plan.seed, role, &made);
    let path = plan.dir.join(&line.uri);
    let stored = match &made.stored {
        Stored::AsDescribed => store(&path, &made.described),
        Stored::Other(bytes) => store(&path, bytes),
        Stored::Nothing => Ok(()),
    };
    stored.with_context(|| format!("failed to write {}", path.display()))?;
    Ok(line)
}

/// Writes a file, creating its folder only where there is none: a thousand folders, a million files.
fn store(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let created = match (File::create_new(path), path.parent()) {
        (Err(error), Some(folder)) if error.kind() == io::ErrorKind::NotFound => {
            fs::create_dir_all(folder)?;
            File::create_new(path)
        }
        (created, _) => created,
    };
    created?.write_all(bytes)
}

/// Gives the manifest its name once its bytes are on the disk (I6).
fn publish(draft: tempfile::NamedTempFile, manifest: &Path) -> io::Result<()> {
    draft.as_file().sync_all()?;
    draft.persist(manifest)?;
    File::open(manifest.parent().unwrap_or(Path::new(".")))?.sync_all()
}

const COLUMNS: [&str; 9] =
    ["microshard_id", "run_id", "video_id", "language", "uri", "segment_count", "byte_size", "sha256", "created_at"];

/// A microshard's line in the manifest.
struct Line {
    microshard_id: i64,
    role: Role,
    video: u64,
    language: &'static str,
    uri: String,
    rows: u64,
    bytes: u64,
    sha256: String,
    created_at: jiff::Timestamp,
}

impl Line {
    fn new(seed: u64, role: Role, made: &Made) -> Line {
        let microshard_id = (FIRST_ID + made.number) as i64;
        let language = made.language.code;
        let draw = mixed(made.number ^ mixed(seed));
        let (folder, extension) = (draw % 100, made.encoding.extension());
        Line {
            microshard_id,
            role,
            video: made.video,
            language,
            uri: format!("microshards/{language}/{folder:02}/{microshard_id}.{extension}"),
            rows: made.rows,
            bytes: made.described.len() as u64,
            sha256: hex(&Sha256::digest(&made.described)),
            created_at: created_at(made.number, draw),
        }
    }

    fn append(&self, run_id: &str, listing: &mut csv::Writer<impl Write>) -> csv::Result<()> {
        listing.write_record([
            &self.microshard_id.to_string(),
            run_id,
            &format!("vid-{:07}", self.video),
            self.language,
            &self.uri,
            &self.rows.to_string(),
            &self.bytes.to_string(),
            &self.sha256,
            &self.created_at.to_string(),
        ])
    }
}

impl Generated {
    fn count(&mut self, line: &Line) {
        self.microshards += 1;
        self.rows += line.rows;
        self.bytes += line.bytes;
        match line.role {
            Role::Sound => {}
            Role::Odd(oddity) => self.oddities.push((line.microshard_id, oddity)),
            Role::Faulty(fault) => self.faults.push((line.microshard_id, fault)),
        }
    }
}

/// About one microshard in 1.7 s, up to 10 minutes late: the order by time is not the order by id.
fn created_at(number: u64, draw: u64) -> jiff::Timestamp {
    const FIRST_US: u64 = 1_767_600_000_000_000;
    let us = FIRST_US + number * 1_700_000 + (draw >> 32) % 600_000_000;
    jiff::Timestamp::from_microsecond(us as i64).unwrap_or(jiff::Timestamp::UNIX_EPOCH)
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}"); // a String takes every character
        text
    })
}

/// The faulty ones are spread over all numbers, the odd ones over those that are left.
fn role_of(plan: &Generate, number: u64) -> Role {
    let faulty = Spread { count: plan.faulty, among: plan.microshards };
    let sound = plan.microshards - plan.faulty;
    let odd = Spread { count: sound / ODD_ONE_IN, among: sound };
    if let Some(nth) = faulty.nth(number) {
        return Role::Faulty(Fault::ALL[nth as usize % Fault::ALL.len()]);
    }
    match odd.nth(number - faulty.before(number)) {
        Some(nth) => Role::Odd(Oddity::ALL[nth as usize % Oddity::ALL.len()]),
        None => Role::Sound,
    }
}

/// `count` places spread evenly over `among`; place k is at (2k + 1) / 2count of it.
struct Spread {
    count: u64,
    among: u64,
}

impl Spread {
    /// How many places lie before `position`.
    fn before(&self, position: u64) -> u64 {
        (2 * self.count * position).saturating_sub(self.among).div_ceil(2 * self.among.max(1))
    }

    /// Which place `position` is, where it is one.
    fn nth(&self, position: u64) -> Option<u64> {
        let before = self.before(position);
        (self.before(position + 1) > before).then_some(before)
    }
}
