//! Hooks of system calls in general registers only, like the agent's: they record the registers
//! that they are shown, may decline or change a call, and leave garbage in every register and flag
//! that they may change.

use std::arch::global_asm;
use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU8, AtomicU64};

use beeline_hook::{
    CallPlan, CallSites, CallSpec, CallStub, CommonCode, Function, MARKABLE, WATCHED_LEN, reach,
};

use super::elf::Library;
use super::memory::{Pool, write};

/// Tests that use the hooks' records take turns.
pub static TURN: Mutex<()> = Mutex::new(());

/// The watched calls.
pub static WATCHED: [AtomicU8; WATCHED_LEN] = [const { AtomicU8::new(0) }; WATCHED_LEN];

/// The hooks' effects besides recording.
#[derive(Debug, Clone, Copy)]
pub enum Mode {
    Look = 0,
    /// `enter` suppresses the call, with the value as the result.
    Skip = 1,
    /// `enter` sets the first argument to the value.
    Argument = 2,
    /// `exit` sets the result to the value.
    Result = 3,
    /// `enter` sets the number to the value.
    Number = 4,
}

unsafe extern "sysv64" {
    fn test_call_enter();
    fn test_call_exit();
    fn test_call_brief_enter();
    fn test_call_brief_exit();
    static test_call_len: AtomicU64;
    static test_call_misaligned: AtomicU64;
    static test_call_mode: AtomicU64;
    static test_call_value: AtomicU64;
    static test_call_log: [[AtomicU64; 23]; KEPT];
}

const KEPT: usize = 1 << 16;

global_asm!(
    ".bss",
    ".balign 8",
    ".globl test_call_len, test_call_misaligned, test_call_mode, test_call_value, test_call_log",
    "test_call_len: .skip 8",
    "test_call_misaligned: .skip 8",
    "test_call_mode: .skip 8",
    "test_call_value: .skip 8",
    "test_call_log: .skip 184 * 65536",
    ".text",
    ".globl test_call_enter, test_call_exit, test_call_brief_enter, test_call_brief_exit",
    "test_call_enter:",
    "xor edx, edx",
    "call test_call_keep",
    "mov rax, [rip + test_call_mode]",
    "mov rcx, [rip + test_call_value]",
    "cmp eax, 1",
    "je 2f",
    "cmp eax, 2",
    "je 3f",
    "cmp eax, 4",
    "je 4f",
    "xor eax, eax",
    "jmp test_call_spoil",
    "2:",
    "mov [r8 + 80], rcx",
    "mov rax, 0x100000000",
    "jmp test_call_spoil",
    "3:",
    "mov [r8 + 112], rcx",
    "xor eax, eax",
    "jmp test_call_spoil",
    "4:",
    "mov [r8 + 120], rcx",
    "xor eax, eax",
    "jmp test_call_spoil",
    // These record like the others, with the words behind the registers, and know no mode.
    "test_call_brief_enter:",
    "mov edx, 2",
    "call test_call_keep",
    "jmp test_call_spoil",
    "test_call_brief_exit:",
    "mov edx, 3",
    "call test_call_keep",
    "jmp test_call_spoil",
    "test_call_exit:",
    "mov edx, 1",
    "call test_call_keep",
    "mov rax, [rip + test_call_mode]",
    "mov rcx, [rip + test_call_value]",
    "cmp eax, 3",
    "jne test_call_spoil",
    "mov [r8 + 80], rcx",
    "jmp test_call_spoil",
    // Copies the registers, and checks that the stack was aligned on the hook's entry. Leaves the
    // structure in r8.
    "test_call_keep:",
    "test rsp, 15",
    "jz 5f",
    "lock inc qword ptr [rip + test_call_misaligned]",
    "5:",
    "mov r8, rdi",
    "mov eax, 1",
    "lock xadd [rip + test_call_len], rax",
    "and eax, 65535",
    "imul rax, rax, 184",
    "lea rdi, [rip + test_call_log]",
    "add rdi, rax",
    "mov [rdi], rdx",
    "mov [rdi + 8], rsi",
    "add rdi, 16",
    "mov rsi, r8",
    "mov ecx, 21",
    "rep movsq",
    "ret",
    "test_call_spoil:",
    "mov rcx, 0x1111111111111111",
    "mov rdx, rcx",
    "mov rsi, rcx",
    "mov rdi, rcx",
    "mov r8, rcx",
    "mov r9, rcx",
    "mov r10, rcx",
    "mov r11, 0x7fffffffffffffff",
    "add r11, 1",
    "stc",
    "ret",
);

/// A hook's record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    pub is_exit: bool,
    pub is_compact: bool,
    /// The address of the `syscall`.
    pub call: u64,
    pub is_markable: bool,
    /// `struct pt_regs`; or the record, in as many words as that has.
    pub regs: [u64; 21],
}

impl Seen {
    fn new(kind: u64, descriptor: u64, regs: [u64; 21]) -> Self {
        Self {
            is_exit: kind & 1 != 0,
            is_compact: kind & 2 != 0,
            call: descriptor >> 1,
            is_markable: descriptor & MARKABLE != 0,
            regs,
        }
    }

    pub fn number(&self) -> u64 {
        self.regs[if self.is_compact { 1 } else { 15 }]
    }

    pub fn result(&self) -> u64 {
        self.regs[if self.is_compact { 2 } else { 10 }]
    }
}

/// Clears all records, and sets the hooks' effects.
pub fn reset(mode: Mode, value: u64) {
    // SAFETY: defined above as words of zeroes.
    unsafe {
        test_call_len.store(0, Relaxed);
        test_call_misaligned.store(0, Relaxed);
        test_call_mode.store(mode as u64, Relaxed);
        test_call_value.store(value, Relaxed);
    }
    watch(|_| (false, false));
}

