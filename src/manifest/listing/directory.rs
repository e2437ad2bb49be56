//! A directory as a listing: every file below it is a microshard, the folder on the first level is its language. Sorted
//! by path, so two walks give the same records; one folder's names are in memory at a time, never the whole tree's.
//! Hidden files (`.x`) and markers (`_SUCCESS`: an underscore and no extension of ours) are skipped; any other file that
//! is no microshard, and a folder `_x`, is an error, since leaving it out might lose rows.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::manifest::{Record, Selection};
use crate::shown::one_line;

const EXTENSIONS: [&str; 3] = [".jsonl", ".jsonl.zst", ".jsonl.gz"];
/// Files named in a message; there may be any number.
const NAMED_MAX: usize = 5;
/// Deeper than anybody sorts files: a symbolic link that leads back to a folder above itself.
const DEPTH_MAX: usize = 32;

pub(super) fn read(root: &Path, selection: &Selection, take: &mut dyn FnMut(Record) -> Result<()>) -> Result<u64> {
    let Some(run_id) = selection.run_id.clone() else {
        bail!("the directory {} does not say which run it is: name the run with --run-id", root.display());
    };
    let mut walk = Walk { root, run_id, selection, take, taken: 0, strays: Vec::new(), strays_count: 0 };
    let _ = walk.folder(root, None, 0)?; // where the limit stopped it, that is all that was wanted
    if walk.strays_count > 0 {
        let (count, root, named) = (walk.strays_count, root.display(), walk.strays.join(", "));
        let more = if count > walk.strays.len() { ", ..." } else { "" };
        let extensions = EXTENSIONS.join(", ");
        bail!(
            "{count} files in {root} are no microshards: {named}{more}. Microshards lie in a folder for each language \
             and end in {extensions}; move the others away"
        );
    }
    Ok(walk.taken)
}

struct Walk<'a> {
    root: &'a Path,
    run_id: String,
    selection: &'a Selection,
    take: &'a mut dyn FnMut(Record) -> Result<()>,
    taken: u64,
    /// The first few files that are no microshards, relative to the root.
    strays: Vec<String>,
    strays_count: usize,
}

/// A name in a folder.
struct Entry {
    path: PathBuf,
    name: String,
    metadata: fs::Metadata,
}

impl Walk<'_> {
    fn folder(&mut self, folder: &Path, language: Option<&str>, depth: usize) -> Result<ControlFlow<()>> {
        if depth > DEPTH_MAX {
            bail!("{} is more than {DEPTH_MAX} folders deep: does a link lead back?", folder.display());
        }
        for name in names(folder)? {
            let entry = Entry::read(folder, name)?;
            let flow = if entry.metadata.is_dir() {
                self.subfolder(&entry, language, depth)?
            } else {
                self.file(&entry, language)?
            };
            if flow.is_break() {
                return Ok(flow);
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn subfolder(&mut self, entry: &Entry, language: Option<&str>, depth: usize) -> Result<ControlFlow<()>> {
        if entry.name.starts_with('_') {
            self.stray(&entry.path); // `_temporary` and the like: what is in it is perhaps not finished
            return Ok(ControlFlow::Continue(()));
        }
        let languages = &self.selection.languages;
        if language.is_none() && !languages.is_empty() && !languages.contains(&entry.name) {
            return Ok(ControlFlow::Continue(()));
        }
        self.folder(&entry.path, language.or(Some(&entry.name)), depth + 1)
    }

    fn file(&mut self, entry: &Entry, language: Option<&str>) -> Result<ControlFlow<()>> {
        let recognised = entry.metadata.is_file() && EXTENSIONS.iter().any(|end| entry.name.ends_with(end));
        let (Some(language), true) = (language, recognised) else {
            if recognised || !entry.name.starts_with('_') {
                self.stray(&entry.path);
            }
            return Ok(ControlFlow::Continue(()));
        };
        if self.selection.limit.is_some_and(|limit| self.taken >= limit) {
            return Ok(ControlFlow::Break(()));
        }
        let uri = entry.path.to_str().with_context(|| format!("{} is not UTF-8", entry.path.display()))?;
        (self.take)(Record {
            run_id: self.run_id.clone(),
            language: language.to_owned(),
            uri: uri.to_owned(),
            byte_size: Some(entry.metadata.len()),
            ..Record::default()
        })?;
        self.taken += 1;
        Ok(ControlFlow::Continue(()))
    }

    fn stray(&mut self, path: &Path) {
        self.strays_count += 1;
        if self.strays.len() < NAMED_MAX {
            let shown = path.strip_prefix(self.root).unwrap_or(path).display().to_string();
            self.strays.push(one_line(&shown).into_owned());
        }
    }
}

impl Entry {
    /// Follows symbolic links: a language's folder may lie on another disk.
    fn read(folder: &Path, name: String) -> Result<Entry> {
        let path = folder.join(&name);
        let metadata = fs::metadata(&path).with_context(|| format!("failed to look at {}", path.display()))?;
        Ok(Entry { path, name, metadata })
    }
}

/// The names in a folder that are not hidden, sorted.
fn names(folder: &Path) -> Result<Vec<String>> {
    let failed = || format!("failed to list {}", folder.display());
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).with_context(failed)? {
        let Ok(name) = entry.with_context(failed)?.file_name().into_string() else {
            bail!("a name in {} is not UTF-8: rename it", folder.display());
        };
        if !name.starts_with('.') {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}
