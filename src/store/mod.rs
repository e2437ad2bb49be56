//! Objects: where microshards are read and shards are put. One trait, three homes: a directory, an HTTP origin, an S3
//! bucket. Calls block and never retry by themselves: who waits, and how long, is decided by the caller. A body that is
//! shorter than announced is an error, always. Nothing half-written is ever seen under a final name (I6).

mod agent;
mod answer;
mod ask;
pub mod credentials;
mod home;
pub mod http;
pub mod limit;
pub mod local;
mod names;
mod near;
pub mod pace;
mod proxy;
pub mod range;
pub mod s3;
pub mod settings;
pub mod sources;
pub mod throttle;
pub mod uri;
mod usual;

use std::fs::File;
use std::io;
use std::sync::Arc;

use sha2::Digest as _;

pub use self::agent::{Network, Patience};
pub use self::answer::trouble_of_status;
pub use self::ask::Ask;
pub use self::range::{Part, Range, RangeOptions, Version};
pub use self::settings::StoreSettings;
pub use self::sources::{Reader, Sources, Tally};
pub use self::throttle::{Bounds, Load};
pub use self::uri::{Location, ObjectUri, Origin};
pub use crate::error::{StoreError, Trouble};

/// The result of an operation on objects.
pub type Result<T> = std::result::Result<T, StoreError>;

/// How a `get` is made.
#[derive(Debug, Clone, Copy)]
pub struct GetOptions {
    /// More bytes than this are an error (`Trouble::TooLarge`).
    pub bytes_max: u64,
    /// Use a connection that has not been used before: the last answer over the old one was doubtful.
    pub fresh: bool,
}

/// What a store knows about an object without reading it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// Its size in bytes.
    pub bytes: u64,
    /// SHA-256 of its bytes: computed for a local file, metadata of our own on S3, absent on objects not ours.
    pub sha256: Option<[u8; 32]>,
}

/// One object of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its key, relative to the store's base.
    pub key: String,
    /// Its size in bytes.
    pub bytes: u64,
}

/// A shard's bytes before they are published: a file of our own, without its final name.
#[derive(Debug)]
pub struct Spool {
    /// Open for reading and writing, empty when given out.
    pub file: File,
    /// The temporary name, in a directory store; removed when dropped.
    pub path: Option<tempfile::TempPath>,
}

impl Spool {
    /// Its bytes cannot be kept on their way to `object`: where the store is elsewhere, it is not the store that is full.
    pub fn trouble(&self, object: String, error: io::Error) -> StoreError {
        match self.path {
            Some(_) => StoreError::local("write", object, error),
            None => in_tmpdir(StoreError::local("write", object, error)),
        }
    }
}

/// Trouble with the temporary file of an object that goes elsewhere.
fn in_tmpdir(trouble: StoreError) -> StoreError {
    let place = std::env::temp_dir();
    let cause = format!("its temporary file in {} (TMPDIR says where): {}", place.display(), trouble.cause);
    StoreError { cause, ..trouble }
}

/// What was put, for checks and for the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Digest {
    /// Size in bytes.
    pub bytes: u64,
    /// SHA-256 of the bytes.
    pub sha256: [u8; 32],
}

/// Computes a `Digest` of what is written into it.
#[derive(Debug, Clone, Default)]
pub struct Digester {
    bytes: u64,
    hasher: sha2::Sha256,
}

impl Digester {
    /// The digest of all bytes written.
    pub fn finish(self) -> Digest {
        Digest { bytes: self.bytes, sha256: self.hasher.finalize().into() }
    }
}

impl io::Write for Digester {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.hasher.update(bytes);
        self.bytes += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Keeps the record of uploads in parts, so that those a killed process leaves behind can be aborted.
pub trait UploadLog {
    /// Must be durable before the first part is sent.
    fn started(&self, key: &str, upload_id: &str) -> Result<()>;
    /// The upload is completed or aborted.
    fn ended(&self, key: &str, upload_id: &str) -> Result<()>;
}

/// A place for objects. Keys are relative to the store's base and are taken literally: nothing in them is decoded.
pub trait ObjectStore: Send + Sync {
    /// Its base, for messages and the dataset index: `s3://bucket/prefix`, `/data/out`; never with a secret.
    fn base(&self) -> String;

    /// Reads the whole object into `body`, which is cleared first.
    fn get(&self, key: &str, body: &mut Vec<u8>, options: GetOptions) -> Result<()>;

    /// Ends what other threads are asking through this store, which is of no use afterwards. A disk cannot be hung up on.
    fn hang_up(&self) {}

    /// Opens a part of the object, to be read as it arrives. All of it is there, or it is an error.
    fn get_range(&self, key: &str, range: Range, options: RangeOptions<'_>) -> Result<Part>;

    /// What is known of the object; `None` where there is none.
    fn head(&self, key: &str) -> Result<Option<Head>>;

    /// An empty file to write the shard `key` into.
    fn spool(&self, key: &str) -> Result<Spool>;

    /// Publishes `spool` under `key`, never over an object with other bytes (`Trouble::Conflict`). The same bytes being
    /// there already is success. On return the object is durable and has been confirmed by size and digest.
    fn put(&self, key: &str, spool: Spool, digest: &Digest, uploads: &dyn UploadLog) -> Result<()>;

    /// Writes a small object, atomically replacing what is there: the dataset index.
    fn replace(&self, key: &str, bytes: &[u8]) -> Result<()>;

    /// Calls `each` for every object under `prefix`, in no particular order; what it returns stops the listing.
    fn list(&self, prefix: &str, each: &mut dyn FnMut(Entry) -> Result<()>) -> Result<()>;

    /// Removes what a killed process left under `key`'s upload; nothing being there is success.
    fn abort(&self, key: &str, upload_id: &str) -> Result<()>;

    /// Removes temporary files of earlier processes on the same queue; returns how many there were.
    fn sweep(&self) -> Result<u64>;

    /// Fails at once, with what to do, where nothing could be put: a directory that is not writable, no such bucket.
    fn check_writable(&self) -> Result<()>;
}

/// Opens `location`: a directory, `s3://bucket/prefix` or, to read, `http(s)://host/path`. `tag` names the queue on whose
/// behalf temporary files are made and swept.
pub fn open(location: &str, settings: &StoreSettings, tag: &str) -> anyhow::Result<Arc<dyn ObjectStore>> {
    Ok(match Location::parse(location)? {
        Location::Directory(base) => Arc::new(local::LocalStore::new(&base, tag)),
        Location::Http(base) => Arc::new(http::HttpStore::new(&base, &settings.network, IDLE_MAX, settings.patience)),
        Location::S3 { bucket, prefix } => Arc::new(s3::S3Store::new(&bucket, &prefix, settings, IDLE_MAX)?),
    })
}

/// Opens what an object's uri was resolved to be of; the object's key is relative to that.
pub fn open_origin(origin: &Origin, settings: &StoreSettings, idle_max: usize) -> Result<Box<dyn ObjectStore>> {
    Ok(match origin {
        Origin::Directory(base) => Box::new(local::LocalStore::new(base, "")),
        Origin::Http(base) => Box::new(http::HttpStore::new(base, &settings.network, idle_max, settings.patience)),
        Origin::S3(bucket) => match s3::S3Store::new(bucket, "", settings, idle_max) {
            Ok(store) => Box::new(store),
            Err(error) => {
                let cause = format!("{error:#}");
                return Err(StoreError::new("open", origin.to_string(), Trouble::Misconfigured, cause));
            }
        },
    })
}

/// Connections kept by a store that many threads share. More threads than this may use it; the rest reconnect.
const IDLE_MAX: usize = 64;
