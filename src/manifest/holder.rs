//! The side file `<queue>.holder`: who claims in Postgres for a queue file that does not say so yet. It is durable before
//! anything is claimed and gone once the queue's own record says the same, so a claim is never held by an unknown name.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use microshard_queue::{private, real, with_suffix};

use super::Held;

use crate::faults::step;

/// The side file of one queue. Who writes or removes it holds the queue's intake lock.
#[derive(Debug)]
pub struct HolderFile {
    path: PathBuf,
}

impl HolderFile {
    /// Of this queue, which need not exist.
    pub fn of(queue: &Path) -> HolderFile {
        HolderFile { path: with_suffix(&real(queue), ".holder") }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What it says; `None` where there is none.
    pub fn read(&self) -> Result<Option<Held>> {
        match std::fs::read_to_string(&self.path) {
            Ok(text) => Held::parse(&text).with_context(|| self.failed("read")).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| self.failed("read")),
        }
    }

    /// Makes it say `held`, durably.
    pub fn write(&self, held: &Held) -> Result<()> {
        let text = serde_json::to_string(held)?;
        self.replace(text.as_bytes()).with_context(|| self.failed("write"))
    }

    fn replace(&self, text: &[u8]) -> io::Result<()> {
        let temporary = with_suffix(&self.path, ".new");
        step("holder: create")?;
        let mut file = private().write(true).create(true).truncate(true).open(&temporary)?;
        step("holder: write")?;
        file.write_all(text)?;
        step("holder: sync")?;
        file.sync_all()?;
        step("holder: rename")?;
        std::fs::rename(&temporary, &self.path)?;
        step("holder: sync directory")?;
        let directory = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
    }

    /// Removes it, where it is there.
    pub fn remove(&self) -> Result<()> {
        match step("holder: remove").and_then(|()| std::fs::remove_file(&self.path)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error).with_context(|| self.failed("remove")),
            _ => Ok(()),
        }
    }

    fn failed(&self, operation: &str) -> String {
        format!("failed to {operation} {}", self.path.display())
    }
}
