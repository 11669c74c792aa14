//! A site's own code.
//!
//! Behind the code is the stub's *record*, which [`common`](super::common) reads: the descriptor,
//! the address behind the `syscall`, and, if the number is not known, the addresses of the
//! instructions that make special calls.

use super::code::{Code, Gap};
use super::common::{BARE, CommonCode, FRAME, KEPT_FLAGS};
use super::opcodes::*;
use super::{SYSCALL, SYSCALL_LEN};
use crate::arch::x86_64::jump::displacement;
use crate::arch::x86_64::relocate::Displaced;
use crate::syscalls::{CallPatch, CallPlan, CallStub, MARKABLE, Shape, WATCHED, Window};
use crate::trampoline::EmitError;

/// Writes a stub, to be placed at `at`, in reach of the site and of `common`.
///
/// # Errors
///
/// As [`CallPlan::emit`].
pub(crate) fn call_stub(
    plan: &CallPlan,
    at: u64,
    common: &CommonCode,
    descriptor: u64,
) -> Result<CallStub, EmitError> {
    let stub = Stub {
        plan,
        common,
        code: Code::new(at),
        record: Vec::new(),
        moves: Vec::new(),
    };
    match (&plan.shape, plan.number) {
        (Shape::InPlace { entry, exit }, Some(number)) => {
            stub.in_place(descriptor, number, entry, exit.as_ref())
        }
        (
            Shape::Moved {
                before,
                behind,
                start,
                original,
                stays,
            },
            number,
        ) => {
            let moved = Moved {
                before,
                behind,
                start: *start,
                original,
                stays: *stays,
            };
            match number {
                Some(number) => stub.moved(descriptor, number, &moved),
                None => stub.dynamic(descriptor, &moved),
            }
        }
        (Shape::Caller { entry, exit }, _) => stub.caller(descriptor, entry, exit),
        // No plan is made like this.
        (Shape::InPlace { .. }, None) => Err(EmitError::NoSystemCall { site: plan.call }),
    }
}

impl CommonCode {
    /// Writes code, to be placed at `at`, for a thread behind a call that was not made by this
    /// process's code: a program's first instruction is behind its `execve`. The code calls `exit`,
    /// and goes on at `back`.
    ///
    /// # Errors
    ///
    /// [`EmitError::JumpBack`] if this code is out of a jump's reach from `at`.
    pub fn behind(
        &self,
        at: u64,
        number: u32,
        descriptor: u64,
        back: u64,
    ) -> Result<Vec<u8>, EmitError> {
        let mut code = Code::new(at);
        code.put(MOV_ECX);
        code.put(&number.to_le_bytes());
        code.put(LEA_RSP);
        code.put(&(-FRAME).to_le_bytes());
        let record = code.gap(LEA_R11);
        code.relative(CALL, self.full_exit)?;
        code.put(LEA_RSP);
        code.put(&FRAME.to_le_bytes());
        let place = code.gap(JMP_AT_RIP);
        code.fill(record);
        code.put(&descriptor.to_le_bytes());
        code.fill(place);
        code.put(&back.to_le_bytes());
        Ok(code.bytes)
    }
}

struct Moved<'a> {
    before: &'a [Displaced],
    behind: &'a [Displaced],
    start: u64,
    original: &'a [u8],
    stays: bool,
}

struct Stub<'a> {
    plan: &'a CallPlan,
    common: &'a CommonCode,
    code: Code,
    /// Displacements of instructions that take the record's address.
    record: Vec<Gap>,
    /// See [`CallStub::moves`].
    moves: Vec<(u64, u64)>,
}

