//! Suspects, tried alone: the microshards that builders held when the process died are decoded again, one by one, while
//! nothing else is. If the process dies once more, the next start finds that very one in its slot, and it fails; if not,
//! it is suspect no more. So one bad microshard costs two deaths, and the rest goes on. Lanes claim and download meanwhile.

use std::time::Duration;

use microshard_queue::{Member, Queue};

use crate::config::Output;
use crate::fetch::Fetch;
use crate::format::{JsonlReader, Limits, RowReader};
use crate::job::RunError;
use crate::slots::Slots;
use crate::stop::Stop;

/// Shut while suspects are tried; whoever would decode anything else waits for it.
#[derive(Debug, Default)]
pub struct Gate(Stop);

impl Gate {
    /// Waits until all suspects have been tried, but no longer than `time`; tells whether they have.
    pub fn wait(&self, time: Duration) -> bool {
        self.0.wait(time)
    }
}

/// Opens the gate however the trying ends, also by a panic: a lane must not wait for it for ever.
struct Opens<'a>(&'a Gate);

impl Drop for Opens<'_> {
    fn drop(&mut self) {
        self.0.0.set();
    }
}

/// Tries every suspect alone, then opens the gate. What is wrong with one in any other way is found again, and told, when
/// its shard is built; so is one that cannot be had now, which stays suspect.
pub fn try_suspects(
    queue: &Queue,
    fetch: &Fetch<'_>,
    slots: &Slots,
    output: &Output,
    gate: &Gate,
) -> Result<(), RunError> {
    let _opens = Opens(gate);
    let suspects = queue.suspects()?;
    for (suspect, body) in fetch.fetch_each(&suspects) {
        decode_alone(suspect, &body, slots, output);
        queue.acquit(suspect.seq)?;
    }
    Ok(())
}

/// If the process lives through this, it does not die of this microshard.
fn decode_alone(member: &Member, body: &[u8], slots: &Slots, output: &Output) {
    let _slot = slots.hold(0, member.seq);
    #[cfg(feature = "test-faults")]
    crate::faults::before_decode(member.microshard_id);
    // Bad or not, it was decoded.
    let limits = Limits { bytes_max: output.max_microshard_bytes, lenient: true };
    let _ = JsonlReader::default().read(body, limits);
}
