//! What a runner at work tells `status`: kept in the queue under a key, and told only while one is at work.

use anyhow::{Context, Result};
use microshard_queue::{Queue, RunnerState};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Keeps `now` under `key`, where it is not what was kept `before`.
pub fn keep<T: Serialize + PartialEq>(queue: &Queue, key: &str, before: &mut Vec<T>, now: Vec<T>) -> Result<()> {
    if now != *before {
        queue.set_meta(key, &serde_json::to_string(&now)?)?;
        *before = now;
    }
    Ok(())
}

/// What the runner that is at work kept; nothing where none is.
pub fn read<T: DeserializeOwned>(queue: &Queue, key: &str) -> Result<Vec<T>> {
    if !matches!(queue.runner_state()?, RunnerState::Running | RunnerState::Quiet) {
        return Ok(Vec::new());
    }
    let text = queue.meta(key)?.unwrap_or_else(|| "[]".to_owned());
    serde_json::from_str(&text).with_context(|| format!("what the queue says of {key} cannot be read"))
}

/// Forgets what an earlier runner kept.
pub fn forget(queue: &Queue, key: &str) -> Result<()> {
    queue.set_meta(key, "[]").map_err(Into::into)
}
