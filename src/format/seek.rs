//! What ends a shard of several frames, so that it tells by itself where its rows are: our row index, a skippable frame,
//! and right after it the seek table of the zstd seekable format, the last frame. Readers of either take bytes from
//! anywhere: they never panic, and make room for no more than the bytes that are there.
//!
//! ```text
//! data frame ... | row index | seek table: one entry for each data frame, and one of no content for the row index
//! row index:   0x184D2A5C u32 | size u32 | "rows" | version u32 | frames u32 | microshards u32
//!              | frames x rows u32 | microshards x (id i64, rows u64) | CRC-32 of the content before it
//! seek table:  0x184D2A5E u32 | size u32 | frames x (compressed u32, decompressed u32 [, checksum u32])
//!              | frames u32 | descriptor u8 | 0x8F92EAB1 u32
//! ```
//! All numbers are little-endian. A microshard without rows is listed, and has no frame.

use std::io;
use std::ops::Range;

use super::BadInput;

/// What a frame of the seekable format may hold.
pub const FRAME_BYTES_MAX: u64 = 1 << 30;

/// As in the reference implementation.
const FRAMES_MAX: u32 = 0x0800_0000;
const TABLE_MAGIC: u32 = 0x184D_2A5E;
const TABLE_END_MAGIC: u32 = 0x8F92_EAB1;
const INDEX_MAGIC: u32 = 0x184D_2A5C;
const INDEX_TAG: &[u8; 4] = b"rows";
const INDEX_VERSION: u32 = 1;
/// A skippable frame's magic number and size.
const HEAD_BYTES: usize = 8;
/// Where a seek table is told by: count, descriptor, magic number.
pub const FOOTER_BYTES: usize = 9;

/// The frames of an object, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SeekTable {
    /// The row index, where there is one, is the last of them.
    pub frames: Vec<Frame>,
}

/// A frame in the seek table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// Its bytes in the object.
    pub compressed: u32,
    /// Bytes of its content; 0 for a skippable frame.
    pub decompressed: u32,
}

/// What the end of an object holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tail {
    /// No seek table.
    NoTable,
    /// A seek table that begins further ahead: it takes this many bytes from the end.
    Longer(u64),
    /// The whole table.
    Table(SeekTable),
}

impl SeekTable {
    /// Writes it as a frame.
    pub fn write(&self, output: &mut Vec<u8>) -> io::Result<()> {
        let count = u32::try_from(self.frames.len()).ok().filter(|count| *count <= FRAMES_MAX).ok_or_else(too_many)?;
        let mut content = Vec::with_capacity(8 * self.frames.len() + FOOTER_BYTES);
        for frame in &self.frames {
            content.extend_from_slice(&frame.compressed.to_le_bytes());
            content.extend_from_slice(&frame.decompressed.to_le_bytes());
        }
        content.extend_from_slice(&count.to_le_bytes());
        content.push(0);
        content.extend_from_slice(&TABLE_END_MAGIC.to_le_bytes());
        write_skippable(TABLE_MAGIC, &content, output)
    }

