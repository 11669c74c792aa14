//! The registers of a place in a program, by their role there.

use beeline_uapi::linux;

/// The kernel's `struct pt_regs`, which uprobe programs get as context.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, Default)]
pub struct PtRegs(pub linux::PtRegs);

/// At any place.
impl PtRegs {
    /// Returns the instruction pointer.
    #[inline(always)]
    pub(crate) fn ip(&self) -> u64 {
        self.0.ip
    }

    /// Sets the instruction pointer.
    #[inline(always)]
    pub(crate) fn set_ip(&mut self, ip: u64) {
        self.0.ip = ip;
    }

    /// Returns the stack pointer.
    #[inline(always)]
    pub(crate) fn sp(&self) -> u64 {
        self.0.sp
    }

    /// Adds to the stack pointer.
    #[inline(always)]
    pub(crate) fn add_sp(&mut self, by: i32) {
        self.0.sp = self.0.sp.wrapping_add_signed(by.into());
    }

    /// Returns the frame pointer.
    #[inline(always)]
    pub(crate) fn frame_pointer(&self) -> u64 {
        self.0.bp
    }

    /// True if all registers are those of the place. Trampolines of programs that look at none save
    /// the time to store them.
    #[inline(always)]
    pub(crate) fn are_shown(&self) -> bool {
        self.0.cs != 0
    }

    /// Says that some registers are not those of the place.
    #[inline(always)]
    pub(crate) fn hide(&mut self) {
        self.0.cs = 0;
    }
}

/// At a system call.
impl PtRegs {
    /// Returns the call's number.
    #[inline(always)]
    pub fn call_number(&self) -> u64 {
        self.0.orig_ax
    }

    /// Returns the call's arguments.
    #[inline(always)]
    pub fn call_arguments(&self) -> [u64; 6] {
        [
            self.0.di, self.0.si, self.0.dx, self.0.r10, self.0.r8, self.0.r9,
        ]
    }

    /// Returns the sixth argument.
    #[inline(always)]
    pub(crate) fn last_argument(&self) -> u64 {
        self.0.r9
    }

    /// Changes the sixth argument.
    #[inline(always)]
    pub(crate) fn set_last_argument(&mut self, to: u64) {
        self.0.r9 = to;
    }

    /// Returns the result of a call or a function that has returned.
    #[inline(always)]
    pub(crate) fn result(&self) -> u64 {
        self.0.ax
    }

    /// Gives a call a result.
    #[inline(always)]
    pub(crate) fn set_result(&mut self, result: u64) {
        self.0.ax = result;
    }
}

/// At a function's first instruction, and behind its return.
impl PtRegs {
    /// Creates the registers of a function with these arguments and this result, and nothing else.
    #[inline(always)]
    pub(crate) fn of_function([di, si, dx, cx, r8, r9]: [u64; 6], result: u64) -> Self {
        Self(linux::PtRegs {
            di,
            si,
            dx,
            cx,
            r8,
            r9,
            ax: result,
            ..linux::PtRegs::default()
        })
    }

    /// Returns the first three arguments.
    #[inline(always)]
    pub(crate) fn arguments(&self) -> [u64; 3] {
        [self.0.di, self.0.si, self.0.dx]
    }

    /// Replaces the first three arguments.
    #[inline(always)]
    pub(crate) fn set_arguments(&mut self, arguments: [u64; 3]) {
        [self.0.di, self.0.si, self.0.dx] = arguments;
    }

    /// Returns the address of the stack slot that holds the return address, at a function's first
    /// instruction.
    #[inline(always)]
    pub(crate) fn return_slot(&self) -> u64 {
        self.0.sp
    }

    /// Returns the address of the stack slot that held the return address, behind the return.
    #[inline(always)]
    pub(crate) fn returned_slot(&self) -> u64 {
        self.0.sp.wrapping_sub(8)
    }

    /// Changes the registers to those behind the return of a function that is about to return:
    /// `frame` bytes lie between the stack pointer and the return address. Returns those from
    /// before, for [`Self::wind`].
    ///
    /// # Safety
    ///
    /// The return address, and the caller's frame pointer below it if that is popped, must be
    /// there.
    #[inline(always)]
    pub(crate) unsafe fn unwind(&mut self, frame: u64, pops_frame_pointer: bool) -> Unwound {
        let before = Unwound {
            ip: self.0.ip,
            sp: self.0.sp,
            bp: self.0.bp,
        };
        let slot = self.0.sp.wrapping_add(frame);
        // SAFETY: the caller promises that the words are there.
        unsafe {
            self.0.ip = *(slot as *const u64);
            if pops_frame_pointer && self.are_shown() {
                self.0.bp = *((slot - 8) as *const u64);
            }
        }
        self.0.sp = slot + 8;
        before
    }

    /// Takes [`Self::unwind`] back.
    #[inline(always)]
    pub(crate) fn wind(&mut self, before: &Unwound) {
        (self.0.ip, self.0.sp, self.0.bp) = (before.ip, before.sp, before.bp);
    }

    /// Returns the stack pointer of the place that an unwinder is about to leave to, at the
    /// instruction of libgcc's that does.
    #[inline(always)]
    pub(crate) fn landing_sp(&self) -> u64 {
        self.0.cx
    }
}

/// The registers that a return changes.
pub struct Unwound {
    ip: u64,
    sp: u64,
    bp: u64,
}
