//! Generated microshards with their manifest: on disk, in Postgres, and what an independent reader makes of them. Nothing
//! here decodes with our own code: the Debian tools zstd and gzip do, and rows are told apart by the lines below.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use compact_local::demo::generate::{Generate, Generated, generate};
use postgres::Client;

use crate::nginx::{Nginx, nginx};
use crate::world::{files, sha256, tool};

/// A data set, served by an nginx of its own.
pub(crate) struct Served {
    pub(crate) nginx: Nginx,
    pub(crate) generated: Generated,
}

/// Generates and serves `microshards`, `faulty` of them broken.
pub(crate) fn served(microshards: u64, faulty: u64) -> Served {
    let nginx = nginx();
    let generated = generated(&nginx.root, microshards, faulty);
    Served { nginx, generated }
}

/// Generates into a directory.
pub(crate) fn generated(dir: &Path, microshards: u64, faulty: u64) -> Generated {
    generate(&Generate { microshards, seed: 1, faulty, dir: dir.to_owned() }, &mut |_| {}).unwrap()
}

/// Loads a manifest into Postgres, as a person would with psql: `\copy ... FROM manifest.csv CSV HEADER`.
pub(crate) fn copy_manifest(client: &mut Client, manifest: &Path) {
    let csv = std::fs::read(manifest).unwrap();
    let header = csv.split(|byte| *byte == b'\n').next().unwrap();
    let columns = str::from_utf8(header).unwrap();
    let sql = format!("COPY final_export_microshards ({columns}) FROM STDIN (FORMAT csv, HEADER)");
    let mut copy = client.copy_in(&sql).unwrap();
    copy.write_all(&csv).unwrap();
    copy.finish().unwrap();
}

