//! A small disk of a test's own: a tmpfs in a mount namespace that only the test's thread, and whatever it starts, can
//! see. It is gone with them, however they end. Mounting is the right of root; without it the test fails.

use std::ffi::CString;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::PathBuf;

use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, mount_remount, unmount};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use tempfile::TempDir;

/// A disk that can be filled, grown and made read-only.
pub(crate) struct Disk {
    directory: TempDir,
}

impl Disk {
    /// An empty disk of so many bytes. Everybody may write to it.
    pub(crate) fn new(bytes: u64) -> Disk {
        let directory = tempfile::tempdir().expect("a directory");
        // SAFETY: no file descriptor is affected by a mount namespace.
        unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.unwrap_or_else(|error| cannot(error));
        mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
            .unwrap_or_else(|error| cannot(error));
        mount("none", directory.path(), "tmpfs", MountFlags::empty(), size(bytes).as_c_str())
            .unwrap_or_else(|error| cannot(error));
        Disk { directory }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Gives it another size.
    pub(crate) fn resize(&self, bytes: u64) {
        mount_remount(self.directory.path(), MountFlags::empty(), size(bytes)).expect("another size");
    }

    /// Makes it read-only, or writable again.
    pub(crate) fn set_read_only(&self, read_only: bool) {
        let flags = if read_only { MountFlags::RDONLY } else { MountFlags::empty() };
        mount_remount(self.directory.path(), flags, c"").expect("another mode");
    }

    /// Leaves no room on it.
    pub(crate) fn fill(&self) {
        let mut ballast = File::create(self.ballast()).expect("creates");
        loop {
            match ballast.write(&[0; 4096]) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::StorageFull => return,
                Err(error) => panic!("the disk cannot be filled: {error}"),
            }
        }
    }

    /// Takes away what `fill` put there.
    pub(crate) fn make_room(&self) {
        std::fs::remove_file(self.ballast()).expect("removes");
    }

    /// The names of its files, sorted.
    pub(crate) fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.directory.path()).expect("lists");
        let mut names: Vec<String> =
            entries.map(|entry| entry.expect("lists").file_name().into_string().expect("UTF-8")).collect();
        names.sort();
        names
    }

    fn ballast(&self) -> PathBuf {
        self.path("ballast")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // So that the directory below it can be removed.
        let _ = unmount(self.directory.path(), UnmountFlags::DETACH);
    }
}

fn size(bytes: u64) -> CString {
    CString::new(format!("size={bytes},mode=1777")).expect("no zero byte")
}

fn cannot(error: rustix::io::Errno) -> ! {
    panic!("a test needs a small disk and cannot mount one: {error}; run the tests as root, with CAP_SYS_ADMIN")
}