impl Stub<'_> {
    fn in_place(
        mut self,
        descriptor: u64,
        number: u32,
        entry: &Window,
        exit: Option<&Window>,
    ) -> Result<CallStub, EmitError> {
        let entered_at = self.code.here();
        let mut entry_map = Vec::new();
        self.code.displaced(&entry.code, &mut entry_map)?;
        let watched = self.check(self.common.spec.watched_enter(number));
        entry_map.push((self.plan.call, self.code.here()));
        let make = self.code.here();
        self.code.jump(self.plan.call)?;

        let left_at = self.code.here();
        let behind = self.behind();
        let (done, exit) = match exit {
            Some(exit) => {
                let unknown = (!self.plan.keeps_flags && entry.moves_number()).then(|| {
                    self.code.put(CMP_EAX_ENOSYS);
                    self.code.gap(JE)
                });
                let known = self.code.here();
                let watched = self.check(self.common.spec.watched_exit(number));
                let done = self.code.here();
                let mut exit_map = Vec::new();
                self.code.rest(&exit.code, exit.end(), &mut exit_map)?;
                self.code.fill(watched);
                self.ask_exit(number, done)?;
                if let Some(unknown) = unknown {
                    self.code.fill(unknown);
                    self.make_anew(number, entry, known, done)?;
                }
                (
                    done,
                    Some(CallPatch::jump(
                        exit.start,
                        &exit.original,
                        left_at,
                        None,
                        exit_map,
                    )?),
                )
            }
            None => (behind, None),
        };

        self.code.fill(watched);
        self.ask_enter(make, done)?;
        let entry = CallPatch::jump(entry.start, &entry.original, entered_at, None, entry_map)?;
        self.finish(descriptor, &[], [entry].into_iter().chain(exit).collect())
    }

    /// Writes code that makes a call once more if a kernel uprobe has spoiled its number.
    ///
    /// When a kernel uprobe at the entry's jump goes, the file's first byte comes back. The jump's
    /// distance is then moved into eax, and the kernel knows no such call. After such an answer the
    /// call is made once more, here, if the first byte says so: the kernel may not know the right
    /// number, either. `known` is behind the call, `done` behind the code that sees its end.
    fn make_anew(
        &mut self,
        number: u32,
        entry: &Window,
        known: u64,
        done: u64,
    ) -> Result<(), EmitError> {
        let at = self.code.here();
        // The compared value stands behind the displacement.
        let end = at.wrapping_add(CMP_AT_RIP.len() as u64 + 5);
        let site = displacement(end, entry.start);
        let site = site.map_err(|source| EmitError::JumpBack { at, source })?;
        self.code.put(CMP_AT_RIP);
        self.code.put(&site.to_le_bytes());
        self.code.put(JMP);
        self.code.relative(JE, known)?;
        self.code.displaced(&entry.code, &mut Vec::new())?;
        let watched = self.check(self.common.spec.watched_enter(number));
        let make = self.code.here();
        self.put_call();
        self.code.jump(known)?;
        self.code.fill(watched);
        self.ask_enter(make, done)
    }

    fn moved(
        mut self,
        descriptor: u64,
        number: u32,
        window: &Moved,
    ) -> Result<CallStub, EmitError> {
        let at = self.code.here();
        let mut resume_map = Vec::new();
        self.code.displaced(window.before, &mut resume_map)?;
        let watched = self.check(self.common.spec.watched_enter(number));
        let make = self.make(&mut resume_map);
        let left = self.check(self.common.spec.watched_exit(number));
        let done = self.code.here();
        self.rest(window, &mut resume_map)?;

        self.code.fill(watched);
        self.ask_enter(make, done)?;
        self.code.fill(left);
        self.ask_exit(number, done)?;
        let moved = Some(self.behind().wrapping_add(1));
        let mut patch = CallPatch::jump(window.start, window.original, at, moved, resume_map)?;
        if window.stays
            && let Some(call) = patch.bytes.last_chunk_mut()
        {
            *call = SYSCALL;
        }
        self.finish(descriptor, &[], vec![patch])
    }

    fn dynamic(mut self, descriptor: u64, window: &Moved) -> Result<CallStub, EmitError> {
        let at = self.code.here();
        let mut resume_map = Vec::new();
        self.code.displaced(window.before, &mut resume_map)?;
        self.code.put(MOV_ECX_EAX);
        self.mask_number(AND_ECX);
        self.code.put(CMP_AT_R11_RCX);
        let entered = self.code.gap(JNE);
        self.code.put(CMP_BEHIND_R11_RCX);
        let left = self.code.gap(JNE);
        let plain = self.make(&mut resume_map);
        let done = self.code.here();
        self.rest(window, &mut resume_map)?;

        self.code.fill(entered);
        self.code.fill(left);
        self.ask(self.common.dynamic)?;
        self.code.relative(JE, done)?;
        self.code.put(JMP_R11);

        let mut places = vec![plain];
        for (number, _) in BARE {
            places.push(self.code.here());
            self.put_call();
            let left = self.check(self.common.spec.watched_exit(number));
            self.code.jump(done)?;
            self.code.fill(left);
            self.ask_exit(number, done)?;
        }
        let moved = Some(self.behind().wrapping_add(1));
        let patch = CallPatch::jump(window.start, window.original, at, moved, resume_map)?;
        self.finish(descriptor, &places, vec![patch])
    }

    /// Writes the windows around a call of the function that makes the system call.
    ///
    /// Until that function returns, the words in the red zone are free: it stores nothing there,
    /// and signal handlers go below. They hold the number, and the stub's address, which
    /// distinguishes it from whatever is there when a call returns that began before the patch.
    fn caller(
        mut self,
        descriptor: u64,
        entry: &Window,
        exit: &Window,
    ) -> Result<CallStub, EmitError> {
        let at = self.code.here();
        let mut entry_map = Vec::new();
        self.code.put(MOV_EAX_ESI);
        self.mask_number(AND_EAX);
        self.code.put(CMP_AT_R11_RAX);
        let entered = self.code.gap(JNE);
        let make = self.code.here();
        self.code.put(STORE_NUMBER);
        self.code.put(MOV_R11);
        self.code.put_address(at);
        self.code.put(STORE_STUB);
        self.code.displaced(&entry.code, &mut entry_map)?;

        let left_at = self.code.here();
        let mut exit_map = Vec::new();
        self.code.put(LOAD_NUMBER);
        self.mask_number(AND_ECX);
        self.code.put(CMP_BEHIND_R11_RCX);
        let left = self.code.gap(JNE);
        let done = self.code.here();
        self.code.rest(&exit.code, exit.end(), &mut exit_map)?;

        self.code.fill(left);
        self.code.put(MOV_R11);
        self.code.put_address(at);
        self.code.put(CMP_STUB);
        self.code.relative(JNE, done)?;
        self.code.put(LOAD_NUMBER);
        self.ask(self.common.full_exit)?;
        self.code.jump(done)?;

        self.code.fill(entered);
        self.ask(self.common.cancellable)?;
        self.code.relative(JE, make)?;
        self.code.jump(done)?;
        let patches = vec![
            CallPatch::jump(entry.start, &entry.original, at, None, entry_map)?,
            CallPatch::jump(exit.start, &exit.original, left_at, None, exit_map)?,
        ];
        self.finish(descriptor, &[], patches)
    }

    /// Turns the number in eax or ecx into its place in the table at r11.
    fn mask_number(&mut self, and: &[u8]) {
        const LOW_TEN_BITS: u32 = 1023;
        self.code.put(and);
        self.code.put(&LOW_TEN_BITS.to_le_bytes());
        self.code.put(MOV_R11);
        self.code.put_address(self.common.spec.watched);
    }

    /// Goes on if the byte there is zero. Otherwise jumps, with the zero flag set if it is
    /// [`WATCHED`], or, where flags are to be kept, with the byte in ecx.
    fn check(&mut self, watched: u64) -> Gap {
        if self.plan.keeps_flags {
            return self.check_by_register(watched);
        }
        // The compared value stands behind the displacement.
        let end = self.code.here().wrapping_add(CMP_AT_RIP.len() as u64 + 5);
        match displacement(end, watched) {
            Ok(near) => {
                self.code.put(CMP_AT_RIP);
                self.code.put(&near.to_le_bytes());
                self.code.put(&[WATCHED]);
            }
            Err(_) => {
                self.code.put(MOV_RCX);
                self.code.put_address(watched);
                self.code.put(CMP_AT_RCX);
            }
        }
        self.code.gap(JAE)
    }

    /// As [`check`](Self::check). The system call destroys rcx in any case.
    fn check_by_register(&mut self, watched: u64) -> Gap {
        let end = self.code.here() + MOVZX_ECX_AT_RIP.len() as u64 + 4;
        match displacement(end, watched) {
            Ok(near) => {
                self.code.put(MOVZX_ECX_AT_RIP);
                self.code.put(&near.to_le_bytes());
            }
            Err(_) => {
                self.code.put(MOV_RCX);
                self.code.put_address(watched);
                self.code.put(MOVZX_ECX_AT_RCX);
            }
        }
        self.code.put(JRCXZ_OVER_JMP);
        self.code.gap(JMP)
    }

    /// Writes the moved `syscall`, and returns its address.
    fn make(&mut self, resume_map: &mut Vec<(u64, u64)>) -> u64 {
        let make = self.code.here();
        resume_map.push((self.plan.call, make));
        self.put_call();
        resume_map.push((self.behind(), self.code.here()));
        make
    }

    fn put_call(&mut self) {
        self.code.put(&SYSCALL);
        self.moves.push((self.code.here(), self.behind()));
    }

    /// Writes the code after the moved call.
    fn rest(&mut self, window: &Moved, resume_map: &mut Vec<(u64, u64)>) -> Result<(), EmitError> {
        let end = window.start.wrapping_add(window.original.len() as u64);
        self.code.rest(window.behind, end, resume_map)
    }

    /// Returns the address behind the original `syscall`.
    fn behind(&self) -> u64 {
        self.plan.call.wrapping_add(SYSCALL_LEN)
    }

    fn ask_enter(&mut self, make: u64, done: u64) -> Result<(), EmitError> {
        if !self.plan.keeps_flags {
            self.ask(self.common.enter)?;
            self.code.relative(JE, make)?;
            return self.code.jump(done);
        }
        self.frame_with_flags();
        self.call_below_frame(self.common.enter)?;
        let skip = self.code.gap(JNE);
        self.end_frame_with_flags();
        self.code.jump(make)?;
        self.code.fill(skip);
        self.end_frame_with_flags();
        self.code.jump(done)
    }

    fn ask_exit(&mut self, number: u32, done: u64) -> Result<(), EmitError> {
        if self.plan.keeps_flags {
            self.frame_with_flags();
            self.put_number(number);
            self.call_below_frame(self.common.exit)?;
            self.end_frame_with_flags();
        } else {
            self.put_number(number);
            self.ask(self.common.exit)?;
        }
        self.code.jump(done)
    }

    /// Calls the common code below a frame. Keeps the flags on the way in and on the way back.
    fn ask(&mut self, common: u64) -> Result<(), EmitError> {
        self.begin_frame();
        self.call_below_frame(common)?;
        self.end_frame();
        Ok(())
    }

    /// Begins a frame that remembers the flags, and sets them as [`check`](Self::check) does
    /// elsewhere.
    fn frame_with_flags(&mut self) {
        self.begin_frame();
        self.code.put(STORE_FLAGS);
        self.code.put(&KEPT_FLAGS.to_le_bytes());
        self.code.put(CMP_CL);
    }

    fn end_frame_with_flags(&mut self) {
        self.code.put(PUSH_AT_RSP);
        self.code.put(&KEPT_FLAGS.to_le_bytes());
        self.code.put(POPFQ);
        self.end_frame();
    }

    fn begin_frame(&mut self) {
        self.code.put(LEA_RSP);
        self.code.put(&(-FRAME).to_le_bytes());
    }

    fn end_frame(&mut self) {
        self.code.put(LEA_RSP);
        self.code.put(&FRAME.to_le_bytes());
    }

    fn call_below_frame(&mut self, common: u64) -> Result<(), EmitError> {
        let record = self.code.gap(LEA_R11);
        self.record.push(record);
        self.code.relative(CALL, common)
    }

    fn put_number(&mut self, number: u32) {
        self.code.put(MOV_ECX);
        self.code.put(&number.to_le_bytes());
    }

    /// Adds the record.
    fn finish(
        mut self,
        descriptor: u64,
        places: &[u64],
        patches: Vec<CallPatch>,
    ) -> Result<CallStub, EmitError> {
        for gap in std::mem::take(&mut self.record) {
            self.code.fill(gap);
        }
        let markable = if self.plan.is_markable { MARKABLE } else { 0 };
        for word in [descriptor | markable, self.behind()].iter().chain(places) {
            self.code.put_address(*word);
        }
        Ok(CallStub {
            bytes: self.code.bytes,
            addresses: self.code.addresses,
            patches,
            moves: self.moves,
        })
    }
}
