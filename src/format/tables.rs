//! Whether the tables at the end of a shard say what its frames hold.

use super::seek::{RowIndex, SeekTable, Tail};
use super::{BadInput, Encoded};

/// Reads a shard's row index, and checks it and the seek table against all frames and their rows, which are `text`.
#[expect(clippy::indexing_slicing, reason = "the decoder found these frames in this text")]
pub fn check_tables(text: &[u8], encoded: Encoded<'_>) -> Result<RowIndex, BadInput> {
    let Encoded { object, frames } = encoded;
    let Tail::Table(table) = SeekTable::read_tail(object)? else {
        return Err(BadInput::new("has no seek table at its end"));
    };
    table.check_size(object.len() as u64)?;
    let index = read_index(object, &table)?;
    let listed = table.frames.len() - 1;
    if listed != frames.len() || index.frame_rows.len() != frames.len() {
        return Err(BadInput::new(format!(
            "has {} data frames, its seek table lists {listed}, its row index {}",
            frames.len(),
            index.frame_rows.len()
        )));
    }
    for (number, ((frame, entry), rows)) in frames.iter().zip(&table.frames).zip(&index.frame_rows).enumerate() {
        let (compressed, decompressed) = (frame.object.len() as u64, frame.text.len() as u64);
        if (compressed, decompressed) != (entry.compressed.into(), entry.decompressed.into()) {
            return Err(BadInput::new(format!(
                "frame {number} has {compressed} bytes with {decompressed} of content, its seek table says {} with {}",
                entry.compressed, entry.decompressed
            )));
        }
        let has = memchr::memchr_iter(b'\n', &text[frame.text.clone()]).count() as u64;
        if has != u64::from(*rows) {
            return Err(BadInput::new(format!("frame {number} has {has} rows, its row index says {rows}")));
        }
    }
    Ok(index)
}

fn read_index(object: &[u8], table: &SeekTable) -> Result<RowIndex, BadInput> {
    let missing = || BadInput::new("has no row index before its seek table");
    let frame = table.index_frame().ok_or_else(missing)?;
    let span = table.span(frame..frame + 1);
    let frame = object.get(span.start as usize..span.end as usize).ok_or_else(missing)?;
    RowIndex::read(frame)?.ok_or_else(missing)
}
