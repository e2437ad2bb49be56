//! Suspects, tried alone: the microshards that builders held when the process died are decoded again, one by one, while
//! nothing else is. If the process dies once more, the next start finds that very one in its slot, and it fails; if not,
//! it is suspect no more. So one bad microshard costs two deaths, and the rest goes on.

use anyhow::Result;
use microshard_queue::{Member, Queue};

use crate::config::Output;
use crate::format::{JsonlReader, Limits, RowReader};
use crate::slots::Slots;
use crate::store::{GetOptions, Reader};

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
    let _slot = slots.hold(0, member.seq);
    #[cfg(feature = "test-faults")]
    crate::faults::before_decode(member.microshard_id);
    // Bad or not, it was decoded.
    let _ = JsonlReader::default().read(&body, Limits { bytes_max: output.max_microshard_bytes });
    Ok(true)
}
