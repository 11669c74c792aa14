//! Programs of every type, loaded by the running kernel.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use beeline_btf::{Btf, kind};
use beeline_isa::Insn;
use beeline_verifier::program::{Kind, SLEEPABLE};

const MAP_CREATE: libc::c_long = 0;
const PROG_LOAD: libc::c_long = 5;

/// `union bpf_attr`, as far as it is needed: 32-bit words.
type Attr = [u32; 32];

/// A program's licence.
pub const GPL: &CStr = c"GPL";
/// Another.
pub const PROPRIETARY: &CStr = c"X";

/// What programs are loaded as.
pub struct Subject {
    pub name: String,
    pub kind: Kind,
    pub target: Option<&'static str>,
}

/// What came of a load.
pub struct Loaded {
    pub accepted: bool,
    pub log: String,
}

impl Loaded {
    /// The line that says why not.
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
        (attr[0], attr[1]) = (self.kind.prog_type, insns.len() as u32);
        set_pointer(&mut attr, 2, bytes.as_ptr());
        set_pointer(&mut attr, 4, licence.as_ptr());
        (attr[6], attr[7]) = (2, log.len() as u32);
        set_pointer(&mut attr, 8, log.as_mut_ptr());
        (attr[11], attr[17]) = (self.kind.flags, self.kind.attach_type);
        attr[27] = self.kind.attach_btf_id;
        let fd = bpf(PROG_LOAD, &mut attr);
        log.truncate(log.iter().position(|&byte| byte == 0).unwrap_or(0));
        Loaded {
            accepted: fd.is_ok(),
            log: String::from_utf8_lossy(&log).into_owned(),
        }
    }
}

/// An array of one element.
pub fn array(value_size: u32, flags: u32) -> io::Result<File> {
    map(2, 4, value_size, 1, flags)
}

/// A map.
pub fn map(
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    flags: u32,
) -> io::Result<File> {
    let mut attr: Attr = [0; 32];
    (attr[0], attr[1], attr[2], attr[3]) = (map_type, key_size, value_size, max_entries);
    attr[4] = flags;
    bpf(MAP_CREATE, &mut attr)
}

fn bpf(command: libc::c_long, attr: &mut Attr) -> io::Result<File> {
    // SAFETY: the kernel reads and writes `attr` within its size, and what its pointers lead to, which the callers
    // keep for as long.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command, attr.as_mut_ptr(), size_of::<Attr>()) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just made for us, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(result as i32) }.into())
}

fn set_pointer<T>(attr: &mut Attr, word: usize, pointer: *const T) {
    let address = pointer.expose_provenance();
    (attr[word], attr[word + 1]) = (address as u32, (address >> 32) as u32);
}

