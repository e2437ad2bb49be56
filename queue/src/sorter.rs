//! Sorts any number of records in bounded memory: a full buffer is sorted and written to a file as one piece, and the
//! pieces are merged as they are read. So no manifest is ever held in RAM (I8).

#![expect(
    clippy::indexing_slicing,
    reason = "places in a buffer that were kept when it was filled; what comes back from the disk is checked in `advance`"
)]

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use crate::error::{Named, Result};
use crate::file::{private, remove};
use crate::step::step;

/// Bytes of records and of what they are sorted by, at which the buffer is full: one is filled while one is written.
const BUFFER: usize = 24 << 20;
/// Bytes read ahead of each piece while pieces are merged.
const READ_AHEAD: usize = 64 << 10;
/// The length of a record, and of its key.
const HEADER: usize = 8;

/// Records on their way into the order of their keys' bytes.
#[derive(Debug)]
pub(crate) struct Sorter {
    file: Arc<File>,
    path: PathBuf,
    filling: Buffer,
    /// The buffer that is being sorted and written.
    spilling: Option<JoinHandle<io::Result<Buffer>>>,
    written: u64,
    /// Where sorted pieces lie in the file.
    pieces: Vec<Range<u64>>,
}

#[derive(Debug, Default)]
struct Buffer {
    records: Vec<u8>,
    entries: Vec<Entry>,
}

/// A record in the buffer. Its prefix nearly always tells it from the others, without a look at the record.
#[derive(Debug)]
struct Entry {
    prefix: u128,
    at: usize,
}

impl Sorter {
    /// A sorter that spills into a file beside the queue. The file has no name, so it is gone when this process is,
    /// however that ends; `path` is where it was made, for errors.
    pub(crate) fn create(path: &Path) -> Result<Sorter> {
        remove(path)?;
        let file = private().read(true).write(true).create_new(true).open(path).named("create", path)?;
        remove(path)?;
        Ok(Sorter {
            file: Arc::new(file),
            path: path.to_owned(),
            filling: Buffer::default(),
            spilling: None,
            written: 0,
            pieces: Vec::new(),
        })
    }

    /// Adds a record of which `write` appends first the key, whose length it returns, then the rest.
    pub(crate) fn add(&mut self, write: impl FnOnce(&mut Vec<u8>) -> usize) -> Result<()> {
        self.filling.add(write);
        if self.filling.size() < BUFFER { Ok(()) } else { self.spill() }
    }

    /// Has the full buffer sorted and written, and goes on with the one that was before.
    fn spill(&mut self) -> Result<()> {
        let emptied = self.spilled()?;
        let full = std::mem::replace(&mut self.filling, emptied);
        let (start, file) = (self.written, Arc::clone(&self.file));
        self.written += full.records.len() as u64;
        self.pieces.push(start..self.written);
        let spilling = std::thread::Builder::new().name("sorter".into()).spawn(move || full.spill(&file, start));
        self.spilling = Some(spilling.named("start a thread that sorts into", &self.path)?);
        Ok(())
    }

    /// Waits for what is being written.
    fn spilled(&mut self) -> Result<Buffer> {
        let Some(spilling) = self.spilling.take() else { return Ok(Buffer::default()) };
        let joined = spilling.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        joined.named("write", &self.path)
    }

    /// Calls `each` with key and rest of every record, in the order of keys. More records may be added after it.
    pub(crate) fn for_each(&mut self, mut each: impl FnMut(&[u8], &[u8]) -> Result<()>) -> Result<()> {
        self.spill()?;
        self.spilled()?;
        self.filling = Buffer::default();
        let mut heads = BinaryHeap::new();
        for piece in &self.pieces {
            let section = Section { file: &self.file, rest: piece.clone() };
            let reader = BufReader::with_capacity(READ_AHEAD, section);
            let mut head = Head { prefix: 0, record: Vec::new(), key: 0, reader };
            if head.advance().named("read", &self.path)? {
                heads.push(head);
            }
        }
        while let Some(mut head) = heads.peek_mut() {
            let (key, rest) = head.record.split_at(head.key);
            each(key, rest)?;
            if !head.advance().named("read", &self.path)? {
                PeekMut::pop(head);
            }
        }
        Ok(())
    }
}

impl Buffer {
    fn add(&mut self, write: impl FnOnce(&mut Vec<u8>) -> usize) {
        let at = self.records.len();
        self.records.extend_from_slice(&[0; HEADER]);
        let key = write(&mut self.records);
        let length = (self.records.len() - at - HEADER) as u32;
        self.records[at..at + 4].copy_from_slice(&length.to_le_bytes());
        self.records[at + 4..at + HEADER].copy_from_slice(&(key as u32).to_le_bytes());
        self.entries.push(Entry { prefix: prefix(key_at(&self.records, at)), at });
    }

    fn size(&self) -> usize {
        self.records.len() + self.entries.len() * size_of::<Entry>()
    }

