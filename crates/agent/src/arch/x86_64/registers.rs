//! The registers of a place in a program, by their role there.

/// The kernel's `struct pt_regs` on x86-64 (`arch/x86/include/asm/ptrace.h`), which uprobe programs
/// get as context.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
#[allow(missing_docs)]
pub struct PtRegs {
    pub r15: u64,
    pub r14: u64,
    pub r13: u64,
    pub r12: u64,
    pub bp: u64,
    pub bx: u64,
    pub r11: u64,
    pub r10: u64,
    pub r9: u64,
    pub r8: u64,
    pub ax: u64,
    pub cx: u64,
    pub dx: u64,
    pub si: u64,
    pub di: u64,
    pub orig_ax: u64,
    pub ip: u64,
    pub cs: u64,
    pub flags: u64,
    pub sp: u64,
    pub ss: u64,
}

/// At any place.
impl PtRegs {
    /// Returns the instruction pointer.
    #[inline(always)]
    pub(crate) fn ip(&self) -> u64 {
        self.ip
    }

    /// Sets the instruction pointer.
    #[inline(always)]
    pub(crate) fn set_ip(&mut self, ip: u64) {
        self.ip = ip;
    }

    /// Returns the stack pointer.
    #[inline(always)]
    pub(crate) fn sp(&self) -> u64 {
        self.sp
    }

    /// Adds to the stack pointer.
    #[inline(always)]
    pub(crate) fn add_sp(&mut self, by: i32) {
        self.sp = self.sp.wrapping_add_signed(by.into());
    }

    /// Returns the frame pointer.
    #[inline(always)]
    pub(crate) fn frame_pointer(&self) -> u64 {
        self.bp
    }

    /// True if all registers are those of the place. Trampolines of programs that look at none save
    /// the time to store them.
    #[inline(always)]
    pub(crate) fn are_shown(&self) -> bool {
        self.cs != 0
    }

    /// Says that some registers are not those of the place.
    #[inline(always)]
    pub(crate) fn hide(&mut self) {
        self.cs = 0;
    }
}

/// At a system call.
impl PtRegs {
    /// Returns the call's number.
    #[inline(always)]
    pub fn call_number(&self) -> u64 {
        self.orig_ax
    }

    /// Returns the call's arguments.
    #[inline(always)]
    pub fn call_arguments(&self) -> [u64; 6] {
        [self.di, self.si, self.dx, self.r10, self.r8, self.r9]
    }

    /// Returns the result of a call or a function that has returned.
    #[inline(always)]
    pub(crate) fn result(&self) -> u64 {
        self.ax
    }

    /// Gives a call a result.
    #[inline(always)]
    pub(crate) fn set_result(&mut self, result: u64) {
        self.ax = result;
    }
}

/// At a function's first instruction, and behind its return.
impl PtRegs {
    /// Creates the registers of a function with these arguments and this result, and nothing else.
    #[inline(always)]
    pub(crate) fn of_function([di, si, dx, cx, r8, r9]: [u64; 6], result: u64) -> Self {
        Self {
            di,
            si,
            dx,
            cx,
            r8,
            r9,
            ax: result,
            ..Self::default()
        }
    }

    /// Returns the first three arguments.
    #[inline(always)]
    pub(crate) fn arguments(&self) -> [u64; 3] {
        [self.di, self.si, self.dx]
    }

    /// Replaces the first three arguments.
    #[inline(always)]
    pub(crate) fn set_arguments(&mut self, arguments: [u64; 3]) {
        [self.di, self.si, self.dx] = arguments;
    }

    /// Returns the address of the stack slot that holds the return address, at a function's first
    /// instruction.
    #[inline(always)]
    pub(crate) fn return_slot(&self) -> u64 {
        self.sp
    }

    /// Returns the address of the stack slot that held the return address, behind the return.
    #[inline(always)]
    pub(crate) fn returned_slot(&self) -> u64 {
        self.sp.wrapping_sub(8)
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
            ip: self.ip,
            sp: self.sp,
            bp: self.bp,
        };
        let slot = self.sp.wrapping_add(frame);
        // SAFETY: the caller promises that the words are there.
        unsafe {
            self.ip = *(slot as *const u64);
            if pops_frame_pointer && self.are_shown() {
                self.bp = *((slot - 8) as *const u64);
            }
        }
        self.sp = slot + 8;
        before
    }

    /// Takes [`Self::unwind`] back.
    #[inline(always)]
    pub(crate) fn wind(&mut self, before: &Unwound) {
        (self.ip, self.sp, self.bp) = (before.ip, before.sp, before.bp);
    }

    /// Returns the stack pointer of the place that an unwinder is about to leave to, at the
    /// instruction of libgcc's that does.
    #[inline(always)]
    pub(crate) fn landing_sp(&self) -> u64 {
        self.cx
    }
}

/// The registers that a return changes.
pub struct Unwound {
    ip: u64,
    sp: u64,
    bp: u64,
}
