//! The running kernel's verdict on small programs of any kind.

// Each test program uses a part of it.
#![allow(dead_code)]

use std::fmt;
use std::os::fd::{FromRawFd, OwnedFd};

use beeline_btf::Btf;
use beeline_isa::{Insn, opcode::*};
use beeline_uapi::flags::SLEEPABLE;
use beeline_uapi::{AttachType, Command, HelperId, ProgramType};
use beeline_verifier::program::Kind;

pub const R0_IS_1: Insn = insn(ALU64 | K | MOV, 0, 0, 0, 1);
pub const R2_IS_0: Insn = insn(ALU64 | K | MOV, 2, 0, 0, 0);
pub const END_PROGRAM: Insn = insn(JMP | EXIT, 0, 0, 0, 0);
pub const SIZES: [(u8, u32); 4] = [(B, 1), (H, 2), (W, 4), (DW, 8)];

/// Every program type that is not attached by BTF, with attach types that may make a difference,
/// and the bytes of its context.
pub const KINDS: &[(ProgramType, &[AttachType], i32)] = &[
    (ProgramType::SOCKET_FILTER, &[AttachType::UNSPECIFIED], 192),
    (
        ProgramType::KPROBE,
        &[
            AttachType::UNSPECIFIED,
            AttachType::TRACE_UPROBE_MULTI,
            AttachType::TRACE_UPROBE_SESSION,
            AttachType::TRACE_KPROBE_SESSION,
        ],
        168,
    ),
    (
        ProgramType::SCHED_CLS,
        &[
            AttachType::UNSPECIFIED,
            AttachType::TCX_INGRESS,
            AttachType::NETKIT_PEER,
        ],
        192,
    ),
    (ProgramType::SCHED_ACT, &[AttachType::UNSPECIFIED], 192),
    (ProgramType::TRACEPOINT, &[AttachType::UNSPECIFIED], 8192),
    (
        ProgramType::XDP,
        &[
            AttachType::UNSPECIFIED,
            AttachType::XDP,
            AttachType::XDP_DEVMAP,
            AttachType::XDP_CPUMAP,
        ],
        24,
    ),
    (ProgramType::PERF_EVENT, &[AttachType::UNSPECIFIED], 184),
    (
        ProgramType::CGROUP_SKB,
        &[
            AttachType::CGROUP_INET_INGRESS,
            AttachType::CGROUP_INET_EGRESS,
        ],
        192,
    ),
    (
        ProgramType::CGROUP_SOCK,
        &[
            AttachType::UNSPECIFIED,
            AttachType::CGROUP_INET_SOCK_CREATE,
            AttachType::CGROUP_INET_SOCK_RELEASE,
            AttachType::CGROUP_INET4_POST_BIND,
            AttachType::CGROUP_INET6_POST_BIND,
        ],
        80,
    ),
    (ProgramType::LWT_IN, &[AttachType::UNSPECIFIED], 192),
    (ProgramType::LWT_OUT, &[AttachType::UNSPECIFIED], 192),
    (ProgramType::LWT_XMIT, &[AttachType::UNSPECIFIED], 192),
    (
        ProgramType::SOCK_OPS,
        &[AttachType::UNSPECIFIED, AttachType::CGROUP_SOCK_OPS],
        224,
    ),
    (
        ProgramType::SK_SKB,
        &[
            AttachType::UNSPECIFIED,
            AttachType::SK_SKB_STREAM_PARSER,
            AttachType::SK_SKB_STREAM_VERDICT,
        ],
        192,
    ),
    (ProgramType::CGROUP_DEVICE, &[AttachType::UNSPECIFIED], 12),
    (
        ProgramType::SK_MSG,
        &[AttachType::UNSPECIFIED, AttachType::SK_MSG_VERDICT],
        80,
    ),
    (ProgramType::RAW_TRACEPOINT, &[AttachType::UNSPECIFIED], 96),
    (
        ProgramType::CGROUP_SOCK_ADDR,
        &[
            AttachType::CGROUP_INET4_BIND,
            AttachType::CGROUP_INET6_BIND,
            AttachType::CGROUP_INET4_CONNECT,
            AttachType::CGROUP_INET6_CONNECT,
            AttachType::CGROUP_UNIX_CONNECT,
            AttachType::CGROUP_UDP4_SENDMSG,
            AttachType::CGROUP_UDP6_SENDMSG,
            AttachType::CGROUP_UNIX_SENDMSG,
            AttachType::CGROUP_UDP4_RECVMSG,
            AttachType::CGROUP_UDP6_RECVMSG,
            AttachType::CGROUP_UNIX_RECVMSG,
            AttachType::CGROUP_INET4_GETPEERNAME,
            AttachType::CGROUP_INET6_GETPEERNAME,
            AttachType::CGROUP_UNIX_GETPEERNAME,
            AttachType::CGROUP_INET4_GETSOCKNAME,
            AttachType::CGROUP_INET6_GETSOCKNAME,
            AttachType::CGROUP_UNIX_GETSOCKNAME,
        ],
        72,
    ),
    (ProgramType::LWT_SEG6LOCAL, &[AttachType::UNSPECIFIED], 192),
    (ProgramType::LIRC_MODE2, &[AttachType::UNSPECIFIED], 4),
    (
        ProgramType::SK_REUSEPORT,
        &[
            AttachType::UNSPECIFIED,
            AttachType::SK_REUSEPORT_SELECT,
            AttachType::SK_REUSEPORT_SELECT_OR_MIGRATE,
        ],
        56,
    ),
    (ProgramType::FLOW_DISSECTOR, &[AttachType::UNSPECIFIED], 192),
    (ProgramType::CGROUP_SYSCTL, &[AttachType::UNSPECIFIED], 8),
    (
        ProgramType::RAW_TRACEPOINT_WRITABLE,
        &[AttachType::UNSPECIFIED],
        96,
    ),
    (
        ProgramType::CGROUP_SOCKOPT,
        &[AttachType::CGROUP_GETSOCKOPT, AttachType::CGROUP_SETSOCKOPT],
        40,
    ),
    (ProgramType::SK_LOOKUP, &[AttachType::SK_LOOKUP], 72),
    (ProgramType::SYSCALL, &[AttachType::UNSPECIFIED], 0x7fff),
    (ProgramType::NETFILTER, &[AttachType::NETFILTER], 16),
];

