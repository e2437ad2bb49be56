//! Objects in a directory tree. A shard is written under a temporary name in its own directory and renamed, never over
//! another file; both the file and its directory are synced (I6). No key leads out of the base, by `..` or by a link.

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tempfile::TempPath;

use super::range::Exactly;
use super::{
    Digest, Digester, Entry, GetOptions, Head, ObjectStore, Part, Range, RangeOptions, Result, Spool, StoreError,
    Trouble, UploadLog, Version, range, uri,
};
use crate::faults::step;

const TEMPORARY: &str = ".compact-local-";
const UNFINISHED: &str = ".part";

/// A directory.
#[derive(Debug)]
pub struct LocalStore {
    base: PathBuf,
    tag: String,
}

impl LocalStore {
    /// A store over `base`, which need not exist yet. `tag` names the queue: only its temporary files are swept.
    pub fn new(base: &Path, tag: &str) -> LocalStore {
        let tag = tag.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        LocalStore { base: base.to_owned(), tag }
    }

    /// The path of `key`, which may not exist yet; what exists of it is inside the base.
    fn path(&self, operation: &'static str, key: &str) -> Result<PathBuf> {
        let refused = |cause| StoreError::new(operation, self.shown(key), Trouble::Gone, cause);
        if key.is_empty() || key.starts_with('/') || key.contains('\0') {
            return Err(refused("its name is not a path inside the directory".into()));
        }
        uri::refuse_dot_segments(key).map_err(refused)?;
        let path = self.base.join(key);
        self.stays_inside(&path).map_err(|error| match error.kind() {
            ErrorKind::InvalidInput => refused("a symbolic link leads out of the directory: give the real one".into()),
            _ => self.failed(operation, key, error),
        })?;
        Ok(path)
    }

