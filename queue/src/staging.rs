//! Where a manifest is streamed to before it is planned: a file of its own beside the queue, without journal, gone when
//! dropped. SQLite's sorter then brings it into plan order and spills to disk, so no manifest is ever held in RAM (I8).

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, Row, params};

use crate::error::{Named, Result};

/// One microshard of a manifest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Item {
    /// Its id; `None`: the queue numbers it, in the order of uris.
    pub microshard_id: Option<i64>,
    /// Its language.
    pub language: String,
    /// Where it is.
    pub uri: String,
    /// Rows it should hold.
    pub rows: Option<u32>,
    /// Its size in bytes.
    pub bytes: Option<u64>,
    /// SHA-256 of its bytes.
    pub sha256: Option<[u8; 32]>,
    /// Unix microseconds.
    pub created_at: Option<i64>,
    /// Unix microseconds.
    pub updated_at: Option<i64>,
}

/// A staged manifest.
#[derive(Debug)]
pub(crate) struct Staging {
    conn: Connection,
    path: PathBuf,
    languages: HashMap<String, i64>,
    pub(crate) items: u64,
}

impl Staging {
    pub(crate) fn create(path: &Path) -> Result<Staging> {
        remove(path)?;
        let conn = Connection::open(path).named("create", path)?;
        conn.execute_batch(
            "PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; PRAGMA cache_size=-32768; PRAGMA locking_mode=EXCLUSIVE;
             PRAGMA temp_store=FILE;
             CREATE TABLE languages(language_id INTEGER PRIMARY KEY, language TEXT NOT NULL) STRICT;
             CREATE TABLE staged(language_id INTEGER NOT NULL, created_at INTEGER, microshard_id INTEGER,
               uri TEXT NOT NULL, rows INTEGER, bytes INTEGER, sha256 BLOB, updated_at INTEGER) STRICT;
             BEGIN;",
        )
        .named("create", path)?;
        Ok(Staging { conn, path: path.to_owned(), languages: HashMap::new(), items: 0 })
    }

    /// Adds one microshard.
    pub(crate) fn add(&mut self, item: &Item) -> Result<()> {
        let language_id = self.language_id(&item.language)?;
        self.conn
            .prepare_cached("INSERT INTO staged VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)")
            .and_then(|mut insert| {
                insert.execute(params![
                    language_id,
                    item.created_at,
                    item.microshard_id,
                    item.uri,
                    item.rows,
                    item.bytes.map(|bytes| bytes as i64),
                    item.sha256,
                    item.updated_at
                ])
            })
            .named("write", &self.path)?;
        self.items += 1;
        Ok(())
    }

    /// Makes `contains` quick. Only needed where an earlier snapshot held something back.
    pub(crate) fn index(&self) -> Result<()> {
        self.conn
            .execute_batch("CREATE INDEX staged_id ON staged(microshard_id); CREATE INDEX staged_uri ON staged(uri)")
            .named("index", &self.path)
    }

    /// Whether the manifest lists this microshard.
    pub(crate) fn contains(&self, id: i64, uri: &str) -> Result<bool> {
        self.conn
            .prepare_cached(
                "SELECT EXISTS(SELECT 1 FROM staged WHERE microshard_id = ?1)
                                 OR EXISTS(SELECT 1 FROM staged WHERE uri = ?2)",
            )
            .and_then(|mut select| select.query_row(params![id, uri], |row| row.get(0)))
            .named("read", &self.path)
    }

    fn language_id(&mut self, language: &str) -> Result<i64> {
        if let Some(id) = self.languages.get(language) {
            return Ok(*id);
        }
        let id = self.languages.len() as i64;
        self.conn.execute("INSERT INTO languages VALUES(?1, ?2)", params![id, language]).named("write", &self.path)?;
        self.languages.insert(language.to_owned(), id);
        Ok(id)
    }

    /// Calls `each` for every staged microshard in plan order: language, created_at, id, uri.
    pub(crate) fn for_each_in_plan_order(&self, mut each: impl FnMut(&Item) -> Result<()>) -> Result<()> {
        let mut select = self
            .conn
            .prepare(
                "SELECT l.language, created_at, microshard_id, uri, rows, bytes, sha256, updated_at
                 FROM staged s CROSS JOIN languages l ON l.language_id = s.language_id
                 ORDER BY l.language, created_at, microshard_id, uri",
            )
            .named("read", &self.path)?;
        let mut rows = select.query([]).named("read", &self.path)?;
        let mut item = Item::default();
        while let Some(row) = rows.next().named("sort", &self.path)? {
            read(row, &mut item).named("read", &self.path)?;
            each(&item)?;
        }
        Ok(())
    }
}

/// Reads a row into `item`, reusing its strings.
fn read(row: &Row<'_>, item: &mut Item) -> rusqlite::Result<()> {
    item.language.clear();
    item.language.push_str(row.get_ref(0)?.as_str()?);
    item.created_at = row.get(1)?;
    item.microshard_id = row.get(2)?;
    item.uri.clear();
    item.uri.push_str(row.get_ref(3)?.as_str()?);
    item.rows = row.get(4)?;
    item.bytes = row.get::<_, Option<i64>>(5)?.map(|bytes| bytes as u64);
    item.sha256 = row.get(6)?;
    item.updated_at = row.get(7)?;
    Ok(())
}

impl Drop for Staging {
    fn drop(&mut self) {
        // A leftover is removed by the next snapshot as well, so a failure here loses nothing.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Removes a file of ours that an earlier process may have left.
pub(crate) fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error).named("remove", path),
        _ => Ok(()),
    }
}
