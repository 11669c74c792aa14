//! A hook in general registers only, like the agent's: it counts, records the registers that it is
//! shown, remembers return addresses, and leaves garbage in every register and flag that it may
//! change.

use std::arch::global_asm;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Tests that use the hook's records take turns.
pub static TURN: Mutex<()> = Mutex::new(());

/// Descriptor of sites without a return hook.
pub const PLAIN: u64 = 0x5eed_0000;
/// Descriptor of sites with a return hook.
pub const WATCHED: u64 = 0x5eed_0001;

unsafe extern "sysv64" {
    /// For `Full::enter`.
    pub fn test_hook_enter();
    /// For `Full::leave`.
    pub fn test_hook_leave();
    /// For `Direct::entry`, and for `Filter::entry`: lets everything pass.
    pub fn test_hook_light();
    /// For `Filter::entry`: lets nothing pass.
    pub fn test_hook_decline();
    static test_hook_entered: AtomicU64;
    static test_hook_left: AtomicU64;
    static test_hook_depth: AtomicU64;
    static test_hook_misaligned: AtomicU64;
    static test_hook_regs: [AtomicU64; 21];
}

global_asm!(
    ".bss",
    ".balign 8",
    ".globl test_hook_entered, test_hook_left, test_hook_depth, test_hook_misaligned, test_hook_regs",
    "test_hook_entered: .skip 8",
    "test_hook_left: .skip 8",
    "test_hook_depth: .skip 8",
    "test_hook_misaligned: .skip 8",
    "test_hook_regs: .skip 168",
    "test_hook_returns: .skip 65536",
    ".text",
    ".globl test_hook_enter, test_hook_leave, test_hook_light, test_hook_decline",
    "test_hook_enter:",
    "lock inc qword ptr [rip + test_hook_entered]",
    "mov rdx, rdi",
    "mov r8, rsi",
    "call test_hook_keep",
    "xor eax, eax",
    "cmp r8d, 0x5eed0001",
    "jne 2f",
    // Remember the return address that the stack pointer at the site points at.
    "mov rdx, [rdx + 152]",
    "mov rdx, [rdx]",
    "mov rcx, [rip + test_hook_depth]",
    "lea r9, [rip + test_hook_returns]",
    "mov [r9 + rcx * 8], rdx",
    "inc qword ptr [rip + test_hook_depth]",
    "mov eax, 1",
    "2:",
    "jmp test_hook_spoil",
    "test_hook_leave:",
    "lock inc qword ptr [rip + test_hook_left]",
    "call test_hook_keep",
    "dec qword ptr [rip + test_hook_depth]",
    "mov rcx, [rip + test_hook_depth]",
    "lea r9, [rip + test_hook_returns]",
    "mov rax, [r9 + rcx * 8]",
    "jmp test_hook_spoil",
    "test_hook_light:",
    "lock inc qword ptr [rip + test_hook_entered]",
    "mov rax, -1",
    "jmp test_hook_spoil",
    "test_hook_decline:",
    "lock inc qword ptr [rip + test_hook_entered]",
    "xor eax, eax",
    "jmp test_hook_spoil",
    // Copies the registers, and checks that the stack was aligned on the hook's entry.
    "test_hook_keep:",
    "test rsp, 15",
    "jz 3f",
    "inc qword ptr [rip + test_hook_misaligned]",
    "3:",
    "mov rsi, rdi",
    "lea rdi, [rip + test_hook_regs]",
    "mov ecx, 21",
    "rep movsq",
    "ret",
    "test_hook_spoil:",
    "mov rcx, 0x1111111111111111",
    "mov rdx, rcx",
    "mov rsi, rcx",
    "mov rdi, rcx",
    "mov r8, rcx",
    "mov r9, rcx",
    "mov r10, rcx",
    "mov r11, 0x7fffffffffffffff",
    // Sets all arithmetic flags but zero and carry, then carry.
    "add r11, 1",
    "stc",
    "ret",
);

/// Clears all records.
pub fn reset() {
    // SAFETY: defined above as words of zeroes.
    unsafe {
        test_hook_entered.store(0, Relaxed);
        test_hook_left.store(0, Relaxed);
        test_hook_depth.store(0, Relaxed);
        test_hook_misaligned.store(0, Relaxed);
    }
}

/// Returns the number of times a site was reached.
pub fn entered() -> u64 {
    // SAFETY: as in `reset`.
    unsafe { test_hook_entered.load(Relaxed) }
}

/// Returns the number of times a watched function returned.
pub fn left() -> u64 {
    // SAFETY: as in `reset`.
    unsafe { test_hook_left.load(Relaxed) }
}

/// Returns the number of times the stack was not aligned as on a function's entry.
pub fn misaligned() -> u64 {
    // SAFETY: as in `reset`.
    unsafe { test_hook_misaligned.load(Relaxed) }
}

/// Returns the last recorded `struct pt_regs`.
pub fn regs() -> [u64; 21] {
    // SAFETY: as in `reset`.
    unsafe { std::array::from_fn(|i| test_hook_regs[i].load(Relaxed)) }
}