/// Chooses for each call if its enter and its exit are watched.
pub fn watch(watched: impl Fn(u32) -> (bool, bool)) {
    watch_how(|number| {
        let (enter, exit) = watched(number);
        (u8::from(enter), u8::from(exit))
    });
}

/// Chooses for each call in which way its enter and its exit are watched.
pub fn watch_how(watched: impl Fn(u32) -> (u8, u8)) {
    for (number, entry) in WATCHED.iter().enumerate() {
        let (enter, exit) = watched(number as u32 % 1024);
        entry.store(if number < 1024 { enter } else { exit }, Relaxed);
    }
}

pub fn watch_all() {
    watch(|_| (true, true));
}

/// Returns the records since `reset`, and true if the stack was always aligned.
pub fn seen() -> Vec<Seen> {
    // SAFETY: as in `reset`.
    unsafe {
        assert_eq!(test_call_misaligned.load(Relaxed), 0, "misaligned");
        let len = test_call_len.load(Relaxed) as usize;
        assert!(len <= KEPT, "too many calls for the log");
        test_call_log[..len]
            .iter()
            .map(|words| {
                let word = |i: usize| words[i].load(Relaxed);
                Seen::new(word(0), word(1), std::array::from_fn(|i| word(i + 2)))
            })
            .collect()
    }
}

/// Returns the same of a stopped child of this process.
pub fn seen_by(child: libc::pid_t) -> Vec<Seen> {
    let mut len = [0; 1];
    let (len_at, log_at) = (&raw const test_call_len, &raw const test_call_log);
    read_memory(child, len_at as u64, &mut len);
    let mut words = vec![0; len[0] as usize * 23];
    read_memory(child, log_at as u64, &mut words);
    let (entries, _) = words.as_chunks::<23>();
    entries
        .iter()
        .map(|entry| Seen::new(entry[0], entry[1], entry[2..].try_into().unwrap()))
        .collect()
}

fn read_memory(process: libc::pid_t, at: u64, words: &mut [u64]) {
    let local = libc::iovec {
        iov_base: words.as_mut_ptr().cast(),
        iov_len: size_of_val(words),
    };
    let remote = libc::iovec {
        iov_base: at as *mut libc::c_void,
        ..local
    };
    // SAFETY: writes into `words`, all of it.
    let read = unsafe { libc::process_vm_readv(process, &local, 1, &remote, 1, 0) };
    assert_eq!(read, size_of_val(words) as isize);
}

/// Returns the numbers in order, each with true if it is an exit.
pub fn numbers() -> Vec<(u64, bool)> {
    seen()
        .iter()
        .map(|seen| (seen.number(), seen.is_exit))
        .collect()
}

/// The hooks above.
pub fn spec() -> CallSpec {
    CallSpec {
        enter: test_call_enter as *const () as u64,
        exit: test_call_exit as *const () as u64,
        compact_enter: test_call_brief_enter as *const () as u64,
        compact_exit: test_call_brief_exit as *const () as u64,
        watched: WATCHED.as_ptr() as u64,
    }
}

/// A pool with the common code in it.
pub struct Hooks {
    pub pool: Pool,
    pub common: CommonCode,
}

impl Hooks {
    pub fn new(mut pool: Pool) -> Self {
        let common = CommonCode::emit(pool.next(), &spec()).unwrap();
        pool.push(&common.bytes);
        Self { pool, common }
    }

    /// Puts a stub into the pool. Its descriptor is twice the call's address, and therefore even.
    pub fn stub(&mut self, plan: &CallPlan) -> CallStub {
        let at = self.pool.next();
        assert!(plan.reach().is_some_and(|reach| reach.contains(&at)));
        let stub = plan.emit(at, &self.common, plan.call << 1).unwrap();
        self.pool.push(&stub.bytes);
        stub
    }

    /// Makes a function in the pool with all its calls hooked; returns its address and the plans.
    pub fn hooked(&mut self, code: &[u8]) -> (u64, Vec<CallPlan>) {
        let start = self.pool.push(code);
        let sites = CallSites::of(
            &[Function {
                start: 0x1000,
                code,
            }],
            |_| None,
        );
        assert_eq!(sites.unhookable, []);
        let bias = start - 0x1000;
        let plans: Vec<_> = sites.plans.iter().map(|plan| plan.at(bias)).collect();
        for plan in &plans {
            for patch in self.stub(plan).patches {
                assert_eq!(
                    self.pool.bytes(patch.site, patch.original.len()),
                    patch.original
                );
                // SAFETY: the pool's own memory, in which nothing runs yet.
                unsafe { write(patch.site, &patch.bytes) };
            }
        }
        (start, plans)
    }
}

impl Hooks {
    /// Makes a pool near a library of this process.
    pub fn near(library: &Library) -> Self {
        let middle = library.base() + library.text.0 + library.text.1.len() as u64 / 2;
        Self::new(Pool::within(reach(middle), 4 << 20))
    }

    /// Hooks all calls of a library of this process, which has no other thread; returns the plans.
    pub fn hook_library(&mut self, library: &Library) -> Vec<CallPlan> {
        let functions: Vec<_> = library
            .bodies()
            .map(|(start, code)| Function { start, code })
            .collect();
        let sites = CallSites::of(&functions, |address| library.data(address));
        let base = library.base();
        let plans: Vec<_> = sites.plans.iter().map(|plan| plan.at(base)).collect();
        let stubs: Vec<_> = plans.iter().map(|plan| self.stub(plan)).collect();
        library.unprotect();
        for patch in stubs.iter().flat_map(|stub| &stub.patches) {
            // SAFETY: the only thread is here, in no system call.
            unsafe { write(patch.site, &patch.bytes) };
        }
        plans
    }
}
