//! What a dead process of this queue left in the output: uploads in parts that are on record, temporary files. Only for
//! who holds the runner's lock: what a runner at work has begun looks the same.

use anyhow::Result;
use microshard_queue::Queue;

use crate::store::{ObjectStore, Trouble};

/// Removes it. Whoever calls has tried the right to abort (`check_writable`) where there are uploads.
pub fn remove(queue: &Queue, store: &dyn ObjectStore) -> Result<()> {
    for (key, upload_id) in queue.uploads()? {
        match store.abort(&key, &upload_id) {
            // The right to abort has just been tried: this upload is there no more. It was completed before its runner
            // died, and some stores refuse what they do not know.
            Err(error) if matches!(error.trouble, Trouble::Denied | Trouble::Gone) => {}
            aborted => aborted?,
        }
        queue.upload_ended(&key, &upload_id)?;
    }
    store.sweep()?;
    Ok(())
}
