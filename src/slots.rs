//! Crash slots: each builder writes the microshard it holds into its own eight bytes of a small mapped file, which
//! survives SIGKILL. After a death at most one microshard per builder is suspect, instead of all that were in flight.

use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result};
use memmap2::MmapRaw;
use microshard_queue::private;

use crate::faults::step;

/// As many builders as `--builders` allows.
pub const SLOTS: usize = 1024;
const BYTES: u64 = (SLOTS * 8) as u64;

/// The mapped file. It is ours, has its size from the start, and is never truncated while mapped.
#[derive(Debug)]
pub struct Slots {
    map: MmapRaw,
}

/// A slot in use; emptied when dropped.
#[derive(Debug)]
pub struct Held<'a> {
    slot: &'a AtomicU64,
}

impl Slots {
    /// Opens or makes the file. Callers hold the runner lock, so nobody else writes to it.
    pub fn open(path: &Path) -> Result<Slots> {
        let open = || -> std::io::Result<MmapRaw> {
            step("slots: open")?;
            let file = private().read(true).write(true).create(true).truncate(false).open(path)?;
            let mut slots = Vec::new();
            file.try_clone()?.take(BYTES).read_to_end(&mut slots)?;
            slots.resize(BYTES as usize, 0);
            // Written, so that the disk has room for every byte: where it has none, a store to the map is a signal that
            // ends the process.
            file.write_all_at(&slots, 0)?;
            file.set_len(BYTES)?;
            MmapRaw::map_raw(&file)
        };
        let map = open().with_context(|| {
            format!(
                "failed to map the crash slots {}: they need 8 KiB on a disk that can be written to",
                path.display()
            )
        })?;
        Ok(Slots { map })
    }

    /// The microshards that were held when the process before died, by seq.
    pub fn suspects(&self) -> Vec<i64> {
        (0..SLOTS)
            .map(|index| self.slot(index).load(Ordering::Relaxed))
            .filter(|seq| *seq != 0)
            .map(|seq| seq as i64)
            .collect()
    }

    /// Empties all slots, once the suspects are in the queue.
    pub fn clear(&self) {
        (0..SLOTS).for_each(|index| self.slot(index).store(0, Ordering::Relaxed));
    }

    /// Marks `seq` as being worked by builder `index`.
    pub fn hold(&self, index: usize, seq: i64) -> Held<'_> {
        let slot = self.slot(index % SLOTS);
        slot.store(seq as u64, Ordering::Relaxed);
        Held { slot }
    }

    fn slot(&self, index: usize) -> &AtomicU64 {
        assert!(index < SLOTS, "a slot beyond the mapped file");
        // SAFETY: the map is SLOTS * 8 bytes, page-aligned and lives as long as `self`; it is only ever accessed through
        // these atomics in this process, and the runner lock keeps other processes away.
        unsafe { AtomicU64::from_ptr(self.map.as_mut_ptr().cast::<u64>().add(index)) }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.slot.store(0, Ordering::Relaxed);
    }
}
