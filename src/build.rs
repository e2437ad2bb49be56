//! A shard being built: microshards verified, decoded, checked and encoded one after another into a spool file. Runs on a
//! builder thread; waits for nothing and touches no channel and no network. A microshard is all or nothing (I2).

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};

use microshard_queue::Member;
use sha2::{Digest as _, Sha256};

use crate::config::Output;
use crate::faults::{passed, step};
use crate::fetch::Bodies;
use crate::format::{BadInput, JsonlReader, Limits, RowReader, Rows, ShardWriter};
use crate::hex;
use crate::slots::Slots;
use crate::store::{Digest, Digester, Spool};

/// A reader for each builder, which keeps its buffers from one microshard to the next, and what they may hold.
pub struct Readers {
    each: Vec<Mutex<JsonlReader>>,
    /// Of any microshard.
    limits: Limits,
    /// Of those that are decoded beside others.
    beside: Limits,
    large: Mutex<()>,
}

impl Readers {
    /// For so many builders. Microshards that decode to more than `beside` are decoded one at a time.
    pub fn new(builders: usize, limits: Limits, beside: Limits) -> Readers {
        let each = (0..builders.max(1)).map(|_| Mutex::default()).collect();
        Readers { each, limits, beside, large: Mutex::default() }
    }

    /// Waits until no other large microshard is being decoded.
    pub fn large_turn(&self) -> MutexGuard<'_, ()> {
        self.large.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The calling builder's own; nobody else waits for it.
    #[expect(clippy::indexing_slicing, reason = "a remainder, and there is one reader at least")]
    fn mine(&self) -> MutexGuard<'_, JsonlReader> {
        let index = rayon::current_thread_index().unwrap_or(0);
        self.each[index % self.each.len()].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A shard that is open for more microshards.
pub struct ShardBuilder<'a> {
    members: &'a [Member],
    slots: &'a Slots,
    readers: &'a Readers,
    writer: Box<dyn ShardWriter<Output = BufWriter<Digested>> + Send>,
    /// The next member to add.
    next: usize,
    built: Built,
}

/// What a shard holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Built {
    /// Rows.
    pub rows: u64,
    /// Bytes of the microshards, as downloaded.
    pub bytes_in: u64,
    /// Microshards.
    pub microshards: u64,
}

/// How far members were added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Appended {
    /// All that was asked for.
    All,
    /// The next one is large when decoded: it is for `append_large`, in its turn.
    UpToLarge,
}

/// Why building paused.
#[derive(Debug)]
pub enum Pause {
    /// This member is bad as it was downloaded; nothing of it has been written.
    Bad(usize, BadInput),
    /// The spool file refused.
    Spool(io::Error),
}

impl<'a> ShardBuilder<'a> {
    /// Opens a shard over an empty spool file.
    pub fn create(
        members: &'a [Member],
        slots: &'a Slots,
        readers: &'a Readers,
        output: &Output,
        spool: &Spool,
    ) -> io::Result<ShardBuilder<'a>> {
        let digested = Digested { file: spool.file.try_clone()?, digester: Digester::default() };
        let writer = output.frames.writer(BufWriter::with_capacity(1 << 16, digested), output.level)?;
        Ok(ShardBuilder { members, slots, readers, writer, next: 0, built: Built::default() })
    }

    /// Adds members in order until all are in, or one is large or bad. Members without a body are left out.
    pub fn append_all(&mut self, bodies: &Bodies<'_>) -> Result<Appended, Pause> {
        while let Some(member) = self.members.get(self.next) {
            if let Some(body) = bodies.get(member.seq)
                && self.append(member, body, self.readers.beside)? == Appended::UpToLarge
            {
                return Ok(Appended::UpToLarge);
            }
            self.next += 1;
        }
        Ok(Appended::All)
    }

    /// Adds the next member, whatever its size.
    pub fn append_large(&mut self, bodies: &Bodies<'_>) -> Result<(), Pause> {
        if let Some((member, body)) =
            self.members.get(self.next).and_then(|member| Some((member, bodies.get(member.seq)?)))
        {
            let appended = self.append(member, body, self.readers.limits);
            // Its buffers are as large as it was.
            *self.readers.mine() = JsonlReader::default();
            appended?;
        }
        self.next += 1;
        Ok(())
    }

    /// Goes on behind the member that was bad.
    pub fn skip(&mut self) {
        self.next += 1;
    }

    fn append(&mut self, member: &Member, body: &[u8], limits: Limits) -> Result<Appended, Pause> {
        let slot = self.slots.hold(rayon::current_thread_index().unwrap_or(0), member.seq);
        #[cfg(feature = "test-faults")]
        crate::faults::before_decode(member.microshard_id);
        let bad = |bad| Pause::Bad(self.next, bad);
        verify(member, body).map_err(bad)?;
        let mut reader = self.readers.mine();
        let rows = match reader.read(body, limits) {
            Err(larger) if larger.is_too_large && limits.bytes_max < self.readers.limits.bytes_max => {
                return Ok(Appended::UpToLarge);
            }
            read => read.map_err(bad)?,
        };
        passed("build: decoded");
        check_count(member, &rows).map_err(bad)?;
        let count = rows.count();
        // What is left is the encoder's work on bytes that have been checked: no reason to suspect the microshard.
        drop(slot);
        passed("build: encode");
        self.writer.append(member.microshard_id, rows).map_err(Pause::Spool)?;
        self.built.rows += count;
        self.built.bytes_in += body.len() as u64;
        self.built.microshards += 1;
        Ok(Appended::All)
    }

    /// Ends the shard's file.
    pub fn finish(self) -> io::Result<(Built, Digest)> {
        let digested = self.writer.finish()?.into_inner().map_err(io::IntoInnerError::into_error)?;
        Ok((self.built, digested.digester.finish()))
    }
}

/// The spool file, and the digest of what was written to it.
struct Digested {
    file: File,
    digester: Digester,
}

impl Write for Digested {
    #[expect(clippy::indexing_slicing, reason = "a file takes no more than it is given")]
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = step("spool: write").and_then(|()| self.file.write(bytes))?;
        self.digester.write_all(&bytes[..written])?;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Size and sum against the manifest's.
fn verify(member: &Member, body: &[u8]) -> Result<(), BadInput> {
    if let Some(bytes) = member.bytes.filter(|bytes| *bytes != body.len() as u64) {
        return Err(BadInput::new(format!("has {} bytes, the manifest says {bytes}", body.len())));
    }
    let Some(expected) = member.sha256 else { return Ok(()) };
    let sha256 = Sha256::digest(body);
    if sha256.as_slice() == expected {
        return Ok(());
    }
    let (sha256, expected) = (hex::encode(&sha256), hex::encode(&expected));
    Err(BadInput::new(format!("has another SHA-256 than the manifest says: {sha256}, not {expected}")))
}

fn check_count(member: &Member, rows: &Rows<'_>) -> Result<(), BadInput> {
    match member.rows {
        Some(expected) if expected != rows.count() => {
            Err(BadInput::new(format!("has {} rows, the manifest says {expected}", rows.count())))
        }
        _ => Ok(()),
    }
}