    /// Reads it from the last bytes of an object: `FOOTER_BYTES` tell how many it takes.
    pub fn read_tail(tail: &[u8]) -> Result<Tail, BadInput> {
        let Some(footer) = tail.last_chunk::<FOOTER_BYTES>() else { return Ok(Tail::NoTable) };
        let mut footer = Fields(footer);
        let (count, descriptor, magic) = (footer.u32()?, footer.u8()?, footer.u32()?);
        if magic != TABLE_END_MAGIC {
            return Ok(Tail::NoTable);
        }
        // Bits 2 to 6 are for changes that break readers; bits 0 and 1 mean nothing.
        if descriptor & 0b0111_1100 != 0 || count > FRAMES_MAX {
            return Err(bad_table("is of no known form"));
        }
        let has_checksums = descriptor & 0x80 != 0;
        let content_bytes = u64::from(count) * if has_checksums { 12 } else { 8 } + FOOTER_BYTES as u64;
        let bytes = content_bytes + HEAD_BYTES as u64;
        let Some(start) = usize::try_from(bytes).ok().and_then(|bytes| tail.len().checked_sub(bytes)) else {
            return Ok(Tail::Longer(bytes));
        };
        let mut fields = Fields(tail.get(start..).unwrap_or_default());
        if (fields.u32()?, u64::from(fields.u32()?)) != (TABLE_MAGIC, content_bytes) {
            return Err(bad_table("does not begin where it should"));
        }
        let mut frames = Vec::with_capacity(count as usize);
        for _ in 0..count {
            let frame = Frame { compressed: fields.u32()?, decompressed: fields.u32()? };
            if has_checksums {
                fields.u32()?;
            }
            if frame.compressed == 0 || u64::from(frame.decompressed) > FRAME_BYTES_MAX {
                return Err(bad_table("has a frame of a size that none can have"));
            }
            frames.push(frame);
        }
        Ok(Tail::Table(SeekTable { frames }))
    }

    /// Whether its frames and itself are all of an object of so many bytes.
    pub fn check_size(&self, object_bytes: u64) -> Result<(), BadInput> {
        // An entry takes 8 bytes, or 12 with a checksum, which is not kept.
        let entries = self.frames.len() as u64;
        let table = (HEAD_BYTES + FOOTER_BYTES) as u64;
        match object_bytes.checked_sub(self.span(0..self.frames.len()).end) {
            Some(rest) if rest == table + 8 * entries || rest == table + 12 * entries => Ok(()),
            _ => Err(bad_table("does not add up to the size of the object")),
        }
    }

    /// Where these frames are in the object. They must be in the table.
    #[expect(
        clippy::indexing_slicing,
        reason = "a span is asked of frames that are in the table: another would be read from a wrong place"
    )]
    pub fn span(&self, frames: Range<usize>) -> Range<u64> {
        let bytes = |frames: &[Frame]| frames.iter().map(|frame| u64::from(frame.compressed)).sum::<u64>();
        let start = bytes(&self.frames[..frames.start]);
        start..start + bytes(&self.frames[frames])
    }

    /// The frame that a row index can only be in: the last, if it has no content.
    pub fn index_frame(&self) -> Option<usize> {
        let (last, before) = self.frames.split_last()?;
        (last.decompressed == 0).then_some(before.len())
    }
}

/// Which rows are in which data frame, and which are a microshard's.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RowIndex {
    /// Rows of each data frame, in order.
    pub frame_rows: Vec<u32>,
    /// The id and the number of rows of each microshard, in order.
    pub microshards: Vec<(i64, u64)>,
}

/// Frames that hold certain rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrameSpan {
    /// The frames.
    pub frames: Range<usize>,
    /// Rows before the first of them.
    pub rows_before: u64,
}

impl RowIndex {
    /// Writes it as a frame.
    pub fn write(&self, output: &mut Vec<u8>) -> io::Result<()> {
        let count = |length: usize| u32::try_from(length).map_err(|_| too_many());
        let mut content = Vec::with_capacity(20 + 4 * self.frame_rows.len() + 16 * self.microshards.len());
        content.extend_from_slice(INDEX_TAG);
        for number in [INDEX_VERSION, count(self.frame_rows.len())?, count(self.microshards.len())?] {
            content.extend_from_slice(&number.to_le_bytes());
        }
        for rows in &self.frame_rows {
            content.extend_from_slice(&rows.to_le_bytes());
        }
        for (microshard_id, rows) in &self.microshards {
            content.extend_from_slice(&microshard_id.to_le_bytes());
            content.extend_from_slice(&rows.to_le_bytes());
        }
        content.extend_from_slice(&crc32(&content).to_le_bytes());
        write_skippable(INDEX_MAGIC, &content, output)
    }

