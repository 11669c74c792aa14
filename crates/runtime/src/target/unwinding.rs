//! Links that keep unwinders from watched returns: the agent's own, in the C library and in the
//! unwinder.

use std::borrow::Cow;
use std::path::Path;

use beeline_hook::{Function, UnwinderExit, unwinder_exits};
use beeline_inject::Region;

use super::sites::Sites;
use super::{Body, Hold, UNWINDING};

/// The functions by which an unwinder asks the C library before it looks at a return address.
const ASKED: [&str; 2] = ["_dl_find_object", "dl_iterate_phdr"];
/// The function that it asks before, if it is part of the program. Static programs have registered
/// their parts with it at their start.
const ASKED_WITHIN: &str = "_Unwind_Find_FDE";
/// The unwinder's own entry functions.
const ENTRIES: [&str; 5] = [
    "_Unwind_RaiseException",
    "_Unwind_Resume",
    "_Unwind_Resume_or_Rethrow",
    "_Unwind_ForcedUnwind",
    "_Unwind_Backtrace",
];
/// The names of the files that have these functions. Programs may also contain them themselves.
const LIBRARIES: [&str; 5] = ["libc.", "libc-", "ld-musl", "libgcc_s.", "libunwind."];

impl Sites {
    /// Hooks unwinders as long as returns are watched: those that are mapped and have not been
    /// hooked before.
    pub fn keep_unwinding(&mut self, regions: &[Region], hold: &mut Hold<'_>) {
        if !self.watches_returns {
            return;
        }
        let mut texts = self.memory.texts(regions);
        texts.retain(|path| !name_of(path).starts_with("memfd:"));
        if texts.len() == self.texts_with_unwinding {
            return;
        }
        self.texts_with_unwinding = texts.len();
        for path in texts {
            let name = name_of(&path);
            // Reading a file takes time. Other files have been read if their functions are of
            // interest.
            let is_library = LIBRARIES.iter().any(|library| name.starts_with(library));
            if is_library || self.memory.shared.files.knows(&path) {
                self.keep_unwinding_by(&path, is_library, regions, hold);
            }
        }
    }

    fn keep_unwinding_by(
        &mut self,
        path: &Path,
        is_library: bool,
        regions: &[Region],
        hold: &mut Hold<'_>,
    ) {
        let points = *self.memory.shared.agent.points();
        let [find, iterate] = ASKED;
        let mut asked = vec![
            (find, points.find_object),
            (iterate, points.iterate_objects),
        ];
        if !is_library {
            asked.push((ASKED_WITHIN, points.find_object));
        }
        for (name, point) in asked {
            let Some(place) = self.memory.shared.files.wanted(path, name) else {
                continue;
            };
            for address in place.addresses(regions) {
                let body = Body::Always(point);
                self.hook_native((address, &place), (UNWINDING, body), hold);
            }
        }
        let places = ENTRIES.map(|name| self.memory.shared.files.wanted(path, name));
        for place in places.iter().flatten() {
            for address in place.addresses(regions) {
                let (start, code) = place.function_at(address);
                for (exit, kind) in unwinder_exits(&Function { start, code }) {
                    let point = match kind {
                        UnwinderExit::Lands => points.landing,
                        UnwinderExit::Returns => points.listed,
                    };
                    let offset = place.offset + (exit - address);
                    let Ok(place) = self.memory.shared.files.place(path, offset) else {
                        continue;
                    };
                    let body = Body::Always(point);
                    self.hook_native((exit, &place), (UNWINDING, body), hold);
                }
            }
        }
    }
}

fn name_of(path: &Path) -> Cow<'_, str> {
    path.file_name().unwrap_or_default().to_string_lossy()
}
