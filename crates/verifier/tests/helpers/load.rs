//! Programs of every type, loaded by the running kernel.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use beeline_btf::{Btf, kind};
use beeline_isa::Insn;
use beeline_uapi::flags::SLEEPABLE;
use beeline_uapi::{AttachType, Command, MapType, ProgramType, flags};
use beeline_verifier::program::Kind;

/// `union bpf_attr`, as far as it is needed: 32-bit words.
type Attr = [u32; 32];

/// A program's licence.
pub const GPL: &CStr = c"GPL";
/// Another.
pub const PROPRIETARY: &CStr = c"X";

/// The type and attachment to load programs with.
pub struct Subject {
    pub name: String,
    pub kind: Kind,
    pub target: Option<&'static str>,
}

/// The result of a load.
pub struct Loaded {
    pub accepted: bool,
    pub log: String,
}

impl Loaded {
    /// Returns the line with the reason for a refusal.
    pub fn reason(&self) -> &str {
        let lines = self.log.trim_end().lines();
        let words = lines.rev().find(|line| !line.starts_with("processed "));
        words.unwrap_or_default()
    }
}

impl Subject {
    pub fn load(&self, insns: &[Insn], licence: &CStr) -> Loaded {
        let bytes: Vec<u8> = insns.iter().flat_map(|insn| insn.encode()).collect();
        let mut log = vec![0_u8; 1 << 16];
        let mut attr: Attr = [0; 32];
        (attr[0], attr[1]) = (self.kind.prog_type.0, insns.len() as u32);
        set_pointer(&mut attr, 2, bytes.as_ptr());
        set_pointer(&mut attr, 4, licence.as_ptr());
        (attr[6], attr[7]) = (2, log.len() as u32);
        set_pointer(&mut attr, 8, log.as_mut_ptr());
        (attr[11], attr[17]) = (self.kind.flags, self.kind.attach_type.0);
        attr[27] = self.kind.attach_btf_id;
        let fd = bpf(Command::PROG_LOAD, &mut attr);
        log.truncate(log.iter().position(|&byte| byte == 0).unwrap_or(0));
        Loaded {
            accepted: fd.is_ok(),
            log: String::from_utf8_lossy(&log).into_owned(),
        }
    }
}

/// An array of one element.
pub fn array(value_size: u32, flags: u32) -> io::Result<File> {
    map(MapType::ARRAY, 4, value_size, 1, flags)
}

/// A map.
pub fn map(
    map_type: MapType,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    flags: u32,
) -> io::Result<File> {
    let mut attr: Attr = [0; 32];
    (attr[0], attr[1], attr[2], attr[3]) = (map_type.0, key_size, value_size, max_entries);
    attr[4] = flags;
    bpf(Command::MAP_CREATE, &mut attr)
}

fn bpf(command: Command, attr: &mut Attr) -> io::Result<File> {
    let command = libc::c_long::from(command.0);
    // SAFETY: the kernel reads and writes `attr` within its size, and the memory that its pointers
    // lead to, which the callers keep for as long.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command, attr.as_mut_ptr(), size_of::<Attr>()) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just made for us and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(result as i32) }.into())
}

fn set_pointer<T>(attr: &mut Attr, word: usize, pointer: *const T) {
    let address = pointer.expose_provenance();
    (attr[word], attr[word + 1]) = (address as u32, (address >> 32) as u32);
}

