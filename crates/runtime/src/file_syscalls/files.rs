//! The files of a session with known system calls.

use std::ops::Deref;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use super::FileCalls;
use crate::error::Error;
use crate::file_shelf::{FileShelf, FileState, FromFile};
use crate::vdso;

/// The files of a session, by what identifies their contents.
#[derive(Debug, Default)]
pub struct CallFiles {
    shelf: FileShelf<FileCalls>,
    vdso: OnceLock<Option<Arc<FileCalls>>>,
}

/// The state of a file's calls.
pub type Planned = FileState<FileCalls>;

impl FromFile for FileCalls {
    const THREAD: &'static str = "beeline-plans";

    fn read(path: &Path) -> Result<Self, Error> {
        Self::scan(path)
    }
}

impl Deref for CallFiles {
    type Target = FileShelf<FileCalls>;

    fn deref(&self) -> &Self::Target {
        &self.shelf
    }
}

impl CallFiles {
    /// Returns the calls of the vDSO, from Beeline's own copy of it, which is not hooked; `None` if
    /// there is none.
    pub fn of_vdso(&self) -> Option<Arc<FileCalls>> {
        let read = || FileCalls::of_vdso(&vdso::own()?).map(Arc::new);
        self.vdso.get_or_init(read).clone()
    }
}
