//! Names of objects. Every part that comes from outside is reduced to `[A-Za-z0-9_.-]`, so no name leaves its prefix.

/// Replaces what has no place in a name by `_`; a leading dot too, as such files are hidden from readers.
pub fn reduce(part: &str) -> String {
    let mut name: String =
        part.chars().map(|c| if c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-') { c } else { '_' }).collect();
    if name.is_empty() || name.starts_with('.') {
        name.insert(0, '_');
    }
    name
}

/// The key of a shard's object: `{language}/{name}.{extension}`.
pub fn shard_key(language: &str, name: &str, extension: &str) -> String {
    format!("{}/{name}.{extension}", reduce(language))
}

/// The base name of a shard's object: unique over the dataset, whatever machine made it, as the manifest hands out the
/// snapshot's number.
pub fn shard_name(run_id: &str, language: &str, snapshot: u32, shard: u32) -> String {
    format!("{}-{}-{snapshot:03}-{shard:05}", reduce(run_id), reduce(language))
}
