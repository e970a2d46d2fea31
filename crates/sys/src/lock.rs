//! A folder that one process at a time may use.

use std::fs::{File, TryLockError};
use std::io;
use std::path::Path;

/// The right to use a folder alone. It ends when this is dropped, and with the process, however that ends.
#[derive(Debug)]
pub struct FolderLock {
    /// Closing it gives the lock back.
    _file: File,
    held: bool,
}

/// The file in the folder that is locked. It stays, empty: whoever removed it would take it from under one who just opened it.
pub const LOCK_FILE: &str = "lock";

/// A folder cannot be had alone.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Somebody else has it, another process or another part of this one.
    #[error("another process uses it")]
    Taken,
    /// The lock's file cannot be made.
    #[error("its file `{LOCK_FILE}` cannot be locked: {0}")]
    File(io::Error),
}

impl FolderLock {
    /// Takes a folder that is there. Nothing is waited for.
    ///
    /// # Errors
    /// [`LockError`]
    pub fn take(folder: &Path) -> Result<FolderLock, LockError> {
        let file = File::options().write(true).create(true).truncate(false).open(folder.join(LOCK_FILE));
        let file = file.map_err(LockError::File)?;
        match file.try_lock() {
            Ok(()) => Ok(FolderLock { _file: file, held: true }),
            Err(TryLockError::WouldBlock) => Err(LockError::Taken),
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => {
                Ok(FolderLock { _file: file, held: false })
            }
            Err(TryLockError::Error(error)) => Err(LockError::File(error)),
        }
    }

    /// False where the file system knows no locks: then others may use the folder too, and nothing here can tell.
    pub fn is_held(&self) -> bool {
        self.held
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_has_one_user_at_a_time() {
        let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let first = FolderLock::take(folder.path()).unwrap();
        assert!(first.is_held());
        assert!(matches!(FolderLock::take(folder.path()), Err(LockError::Taken)));
        FolderLock::take(other.path()).unwrap();
        drop(first);
        FolderLock::take(folder.path()).unwrap();
        assert!(matches!(FolderLock::take(&folder.path().join("none")), Err(LockError::File(_))));
    }
}
