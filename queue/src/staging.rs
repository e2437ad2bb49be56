//! Where a manifest is streamed to before it is planned, and what brings it into plan order.

use std::collections::BTreeMap;
use std::path::Path;

use crate::error::{Error, Result};
use crate::record;
use crate::sorter::Sorter;

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

/// 1 PiB: a size beyond it is a mistake of the manifest, and sums of such sizes would overflow.
const BYTES_MAX: u64 = 1 << 50;
/// Bytes of a language or a run id: with both, a shard's name must still be a file's.
pub(crate) const NAME_MAX: usize = 100;

/// A staged manifest.
#[derive(Debug)]
pub(crate) struct Staging {
    sorter: Sorter,
    languages: BTreeMap<String, u32>,
}

impl Staging {
    /// `path` is where the file is made.
    pub(crate) fn create(path: &Path) -> Result<Staging> {
        Ok(Staging { sorter: Sorter::create(path)?, languages: BTreeMap::new() })
    }

    /// Adds one microshard.
    pub(crate) fn add(&mut self, item: &Item) -> Result<()> {
        if let Some(bytes) = item.bytes.filter(|bytes| *bytes > BYTES_MAX) {
            let id = item.microshard_id.map_or_else(|| "a microshard".to_owned(), |id| format!("microshard {id}"));
            return Err(Error::Input(format!(
                "the manifest says that {id} has {bytes} bytes: no object is that large"
            )));
        }
        if item.language.len() > NAME_MAX {
            let (id, bytes) = (item.microshard_id.map_or_else(String::new, |id| format!(" {id}")), item.language.len());
            return Err(Error::Input(format!(
                "the language of microshard{id} has {bytes} bytes, at most {NAME_MAX} fit into the names of shards"
            )));
        }
        let language = match self.languages.get(&item.language) {
            Some(number) => *number,
            None => {
                let number = self.languages.len() as u32;
                self.languages.insert(item.language.clone(), number);
                number
            }
        };
        self.sorter.add(|record| record::append(language, item, record))
    }

    /// Calls `each` for every staged microshard in plan order, language by language. More may be added after it.
    pub(crate) fn for_each_in_plan_order(&mut self, mut each: impl FnMut(&Item) -> Result<()>) -> Result<()> {
        let names: BTreeMap<u32, &String> = self.languages.iter().map(|(name, number)| (*number, name)).collect();
        let mut item = Item::default();
        self.sorter.for_each(|key, rest| {
            let language = record::read(key, rest, &mut item).and_then(|number| names.get(&number));
            let Some(language) = language else {
                return Err(Error::Input("a staged microshard was damaged on disk: snapshot again".to_owned()));
            };
            item.language.clone_from(language);
            each(&item)
        })
    }
}
