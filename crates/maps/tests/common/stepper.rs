//! Two processes on one map, each advanced from one access to shared memory to its next:
//! instructions that touch only a process's private memory commute with all of the other's, so
//! switching at these accesses alone is switching at every instruction.

use std::{cell::RefCell, collections::HashMap, ops::Range, rc::Rc};

use beeline_maps::Caller;
use iced_x86::{
    Decoder, DecoderOptions, Instruction, InstructionInfoFactory, InstructionInfoOptions, Mnemonic,
    Register, UsedMemory,
};

/// The reason why a process stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// It is about to access shared memory.
    Access,
    /// It waits for another process: it is about to execute a `pause`, or has called [`relax`].
    Waits,
    /// It has ended.
    Ended,
}

/// Stops the process as a waiting one. For [`beeline_maps::Caller::relax`].
pub fn relax(_: &Caller) -> bool {
    // SAFETY: a signal that the tracer takes away.
    unsafe { libc::raise(libc::SIGUSR1) };
    true
}

/// A single-stepped child.
pub struct Stepped<'a> {
    pid: i32,
    code: &'a Code,
    has_ended: bool,
}

/// The known instructions, and the shared addresses.
pub struct Code {
    shared: Vec<Range<u64>>,
    known: RefCell<HashMap<u64, Rc<Known>>>,
}

struct Known {
    is_pause: bool,
    memory: Vec<UsedMemory>,
}

impl Code {
    pub fn new(shared: Vec<Range<u64>>) -> Self {
        Self {
            shared,
            known: RefCell::default(),
        }
    }

    /// Returns the instruction at an address of this process, whose code the children share.
    fn at(&self, address: u64) -> Rc<Known> {
        let mut known = self.known.borrow_mut();
        let entry = known.entry(address).or_insert_with(|| {
            // SAFETY: the child is about to execute it, so there is an instruction; it is read byte
            // by byte until it is complete, so nothing behind it is touched.
            let instruction = (1..=15).find_map(|len| unsafe { decode(address, len) });
            let instruction = instruction.unwrap_or_default();
            let mut factory = InstructionInfoFactory::new();
            let info =
                factory.info_options(&instruction, InstructionInfoOptions::NO_REGISTER_USAGE);
            Rc::new(Known {
                is_pause: instruction.mnemonic() == Mnemonic::Pause,
                memory: info.used_memory().to_vec(),
            })
        });
        entry.clone()
    }

    fn is_shared(&self, memory: &UsedMemory, registers: &libc::user_regs_struct) -> bool {
        let value = |register: Register, _, _| register_value(register, registers);
        memory
            .virtual_address(0, value)
            .is_some_and(|address| self.shared.iter().any(|range| range.contains(&address)))
    }
}

/// # Safety
/// `len` bytes at the address are readable.
unsafe fn decode(address: u64, len: usize) -> Option<Instruction> {
    // SAFETY: the caller's promise.
    let bytes = unsafe { std::slice::from_raw_parts(address as *const u8, len) };
    let decoded = Decoder::with_ip(64, bytes, address, DecoderOptions::NONE).decode();
    (!decoded.is_invalid()).then_some(decoded)
}

fn register_value(register: Register, registers: &libc::user_regs_struct) -> Option<u64> {
    let whole = match register.full_register() {
        Register::RAX => registers.rax,
        Register::RBX => registers.rbx,
        Register::RCX => registers.rcx,
        Register::RDX => registers.rdx,
        Register::RSI => registers.rsi,
        Register::RDI => registers.rdi,
        Register::RBP => registers.rbp,
        Register::RSP => registers.rsp,
        Register::R8 => registers.r8,
        Register::R9 => registers.r9,
        Register::R10 => registers.r10,
        Register::R11 => registers.r11,
        Register::R12 => registers.r12,
        Register::R13 => registers.r13,
        Register::R14 => registers.r14,
        Register::R15 => registers.r15,
        Register::RIP => registers.rip,
        Register::FS => return Some(registers.fs_base),
        Register::GS => return Some(registers.gs_base),
        _ => return Some(0), // a flat segment
    };
    Some(if register.size() == 4 {
        whole as u32 as u64
    } else {
        whole
    })
}

impl<'a> Stepped<'a> {
    /// Forks a child that does `work`, and stops it at the beginning. It must not allocate.
    pub fn start(code: &'a Code, work: impl FnOnce()) -> Self {
        // SAFETY: the child uses shared memory and its stack only, and leaves by _exit.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "fork failed");
        if pid == 0 {
            // SAFETY: a plain call, and an instruction that stops until the parent goes on.
            unsafe {
                libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
                std::arch::asm!("int3");
            }
            work();
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(0) };
        }
        let mut child = Self {
            pid,
            code,
            has_ended: false,
        };
        assert_eq!(child.wait(), Some(libc::SIGTRAP));
        child
    }

    /// Waits for a stop; returns its signal, or none if the child has ended.
    fn wait(&mut self) -> Option<i32> {
        let mut status = 0;
        // SAFETY: waits for our own child; the status is live and writable.
        assert_eq!(unsafe { libc::waitpid(self.pid, &mut status, 0) }, self.pid);
        if libc::WIFSTOPPED(status) {
            return Some(libc::WSTOPSIG(status));
        }
        self.has_ended = true;
        assert!(libc::WIFEXITED(status), "the child died: {status:#x}");
        None
    }

    fn resume(&mut self, request: libc::c_uint) -> Option<i32> {
        // SAFETY: our own stopped child; no memory of ours is used, and no signal is passed on.
        assert_eq!(unsafe { libc::ptrace(request, self.pid, 0, 0) }, 0);
        self.wait()
    }

    /// Returns the next access: of the child's current instruction, or of a later one.
    pub fn reach_access(&mut self) -> Stop {
        loop {
            let mut registers = std::mem::MaybeUninit::<libc::user_regs_struct>::zeroed();
            // SAFETY: our own stopped child; plain data is written to a live place.
            let registers = unsafe {
                libc::ptrace(libc::PTRACE_GETREGS, self.pid, 0, registers.as_mut_ptr());
                registers.assume_init()
            };
            let known = self.code.at(registers.rip);
            if known.is_pause {
                return Stop::Waits;
            }
            if known
                .memory
                .iter()
                .any(|memory| self.code.is_shared(memory, &registers))
            {
                return Stop::Access;
            }
            if let Some(stop) = self.step() {
                return stop;
            }
        }
    }

    /// Executes one instruction.
    pub fn step(&mut self) -> Option<Stop> {
        match self.resume(libc::PTRACE_SINGLESTEP) {
            None => Some(Stop::Ended),
            Some(libc::SIGUSR1) => Some(Stop::Waits),
            Some(_) => None,
        }
    }

    /// Runs on without stepping, until it ends or waits.
    pub fn run(&mut self) -> Stop {
        if self.has_ended {
            return Stop::Ended;
        }
        match self.resume(libc::PTRACE_CONT) {
            None => Stop::Ended,
            Some(libc::SIGUSR1) => Stop::Waits,
            Some(signal) => panic!("the child was stopped by signal {signal}"),
        }
    }
}

impl Drop for Stepped<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            // SAFETY: our own child, not yet waited for.
            unsafe {
                libc::kill(self.pid, libc::SIGKILL);
                libc::waitpid(self.pid, std::ptr::null_mut(), 0);
            }
        }
    }
}
