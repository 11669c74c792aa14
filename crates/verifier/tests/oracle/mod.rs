//! The running kernel's verdict on small programs of any kind.

// Each test program uses its part.
#![allow(dead_code)]

use std::fmt;
use std::os::fd::{FromRawFd, OwnedFd};

use beeline_btf::Btf;
use beeline_isa::{Insn, opcode::*};
use beeline_verifier::context::kinds::{at, prog};
use beeline_verifier::program::{Kind, SLEEPABLE};

pub const R0_IS_1: Insn = insn(ALU64 | K | MOV, 0, 0, 0, 1);
pub const R2_IS_0: Insn = insn(ALU64 | K | MOV, 2, 0, 0, 0);
pub const END_PROGRAM: Insn = insn(JMP | EXIT, 0, 0, 0, 0);
pub const SIZES: [(u8, u32); 4] = [(B, 1), (H, 2), (W, 4), (DW, 8)];

pub const MAP_LOOKUP_ELEM: i32 = 1;
pub const TRACE_PRINTK: i32 = 6;
pub const PRANDOM_U32: i32 = 7;
pub const TCP_SOCK: i32 = 96;
pub const DYNPTR_FROM_MEM: i32 = 197;

/// `BPF_MAP_TYPE_HASH`.
pub const HASH: u32 = 1;
/// `BPF_MAP_TYPE_XSKMAP`.
pub const XSKMAP: u32 = 17;

/// Every type of program that is not attached by BTF, with attach types that may make a difference, and how many bytes its context
/// has.
pub const KINDS: &[(u32, &[u32], i32)] = &[
    (prog::SOCKET_FILTER, &[0], 192),
    (
        prog::KPROBE,
        &[
            0,
            at::TRACE_UPROBE_MULTI,
            at::TRACE_UPROBE_SESSION,
            at::TRACE_KPROBE_SESSION,
        ],
        168,
    ),
    (prog::SCHED_CLS, &[0, at::TCX_INGRESS, at::NETKIT_PEER], 192),
    (prog::SCHED_ACT, &[0], 192),
    (prog::TRACEPOINT, &[0], 8192),
    (prog::XDP, &[0, at::XDP, at::XDP_DEVMAP, at::XDP_CPUMAP], 24),
    (prog::PERF_EVENT, &[0], 184),
    (
        prog::CGROUP_SKB,
        &[at::CGROUP_INET_INGRESS, at::CGROUP_INET_EGRESS],
        192,
    ),
    (
        prog::CGROUP_SOCK,
        &[
            0,
            at::CGROUP_INET_SOCK_CREATE,
            at::CGROUP_INET_SOCK_RELEASE,
            at::CGROUP_INET4_POST_BIND,
            at::CGROUP_INET6_POST_BIND,
        ],
        80,
    ),
    (prog::LWT_IN, &[0], 192),
    (prog::LWT_OUT, &[0], 192),
    (prog::LWT_XMIT, &[0], 192),
    (prog::SOCK_OPS, &[0, at::CGROUP_SOCK_OPS], 224),
    (
        prog::SK_SKB,
        &[0, at::SK_SKB_STREAM_PARSER, at::SK_SKB_STREAM_VERDICT],
        192,
    ),
    (prog::CGROUP_DEVICE, &[0], 12),
    (prog::SK_MSG, &[0, at::SK_MSG_VERDICT], 80),
    (prog::RAW_TRACEPOINT, &[0], 96),
    (
        prog::CGROUP_SOCK_ADDR,
        &[
            at::CGROUP_INET4_BIND,
            at::CGROUP_INET6_BIND,
            at::CGROUP_INET4_CONNECT,
            at::CGROUP_INET6_CONNECT,
            at::CGROUP_UNIX_CONNECT,
            at::CGROUP_UDP4_SENDMSG,
            at::CGROUP_UDP6_SENDMSG,
            at::CGROUP_UNIX_SENDMSG,
            at::CGROUP_UDP4_RECVMSG,
            at::CGROUP_UDP6_RECVMSG,
            at::CGROUP_UNIX_RECVMSG,
            at::CGROUP_INET4_GETPEERNAME,
            at::CGROUP_INET6_GETPEERNAME,
            at::CGROUP_UNIX_GETPEERNAME,
            at::CGROUP_INET4_GETSOCKNAME,
            at::CGROUP_INET6_GETSOCKNAME,
            at::CGROUP_UNIX_GETSOCKNAME,
        ],
        72,
    ),
    (prog::LWT_SEG6LOCAL, &[0], 192),
    (prog::LIRC_MODE2, &[0], 4),
    (
        prog::SK_REUSEPORT,
        &[
            0,
            at::SK_REUSEPORT_SELECT,
            at::SK_REUSEPORT_SELECT_OR_MIGRATE,
        ],
        56,
    ),
    (prog::FLOW_DISSECTOR, &[0], 192),
    (prog::CGROUP_SYSCTL, &[0], 8),
    (prog::RAW_TRACEPOINT_WRITABLE, &[0], 96),
    (
        prog::CGROUP_SOCKOPT,
        &[at::CGROUP_GETSOCKOPT, at::CGROUP_SETSOCKOPT],
        40,
    ),
    (prog::SK_LOOKUP, &[at::SK_LOOKUP], 72),
    (prog::SYSCALL, &[0], 0x7fff),
    (prog::NETFILTER, &[at::NETFILTER], 16),
];

