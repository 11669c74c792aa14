//! A `PTRACE_SEIZE` that a signal handler can lead past, see [`alarm`](crate::alarm).

use libc::c_int;

// beeline_inject_seize(tid, options): PTRACE_SEIZE, with the kernel's own result. Nothing but its
// one call may be between the labels.
std::arch::global_asm!(
    ".pushsection .text.beeline_inject_seize, \"ax\", @progbits",
    ".balign 16",
    ".globl beeline_inject_seize",
    ".type beeline_inject_seize, @function",
    "beeline_inject_seize:",
    "mov r10, rsi",
    "mov rsi, rdi",
    "xor edx, edx",
    "mov edi, {seize}",
    "mov eax, {ptrace}",
    ".globl beeline_inject_seize_call",
    "beeline_inject_seize_call:",
    "syscall",
    ".globl beeline_inject_seize_end",
    "beeline_inject_seize_end:",
    "ret",
    ".size beeline_inject_seize, . - beeline_inject_seize",
    ".popsection",
    seize = const libc::PTRACE_SEIZE,
    ptrace = const libc::SYS_ptrace,
);

unsafe extern "C" {
    fn beeline_inject_seize(tid: i64, options: i64) -> i64;
    static beeline_inject_seize_call: u8;
    static beeline_inject_seize_end: u8;
}

/// Makes the request and returns the kernel's own result.
pub(crate) fn seize(tid: i32, options: c_int) -> i64 {
    // SAFETY: this system call takes integers only. The handler may lead past it, with the
    // registers of one that has failed.
    unsafe { beeline_inject_seize(tid.into(), options.into()) }
}

/// Leads a thread past the call in [`seize`] if it is about to make it, or to resume it. The
/// request then says EINTR. A signal handler may call this.
pub(crate) fn pass_by(context: &mut libc::ucontext_t) {
    let registers = &mut context.uc_mcontext.gregs;
    let (ip, result) = (libc::REG_RIP as usize, libc::REG_RAX as usize);
    let call = (&raw const beeline_inject_seize_call).addr() as i64;
    if registers[ip] == call && registers[result] == libc::SYS_ptrace {
        registers[ip] = (&raw const beeline_inject_seize_end).addr() as i64;
        registers[result] = -i64::from(libc::EINTR);
    }
}
