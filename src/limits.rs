//! What the system grants this process (`ulimit`): looked at before a command begins, so that too little is one sentence.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, bail};
use rustix::process::{Resource, getrlimit};
use signal_hook::consts::SIGXFSZ;
use signal_hook::flag;

/// What a command opens besides connections of download threads, with room to spare. Below a dozen the client of Postgres
/// panics.
const DESCRIPTORS: u64 = 64;

/// Lets a write beyond `ulimit -f` fail as any other does: by itself the signal ends the process without a word. Refuses to
/// begin where not even a few files may be opened.
pub fn prepare() -> Result<()> {
    flag::register(SIGXFSZ, Arc::new(AtomicBool::default())).context("failed to set up signals")?;
    match getrlimit(Resource::Nofile).current {
        Some(few) if few < DESCRIPTORS => bail!(
            "only {few} files may be open at a time: raise the limit to at least {DESCRIPTORS}, and one more for each \
             thread that downloads (ulimit -n)"
        ),
        _ => Ok(()),
    }
}