/// An array of zeros that nobody can change.
pub fn constant() -> io::Result<File> {
    const MAP_FREEZE: libc::c_long = 22;
    const READ_ONLY: u32 = 1 << 7;
    let map = array(8, READ_ONLY)?;
    let mut attr: Attr = [0; 32];
    attr[0] = map.as_raw_fd() as u32;
    // It gives no descriptor back, but 0.
    // SAFETY: the kernel reads `attr` within its size; it has no pointers.
    match unsafe {
        libc::syscall(
            libc::SYS_bpf,
            MAP_FREEZE,
            attr.as_mut_ptr(),
            size_of::<Attr>(),
        )
    } {
        0 => Ok(map),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The number of a descriptor, for an instruction.
pub fn number(file: &File) -> u64 {
    file.as_raw_fd() as u64
}

/// Every type of program, with the attach types and targets that matter; only those that load here. Says what does not.
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
    // Types, and attach types that decide about helpers.
    const TYPES: [(&str, u32, &[u32]); 31] = [
        ("socket filter", 1, &[0]),
        ("kprobe", 2, &[0, 42, 48, 56, 57]),
        ("classifier", 3, &[0]),
        ("action", 4, &[0]),
        ("tracepoint", 5, &[0]),
        ("XDP", 6, &[0]),
        ("perf event", 7, &[0]),
        ("cgroup skb", 8, &[0, 1]),
        ("cgroup sock", 9, &[2, 12, 13, 34]),
        ("lwt in", 10, &[0]),
        ("lwt out", 11, &[0]),
        ("lwt xmit", 12, &[0]),
        ("sock ops", 13, &[3]),
        ("sk skb", 14, &[0, 4, 5, 38]),
        ("cgroup device", 15, &[6]),
        ("sk msg", 16, &[7]),
        ("raw tracepoint", 17, &[0]),
        ("cgroup bind", 18, &[8, 9]),
        ("cgroup connect", 18, &[10, 11, 49]),
        ("cgroup message", 18, &[14, 15, 19, 20, 50, 51]),
        ("cgroup name", 18, &[29, 30, 31, 32, 52, 53]),
        ("lwt seg6", 19, &[0]),
        ("lirc", 20, &[16]),
        ("sk reuseport", 21, &[39, 40]),
        ("flow dissector", 22, &[17]),
        ("sysctl", 23, &[18]),
        ("writable raw tracepoint", 24, &[0]),
        ("sockopt", 25, &[21, 22]),
        ("sk lookup", 30, &[36]),
        ("syscall", 31, &[0]),
        ("netfilter", 32, &[45]),
    ];
    let each = |(name, prog_type, attach_types): (&str, u32, &'static [u32])| {
        let name = name.to_owned();
        attach_types.iter().map(move |&attach_type| Subject {
            name: format!("{name} ({attach_type})"),
            kind: Kind {
                prog_type,
                attach_type,
                flags: if prog_type == 31 { SLEEPABLE } else { 0 },
                attach_btf_id: 0,
                ..Kind::default()
            },
            target: None,
        })
    };
    TYPES.into_iter().flat_map(each).collect()
}

fn by_btf() -> Vec<Subject> {
    const TARGETS: [(u8, u32, u32, &str); 23] = [
        (kind::TYPEDEF, 26, 23, "btf_trace_sched_switch"),
        (kind::FUNC, 26, 28, "bpf_iter_task"),
        (kind::FUNC, 26, 28, "bpf_iter_tcp"),
        (kind::FUNC, 26, 28, "bpf_iter_udp"),
        (kind::FUNC, 26, 28, "bpf_iter_unix"),
        (kind::FUNC, 26, 28, "bpf_iter_bpf_map_elem"),
        (kind::FUNC, 26, 24, "vfs_truncate"),
        (kind::FUNC, 26, 24, "vfs_read"),
        (kind::FUNC, 26, 25, "vfs_truncate"),
        (kind::FUNC, 26, 26, "__x64_sys_getpgid"),
        (kind::FUNC, 29, 27, "bpf_lsm_file_open"),
        (kind::FUNC, 29, 27, "bpf_lsm_inode_permission"),
        (kind::FUNC, 29, 43, "bpf_lsm_socket_post_create"),
        (kind::FUNC, 29, 43, "bpf_lsm_socket_bind"),
        (kind::STRUCT, 27, 0, "tcp_congestion_ops"),
        (kind::STRUCT, 27, 16, "tcp_congestion_ops"),
        (kind::STRUCT, 27, 17, "tcp_congestion_ops"),
        (kind::STRUCT, 27, 0, "bpf_dummy_ops"),
        (kind::STRUCT, 27, 0, "Qdisc_ops"),
        (kind::STRUCT, 27, 0, "sched_ext_ops"),
        (kind::STRUCT, 27, 0, "hid_bpf_ops"),
        (kind::STRUCT, 27, 0, "smc_hs_ctrl"),
        (kind::FUNC, 26, 24, "bpf_sk_storage_free"),
    ];
    let Ok(data) = std::fs::read("/sys/kernel/btf/vmlinux") else {
        eprintln!("skipped: the kernel has no BTF");
        return Vec::new();
    };
    let btf = Btf::parse(&data).expect("the kernel's BTF");
    let ids = btf.find(TARGETS.map(|(kind, _, _, name)| (kind, name)));
    let each = |((_, prog_type, attach_type, name), attach_btf_id)| Subject {
        name: format!("{name} ({attach_type})"),
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

/// Leaves this thread without `CAP_PERFMON` and `CAP_SYS_ADMIN`. Did that work?
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
