//! Any listing: read or refused with a sentence, and records that were read are the same when written and read again.

use std::collections::BTreeMap;
use std::path::Path;

use compact_local::error;
use compact_local::manifest::listing::Listing;
use compact_local::manifest::{Record, Selection};

/// The first byte says whether the others are CSV or JSON lines, and whether a run is named.
pub(crate) fn check(input: &[u8]) {
    let Some((kind, text)) = input.split_first() else { return };
    let directory = super::directory();
    let name = if kind & 1 == 0 { "m.csv" } else { "m.jsonl" };
    let path = directory.path().join(name);
    let selection = Selection { run_id: (kind & 2 != 0).then(|| "r".to_owned()), ..Selection::default() };
    std::fs::write(&path, text).expect("writes");
    let records = match read(&path, &selection) {
        Ok(records) => records,
        Err(refused) => return super::assert_shown(&error::sentence(&refused)),
    };
    for record in &records {
        assert!(record.microshard_id.is_some() && !record.language.is_empty() && !record.uri.is_empty());
        assert!(!record.run_id.is_empty());
    }
    let records: Vec<Record> =
        records.into_iter().map(|record| Record { created_at: None, updated_at: None, ..record }).collect();
    for (name, write) in [("again.csv", csv as fn(&[Record]) -> Vec<u8>), ("again.jsonl", jsonl)] {
        let path = directory.path().join(name);
        std::fs::write(&path, write(&records)).expect("writes");
        assert_eq!(read(&path, &Selection::default()).expect("reads"), records);
    }
}

fn read(path: &Path, selection: &Selection) -> anyhow::Result<Vec<Record>> {
    let mut records = Vec::new();
    let taken = Listing::open(path.to_str().expect("UTF-8"))?.read(selection, &mut |record| {
        records.push(record);
        Ok(())
    })?;
    assert_eq!(taken, records.len() as u64);
    Ok(records)
}

const COLUMNS: [&str; 7] = ["microshard_id", "run_id", "language", "uri", "segment_count", "byte_size", "sha256"];

fn fields(record: &Record) -> [String; 7] {
    let hex = |sum: [u8; 32]| sum.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    [
        record.microshard_id.map(|id| id.to_string()).unwrap_or_default(),
        record.run_id.clone(),
        record.language.clone(),
        record.uri.clone(),
        record.segment_count.map(|count| count.to_string()).unwrap_or_default(),
        record.byte_size.map(|bytes| bytes.to_string()).unwrap_or_default(),
        record.sha256.map(hex).unwrap_or_default(),
    ]
}

fn csv(records: &[Record]) -> Vec<u8> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(COLUMNS).expect("writes");
    records.iter().for_each(|record| writer.write_record(fields(record)).expect("writes"));
    writer.into_inner().expect("is memory")
}

fn jsonl(records: &[Record]) -> Vec<u8> {
    let object = |record: &Record| COLUMNS.into_iter().zip(fields(record)).collect::<BTreeMap<_, _>>();
    records
        .iter()
        .flat_map(|record| (serde_json::to_string(&object(record)).expect("writes") + "\n").into_bytes())
        .collect()
}
