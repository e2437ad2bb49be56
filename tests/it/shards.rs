//! Shards made by hand, of frames and rows that a test knows: with a row index, with a seek table alone, of one frame.

use std::ops::Range;

use base64::prelude::{BASE64_STANDARD, Engine};
use compact_local::format::seek::{Frame, RowIndex, SeekTable};

/// Rows in each frame.
pub(crate) const FRAME_ROWS: usize = 100;
/// Rows in each microshard but the last, which has none.
pub(crate) const MICROSHARD_ROWS: usize = 50;
/// The first microshard; the others follow it.
pub(crate) const FIRST_ID: i64 = -2;

/// A shard and what is in it.
pub(crate) struct Shard {
    pub(crate) bytes: Vec<u8>,
    /// Each with its newline.
    pub(crate) rows: Vec<String>,
    /// Where each data frame is.
    pub(crate) frames: Vec<Range<usize>>,
    pub(crate) table: SeekTable,
    pub(crate) index: RowIndex,
}

/// Many times larger than what is read of its end, as its rows are hard to compress.
pub(crate) fn indexed() -> Shard {
    let rows = rows(10 * FRAME_ROWS);
    let texts: Vec<String> = rows.chunks(FRAME_ROWS).map(|rows| rows.concat()).collect();
    let mut shard = Shard::of_texts(&texts, rows);
    shard.end(|_| {}, |_| {});
    shard
}

impl Shard {
    /// Data frames alone.
    pub(crate) fn of_texts(texts: &[String], rows: Vec<String>) -> Shard {
        let mut shard =
            Shard { bytes: vec![], rows, frames: vec![], table: SeekTable::default(), index: RowIndex::default() };
        for text in texts {
            let frame = compressed(text.as_bytes());
            shard.frames.push(shard.bytes.len()..shard.bytes.len() + frame.len());
            shard.table.frames.push(entry(frame.len(), text.len()));
            shard.bytes.extend(frame);
        }
        shard
    }

    /// Writes row index and seek table, with what a test makes of them.
    pub(crate) fn end(&mut self, index: impl Fn(&mut RowIndex), table: impl Fn(&mut SeekTable)) {
        self.bytes.truncate(self.frames.last().unwrap().end);
        self.table.frames.truncate(self.frames.len());
        let full = self.rows.len() / MICROSHARD_ROWS;
        self.index = RowIndex {
            frame_rows: vec![FRAME_ROWS as u32; self.frames.len()],
            microshards: (0..full).map(|at| (FIRST_ID + at as i64, MICROSHARD_ROWS as u64)).collect(),
        };
        self.index.microshards.push((FIRST_ID + full as i64, 0));
        index(&mut self.index);
        let begin = self.bytes.len();
        self.index.write(&mut self.bytes).unwrap();
        self.table.frames.push(entry(self.bytes.len() - begin, 0));
        self.end_with_table(table);
    }

    /// Writes a seek table alone, as other programs do.
    pub(crate) fn end_with_table(&mut self, change: impl Fn(&mut SeekTable)) {
        let mut table = self.table.clone();
        change(&mut table);
        table.write(&mut self.bytes).unwrap();
    }

    /// Rows as they are printed.
    pub(crate) fn text(&self, rows: Range<usize>) -> String {
        self.rows[rows].concat()
    }

    /// What is asked for to have these frames.
    pub(crate) fn asked(&self, frames: Range<usize>) -> String {
        format!("bytes={}-{}", self.frames[frames.start].start, self.frames[frames.end - 1].end - 1)
    }
}

/// Rows of about a kilobyte.
pub(crate) fn rows(count: usize) -> Vec<String> {
    let mut random = fastrand::Rng::with_seed(7);
    let mut noise = [0; 750];
    (0..count)
        .map(|number| {
            random.fill(&mut noise);
            format!("{{\"row\":{number},\"text\":\"{}\"}}\n", BASE64_STANDARD.encode(noise))
        })
        .collect()
}

/// One frame, with its checksum.
pub(crate) fn compressed(text: &[u8]) -> Vec<u8> {
    let mut compressor = zstd::bulk::Compressor::new(3).unwrap();
    compressor.include_checksum(true).unwrap();
    compressor.compress(text).unwrap()
}

fn entry(compressed: usize, decompressed: usize) -> Frame {
    Frame { compressed: compressed as u32, decompressed: decompressed as u32 }
}