    /// Reads it from a whole frame; `None` where that is another kind of frame, which is not ours to judge.
    pub fn read(frame: &[u8]) -> Result<Option<RowIndex>, BadInput> {
        let mut fields = Fields(frame);
        let (Ok(INDEX_MAGIC), Ok(size), Ok(tag)) = (fields.u32(), fields.u32(), fields.array()) else {
            return Ok(None);
        };
        if &tag != INDEX_TAG {
            return Ok(None);
        }
        if fields.u32()? != INDEX_VERSION {
            return Err(bad_index("is of a later version than this program knows"));
        }
        let (frames, microshards) = (fields.u32()?, fields.u32()?);
        let expected = 4 * u64::from(frames) + 16 * u64::from(microshards) + 4;
        if fields.0.len() as u64 != expected || frame.len() as u64 - HEAD_BYTES as u64 != u64::from(size) {
            return Err(bad_index("has another size than it says"));
        }
        let content = frame.get(HEAD_BYTES..).and_then(|content| content.split_last_chunk::<4>());
        if content.is_none_or(|(content, sum)| crc32(content).to_le_bytes() != *sum) {
            return Err(bad_index("is damaged: its checksum differs"));
        }
        let frame_rows = (0..frames).map(|_| fields.u32()).collect::<Result<Vec<_>, _>>()?;
        let microshards =
            (0..microshards).map(|_| Ok((fields.i64()?, fields.u64()?))).collect::<Result<Vec<_>, BadInput>>()?;
        let index = RowIndex { frame_rows, microshards };
        let in_microshards = index.microshards.iter().try_fold(0_u64, |sum, (_, rows)| sum.checked_add(*rows));
        if in_microshards != Some(index.rows()) {
            return Err(bad_index("counts other rows in its microshards than in its frames"));
        }
        Ok(Some(index))
    }

    /// All rows.
    pub fn rows(&self) -> u64 {
        self.frame_rows.iter().map(|rows| u64::from(*rows)).sum()
    }

    /// The rows of a microshard, counted from 0; `None` where it is not in this object.
    pub fn rows_of(&self, microshard_id: i64) -> Option<Range<u64>> {
        let mut start = 0;
        for (id, rows) in &self.microshards {
            if *id == microshard_id {
                return Some(start..start + rows);
            }
            start += rows;
        }
        None
    }

    /// The frames that rows are in; none for no rows, and none for rows beyond the last.
    pub fn frames_of(&self, rows: Range<u64>) -> FrameSpan {
        let (mut frames, mut rows_before, mut end) = (0..0, 0, 0);
        for (index, count) in self.frame_rows.iter().enumerate() {
            let start = end;
            end += u64::from(*count);
            if rows.start < end && start < rows.end && !rows.is_empty() {
                if frames.is_empty() {
                    (frames.start, rows_before) = (index, start);
                }
                frames.end = index + 1;
            }
        }
        FrameSpan { frames, rows_before }
    }
}

/// Reads numbers off the front, as far as there are any.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], BadInput> {
        let (array, rest) =
            self.0.split_first_chunk().ok_or_else(|| BadInput::new("its seek table or row index is cut off"))?;
        self.0 = rest;
        Ok(*array)
    }

    fn u8(&mut self) -> Result<u8, BadInput> {
        self.array().map(u8::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, BadInput> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, BadInput> {
        self.array().map(u64::from_le_bytes)
    }

    fn i64(&mut self) -> Result<i64, BadInput> {
        self.array().map(i64::from_le_bytes)
    }
}

fn write_skippable(magic: u32, content: &[u8], output: &mut Vec<u8>) -> io::Result<()> {
    let size = u32::try_from(content.len()).map_err(|_| too_many())?;
    output.extend_from_slice(&magic.to_le_bytes());
    output.extend_from_slice(&size.to_le_bytes());
    output.extend_from_slice(content);
    Ok(())
}

fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = flate2::Crc::new();
    crc.update(bytes);
    crc.sum()
}

fn too_many() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "more frames or microshards in one shard than its tables can list")
}

fn bad_table(what: &str) -> BadInput {
    BadInput::new(format!("its seek table {what}"))
}