/// Returns the kinds of [`KINDS`] that the kernel here loads; prints the others.
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

/// Adds the flags that the type requires.
pub fn kind(prog_type: ProgramType, attach_type: AttachType) -> Kind {
    Kind {
        prog_type,
        attach_type,
        flags: if prog_type == ProgramType::SYSCALL {
            SLEEPABLE
        } else {
            0
        },
        ..Kind::default()
    }
}

/// Returns the log of every path through a program, or the reason for its refusal.
pub fn load(kind: &Kind, insns: &[Insn]) -> Result<String, Refusal> {
    let bytes: Vec<u8> = insns.iter().flat_map(|insn| insn.encode()).collect();
    let mut log = vec![0_u8; 1 << 16];
    let mut attr = [0_u32; 32];
    (attr[0], attr[1]) = (kind.prog_type.0, insns.len() as u32);
    set_pointer(&mut attr, 2, bytes.as_ptr());
    set_pointer(&mut attr, 4, c"GPL".as_ptr());
    (attr[6], attr[7]) = (2, log.len() as u32);
    set_pointer(&mut attr, 8, log.as_mut_ptr());
    (attr[11], attr[17], attr[27]) = (kind.flags, kind.attach_type.0, kind.attach_btf_id);
    let command = libc::c_long::from(Command::PROG_LOAD.0);
    let (place, size) = (attr.as_mut_ptr(), size_of_val(&attr));
    // SAFETY: the kernel reads and writes `attr` within its size; the memory that its pointers lead
    // to lives on.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, command, place, size) };
    let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
    log.truncate(log.iter().position(|&byte| byte == 0).unwrap_or(0));
    let log = String::from_utf8_lossy(&log).into_owned();
    if fd < 0 {
        return Err(Refusal { errno, log });
    }
    // SAFETY: it has no other owner.
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
    /// Returns the last line that is no statistics.
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

/// Returns the log's last description of a register's type.
pub fn register(log: &str, number: u8) -> Option<&str> {
    let (_, rest) = log.rsplit_once(&format!("R{number}="))?;
    rest.split(['(', ' ', '\n']).next()
}

/// Returns the number of something in the kernel's BTF.
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

pub const fn call(id: HelperId) -> Insn {
    insn(JMP | CALL, 0, HELPER_CALL, 0, id.0 as i32)
}
