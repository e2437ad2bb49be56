//! A microshard as a record of the sorter: plan order is the order of its key's bytes. Records never outlive the process.

use crate::staging::Item;

/// Appends the microshard; returns the length of the key: language, time, id, uri.
pub(crate) fn append(language: u32, item: &Item, record: &mut Vec<u8>) -> usize {
    let start = record.len();
    record.extend_from_slice(&language.to_be_bytes());
    put(record, item.created_at);
    put(record, item.microshard_id);
    record.extend_from_slice(item.uri.as_bytes());
    let key = record.len() - start;
    put(record, item.rows.map(i64::from));
    put(record, item.bytes.map(|bytes| bytes as i64));
    put(record, item.updated_at);
    record.extend_from_slice(item.sha256.as_ref().map_or(&[], <[u8; 32]>::as_slice));
    key
}

/// Reads all but the language into `item`, reusing its strings; returns the number of the language. `None` where the
/// record is none of ours.
pub(crate) fn read(mut key: &[u8], mut rest: &[u8], item: &mut Item) -> Option<u32> {
    let language = u32::from_be_bytes(*key.split_off(..4)?.first_chunk()?);
    item.created_at = take(&mut key)?;
    item.microshard_id = take(&mut key)?;
    item.uri.clear();
    item.uri.push_str(std::str::from_utf8(key).ok()?);
    item.rows = take(&mut rest)?.map(|rows| rows as u32);
    item.bytes = take(&mut rest)?.map(|bytes| bytes as u64);
    item.updated_at = take(&mut rest)?;
    item.sha256 = if rest.is_empty() { None } else { Some(rest.try_into().ok()?) };
    Some(language)
}

/// Appends a number so that bytes sort as numbers do, and nothing before any number.
fn put(record: &mut Vec<u8>, number: Option<i64>) {
    record.push(u8::from(number.is_some()));
    if let Some(number) = number {
        record.extend_from_slice(&(number ^ i64::MIN).to_be_bytes());
    }
}

fn take(record: &mut &[u8]) -> Option<Option<i64>> {
    if *record.split_off_first()? == 0 {
        return Some(None);
    }
    let (number, rest) = record.split_first_chunk()?;
    *record = rest;
    Some(Some(i64::from_be_bytes(*number) ^ i64::MIN))
}

#[cfg(test)]
mod tests {
    use super::{append, read};
    use crate::staging::Item;

    #[test]
    fn a_microshard_comes_back_as_it_went_in_and_sorts_by_time_then_id_then_uri() {
        let item = |created_at, microshard_id, uri: &str| Item {
            created_at,
            microshard_id,
            uri: uri.to_owned(),
            rows: Some(u32::MAX),
            bytes: None,
            sha256: Some([9; 32]),
            updated_at: Some(-1),
            ..Item::default()
        };
        let sorted = [
            item(None, None, ""),
            item(None, None, "a"),
            item(None, None, "a\0"),
            item(None, None, "b"),
            item(None, Some(i64::MIN), ""),
            item(Some(i64::MIN), None, "z"),
            item(Some(-1), Some(7), "z"),
            item(Some(0), Some(-7), "z"),
            item(Some(0), Some(6), "z"),
            item(Some(0), Some(6), "é"),
            item(Some(i64::MAX), None, ""),
        ];
        let mut before = Vec::new();
        for item in &sorted {
            let mut record = Vec::new();
            let length = append(77, item, &mut record);
            let (key, rest) = record.split_at(length);
            let mut back = Item { uri: "something else".to_owned(), ..Item::default() };
            assert_eq!(read(key, rest, &mut back), Some(77));
            assert_eq!(&back, item);
            assert!(before.as_slice() < key, "{item:?}");
            before = key.to_vec();
        }
    }
}
