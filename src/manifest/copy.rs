//! Postgres's binary COPY, read and written. The reader trusts nothing: a length that makes no sense, a field too many
//! or a stream that ends early is an error, never a panic and never a short answer (I10). One row is in memory at a time.

use std::io::{self, BufRead, Read, Write};

use anyhow::{Context, Result, anyhow, bail, ensure};

const SIGNATURE: &[u8; 11] = b"PGCOPY\n\xff\r\n\0";
/// Above any text that names or describes an object; a length beyond it is a broken stream.
const FIELD_BYTES_MAX: usize = 16 << 20;
/// Microseconds from 1970 to 2000, where Postgres's clock starts.
const EPOCH_MICROS: i64 = 946_684_800_000_000;

/// Reads rows of `width` fields.
pub(super) struct CopyReader<R> {
    input: R,
    /// The bytes of one row's fields, end to end.
    bytes: Vec<u8>,
    /// Where each field ends in `bytes`, and whether it is NULL.
    fields: Vec<(usize, bool)>,
    width: usize,
}

impl<R: BufRead> CopyReader<R> {
    /// Reads the header.
    pub(super) fn new(mut input: R, width: usize) -> Result<CopyReader<R>> {
        ensure!(&take::<11>(&mut input)? == SIGNATURE, "this is no binary COPY");
        let flags = i32::from_be_bytes(take(&mut input)?);
        let extension = i32::from_be_bytes(take(&mut input)?);
        ensure!(flags == 0 && extension == 0, "a binary COPY with flags {flags:#x} that are not known here");
        Ok(CopyReader { input, bytes: Vec::new(), fields: Vec::with_capacity(width), width })
    }

    /// The next row, `None` behind the last; the end must be said by the stream, not just come.
    pub(super) fn next(&mut self) -> Result<Option<Row<'_>>> {
        let width = i16::from_be_bytes(take(&mut self.input)?);
        if width == -1 {
            let rest = self.input.fill_buf().map_err(unwrap_io)?;
            ensure!(rest.is_empty(), "bytes follow the end of a binary COPY");
            return Ok(None);
        }
        ensure!(usize::try_from(width) == Ok(self.width), "a row of {width} fields, not {}", self.width);
        self.bytes.clear();
        self.fields.clear();
        for _ in 0..self.width {
            let length = i32::from_be_bytes(take(&mut self.input)?);
            if length != -1 {
                let length = usize::try_from(length).ok().filter(|length| *length <= FIELD_BYTES_MAX);
                let length = length.with_context(|| format!("a field of {length:?} bytes"))?;
                let end = self.bytes.len() + length;
                let read = (&mut self.input).take(length as u64).read_to_end(&mut self.bytes).map_err(unwrap_io)?;
                ensure!(read == length && self.bytes.len() == end, "a binary COPY ends inside a field");
            }
            self.fields.push((self.bytes.len(), length == -1));
        }
        Ok(Some(Row { bytes: &self.bytes, fields: &self.fields }))
    }
}

/// One row.
pub(super) struct Row<'a> {
    bytes: &'a [u8],
    fields: &'a [(usize, bool)],
}

impl<'a> Row<'a> {
    /// A field's bytes; `None` for NULL.
    fn field(&self, at: usize) -> Result<Option<&'a [u8]>> {
        let &(end, null) = self.fields.get(at).with_context(|| format!("there is no field {at}"))?;
        let start = at.checked_sub(1).and_then(|before| self.fields.get(before)).map_or(0, |(end, _)| *end);
        let bytes = self.bytes.get(start..end).with_context(|| format!("there are no bytes of field {at}"))?;
        Ok((!null).then_some(bytes))
    }

    /// A bigint.
    pub(super) fn bigint(&self, at: usize) -> Result<Option<i64>> {
        let Some(bytes) = self.field(at)? else { return Ok(None) };
        let bytes = bytes.try_into().map_err(|_| anyhow!("a bigint of {} bytes", bytes.len()))?;
        Ok(Some(i64::from_be_bytes(bytes)))
    }

    /// A text.
    pub(super) fn text(&self, at: usize) -> Result<Option<&'a str>> {
        self.field(at)?.map(|bytes| std::str::from_utf8(bytes).context("a text that is not UTF-8")).transpose()
    }

    /// A timestamp or timestamptz, as unix time in microseconds. `infinity` has none and is an error.
    pub(super) fn timestamp(&self, at: usize) -> Result<Option<i64>> {
        let Some(micros) = self.bigint(at)? else { return Ok(None) };
        if micros == i64::MAX || micros == i64::MIN {
            bail!("a timestamp of infinity");
        }
        micros.checked_add(EPOCH_MICROS).map(Some).context("a timestamp out of range")
    }
}

fn take<const N: usize>(input: &mut impl Read) -> Result<[u8; N]> {
    let mut bytes = [0; N];
    input.read_exact(&mut bytes).map_err(unwrap_io).context("a binary COPY ended early")?;
    Ok(bytes)
}

