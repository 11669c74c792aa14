//! The code that a signal handler returns to, with `rt_sigreturn` as its only call.
//!
//! An unwinder in a handler has to distinguish it from a function. Where the file's unwind
//! information identifies it (a description with the augmentation `S`) its bytes are not read, and
//! they may be a jump. Elsewhere it is recognized by its bytes: `mov rax, 15; syscall`.

use super::numbers::RT_SIGRETURN;
use super::{CallPlan, CallSites, Shape, Window};
use crate::arch::{RESTORER_MOVES, SYSCALL};
use crate::plan::Function;
use crate::survey::Survey;

impl CallSites {
    /// Hooks the calls of restorers that unwind information describes, given with their code.
    ///
    /// A call is made in place, and [`CallSpec::exit`](super::CallSpec::exit) is not called for it,
    /// because nothing runs behind it. Code that does not look like a restorer is left as it is.
    pub fn hook_restorers<'a>(&mut self, restorers: impl IntoIterator<Item = Function<'a>>) {
        for plan in restorers.into_iter().filter_map(|one| plan(&one)) {
            self.unhookable
                .retain(|unhookable| unhookable.call != plan.call);
            if self.plans.iter().all(|known| known.call != plan.call) {
                self.plans.push(plan);
            }
        }
        self.plans.sort_by_key(|plan| plan.call);
    }
}

fn plan(restorer: &Function) -> Option<CallPlan> {
    let Function { start, code } = *restorer;
    let is_there = |bytes: &&&[u8]| {
        let rest = code.strip_prefix(**bytes);
        rest.is_some_and(|rest| rest.starts_with(&SYSCALL))
    };
    let original = *RESTORER_MOVES.iter().find(is_there)?;
    let function = Function {
        start,
        code: code.get(..original.len() + SYSCALL.len())?,
    };
    let number = Survey::of(&function).displaced(0, &function)?;
    Some(CallPlan {
        call: start.wrapping_add(original.len() as u64),
        number: Some(RT_SIGRETURN),
        // The flags of the frame come into force.
        keeps_flags: false,
        is_markable: false,
        shape: Shape::InPlace {
            entry: Window {
                start,
                original: original.into(),
                code: vec![number],
            },
            exit: None,
        },
    })
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use crate::syscalls::{CallForm, Unhookable};

    const START: u64 = 0x40_0000;

    fn found(code: &[u8]) -> CallSites {
        let mut sites = CallSites::of(&[Function { start: START, code }], |_| None);
        assert_eq!(sites.unhookable.len(), 1, "{sites:?}");
        assert_eq!(sites.unhookable[0].why, Unhookable::Restorer);
        sites.hook_restorers([Function { start: START, code }]);
        sites
    }

    #[test]
    fn restorers_are_hooked_in_place() {
        for bytes in RESTORER_MOVES {
            let sites = found(&[bytes, &SYSCALL, b"\x0f\x1f\x40\0"].concat());
            assert!(sites.unhookable.is_empty());
            let [plan] = sites.plans.as_slice() else {
                panic!("{sites:?}");
            };
            assert_eq!(plan.number, Some(RT_SIGRETURN));
            assert_eq!(plan.form(), CallForm::InPlace);
            assert_eq!(plan.original().collect::<Vec<_>>(), [(START, bytes)]);
        }
    }

    #[test]
    fn lookalikes_of_a_restorer_are_left_alone() {
        let sites = found(b"\x90\xb8\x0f\0\0\0\x0f\x05");
        assert!(sites.plans.is_empty());
        assert_eq!(sites.unhookable.len(), 1);
    }
}
