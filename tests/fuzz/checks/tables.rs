//! Any seek table and row index, alone and at the end of a shard: read or refused, and what is read can be asked anything.

use std::io::Write as _;
use std::sync::LazyLock;

use compact_local::cat::{Object, RowRange, Wanted, cat};
use compact_local::cli::StoreArgs;
use compact_local::error;
use compact_local::format::seek::{RowIndex, SeekTable, Tail};
use compact_local::format::{Decoder, Encoded, Frames, Limits, Rows, check_tables};
use compact_local::patience::Patience;
use compact_local::store::{self, StoreSettings};

const ROWS: u64 = 60;

/// A good shard of 6 frames.
static SHARD: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut writer = Frames::Splice.writer(Vec::new(), 1).expect("creates");
    for id in 0..6 {
        let text: String = (0..10).map(|row| format!("{{\"id\":{id},\"row\":{row}}}\n")).collect();
        let rows = Rows::Lines { text: text.as_bytes(), count: 10, encoded: None };
        writer.append(id, rows).expect("appends");
    }
    writer.finish().expect("finishes")
});

/// The first byte says what the others are: a tail, a row index, a row index without its checksum, or patches of a shard.
pub(crate) fn check(input: &[u8]) {
    let Some((kind, bytes)) = input.split_first() else { return };
    match kind & 0b11 {
        0 => table(bytes),
        1 => index(bytes),
        2 => index(&summed(bytes)),
        _ => shard(bytes),
    }
}

fn table(bytes: &[u8]) {
    let Ok(Tail::Table(table)) = SeekTable::read_tail(bytes).inspect_err(|bad| super::assert_shown(&bad.sentence))
    else {
        return;
    };
    let all = table.span(0..table.frames.len());
    assert_eq!(all.start, 0);
    let _ = (table.check_size(bytes.len() as u64), table.check_size(u64::MAX), table.index_frame());
    let mut written = Vec::new();
    table.write(&mut written).expect("writes");
    assert_eq!(table.check_size(all.end + written.len() as u64), Ok(()));
    assert_eq!(SeekTable::read_tail(&written), Ok(Tail::Table(table)));
}

fn index(frame: &[u8]) {
    let read = RowIndex::read(frame).inspect_err(|bad| super::assert_shown(&bad.sentence));
    let Ok(Some(index)) = read else { return };
    let mut written = Vec::new();
    index.write(&mut written).expect("writes");
    assert_eq!(written, frame);
    for (id, _) in &index.microshards {
        let rows = index.rows_of(*id).expect("is listed");
        let span = index.frames_of(rows.clone());
        assert!(
            rows.end <= index.rows() && span.frames.end <= index.frame_rows.len() && span.rows_before <= rows.start
        );
    }
    let _ = (index.frames_of(0..u64::MAX), index.frames_of(u64::MAX..u64::MAX), index.rows_of(i64::MIN));
}

/// A row index of this content, with the checksum that nothing made up can have.
fn summed(content: &[u8]) -> Vec<u8> {
    let mut frame = 0x184d_2a5c_u32.to_le_bytes().to_vec();
    frame.extend((content.len() as u32 + 12).to_le_bytes());
    frame.extend(b"rows\x01\0\0\0");
    frame.extend(content);
    let mut crc = flate2::Crc::new();
    crc.update(&frame[8..]);
    frame.extend(crc.sum().to_le_bytes());
    frame
}

/// A shard with some bytes changed: `cat` prints as many rows as were asked for, or says what is wrong.
fn shard(bytes: &[u8]) {
    let Some((range, patches)) = bytes.split_first_chunk::<2>() else { return };
    let places: Vec<usize> = (0..SHARD.len()).collect();
    let object = super::patched(&SHARD, &places, patches);
    if let Ok(decoded) = Decoder::default().decode(&object, Limits { bytes_max: 1 << 20, lenient: false }) {
        let encoded = Encoded { object: &object, frames: decoded.frames };
        let _ = check_tables(decoded.text, encoded).inspect_err(|bad| super::assert_shown(&bad.sentence));
    }
    let (start, end) = (u64::from(range[0]).min(ROWS), u64::from(range[1]));
    let directory = super::directory();
    std::fs::write(directory.path().join("a"), &object).expect("writes");
    let store = store::open(directory.path().to_str().expect("UTF-8"), &SETTINGS, "tag").expect("opens");
    let (mut out, patience) = (Vec::new(), Patience::default());
    let mut object = Object::new(&*store, "a", &patience, &|_| {});
    let wanted = Wanted::Rows(RowRange { start, end: Some(end) });
    match cat(&mut object, wanted, &mut out) {
        Ok(()) => {
            let rows = out.split_inclusive(|byte| *byte == b'\n').count() as u64;
            assert_eq!(rows, end.saturating_sub(start), "of {start}..{end}");
        }
        Err(failed) => super::assert_shown(&error::sentence(&failed)),
    }
    out.flush().expect("is memory");
}

static SETTINGS: LazyLock<StoreSettings> = LazyLock::new(|| {
    let args = StoreArgs {
        s3_endpoint: None,
        s3_region: None,
        s3_path_style: false,
        s3_unsigned: false,
        s3_part_size: 16 << 20,
    };
    StoreSettings::new(&args, &|_: &str| None).expect("are usual")
});