/// How many microshards have which status in Postgres.
pub(crate) fn statuses(client: &mut Client) -> BTreeMap<String, i64> {
    let rows = client.query("SELECT status, count(*) FROM final_export_microshards GROUP BY status", &[]).unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

/// Asserts that the output holds every row of every consumed microshard exactly once, verbatim and in order, each shard
/// just those that Postgres says, and nothing else. `output` is what shards' uris begin with, `directory` where it is.
pub(crate) fn check_output(client: &mut Client, objects: &Path, output: &str, directory: &Path) {
    let mut expected = vec!["index.json".to_owned()];
    let mut in_shards: BTreeMap<String, Vec<i64>> = BTreeMap::new();
    let shards = client
        .query(
            "SELECT shard_id, language, uri, segment_count, microshard_count, byte_size, sha256 FROM final_export_shards \
             ORDER BY language, run_id, seq",
            &[],
        )
        .unwrap();
    for shard in &shards {
        let (shard_id, language, uri): (String, String, String) = (shard.get(0), shard.get(1), shard.get(2));
        let members = members(client, "shard_id = $1 AND status = 'consumed'", &shard_id);
        assert_eq!(members.len() as i32, shard.get::<_, i32>(4), "microshards of {shard_id}");
        let key = uri.strip_prefix(&format!("{output}/")).unwrap_or_else(|| panic!("{uri} is not below {output}"));
        let bytes = std::fs::read(directory.join(key)).unwrap();
        assert_eq!((bytes.len() as i64, sha256(&bytes)), (shard.get(5), shard.get(6)), "{key}");
        let text = decompressed(&directory.join(key));
        let rows: Vec<u8> = rows_of(objects, &members).concat();
        assert!(text == rows, "{key} does not hold the rows of its microshards, as they are and in their order");
        assert_eq!(text.split(|byte| *byte == b'\n').count() as i64 - 1, shard.get::<_, i64>(3), "rows of {key}");
        in_shards.entry(language).or_default().extend(members.iter().map(|(id, _)| id));
        expected.push(key.to_owned());
    }
    expected.sort();
    let objects_there: Vec<String> = files(directory).into_iter().filter(|name| !is_servers_own(name)).collect();
    assert_eq!(objects_there, expected, "objects of the output");
    check_index(directory, &shards);
    assert_eq!(in_shards.values().map(Vec::len).sum::<usize>() as i64, statuses(client)["consumed"]);
    check_order(client, &in_shards, &shards);
}

/// Across the shards of a language, by `seq`, microshards are in the order of their creation. With several snapshots
/// each has an order of its own.
fn check_order(client: &mut Client, in_shards: &BTreeMap<String, Vec<i64>>, shards: &[postgres::Row]) {
    let snapshot = |shard: &postgres::Row| shard.get::<_, String>(0).rsplit('-').nth(1).map(str::to_owned);
    if shards.iter().any(|shard| snapshot(shard) != snapshot(&shards[0])) {
        return;
    }
    for (language, ids) in in_shards {
        let in_order = members(client, "language = $1 AND status = 'consumed'", language);
        assert!(in_order.iter().map(|(id, _)| id).eq(ids), "{language} is in another order");
    }
}

/// The index lists the shards that Postgres has, and their sums.
fn check_index(directory: &Path, shards: &[postgres::Row]) {
    let text = std::fs::read(directory.join("index.json")).unwrap();
    let index: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let listed: BTreeMap<_, _> =
        index["shards"].as_array().unwrap().iter().map(|shard| (shard["sha256"].as_str().unwrap(), shard)).collect();
    assert_eq!((listed.len(), index["totals"]["shards"].as_u64()), (shards.len(), Some(shards.len() as u64)));
    for shard in shards {
        let entry = listed[shard.get::<_, &str>(6)];
        assert!(shard.get::<_, &str>(2).ends_with(entry["uri"].as_str().unwrap()));
        assert_eq!(entry["rows"], shard.get::<_, i64>(3));
        assert_eq!(entry["bytes"], shard.get::<_, i64>(5));
    }
    let rows: i64 = shards.iter().map(|shard| shard.get::<_, i64>(3)).sum();
    assert_eq!(index["totals"]["rows"], rows);
}

/// (id, uri) in the order of creation, as Postgres orders them.
fn members(client: &mut Client, condition: &str, value: &str) -> Vec<(i64, String)> {
    let sql = format!(
        "SELECT microshard_id, uri FROM final_export_microshards WHERE {condition} ORDER BY created_at, microshard_id"
    );
    client.query(&sql, &[&value]).unwrap().iter().map(|row| (row.get(0), row.get(1))).collect()
}

/// The rows of each microshard, every one with its newline.
fn rows_of(objects: &Path, members: &[(i64, String)]) -> Vec<Vec<u8>> {
    let scratch = tempfile::tempdir().unwrap();
    let with = |end: &str| -> Vec<PathBuf> {
        members.iter().filter(|(_, uri)| uri.ends_with(end)).map(|(_, uri)| objects.join(uri)).collect()
    };
    let zstd = with(".zst");
    if !zstd.is_empty() {
        tool(Command::new("zstd").args(["-dq", "--output-dir-flat"]).arg(scratch.path()).args(zstd));
    }
    let gzip: Vec<PathBuf> = with(".gz")
        .iter()
        .map(|path| {
            let copy = scratch.path().join(path.file_name().unwrap());
            std::fs::copy(path, &copy).unwrap();
            copy
        })
        .collect();
    if !gzip.is_empty() {
        tool(Command::new("gzip").arg("-d").args(gzip));
    }
    let text = |uri: &String| match uri.rsplit_once('.').unwrap() {
        (name, "zst" | "gz") => std::fs::read(scratch.path().join(name.rsplit('/').next().unwrap())).unwrap(),
        _ => std::fs::read(objects.join(uri)).unwrap(),
    };
    members.iter().map(|(_, uri)| rows(&text(uri))).collect()
}

/// What of a microshard's text belongs into a shard: no byte order mark, no `\r`, no blank line, a newline after each row.
fn rows(text: &[u8]) -> Vec<u8> {
    let text = text.strip_prefix("\u{feff}".as_bytes()).unwrap_or(text);
    let lines = text.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    lines.filter(|line| !line.is_empty()).flat_map(|line| [line, b"\n"]).flatten().copied().collect()
}

/// A shard's text.
pub(crate) fn decompressed(path: &Path) -> Vec<u8> {
    tool(Command::new("zstd").arg("-dcq").arg(path))
}

/// The files that the S3 server keeps beside its objects.
fn is_servers_own(name: &str) -> bool {
    let name = name.rsplit('/').next().unwrap_or(name);
    name.starts_with(".bucket-")
}
