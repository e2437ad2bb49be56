//! Suspects, tried alone: the microshards that builders held when the process died are decoded again, one by one, while
//! nothing else is. If the process dies once more, the next start finds that very one in its slot, and it fails; if not,
//! it is suspect no more. So one bad microshard costs two deaths, and the rest goes on.

use anyhow::{Context, Result};
use microshard_queue::{Member, Queue};

use crate::build::ShardBuilder;
use crate::config::Output;
use crate::fetch::Bodies;
use crate::format::Limits;
use crate::slots::Slots;
use crate::store::{GetOptions, Reader, Spool};

/// Tries every suspect alone. What is wrong with one in any other way is found again, and told, when its shard is built.
pub fn try_suspects(queue: &Queue, reader: &mut Reader, slots: &Slots, output: &Output) -> Result<()> {
    for member in queue.suspects()? {
        if decode_alone(&member, reader, slots, output)? {
            queue.acquit(member.seq)?;
        }
    }
    Ok(())
}

/// Whether it could be had, so that the process has lived through it.
fn decode_alone(member: &Member, reader: &mut Reader, slots: &Slots, output: &Output) -> Result<bool> {
    let mut body = Vec::new();
    let options = GetOptions { bytes_max: output.max_microshard_bytes.max(member.bytes.unwrap_or(0)), fresh: false };
    if reader.get(&member.uri, &mut body, options).is_err() {
        return Ok(false);
    }
    let mut bodies = Bodies::default();
    bodies.set(member.seq, body);
    let spool = Spool { file: tempfile::tempfile().context("failed to make a temporary file")?, path: None };
    let limits = Limits { bytes_max: output.max_microshard_bytes };
    let members = std::slice::from_ref(member);
    let mut shard = ShardBuilder::create(members, slots, limits, output.level, &spool)?;
    // Bad or not, it was decoded.
    let _ = shard.append_all(&bodies);
    Ok(true)
}
