//! The targets of a function's indirect jumps: the tables that compilers make of a `switch`.

use crate::arch::JumpTable;
use crate::plan::Function;
use crate::survey::Survey;

/// Returns the bytes of a file from an address on, as many as there are; `None` if nothing of the
/// file is there.
pub(super) type Data<'a> = dyn Fn(u64) -> Option<&'a [u8]> + 'a;

/// The known facts about a function's indirect jumps.
#[derive(Default)]
pub(super) struct Jumps {
    /// The targets of tables, in the function.
    pub targets: Vec<u64>,
    /// The first jump that may lead to anywhere in the function.
    pub unknown: Option<u64>,
}

impl Jumps {
    /// Follows all jumps. An address that is loaded from nothing that looks like a table is that of
    /// another function.
    pub fn of(function: &Function, survey: &Survey, data: &Data) -> Self {
        let mut jumps = Self::default();
        for (index, instruction) in survey.instructions.iter().enumerate() {
            if instruction.jumps_anywhere()
                && let Some(table) = JumpTable::of(survey, index)
                && !jumps.follow(&table, function, data)
            {
                jumps.unknown.get_or_insert(instruction.address());
            }
        }
        jumps
    }

    /// Adds the table's targets. Returns false if they cannot be found.
    fn follow(&mut self, table: &JumpTable, function: &Function, data: &Data) -> bool {
        let inside =
            |target: &u64| target.wrapping_sub(function.start) < function.code.len() as u64;
        let before = self.targets.len();
        for start in &table.starts {
            let targets = table.targets(*start, data(*start).unwrap_or_default());
            self.targets.extend(targets.into_iter().take_while(inside));
        }
        self.targets.len() > before
    }
}
