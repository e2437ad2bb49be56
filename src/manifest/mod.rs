//! The manifest: the table (or listing) of microshards and shards. Postgres is its home; a listing stands in for it.
//! All Postgres SQL lives here. Records are streamed: nothing here holds a manifest in RAM (I8).
//! Postgres part by part, in the order a snapshot goes: connect (`conninfo`, `tls`, `postgres`), look at the tables
//! (`names`, `check`, `init`), `claim`, `read`, then `sync` and `release`.

mod check;
mod claim;
mod conninfo;
mod copy;
mod database;
mod explain;
mod held;
mod holder;
mod init;
mod names;
mod passfile;
pub mod postgres;
mod predicate;
mod probe;
mod read;
mod release;
mod service;
mod settings;
mod stage;
mod sync;
mod tally;
mod tls;

pub use self::database::Database;
pub use self::held::Held;
pub use self::holder::HolderFile;
pub use self::init::schema;
pub use self::postgres::{Postgres, is_postgres};
pub use self::tally::Tally;

pub mod listing;

/// One microshard as the manifest names it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Record {
    /// Its id; `None` in a directory, where the queue numbers new uris in their order.
    pub microshard_id: Option<i64>,
    /// Its run.
    pub run_id: String,
    /// Its language.
    pub language: String,
    /// Where it is, absolute or relative to `--source`.
    pub uri: String,
    /// Rows it should hold.
    pub segment_count: Option<u32>,
    /// Its size in bytes.
    pub byte_size: Option<u64>,
    /// SHA-256 of its bytes.
    pub sha256: Option<[u8; 32]>,
    /// Unix time in microseconds.
    pub created_at: Option<i64>,
    /// Unix time in microseconds; sync-back takes a row only while this is unchanged.
    pub updated_at: Option<i64>,
}

/// Which records are taken.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    /// This run only; names the run where the manifest has no such column.
    pub run_id: Option<String>,
    /// These languages only; empty means all.
    pub languages: Vec<String>,
    /// At most this many.
    pub limit: Option<u64>,
    /// `claimed_by` of earlier claims for the same queue: what they lease may be leased again.
    pub earlier: Vec<String>,
}

/// How a snapshot holds its microshards in the manifest; kept in the queue, given back to `sync-back` and `release`.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Claim {
    /// The run.
    pub run_id: String,
    /// The snapshot's number in the run; part of every shard's name, so that machines never collide. With mode `none`
    /// nothing is written, so it is only a proposal: one more than the last that was handed out.
    pub number: u32,
    /// Who claims: fresh for every snapshot, never a host name or pid that can come again.
    pub claimed_by: String,
    /// How: `slices`, `rows`, `none`.
    pub mode: ClaimMode,
    /// When, by the server's clock: unix time in microseconds. A lease that had expired by then was free to take.
    pub claimed_at: i64,
    /// The slices leased, with mode `slices`.
    pub slices: Vec<i16>,
    /// How the tables are named here.
    pub names: Names,
    /// Where the claim is known; records of the first versions do not say.
    #[serde(default)]
    pub database: Option<Box<Database>>,
}

/// How the manifest's tables and columns are named.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Names {
    /// The table of microshards, `name` or `schema.name`.
    pub table: String,
    /// The table of shards.
    pub shards_table: String,
    /// Our column name to theirs, where they differ.
    pub columns: std::collections::BTreeMap<String, String>,
}

/// How microshards are claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClaimMode {
    /// Hash slices of the run are leased in a small table; no microshard row is written.
    Slices,
    /// Every row is marked.
    Rows,
    /// Nothing is written.
    None,
}

/// A microshard as sync-back must find it in the manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member {
    /// Its id.
    pub microshard_id: i64,
    /// Its `updated_at` when the snapshot read (or claimed) it.
    pub updated_at: Option<i64>,
}

/// A published shard on its way to the manifest.
#[derive(Debug, Clone)]
pub struct SyncShard {
    /// Its base name without extension, the manifest's `shard_id`.
    pub shard_id: String,
    /// Its language.
    pub language: String,
    /// Its number within (run, language, snapshot).
    pub seq: u32,
    /// Where it is.
    pub uri: String,
    /// Rows in it.
    pub rows: u64,
    /// Bytes of the object.
    pub bytes: u64,
    /// SHA-256 of the object.
    pub sha256: [u8; 32],
    /// The microshards consumed by it.
    pub members: Vec<Member>,
}

/// A failed microshard on its way to the manifest.
#[derive(Debug, Clone)]
pub struct SyncFailure {
    /// Which.
    pub member: Member,
    /// Why, for a person.
    pub sentence: String,
    /// How often it was tried.
    pub attempts: u32,
}

/// What became of one shard or failure in sync-back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Synced {
    /// The manifest says so now.
    Written,
    /// It said so already.
    Already,
    /// Refused whole: somebody else has touched a row since the snapshot; which, and how.
    Refused(String),
}