/// Makes an array of zeros that nothing can change.
pub fn constant() -> io::Result<File> {
    const READ_ONLY: u32 = flags::RDONLY_PROG;
    let map = array(8, READ_ONLY)?;
    let mut attr: Attr = [0; 32];
    attr[0] = map.as_raw_fd() as u32;
    // It gives no descriptor back, but 0.
    // SAFETY: the kernel reads `attr` within its size; it has no pointers.
    match unsafe {
        libc::syscall(
            libc::SYS_bpf,
            libc::c_long::from(Command::MAP_FREEZE.0),
            attr.as_mut_ptr(),
            size_of::<Attr>(),
        )
    } {
        0 => Ok(map),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns the number of a descriptor, for an instruction.
pub fn number(file: &File) -> u64 {
    file.as_raw_fd() as u64
}

/// Returns every program type, with the attach types and targets that matter; only those that load
/// here. Prints the others.
pub fn subjects(minimal: &[Insn]) -> Vec<Subject> {
    let all = plain().into_iter().chain(by_btf());
    let (there, not): (Vec<_>, Vec<_>) =
        all.partition(|subject| subject.load(minimal, GPL).accepted);
    for subject in not {
        eprintln!(
            "not compared: the kernel loads no {} program for us",
            subject.name
        );
    }
    there
}

fn plain() -> Vec<Subject> {
    const NONE: &[AttachType] = &[AttachType::UNSPECIFIED];
    // Types, and attach types that decide about helpers.
    const TYPES: [(&str, ProgramType, &[AttachType]); 31] = [
        ("socket filter", ProgramType::SOCKET_FILTER, NONE),
        (
            "kprobe",
            ProgramType::KPROBE,
            &[
                AttachType::UNSPECIFIED,
                AttachType::TRACE_KPROBE_MULTI,
                AttachType::TRACE_UPROBE_MULTI,
                AttachType::TRACE_KPROBE_SESSION,
                AttachType::TRACE_UPROBE_SESSION,
            ],
        ),
        ("classifier", ProgramType::SCHED_CLS, NONE),
        ("action", ProgramType::SCHED_ACT, NONE),
        ("tracepoint", ProgramType::TRACEPOINT, NONE),
        ("XDP", ProgramType::XDP, NONE),
        ("perf event", ProgramType::PERF_EVENT, NONE),
        (
            "cgroup skb",
            ProgramType::CGROUP_SKB,
            &[
                AttachType::CGROUP_INET_INGRESS,
                AttachType::CGROUP_INET_EGRESS,
            ],
        ),
        (
            "cgroup sock",
            ProgramType::CGROUP_SOCK,
            &[
                AttachType::CGROUP_INET_SOCK_CREATE,
                AttachType::CGROUP_INET4_POST_BIND,
                AttachType::CGROUP_INET6_POST_BIND,
                AttachType::CGROUP_INET_SOCK_RELEASE,
            ],
        ),
        ("lwt in", ProgramType::LWT_IN, NONE),
        ("lwt out", ProgramType::LWT_OUT, NONE),
        ("lwt xmit", ProgramType::LWT_XMIT, NONE),
        (
            "sock ops",
            ProgramType::SOCK_OPS,
            &[AttachType::CGROUP_SOCK_OPS],
        ),
        (
            "sk skb",
            ProgramType::SK_SKB,
            &[
                AttachType::UNSPECIFIED,
                AttachType::SK_SKB_STREAM_PARSER,
                AttachType::SK_SKB_STREAM_VERDICT,
                AttachType::SK_SKB_VERDICT,
            ],
        ),
        (
            "cgroup device",
            ProgramType::CGROUP_DEVICE,
            &[AttachType::CGROUP_DEVICE],
        ),
        ("sk msg", ProgramType::SK_MSG, &[AttachType::SK_MSG_VERDICT]),
        ("raw tracepoint", ProgramType::RAW_TRACEPOINT, NONE),
        (
            "cgroup bind",
            ProgramType::CGROUP_SOCK_ADDR,
            &[AttachType::CGROUP_INET4_BIND, AttachType::CGROUP_INET6_BIND],
        ),
        (
            "cgroup connect",
            ProgramType::CGROUP_SOCK_ADDR,
            &[
                AttachType::CGROUP_INET4_CONNECT,
                AttachType::CGROUP_INET6_CONNECT,
                AttachType::CGROUP_UNIX_CONNECT,
            ],
        ),
        (
            "cgroup message",
            ProgramType::CGROUP_SOCK_ADDR,
            &[
                AttachType::CGROUP_UDP4_SENDMSG,
                AttachType::CGROUP_UDP6_SENDMSG,
                AttachType::CGROUP_UDP4_RECVMSG,
                AttachType::CGROUP_UDP6_RECVMSG,
                AttachType::CGROUP_UNIX_SENDMSG,
                AttachType::CGROUP_UNIX_RECVMSG,
            ],
        ),
        (
            "cgroup name",
            ProgramType::CGROUP_SOCK_ADDR,
            &[
                AttachType::CGROUP_INET4_GETPEERNAME,
                AttachType::CGROUP_INET6_GETPEERNAME,
                AttachType::CGROUP_INET4_GETSOCKNAME,
                AttachType::CGROUP_INET6_GETSOCKNAME,
                AttachType::CGROUP_UNIX_GETPEERNAME,
                AttachType::CGROUP_UNIX_GETSOCKNAME,
            ],
        ),
        ("lwt seg6", ProgramType::LWT_SEG6LOCAL, NONE),
        ("lirc", ProgramType::LIRC_MODE2, &[AttachType::LIRC_MODE2]),
        (
            "sk reuseport",
            ProgramType::SK_REUSEPORT,
            &[
                AttachType::SK_REUSEPORT_SELECT,
                AttachType::SK_REUSEPORT_SELECT_OR_MIGRATE,
            ],
        ),
        (
            "flow dissector",
            ProgramType::FLOW_DISSECTOR,
            &[AttachType::FLOW_DISSECTOR],
        ),
        (
            "sysctl",
            ProgramType::CGROUP_SYSCTL,
            &[AttachType::CGROUP_SYSCTL],
        ),
        (
            "writable raw tracepoint",
            ProgramType::RAW_TRACEPOINT_WRITABLE,
            NONE,
        ),
        (
            "sockopt",
            ProgramType::CGROUP_SOCKOPT,
            &[AttachType::CGROUP_GETSOCKOPT, AttachType::CGROUP_SETSOCKOPT],
        ),
        (
            "sk lookup",
            ProgramType::SK_LOOKUP,
            &[AttachType::SK_LOOKUP],
        ),
        ("syscall", ProgramType::SYSCALL, NONE),
        (
            "netfilter",
            ProgramType::NETFILTER,
            &[AttachType::NETFILTER],
        ),
    ];
    let each = |(name, prog_type, attach_types): (&str, ProgramType, &'static [AttachType])| {
        let name = name.to_owned();
        attach_types.iter().map(move |&attach_type| Subject {
            name: format!("{name} ({})", attach_type.0),
            kind: Kind {
                prog_type,
                attach_type,
                flags: if prog_type == ProgramType::SYSCALL {
                    SLEEPABLE
                } else {
                    0
                },
                attach_btf_id: 0,
                ..Kind::default()
            },
            target: None,
        })
    };
    TYPES.into_iter().flat_map(each).collect()
}

/// Returns the kind of a target in the kernel's BTF, and the way that programs attach to it.
type Place = (u8, ProgramType, AttachType);

fn by_btf() -> Vec<Subject> {
    const TRACEPOINT: Place = (
        kind::TYPEDEF,
        ProgramType::TRACING,
        AttachType::TRACE_RAW_TP,
    );
    const fn function(attach_type: AttachType) -> Place {
        (kind::FUNC, ProgramType::TRACING, attach_type)
    }
    const fn hook(attach_type: AttachType) -> Place {
        (kind::FUNC, ProgramType::LSM, attach_type)
    }
    const fn operation(member: u32) -> Place {
        (kind::STRUCT, ProgramType::STRUCT_OPS, AttachType(member))
    }
    const TARGETS: [(Place, &str); 23] = [
        (TRACEPOINT, "btf_trace_sched_switch"),
        (function(AttachType::TRACE_ITER), "bpf_iter_task"),
        (function(AttachType::TRACE_ITER), "bpf_iter_tcp"),
        (function(AttachType::TRACE_ITER), "bpf_iter_udp"),
        (function(AttachType::TRACE_ITER), "bpf_iter_unix"),
        (function(AttachType::TRACE_ITER), "bpf_iter_bpf_map_elem"),
        (function(AttachType::TRACE_FENTRY), "vfs_truncate"),
        (function(AttachType::TRACE_FENTRY), "vfs_read"),
        (function(AttachType::TRACE_FEXIT), "vfs_truncate"),
        (function(AttachType::MODIFY_RETURN), "__x64_sys_getpgid"),
        (hook(AttachType::LSM_MAC), "bpf_lsm_file_open"),
        (hook(AttachType::LSM_MAC), "bpf_lsm_inode_permission"),
        (hook(AttachType::LSM_CGROUP), "bpf_lsm_socket_post_create"),
        (hook(AttachType::LSM_CGROUP), "bpf_lsm_socket_bind"),
        (operation(0), "tcp_congestion_ops"),
        (operation(16), "tcp_congestion_ops"),
        (operation(17), "tcp_congestion_ops"),
        (operation(0), "bpf_dummy_ops"),
        (operation(0), "Qdisc_ops"),
        (operation(0), "sched_ext_ops"),
        (operation(0), "hid_bpf_ops"),
        (operation(0), "smc_hs_ctrl"),
        (function(AttachType::TRACE_FENTRY), "bpf_sk_storage_free"),
    ];
    let Ok(data) = std::fs::read("/sys/kernel/btf/vmlinux") else {
        eprintln!("skipped: the kernel has no BTF");
        return Vec::new();
    };
    let btf = Btf::parse(&data).expect("the kernel's BTF");
    let ids = btf.find(TARGETS.map(|((kind, ..), name)| (kind, name)));
    let each = |(((_, prog_type, attach_type), name), attach_btf_id): ((Place, _), _)| Subject {
        name: format!("{name} ({})", attach_type.0),
        kind: Kind {
            prog_type,
            attach_type,
            flags: 0,
            attach_btf_id,
            ..Kind::default()
        },
        target: Some(name),
    };
    TARGETS.into_iter().zip(ids).map(each).collect()
}

/// Drops `CAP_PERFMON` and `CAP_SYS_ADMIN` from this thread. Returns whether that worked.
pub fn give_up_perfmon() -> bool {
    const CAP_SYS_ADMIN: u32 = 21;
    const CAP_PERFMON: u32 = 38;
    const VERSION_3: u32 = 0x2008_0522;
    // The version and the thread; then effective, permitted and inheritable, low halves first.
    let mut header = [VERSION_3, 0];
    let mut sets = [[0_u32; 3]; 2];
    // SAFETY: both arrays have the size of version 3's structures.
    let got = unsafe { libc::syscall(libc::SYS_capget, header.as_mut_ptr(), sets.as_mut_ptr()) };
    for capability in [CAP_SYS_ADMIN, CAP_PERFMON] {
        let [effective, ..] = &mut sets[(capability / 32) as usize];
        *effective &= !(1 << (capability % 32));
    }
    // SAFETY: as above.
    let set = unsafe { libc::syscall(libc::SYS_capset, header.as_mut_ptr(), sets.as_ptr()) };
    got == 0 && set == 0
}
