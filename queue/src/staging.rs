//! Where a manifest is streamed to before it is planned: a file of its own beside the queue, without journal, gone when
//! dropped. SQLite's sorter then brings it into plan order and spills to disk, so no manifest is ever held in RAM (I8).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags, Row, params};

use crate::copying::uri_hash;
use crate::error::{Error, Named, Result};
use crate::intake::GroupTotals;

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

/// A staged manifest: a table for each language, as sorting many small tables is cheaper than one large one.
#[derive(Debug)]
pub(crate) struct Staging {
    conn: Connection,
    path: PathBuf,
    languages: BTreeMap<String, Language>,
    has_ids: bool,
}

/// The staged microshards of one language.
#[derive(Debug)]
pub(crate) struct Language {
    /// Its table.
    pub(crate) table: String,
    /// What they come to.
    pub(crate) totals: GroupTotals,
    insert: String,
}

/// 1 PiB: a size beyond it is a mistake of the manifest, and sums of such sizes would overflow.
const BYTES_MAX: u64 = 1 << 50;
const COLUMNS: &str = "microshard_id, uri, uri_hash, rows, bytes, sha256, created_at, updated_at";
/// The order of a plan, within a language.
pub(crate) const PLAN_ORDER: &str = "created_at, microshard_id, uri";

impl Staging {
    pub(crate) fn create(path: &Path) -> Result<Staging> {
        remove(path)?;
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let conn = Connection::open_with_flags(path, flags).named("create", path)?;
        conn.execute_batch(
            "PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; PRAGMA cache_size=-32768; PRAGMA locking_mode=EXCLUSIVE;
             PRAGMA temp_store=FILE; BEGIN;",
        )
        .named("create", path)?;
        conn.set_prepared_statement_cache_capacity(256);
        Ok(Staging { conn, path: path.to_owned(), languages: BTreeMap::new(), has_ids: true })
    }

    /// Adds one microshard.
    pub(crate) fn add(&mut self, item: &Item) -> Result<()> {
        if let Some(bytes) = item.bytes.filter(|bytes| *bytes > BYTES_MAX) {
            let id = item.microshard_id.map_or_else(|| "a microshard".to_owned(), |id| format!("microshard {id}"));
            return Err(Error::Input(format!(
                "the manifest says that {id} has {bytes} bytes: no object is that large"
            )));
        }
        if !self.languages.contains_key(&item.language) {
            self.add_language(&item.language)?;
        }
        let Some(language) = self.languages.get_mut(&item.language) else { return Ok(()) };
        language.totals.add(item);
        self.has_ids &= item.microshard_id.is_some();
        self.conn
            .prepare_cached(&language.insert)
            .and_then(|mut insert| {
                insert.execute(params![
                    item.microshard_id,
                    item.uri,
                    uri_hash(&item.uri),
                    item.rows,
                    item.bytes.map(|bytes| bytes as i64),
                    item.sha256,
                    item.created_at,
                    item.updated_at
                ])
            })
            .named("write", &self.path)?;
        Ok(())
    }

    fn add_language(&mut self, language: &str) -> Result<()> {
        let table = format!("staged_{}", self.languages.len());
        self.conn
            .execute_batch(&format!(
                "CREATE TABLE {table}(microshard_id INTEGER, uri TEXT NOT NULL, uri_hash INTEGER NOT NULL, rows INTEGER,
                   bytes INTEGER, sha256 BLOB, created_at INTEGER, updated_at INTEGER) STRICT"
            ))
            .named("write", &self.path)?;
        let insert = format!("INSERT INTO {table}({COLUMNS}) VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)");
        let totals = GroupTotals::none_of(language);
        self.languages.insert(language.to_owned(), Language { table, totals, insert });
        Ok(())
    }

    /// The languages, in plan order.
    pub(crate) fn languages(&self) -> impl Iterator<Item = &Language> {
        self.languages.values()
    }

    /// The file's name for `ATTACH`, once all is written; `None` where it must be read row by row: microshards have no
    /// ids yet, or SQL cannot name the file.
    pub(crate) fn attachable(&self) -> Result<Option<&str>> {
        let Some(path) = self.path.to_str().filter(|_| self.has_ids) else { return Ok(None) };
        // The lock goes with the next read.
        self.conn
            .execute_batch("COMMIT; PRAGMA locking_mode=NORMAL; SELECT count(*) FROM sqlite_schema; BEGIN; COMMIT")
            .named("write", &self.path)?;
        Ok(Some(path))
    }

    /// Makes `contains` quick. Only needed where an earlier snapshot held something back.
    pub(crate) fn index(&self) -> Result<()> {
        for Language { table, .. } in self.languages() {
            self.conn
                .execute_batch(&format!(
                    "CREATE INDEX {table}_id ON {table}(microshard_id); CREATE INDEX {table}_uri ON {table}(uri_hash)"
                ))
                .named("index", &self.path)?;
        }
        Ok(())
    }

    /// Whether the manifest lists this microshard.
    pub(crate) fn contains(&self, id: i64, uri: &str) -> Result<bool> {
        for Language { table, .. } in self.languages() {
            let sql = format!(
                "SELECT EXISTS(SELECT 1 FROM {table} WHERE microshard_id = ?1)
                     OR EXISTS(SELECT 1 FROM {table} WHERE uri_hash = ?2 AND uri = ?3)"
            );
            let found = self
                .conn
                .prepare_cached(&sql)
                .and_then(|mut select| select.query_row(params![id, uri_hash(uri), uri], |row| row.get(0)))
                .named("read", &self.path)?;
            if found {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Calls `each` for every staged microshard in plan order.
    pub(crate) fn for_each_in_plan_order(&self, mut each: impl FnMut(&Item) -> Result<()>) -> Result<()> {
        let mut item = Item::default();
        for Language { table, totals, .. } in self.languages() {
            item.language.clone_from(&totals.language);
            let mut select = self
                .conn
                .prepare(&format!("SELECT {COLUMNS} FROM {table} ORDER BY {PLAN_ORDER}"))
                .named("read", &self.path)?;
            let mut rows = select.query([]).named("read", &self.path)?;
            while let Some(row) = rows.next().named("sort", &self.path)? {
                read(row, &mut item).named("read", &self.path)?;
                each(&item)?;
            }
        }
        Ok(())
    }
}

/// Reads a row into `item`, reusing its strings.
fn read(row: &Row<'_>, item: &mut Item) -> rusqlite::Result<()> {
    item.microshard_id = row.get(0)?;
    item.uri.clear();
    item.uri.push_str(row.get_ref(1)?.as_str()?);
    item.rows = row.get(3)?;
    item.bytes = row.get::<_, Option<i64>>(4)?.map(|bytes| bytes as u64);
    item.sha256 = row.get(5)?;
    item.created_at = row.get(6)?;
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