/// The kinds of [`KINDS`] that the kernel here loads; says which ones it does not.
pub fn kinds() -> Vec<(Kind, i32)> {
    if !is_usable() {
        return Vec::new();
    }
    let mut kinds = Vec::new();
    for &(prog_type, attach_types, bytes) in KINDS {
        for &attach_type in attach_types {
            let kind = kind(prog_type, attach_type);
            match load(&kind, &[R0_IS_1, END_PROGRAM]) {
                Ok(_) => kinds.push((kind, bytes)),
                Err(refusal) => eprintln!("not compared: {kind:?}: {refusal}"),
            }
        }
    }
    kinds
}

pub fn is_usable() -> bool {
    beeline_fuzz::kernel::is_usable()
}

/// With the flags that the type asks for.
pub fn kind(prog_type: u32, attach_type: u32) -> Kind {
    Kind {
        prog_type,
        attach_type,
        flags: if prog_type == prog::SYSCALL {
            SLEEPABLE
        } else {
            0
        },
        attach_btf_id: 0,
        intrudes: false,
    }
}

/// The log of every path through a program, or why it is refused.
pub fn load(kind: &Kind, insns: &[Insn]) -> Result<String, Refusal> {
    const PROG_LOAD: libc::c_long = 5;
    let bytes: Vec<u8> = insns.iter().flat_map(|insn| insn.encode()).collect();
    let mut log = vec![0_u8; 1 << 16];
    let mut attr = [0_u32; 32];
    (attr[0], attr[1]) = (kind.prog_type, insns.len() as u32);
    set_pointer(&mut attr, 2, bytes.as_ptr());
    set_pointer(&mut attr, 4, c"GPL".as_ptr());
    (attr[6], attr[7]) = (2, log.len() as u32);
    set_pointer(&mut attr, 8, log.as_mut_ptr());
    (attr[11], attr[17], attr[27]) = (kind.flags, kind.attach_type, kind.attach_btf_id);
    let (place, size) = (attr.as_mut_ptr(), size_of_val(&attr));
    // SAFETY: the kernel reads and writes `attr` within its size; what its pointers lead to lives on.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, PROG_LOAD, place, size) };
    let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
    log.truncate(log.iter().position(|&byte| byte == 0).unwrap_or(0));
    let log = String::from_utf8_lossy(&log).into_owned();
    if fd < 0 {
        return Err(Refusal { errno, log });
    }
    // SAFETY: nobody else has it.
    drop(unsafe { OwnedFd::from_raw_fd(fd as i32) });
    Ok(log)
}

pub fn expect_refusal(kind: &Kind, insns: &[Insn]) -> Refusal {
    match load(kind, insns) {
        Ok(_) => panic!("{kind:?} may:\n{}", beeline_isa::Listing(insns)),
        Err(refusal) => refusal,
    }
}

#[derive(Debug)]
pub struct Refusal {
    pub errno: i32,
    pub log: String,
}

impl Refusal {
    /// The last line that is no statistics.
    pub fn last_words(&self) -> &str {
        let is_other = |line: &&str| !line.starts_with("processed ");
        self.log.lines().rfind(is_other).unwrap_or_default()
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "errno {}: {}", self.errno, self.last_words())
    }
}

/// The last that a log says of a register's type.
pub fn register(log: &str, number: u8) -> Option<&str> {
    let (_, rest) = log.rsplit_once(&format!("R{number}="))?;
    rest.split(['(', ' ', '\n']).next()
}

/// The number of something in the kernel's BTF.
pub fn btf_id(kind: u8, name: &str) -> Option<u32> {
    let data = std::fs::read("/sys/kernel/btf/vmlinux").ok()?;
    let [id] = Btf::parse(&data)?.find([(kind, name)]);
    (id != 0).then_some(id)
}

fn set_pointer<T>(attr: &mut [u32; 32], word: usize, pointer: *const T) {
    let address = pointer.expose_provenance();
    (attr[word], attr[word + 1]) = (address as u32, (address >> 32) as u32);
}

pub const fn insn(code: u8, dst: u8, src: u8, off: i16, imm: i32) -> Insn {
    Insn {
        code,
        dst,
        src,
        off,
        imm,
    }
}

pub const fn call(helper: i32) -> Insn {
    insn(JMP | CALL, 0, HELPER_CALL, 0, helper)
}
