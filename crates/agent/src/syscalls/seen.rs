//! The known facts of a call, and the contexts that programs see.

use core::mem::MaybeUninit;

use beeline_isa::abi::{Entry, Run};

use super::function::{self, FunctionRoom};
use crate::abi::syscalls::{
    CONTEXT_FUNCTION, CONTEXT_KIND, CONTEXT_MODIFY, CONTEXT_PROBE, CONTEXT_RAW, CONTEXT_TRACEPOINT,
    ENTER, Record,
};
use crate::abi::{Link, NEEDS_REGISTERS, PtRegs};

/// The known facts of one side of a call.
pub(super) trait Seen {
    /// Room for contexts, on the slot's stack.
    type Room;
    /// Such room.
    const ROOM: Self::Room;

    /// Returns whether the facts are enough for a program. If not, the program was attached while
    /// this call was on its way here: that was before its time.
    fn is_enough(&self, link: &Link) -> bool;

    /// Makes the context of a link's program, by the way that it was attached. It is made anew for
    /// each, in the given room.
    fn show(&self, link: &Link, room: &mut Self::Room) -> *const u8;

    /// Runs code that needs no slot on the thread's own stack, and returns its result: a link's
    /// program, or its filter.
    ///
    /// # Safety
    ///
    /// The code must be compiled for the link's context, and `run` must be what it looks at of its
    /// environment.
    unsafe fn run_here(&self, link: &Link, entry: Entry, run: *const Run) -> u64;

    /// Runs a program that needs no slot on the thread's own stack, and returns its result.
    #[inline(always)]
    fn run_unleased(&self, link: &Link) -> u64 {
        // SAFETY: the program was checked and compiled for this context, and does not look at its
        // environment.
        unsafe { self.run_here(link, link.entry(), &raw const link.run) }
    }

    /// For [`crate::abi::Context::regs`]: not null. Only programs that pass [`Self::is_enough`]
    /// look at them.
    fn registers(&self) -> *const PtRegs;
}

/// Every program that needs no registers sees the stub's own record: programs that are not attached
/// to a tracepoint do not look at their context at all.
impl Seen for &Record {
    type Room = ();
    const ROOM: () = ();

    #[inline(always)]
    fn is_enough(&self, link: &Link) -> bool {
        link.needs & NEEDS_REGISTERS == 0
    }

    #[inline(always)]
    fn show(&self, _: &Link, (): &mut ()) -> *const u8 {
        core::ptr::from_ref(*self).cast()
    }

    #[inline(always)]
    unsafe fn run_here(&self, link: &Link, entry: Entry, run: *const Run) -> u64 {
        // SAFETY: the caller promises that the code is for this context and environment.
        unsafe { entry(self.show(link, &mut ()), run) }
    }

    #[inline(always)]
    fn registers(&self) -> *const PtRegs {
        core::ptr::from_ref(*self).cast()
    }
}

/// All registers, and whether the call is about to be made.
pub(super) struct Registers<'a> {
    pub regs: &'a PtRegs,
    pub edge: usize,
}

/// Room for a program's context at a call.
pub(super) struct Room {
    compact: MaybeUninit<Compact>,
    probe: MaybeUninit<PtRegs>,
    function: FunctionRoom,
}

/// The contexts other than a probe's.
union Compact {
    record: Record,
    words: [u64; 2],
}

/// True if its program is attached to a function that stands for calls.
#[inline(always)]
fn is_function(link: &Link) -> bool {
    link.context & CONTEXT_KIND >= CONTEXT_FUNCTION
}

impl Seen for Registers<'_> {
    type Room = Room;
    const ROOM: Room = Room {
        compact: MaybeUninit::uninit(),
        probe: MaybeUninit::uninit(),
        function: FunctionRoom::EMPTY,
    };

    #[inline(always)]
    fn is_enough(&self, _: &Link) -> bool {
        true
    }

    #[inline(always)]
    fn show(&self, link: &Link, room: &mut Room) -> *const u8 {
        if is_function(link) {
            return function::show(self.regs, link.context, &mut room.function);
        }
        match link.context {
            CONTEXT_PROBE => self.show_probe(&mut room.probe),
            _ => self.show_compactly(link, &mut room.compact),
        }
    }

    #[inline(never)]
    unsafe fn run_here(&self, link: &Link, entry: Entry, run: *const Run) -> u64 {
        if is_function(link) {
            // SAFETY: the caller promises that the code is for this context and environment.
            return unsafe { self.run_function(link, entry, run) };
        }
        if link.context == CONTEXT_PROBE {
            // SAFETY: as above.
            return unsafe { self.run_probe(entry, run) };
        }
        let mut room = MaybeUninit::uninit();
        // SAFETY: as above.
        unsafe { entry(self.show_compactly(link, &mut room), run) }
    }

    #[inline(always)]
    fn registers(&self) -> *const PtRegs {
        self.regs
    }
}

impl Registers<'_> {
    /// A separate function, as the registers that a probe sees take much room.
    ///
    /// # Safety
    ///
    /// As for [`Seen::run_here`].
    #[cold]
    #[inline(never)]
    unsafe fn run_probe(&self, entry: Entry, run: *const Run) -> u64 {
        let mut room = MaybeUninit::uninit();
        // SAFETY: the caller promises that the code is for this context and environment.
        unsafe { entry(self.show_probe(&mut room), run) }
    }

    /// As [`Self::run_probe`].
    ///
    /// # Safety
    ///
    /// As for [`Seen::run_here`].
    #[cold]
    #[inline(never)]
    unsafe fn run_function(&self, link: &Link, entry: Entry, run: *const Run) -> u64 {
        let mut room = FunctionRoom::EMPTY;
        let argument = function::show(self.regs, link.context, &mut room);
        // SAFETY: the caller promises that the code is for this context and environment.
        unsafe { entry(argument, run) }
    }

    #[inline(always)]
    fn show_compactly(&self, link: &Link, room: &mut MaybeUninit<Compact>) -> *const u8 {
        let regs = self.regs;
        let (place, room) = (core::ptr::from_ref(regs), room.as_mut_ptr());
        let words = match link.context {
            CONTEXT_TRACEPOINT => {
                let record = Record {
                    common: 0,
                    number: self.number(),
                    values: match self.edge {
                        ENTER => regs.call_arguments(),
                        _ => [regs.result(), 0, 0, 0, 0, 0],
                    },
                };
                // SAFETY: the room is the caller's, and large enough for any of a union's fields.
                unsafe { (&raw mut (*room).record).write(record) };
                return room.cast();
            }
            CONTEXT_RAW => [place as u64, self.second()],
            CONTEXT_MODIFY => [place as u64, 0],
            _ => return place.cast(),
        };
        // SAFETY: the room is the caller's, and large enough for any of a union's fields.
        unsafe { (&raw mut (*room).words).write(words) };
        room.cast()
    }

    /// Makes the context of a probe's program.
    fn show_probe(&self, room: &mut MaybeUninit<PtRegs>) -> *const u8 {
        let place = core::ptr::from_ref(self.regs) as u64;
        let regs = PtRegs::of_function([place, 0, 0, 0, 0, 0], self.second());
        core::ptr::from_ref(room.write(regs)).cast()
    }

    fn number(&self) -> u64 {
        i64::from(self.regs.call_number() as i32) as u64
    }

    /// Returns the number before the call, the result behind it.
    fn second(&self) -> u64 {
        match self.edge {
            ENTER => self.number(),
            _ => self.regs.result(),
        }
    }
}