    /// Writes its records in order to the file, from `start`, and empties it.
    fn spill(mut self, file: &File, start: u64) -> io::Result<Buffer> {
        self.entries.sort_unstable_by(|a, b| a.cmp(b, &self.records));
        step("staging: write")?;
        let mut out = BufWriter::with_capacity(READ_AHEAD, Writer { file, at: start });
        for entry in self.entries.drain(..) {
            out.write_all(&self.records[entry.at..entry.at + HEADER + number_at(&self.records, entry.at)])?;
        }
        out.flush()?;
        drop(out);
        self.records.clear();
        Ok(self)
    }
}

impl Entry {
    fn cmp(&self, other: &Entry, buffer: &[u8]) -> Ordering {
        self.prefix.cmp(&other.prefix).then_with(|| key_at(buffer, self.at).cmp(key_at(buffer, other.at)))
    }
}

/// The first 16 bytes of a key as a number that sorts as they do.
fn prefix(key: &[u8]) -> u128 {
    let mut bytes = [0; 16];
    let length = key.len().min(16);
    bytes[..length].copy_from_slice(&key[..length]);
    u128::from_be_bytes(bytes)
}

fn key_at(buffer: &[u8], at: usize) -> &[u8] {
    &buffer[at + HEADER..at + HEADER + number_at(buffer, at + 4)]
}

fn number_at(buffer: &[u8], at: usize) -> usize {
    let mut bytes = [0; 4];
    bytes.copy_from_slice(&buffer[at..at + 4]);
    u32::from_le_bytes(bytes) as usize
}

/// The rest of a piece, and its first record.
struct Head<'a> {
    prefix: u128,
    record: Vec<u8>,
    /// The length of its key.
    key: usize,
    reader: BufReader<Section<'a>>,
}

impl Head<'_> {
    /// Goes to the next record; `false` at the end.
    fn advance(&mut self) -> io::Result<bool> {
        if self.reader.fill_buf()?.is_empty() {
            return Ok(false);
        }
        let mut header = [0; HEADER];
        self.reader.read_exact(&mut header)?;
        self.record.resize(number_at(&header, 0), 0);
        self.reader.read_exact(&mut self.record)?;
        self.key = number_at(&header, 4);
        if self.key > self.record.len() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a staged microshard was damaged on disk"));
        }
        self.prefix = prefix(&self.record[..self.key]);
        Ok(true)
    }
}

/// `BinaryHeap` hands out the greatest: here that is the one whose key comes first.
impl Ord for Head<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        other.prefix.cmp(&self.prefix).then_with(|| other.record[..other.key].cmp(&self.record[..self.key]))
    }
}

impl PartialOrd for Head<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Head<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Head<'_> {}

/// Writes to a file from some place on, without a position that others share.
struct Writer<'a> {
    file: &'a File,
    at: u64,
}

impl Write for Writer<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write_at(bytes, self.at)?;
        self.at += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A part of a file, read without a position that others share.
struct Section<'a> {
    file: &'a File,
    rest: Range<u64>,
}

impl Read for Section<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let most = into.len().min((self.rest.end - self.rest.start) as usize);
        let read = self.file.read_at(&mut into[..most], self.rest.start)?;
        self.rest.start += read as u64;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::Sorter;

    #[test]
    fn more_than_the_buffer_holds_comes_back_in_order_and_whole() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut sorter = Sorter::create(&directory.path().join("sorted")).expect("creates");
        assert_eq!(std::fs::read_dir(directory.path()).expect("reads").count(), 0, "the file has no name");
        let mut random = fastrand::Rng::with_seed(7);
        let mut added = Vec::new();
        for number in 0..600_000_u64 {
            // Some are short, some alike for longer than a prefix, some the same.
            let mut key = vec![b'k'; random.usize(0..24)];
            key.extend_from_slice(&random.u16(..).to_be_bytes());
            sorter
                .add(|record| {
                    record.extend_from_slice(&key);
                    record.extend_from_slice(&number.to_be_bytes());
                    key.len()
                })
                .expect("adds");
            added.push((key, number));
        }
        assert!(!sorter.pieces.is_empty(), "the buffer was never full");
        let mut read = Vec::new();
        let mut collect = |sorter: &mut Sorter| {
            read.clear();
            sorter
                .for_each(|key, rest| {
                    read.push((key.to_vec(), u64::from_be_bytes(rest.try_into().expect("a number"))));
                    Ok(())
                })
                .expect("reads");
            assert!(read.is_sorted_by_key(|(key, _)| key.clone()));
            read.sort();
            read.clone()
        };
        added.sort();
        assert!(collect(&mut sorter) == added);
        let last = (vec![b'z'; 99], 600_000_u64);
        sorter
            .add(|record| {
                record.extend_from_slice(&last.0);
                record.extend_from_slice(&last.1.to_be_bytes());
                last.0.len()
            })
            .expect("adds");
        added.push(last);
        added.sort();
        assert!(collect(&mut sorter) == added, "and with what is added later");
    }
}
