//! The unwind tables of a session, each made once.

use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use crate::binary::unwind_table::StackTable;
use crate::file_shelf::FileShelf;
use crate::vdso;

/// The tables of files, and that of the vDSO.
#[derive(Debug, Default)]
pub struct StackTables {
    shelf: FileShelf<StackTable>,
    vdso: OnceLock<Option<Arc<StackTable>>>,
}

impl Deref for StackTables {
    type Target = FileShelf<StackTable>;

    fn deref(&self) -> &Self::Target {
        &self.shelf
    }
}

impl StackTables {
    /// Returns the table of the vDSO; `None` if there is none.
    pub fn of_vdso(&self) -> Option<Arc<StackTable>> {
        let read = || Some(Arc::new(StackTable::of(&*vdso::own()?).ok()?));
        self.vdso.get_or_init(read).clone()
    }
}