    /// Resolves links of the deepest part that exists. Guards against mistakes, not against a race with an enemy.
    fn stays_inside(&self, path: &Path) -> io::Result<()> {
        let base = match self.base.canonicalize() {
            Ok(base) => base,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        for ancestor in path.ancestors().take_while(|ancestor| ancestor.starts_with(&self.base)) {
            match ancestor.canonicalize() {
                Ok(real) if real.starts_with(&base) => return Ok(()),
                Ok(_) => return Err(ErrorKind::InvalidInput.into()),
                // A dangling link would be followed by whoever creates the file.
                Err(error) if is_absent(&error) && !ancestor.is_symlink() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn shown(&self, key: &str) -> String {
        self.base.join(key.trim_start_matches('/')).display().to_string()
    }

    fn failed(&self, operation: &'static str, key: &str, error: io::Error) -> StoreError {
        local_error(operation, self.shown(key), error)
    }

    /// A temporary file in `directory`, which is created where it is missing, durably.
    fn temporary(&self, operation: &'static str, directory: &Path) -> Result<(File, TempPath)> {
        let failed = |error| local_error(operation, directory.display().to_string(), error);
        step("temporary file: create").and_then(|()| create_directories(directory)).map_err(failed)?;
        let prefix = format!("{TEMPORARY}{}-", self.tag);
        // A temporary file is private; an output is as readable as any other new file (the umask is applied to this).
        let readable = fs::Permissions::from_mode(0o666);
        let mut builder = tempfile::Builder::new();
        let file = builder.prefix(&prefix).suffix(UNFINISHED).permissions(readable).tempfile_in(directory);
        Ok(file.map_err(failed)?.into_parts())
    }

    fn is_temporary(name: &str) -> bool {
        name.starts_with(TEMPORARY) && name.ends_with(UNFINISHED)
    }

    fn open(&self, key: &str) -> Result<File> {
        let path = self.path("get", key)?;
        open_regular(&path).map_err(|error| match is_absent(&error) {
            true => StoreError { trouble: Trouble::Gone, ..self.failed("get", key, error) },
            false => self.failed("get", key, error),
        })
    }

    fn digest(&self, operation: &'static str, key: &str, path: &Path) -> Result<Option<Digest>> {
        let file = match open_regular(path) {
            Ok(file) => file,
            Err(error) if is_absent(&error) => return Ok(None),
            Err(error) => return Err(self.failed(operation, key, error)),
        };
        digest_of(&file).map(Some).map_err(|error| self.failed(operation, key, error))
    }
}

impl ObjectStore for LocalStore {
    fn base(&self) -> String {
        self.base.display().to_string()
    }

    fn get(&self, key: &str, body: &mut Vec<u8>, options: GetOptions) -> Result<()> {
        body.clear();
        let file = self.open(key)?;
        let read = file.take(options.bytes_max.saturating_add(1)).read_to_end(body);
        read.map_err(|error| self.failed("get", key, error))?;
        if body.len() as u64 > options.bytes_max {
            let cause = format!("it is larger than {} bytes", options.bytes_max);
            return Err(StoreError::new("get", self.shown(key), Trouble::TooLarge, cause));
        }
        Ok(())
    }

    fn get_range(&self, key: &str, range: Range, options: RangeOptions<'_>) -> Result<Part> {
        let failed = |error| self.failed("get", key, error);
        let mut file = self.open(key)?;
        let version = version_of(&file.metadata().map_err(failed)?);
        range::same_version("get", &self.shown(key), options, &version)?;
        let size = version.bytes.unwrap_or_default();
        let Some((offset, bytes)) = range.within(size) else {
            let cause = format!("it has {size} bytes, and not the ones that are looked for");
            return Err(StoreError::new("get", self.shown(key), Trouble::Gone, cause));
        };
        file.seek(SeekFrom::Start(offset)).map_err(failed)?;
        let body =
            Exactly { reader: file, left: Some(bytes), operation: "get", object: self.shown(key), failed: local_error };
        Ok(Part { version, offset, body: Box::new(body) })
    }

    fn head(&self, key: &str) -> Result<Option<Head>> {
        let path = self.path("head", key)?;
        let digest = self.digest("head", key, &path)?;
        Ok(digest.map(|digest| Head { bytes: digest.bytes, sha256: Some(digest.sha256) }))
    }

    fn spool(&self, key: &str) -> Result<Spool> {
        let path = self.path("put", key)?;
        let (file, temporary) = self.temporary("put", path.parent().unwrap_or(&self.base))?;
        Ok(Spool { file, path: Some(temporary) })
    }

    fn put(&self, key: &str, spool: Spool, digest: &Digest, _: &dyn UploadLog) -> Result<()> {
        let path = self.path("put", key)?;
        let refused = |trouble, cause: &str| StoreError::new("put", self.shown(key), trouble, cause);
        let failed = |error| self.failed("put", key, error);
        let temporary = spool.path.ok_or_else(|| refused(Trouble::Local, "it was not spooled into this directory"))?;
        // Read back before it has a name: a file with other bytes than were built is never published.
        if step("put: read back").and_then(|()| digest_of(&spool.file)).map_err(failed)? != *digest {
            return Err(refused(Trouble::Local, "its file has other bytes than were written to it: check the disk"));
        }
        step("put: sync").and_then(|()| spool.file.sync_all()).map_err(failed)?;
        step("put: rename").map_err(failed)?;
        match temporary.persist_noclobber(&path) {
            Ok(()) => {
                let directory = path.parent().unwrap_or(&self.base);
                step("put: sync directory").and_then(|()| sync_directory(directory)).map_err(failed)
            }
            Err(error) if error.error.kind() == ErrorKind::AlreadyExists => match self.digest("put", key, &path)? {
                Some(there) if there == *digest => sync_published(&path).map_err(failed),
                _ => Err(refused(Trouble::Conflict, "a file with other bytes is there already")),
            },
            Err(error) => Err(failed(error.error)),
        }
    }

    fn replace(&self, key: &str, bytes: &[u8]) -> Result<()> {
        let path = self.path("replace", key)?;
        let directory = path.parent().unwrap_or(&self.base);
        let failed = |error| self.failed("replace", key, error);
        let (mut file, temporary) = self.temporary("replace", directory)?;
        // Two processes may do this at a time: tells the other's `sweep` that we live. Without locks it may make us fail.
        let _ = file.try_lock();
        step("replace: write").and_then(|()| file.write_all(bytes)).map_err(failed)?;
        step("replace: sync").and_then(|()| file.sync_all()).map_err(failed)?;
        step("replace: rename").map_err(failed)?;
        temporary.persist(&path).map_err(|error| failed(error.error))?;
        step("replace: sync directory").and_then(|()| sync_directory(directory)).map_err(failed)
    }

    fn list(&self, prefix: &str, each: &mut dyn FnMut(Entry) -> Result<()>) -> Result<()> {
        // The prefix may end in the middle of a name; the walk begins at the directory above.
        let directory = prefix.rsplit_once('/').map_or("", |(directory, _)| directory);
        let begin = if directory.is_empty() { self.base.clone() } else { self.path("list", directory)? };
        self.walk("list", &begin, &mut |path, bytes| {
            let Some(key) = path.strip_prefix(&self.base).ok().and_then(Path::to_str) else {
                let cause = "its name is not UTF-8: rename it";
                return Err(StoreError::new("list", path.display().to_string(), Trouble::Gone, cause));
            };
            let name = key.rsplit('/').next().unwrap_or(key);
            if key.starts_with(prefix) && !LocalStore::is_temporary(name) {
                each(Entry { key: key.to_owned(), bytes })?;
            }
            Ok(())
        })
    }

    fn abort(&self, _: &str, _: &str) -> Result<()> {
        // Nothing is uploaded in parts here; `sweep` removes what a killed process left.
        Ok(())
    }

    fn sweep(&self) -> Result<u64> {
        let ours = format!("{TEMPORARY}{}-", self.tag);
        let mut removed = 0;
        self.walk("sweep", &self.base, &mut |path, _| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if name.starts_with(&ours) && LocalStore::is_temporary(name) && !is_in_use(path) {
                match fs::remove_file(path) {
                    Err(error) if error.kind() != ErrorKind::NotFound => {
                        return Err(local_error("remove", path.display().to_string(), error));
                    }
                    _ => removed += 1,
                }
            }
            Ok(())
        })?;
        Ok(removed)
    }

    fn check_writable(&self) -> Result<()> {
        let failed = |error| local_error("write to", self.base(), error);
        let (mut file, temporary) = self.temporary("write to", &self.base)?;
        step("check: write").and_then(|()| file.write_all(b"compact-local")).map_err(failed)?;
        file.sync_all().map_err(failed)?;
        temporary.close().map_err(failed)
    }
}

impl LocalStore {
    /// Calls `each` for every regular file under `begin`; a directory that is not there is empty.
    fn walk(
        &self,
        operation: &'static str,
        begin: &Path,
        each: &mut dyn FnMut(&Path, u64) -> Result<()>,
    ) -> Result<()> {
        let mut directories = vec![begin.to_owned()];
        while let Some(directory) = directories.pop() {
            let failed = |error| local_error(operation, directory.display().to_string(), error);
            let entries = match fs::read_dir(&directory) {
                Ok(entries) => entries,
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => return Err(failed(error)),
            };
            for entry in entries {
                let entry = entry.map_err(failed)?;
                let (path, kind) = (entry.path(), entry.file_type().map_err(failed)?);
                let failed = |error| local_error(operation, path.display().to_string(), error);
                if kind.is_dir() {
                    directories.push(path);
                } else if kind.is_symlink() {
                    self.linked(operation, &path, each)?;
                } else if kind.is_file() {
                    match entry.metadata() {
                        Ok(metadata) => each(&path, metadata.len())?,
                        // Removed since the directory was read, as a temporary file is.
                        Err(error) if error.kind() == ErrorKind::NotFound => {}
                        Err(error) => return Err(failed(error)),
                    }
                }
            }
        }
        Ok(())
    }

    /// A link to a file inside is that file; any other would be passed over in silence or walked in circles.
    fn linked(
        &self,
        operation: &'static str,
        path: &Path,
        each: &mut dyn FnMut(&Path, u64) -> Result<()>,
    ) -> Result<()> {
        match (self.stays_inside(path), fs::metadata(path)) {
            (Ok(()), Ok(metadata)) if metadata.is_file() => each(path, metadata.len()),
            _ => {
                let cause = "a symbolic link to a directory, out of the base or to nothing is not followed: remove it";
                Err(StoreError::new(operation, path.display().to_string(), Trouble::Local, cause))
            }
        }
    }
}

/// Who replaces an object holds a lock on its temporary file.
fn is_in_use(path: &Path) -> bool {
    File::open(path).is_ok_and(|file| matches!(file.try_lock(), Err(TryLockError::WouldBlock)))
}

/// There is no such file, and no directory it could be in.
fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

fn local_error(operation: &'static str, object: String, error: io::Error) -> StoreError {
    let advice = match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "free some space, then run again",
        ErrorKind::ReadOnlyFilesystem => "it is mounted read-only",
        ErrorKind::PermissionDenied => "check its owner and permissions",
        _ => return StoreError::local(operation, object, error),
    };
    let mut failure = StoreError::local(operation, object, error);
    failure.cause = format!("{}: {advice}", failure.cause);
    failure
}

/// Files have no ETag: what changes when they are written to or replaced serves as one.
fn version_of(metadata: &fs::Metadata) -> Version {
    let (device, inode) = (metadata.dev(), metadata.ino());
    let etag = format!("{device}-{inode}-{}.{:09}", metadata.mtime(), metadata.mtime_nsec());
    Version { bytes: Some(metadata.len()), etag: Some(etag), modified: None }
}

/// Opening a pipe would wait for its writer, so only files are opened.
fn open_regular(path: &Path) -> io::Result<File> {
    match fs::metadata(path)? {
        metadata if metadata.is_file() => File::open(path),
        _ => Err(io::Error::new(ErrorKind::NotFound, "there is something else than a file")),
    }
}

fn digest_of(mut file: &File) -> io::Result<Digest> {
    file.rewind()?;
    let mut digester = Digester::default();
    io::copy(&mut file, &mut digester)?;
    Ok(digester.finish())
}

/// The file may stem from a process that was killed between its rename and its sync.
fn sync_published(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()?;
    sync_directory(path.parent().unwrap_or(Path::new("/")))
}

fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// Like `create_dir_all`, and the new names survive a power cut.
fn create_directories(directory: &Path) -> io::Result<()> {
    if directory.is_dir() {
        return Ok(());
    }
    let parent = directory.parent().unwrap_or(Path::new("/"));
    create_directories(parent)?;
    match fs::create_dir(directory) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    sync_directory(parent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_refuses_is_told_with_what_to_do() {
        for (kind, advice) in [
            (ErrorKind::StorageFull, "free some space"),
            (ErrorKind::QuotaExceeded, "free some space"),
            (ErrorKind::ReadOnlyFilesystem, "read-only"),
            (ErrorKind::PermissionDenied, "permissions"),
        ] {
            let error = local_error("put", "/out/a".into(), kind.into());
            assert_eq!(error.trouble, Trouble::Local);
            assert!(error.to_string().contains(advice), "{error}");
        }
    }
}