/// The error of Postgres that hides in an I/O error, where it does: it decides about another try.
fn unwrap_io(error: io::Error) -> anyhow::Error {
    match error.downcast::<postgres::Error>() {
        Ok(inner) => inner.into(),
        Err(error) => error.into(),
    }
}

/// Writes rows, each collected in memory first so that its width is known to be right.
pub(super) struct CopyWriter<W> {
    output: W,
    row: Vec<u8>,
}

impl<W: Write> CopyWriter<W> {
    /// Writes the header.
    pub(super) fn new(mut output: W) -> Result<CopyWriter<W>> {
        output.write_all(SIGNATURE).and_then(|()| output.write_all(&[0; 8])).map_err(unwrap_io)?;
        Ok(CopyWriter { output, row: Vec::new() })
    }

    /// Writes one row.
    pub(super) fn row(&mut self, values: &[Value<'_>]) -> Result<()> {
        self.row.clear();
        self.row.extend(i16::try_from(values.len())?.to_be_bytes());
        for value in values {
            match value {
                Value::Null => self.row.extend((-1_i32).to_be_bytes()),
                Value::Int(number) => self.field(&number.to_be_bytes())?,
                Value::Bigint(number) => self.field(&number.to_be_bytes())?,
                Value::Text(text) => self.field(text.as_bytes())?,
                Value::Timestamp(micros) => {
                    let micros = micros.checked_sub(EPOCH_MICROS).context("a timestamp out of range")?;
                    self.field(&micros.to_be_bytes())?;
                }
            }
        }
        self.output.write_all(&self.row).map_err(unwrap_io)
    }

    fn field(&mut self, bytes: &[u8]) -> Result<()> {
        self.row.extend(i32::try_from(bytes.len())?.to_be_bytes());
        self.row.extend(bytes);
        Ok(())
    }

    /// Says the end and gives the output back, to be finished by the caller.
    pub(super) fn finish(mut self) -> Result<W> {
        self.output.write_all(&(-1_i16).to_be_bytes()).map_err(unwrap_io)?;
        Ok(self.output)
    }
}

/// One field to write.
pub(super) enum Value<'a> {
    Null,
    Int(i32),
    Bigint(i64),
    Text(&'a str),
    /// Unix time in microseconds.
    Timestamp(i64),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written() -> Vec<u8> {
        let mut writer = CopyWriter::new(Vec::new()).unwrap();
        writer.row(&[Value::Bigint(-7), Value::Text("é"), Value::Null, Value::Timestamp(1)]).unwrap();
        writer.row(&[Value::Bigint(8), Value::Text(""), Value::Text("x"), Value::Null]).unwrap();
        writer.finish().unwrap()
    }

    fn read(bytes: &[u8]) -> Result<usize> {
        let mut reader = CopyReader::new(bytes, 4)?;
        let mut rows = 0;
        while let Some(row) = reader.next()? {
            row.bigint(0)?.context("no id")?;
            row.text(1)?;
            rows += 1;
        }
        Ok(rows)
    }

    #[test]
    fn what_is_written_is_read() {
        let bytes = written();
        let mut reader = CopyReader::new(&bytes[..], 4).unwrap();
        let row = reader.next().unwrap().unwrap();
        assert_eq!(row.bigint(0).unwrap(), Some(-7));
        assert_eq!(row.text(1).unwrap(), Some("é"));
        assert_eq!(row.text(2).unwrap(), None);
        assert_eq!(row.timestamp(3).unwrap(), Some(1));
        assert!(row.bigint(1).is_err() && row.text(4).is_err());
        let row = reader.next().unwrap().unwrap();
        assert_eq!((row.text(1).unwrap(), row.text(2).unwrap()), (Some(""), Some("x")));
        assert!(reader.next().unwrap().is_none());
    }

    #[test]
    fn a_stream_cut_anywhere_is_an_error() {
        let bytes = written();
        assert_eq!(read(&bytes).unwrap(), 2);
        for cut in 0..bytes.len() {
            assert!(read(&bytes[..cut]).is_err(), "cut at {cut}");
        }
        assert!(read(&[&bytes[..], b"x"].concat()).is_err());
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_make_it_panic(at in 0_usize..90, byte: u8, tail: Vec<u8>) {
            let mut bytes = written();
            if let Some(one) = bytes.get_mut(at) { *one = byte; }
            bytes.extend(tail);
            let _ = read(&bytes);
        }
    }

    #[test]
    fn infinity_is_no_time() {
        let mut bytes = written();
        let at = bytes.windows(8).position(|window| window == (1 - EPOCH_MICROS).to_be_bytes()).unwrap();
        bytes[at..at + 8].copy_from_slice(&i64::MAX.to_be_bytes());
        let mut reader = CopyReader::new(&bytes[..], 4).unwrap();
        assert!(reader.next().unwrap().unwrap().timestamp(3).is_err());
    }
}