fn bad_index(what: &str) -> BadInput {
    BadInput::new(format!("its row index {what}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn table() -> SeekTable {
        let sizes = [(900, 4000), (u32::MAX, 1 << 30), (1, 1), (80, 0)];
        SeekTable { frames: sizes.map(|(compressed, decompressed)| Frame { compressed, decompressed }).into() }
    }

    fn index() -> RowIndex {
        RowIndex { frame_rows: vec![3, 2, 5], microshards: vec![(7, 4), (-1, 0), (i64::MAX, 6)] }
    }

    fn written(write: impl Fn(&mut Vec<u8>) -> io::Result<()>) -> Vec<u8> {
        let mut bytes = Vec::new();
        write(&mut bytes).expect("fits");
        bytes
    }

    #[test]
    fn a_seek_table_is_the_bytes_of_the_published_format() {
        let table = SeekTable { frames: vec![Frame { compressed: 0x0102, decompressed: 0x0304 }] };
        let expected =
            [0x5e, 0x2a, 0x4d, 0x18, 17, 0, 0, 0, 2, 1, 0, 0, 4, 3, 0, 0, 1, 0, 0, 0, 0, 0xb1, 0xea, 0x92, 0x8f];
        assert_eq!(written(|bytes| table.write(bytes)), expected);
    }

    #[test]
    fn a_tail_that_is_too_short_tells_how_long_it_must_be() {
        let bytes = written(|bytes| table().write(bytes));
        for length in FOOTER_BYTES..bytes.len() {
            let tail = &bytes[bytes.len() - length..];
            assert_eq!(SeekTable::read_tail(tail), Ok(Tail::Longer(bytes.len() as u64)), "{length}");
        }
        let object = [&b"frames"[..], &bytes].concat();
        assert_eq!(SeekTable::read_tail(&object), Ok(Tail::Table(table())));
        for length in 0..FOOTER_BYTES {
            assert_eq!(SeekTable::read_tail(&bytes[bytes.len() - length..]), Ok(Tail::NoTable), "{length}");
        }
    }

    #[test]
    fn a_table_with_checksums_is_read_as_one_without() {
        let mut bytes = vec![0x5e, 0x2a, 0x4d, 0x18, 33, 0, 0, 0];
        for number in [900_u32, 4000, 0xdead_beef, 80, 0, 0xdead_beef, 2] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend([0x83, 0xb1, 0xea, 0x92, 0x8f]);
        let Ok(Tail::Table(table)) = SeekTable::read_tail(&bytes) else { panic!("no table") };
        assert_eq!(
            table.frames,
            [Frame { compressed: 900, decompressed: 4000 }, Frame { compressed: 80, decompressed: 0 }]
        );
        assert_eq!(table.check_size(980 + 41), Ok(()));
    }

    #[test]
    fn a_table_that_lies_is_refused_with_a_sentence() {
        let good = written(|bytes| table().write(bytes));
        let last = good.len();
        let with = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            SeekTable::read_tail(&bytes).map_err(|bad| bad.sentence)
        };
        let refused = |what: &str| Err(format!("its seek table {what}"));
        assert_eq!(with(0, 0x5f), refused("does not begin where it should"));
        assert_eq!(with(4, 99), refused("does not begin where it should"));
        assert_eq!(with(last - 9, 3), refused("does not begin where it should"));
        assert_eq!(with(last - 5, 0b100), refused("is of no known form"));
        assert_eq!(with(last - 6, 9), refused("is of no known form"), "beyond all counts");
        assert_eq!(with(8 + 16, 0), refused("has a frame of a size that none can have"), "an empty frame");
        assert_eq!(with(8 + 15, 0x41), refused("has a frame of a size that none can have"), "over 1 GiB");
        assert!(table().check_size(900 + u64::from(u32::MAX) + 1 + 80 + last as u64).is_ok());
        assert!(table().check_size(900 + u64::from(u32::MAX) + 1 + 81 + last as u64).is_err());
    }

    #[test]
    fn a_row_index_that_is_damaged_is_refused_with_a_sentence() {
        let good = written(|bytes| index().write(bytes));
        assert_eq!(RowIndex::read(&good), Ok(Some(index())));
        for at in 0..good.len() {
            let mut bytes = good.clone();
            bytes[at] ^= 1;
            assert!(matches!(RowIndex::read(&bytes), Ok(None) | Err(_)), "{at}");
            assert!(matches!(RowIndex::read(&good[..at]), Ok(None) | Err(_)), "{at}");
        }
        assert_eq!(RowIndex::read(b"\x5c\x2a\x4d\x18\x04\0\0\0more"), Ok(None), "another program's");
        let other = RowIndex { microshards: vec![(7, 4)], ..index() };
        let sentence = RowIndex::read(&written(|bytes| other.write(bytes))).map_err(|bad| bad.sentence);
        assert_eq!(sentence, Err("its row index counts other rows in its microshards than in its frames".to_owned()));
    }

    #[test]
    fn rows_and_microshards_are_found_in_their_frames() {
        let index = index();
        assert_eq!(index.rows_of(7), Some(0..4));
        assert_eq!(index.rows_of(-1), Some(4..4));
        assert_eq!(index.rows_of(i64::MAX), Some(4..10));
        assert_eq!(index.rows_of(8), None);
        let found = |rows| {
            let FrameSpan { frames, rows_before } = index.frames_of(rows);
            (frames, rows_before)
        };
        assert_eq!(found(0..10), (0..3, 0));
        assert_eq!(found(0..1), (0..1, 0));
        assert_eq!(found(2..4), (0..2, 0));
        assert_eq!(found(3..5), (1..2, 3));
        assert_eq!(found(9..100), (2..3, 5));
        assert_eq!(found(4..4), (0..0, 0));
        assert_eq!(found(10..11), (0..0, 0));
        assert_eq!(table().span(0..3), 0..901 + u64::from(u32::MAX));
        assert_eq!(table().span(2..3), 900 + u64::from(u32::MAX)..901 + u64::from(u32::MAX));
        assert_eq!(table().index_frame(), Some(3));
        assert_eq!(SeekTable::default().index_frame(), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_bytes_are_read_or_refused(mut bytes: Vec<u8>, ends_right: bool, count in 0_u32..9) {
            if ends_right {
                bytes.extend(count.to_le_bytes());
                bytes.extend([0, 0xb1, 0xea, 0x92, 0x8f]);
            }
            let _ = SeekTable::read_tail(&bytes);
            let _ = RowIndex::read(&bytes);
            let _ = RowIndex::read(&[&b"\x5c\x2a\x4d\x18"[..], &bytes].concat());
        }

        #[test]
        fn whatever_is_written_is_read_again(
            sizes in prop::collection::vec((1_u32.., 0_u32..=1 << 30), 0..40),
            counts in prop::collection::vec((any::<i64>(), any::<u32>()), 0..40),
        ) {
            let frames = sizes.into_iter().map(|(compressed, decompressed)| Frame { compressed, decompressed });
            let table = SeekTable { frames: frames.collect() };
            prop_assert_eq!(SeekTable::read_tail(&written(|bytes| table.write(bytes))), Ok(Tail::Table(table)));
            let index = RowIndex {
                frame_rows: counts.iter().map(|(_, rows)| *rows).collect(),
                microshards: counts.iter().rev().map(|(id, rows)| (*id, u64::from(*rows))).collect(),
            };
            prop_assert_eq!(RowIndex::read(&written(|bytes| index.write(bytes))), Ok(Some(index)));
        }

        #[test]
        fn a_flipped_byte_gives_another_table_or_a_sentence(at in 0_usize..49, flip in 1_u8..) {
            // The descriptor's lowest bits mean nothing.
            prop_assume!(at != 44 || flip > 0b11);
            let mut bytes = written(|bytes| table().write(bytes));
            bytes[at] ^= flip;
            prop_assert_ne!(SeekTable::read_tail(&bytes), Ok(Tail::Table(table())));
        }
    }
}
