//! What stands behind the door: the one interface that the user-space runtime implements today, and the
//! local kernel and a remote guest can implement later.
//!
//! Objects are named by ids, as in the kernel. The door owns the tool's descriptors, maps them to ids, and
//! says [`Backend::release`] when the last descriptor of an object is gone; the backend keeps an object alive
//! as long as others of its objects (a program its maps, a link its program) need it.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub use beeline_maps::Batch;
use beeline_uapi::{AttachType, Errno, MapType, ProgramType};
use beeline_verifier::program::FieldKind;

use crate::budget::Charge;
pub use beeline_verifier::program::is_gpl_compatible;

/// A kernel-style object id, never 0, never reused in a session; maps, programs, links and rings share one space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id(pub u32);

/// `BPF_MAP_CREATE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MapSpec {
    /// Its type.
    pub map_type: MapType,
    /// Bytes.
    pub key_size: u32,
    /// Bytes.
    pub value_size: u32,
    /// Elements; bytes of data for a ring buffer.
    pub max_entries: u32,
    /// `BPF_F_*`.
    pub flags: u32,
    /// The hash functions of a Bloom filter; 0 for other types.
    pub map_extra: u64,
    /// At most 15 bytes.
    pub name: String,
    /// Of a map of maps: the map that those to come have to be like.
    pub inner: Option<Id>,
    /// What the value's type says.
    pub fields: SpecialFields,
    /// The value's type, if the tool gave types.
    pub value_type: Option<ValueType>,
}

/// A type in some BTF.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValueType {
    /// The BTF.
    pub btf: Arc<[u8]>,
    /// Its number there.
    pub id: u32,
}

/// What an element of a map of objects is set to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectRef {
    /// Of `ARRAY_OF_MAPS` and `HASH_OF_MAPS`.
    Map(Id),
    /// Of `PROG_ARRAY`.
    Program(Id),
    /// Of `CGROUP_ARRAY`: the kernel's id of a cgroup of version 2, which is its directory's inode number.
    Cgroup(u64),
}

/// Where in a map's value the fields are that belong to the kernel: bytes from the value's start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SpecialFields {
    /// A `struct bpf_spin_lock`.
    pub spin_lock: Option<u32>,
    /// A `struct bpf_timer`.
    pub timer: Option<u32>,
}

impl SpecialFields {
    /// Those of a value.
    pub fn of(value: &ValueType) -> Self {
        let fields = beeline_verifier::types::ProgramTypes::map_fields(&value.btf, value.id, None);
        let place = |kind| {
            let field = fields.iter().find(|field| field.kind == kind);
            field.map(|field| field.offset)
        };
        Self {
            spin_lock: place(FieldKind::SpinLock),
            timer: place(FieldKind::Timer),
        }
    }
}

/// `BPF_PROG_LOAD`.
#[derive(Debug, Clone, Default)]
pub struct ProgramSpec {
    /// `prog_type`.
    pub prog_type: ProgramType,
    /// `expected_attach_type`.
    pub expected_attach_type: AttachType,
    /// `BPF_F_*` of `prog_flags`.
    pub flags: u32,
    /// What it attaches to in the kernel's BTF; 0 for nothing.
    pub attach_btf_id: u32,
    /// Raw instructions, 8 bytes each. Map descriptors in `LD_IMM64` are as the tool wrote them; `maps` resolves them.
    pub insns: Vec<u8>,
    /// Every map descriptor that the instructions name, with the map behind it; a descriptor that is no map is absent.
    pub maps: Vec<(i32, Id)>,
    /// At most 15 bytes.
    pub name: String,
    /// For example "GPL".
    pub license: String,
    /// What is known of its functions and lines.
    pub types: Option<ProgramTypes>,
    /// How much the verifier is to say: bits of `log_level`.
    pub log_level: u32,
    /// Bytes of log that are wanted, of a longer one its end or its beginning, as the level says; `None` for as many as the verifier
    /// keeps by itself.
    pub log_room: Option<usize>,
}

/// A program's BTF, and what it says of the program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgramTypes {
    /// The BTF.
    pub btf: Arc<[u8]>,
    /// `struct bpf_func_info`: where a function begins, and its type.
    pub functions: Vec<[u32; 2]>,
    /// `struct bpf_line_info`: an instruction, its file, its text, and line and column.
    pub lines: Vec<[u32; 4]>,
}

/// A program that was loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loaded {
    /// Its id.
    pub id: Id,
    /// What the verifier said.
    pub log: VerifierLog,
}

/// Why a program was not loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadError {
    /// As the kernel gives for the same defect.
    pub errno: Errno,
    /// The line of the kernel's log that says why, also where no log was asked for; empty where the kernel says nothing.
    pub reason: String,
    /// What the verifier said.
    pub log: VerifierLog,
}

impl LoadError {
    /// Of a program that no verifier has seen.
    pub fn new(errno: i32, reason: impl Into<String>) -> Self {
        Self {
            errno: Errno(errno),
            reason: reason.into(),
            log: VerifierLog::default(),
        }
    }
}

/// What goes into the tool's log buffer: in the manner of the kernel's, as far as the tool asked for it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VerifierLog {
    /// The log.
    pub text: String,
    /// Bytes that it had at its longest: what is said of paths that turn out good is taken back.
    pub longest: usize,
}

/// Where a program is to be attached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttachPoint {
    /// A place in a file's text, in every process of `scope` that maps the file.
    Uprobe {
        /// As the tool named it; may be `/proc/PID/root/...`.
        path: PathBuf,
        /// Byte offset in the file.
        offset: u64,
        /// Run when the function that starts there returns.
        retprobe: bool,
        /// Only this process; otherwise all processes that the session's scope admits.
        pid: Option<i32>,
        /// Returned by `bpf_get_attach_cookie`.
        cookie: u64,
    },
    /// System calls, in every process that the session's scope admits.
    SystemCall {
        /// The call's number on x86-64; `None` for all of them.
        number: Option<u32>,
        /// Run before or after the call.
        edge: Edge,
        /// What the program gets as its context.
        context: CallContext,
        /// Returned by `bpf_get_attach_cookie`.
        cookie: u64,
    },
    /// Runs in Beeline itself at each tick.
    Timer {
        /// Time between two ticks.
        period: Duration,
    },
}

/// One side of a system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Edge {
    /// Before the call is made.
    Enter,
    /// When it has returned.
    Exit,
}

/// What a program on a system call sees of it, as the kernel lays it out for the way that it was attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CallContext {
    /// Of tracepoints, `syscalls:*` and `raw_syscalls:*` alike: 8 bytes that mean nothing, the number as 64 bits, then six
    /// arguments, or the result (`struct syscall_tp_t` of `kernel/trace/trace_syscalls.c`).
    Tracepoint,
    /// Of raw tracepoints and `tp_btf`: two words, the address of the call's `struct pt_regs`, then the number
    /// (`sys_enter`) or the result (`sys_exit`).
    RawTracepoint,
    /// Of a kprobe or kretprobe on the call's function (`__x64_sys_*`): `struct pt_regs` as that function was called with,
    /// whose `di` is the address of the call's own; at the return `ax` is the result.
    Probe,
    /// Of `fentry`, `fexit` and `fmod_ret` on that function: the address of the call's `struct pt_regs`, at the exit followed by the
    /// result.
    Trampoline,
    /// Of a kprobe or kretprobe on another function that stands for the call: `struct pt_regs` with its arguments; at the
    /// return `ax` is the result.
    FunctionProbe(Function),
    /// Of `fentry` and `fexit` on such a function: its arguments, then the result.
    FunctionTrampoline(Function),
}

/// A function of the kernel's that stands for a system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Function {
    /// Its name.
    pub name: &'static str,
    /// Where its arguments come from, six at most.
    pub arguments: &'static [Argument],
}

/// What an argument of a function that stands for a system call is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Argument {
    /// Zero.
    Zero,
    /// This one of the call's, below six.
    Of(u8),
    /// `AT_FDCWD`.
    CurrentDirectory,
    /// Of `open`, `openat` and `creat`: the flags that the kernel has of them (`O_LARGEFILE` added).
    OpenFlags,
    /// Of these calls: the mode.
    OpenMode,
    /// Of these and `openat2`: the address of a `struct open_how` (`build_open_how` of `fs/open.c`).
    OpenHow,
}

/// Facts of `BPF_OBJ_GET_INFO_BY_FD` that the backend knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Info {
    /// A map.
    Map(MapSpec),
    /// A program.
    Program {
        /// `prog_type` of its load.
        prog_type: ProgramType,
        /// The name given at load.
        name: String,
        /// The digest of its instructions that the running kernel would give it.
        tag: [u8; 8],
        /// Compiled code.
        jited: Vec<u8>,
        /// Raw instructions, 8 bytes each, with maps by their ids.
        xlated: Vec<u8>,
        /// Bytes from its context's start to the last that some path of it looks at.
        context_end: u32,
        /// The maps it keeps alive: those it uses in the order of first use, then those bound to it.
        maps: Vec<Id>,
    },
    /// A link.
    Link {
        /// Its program.
        program: Id,
    },
}

/// The interface. Every method may be called from several threads.
///
/// Errors are the kernel's own for the same call. A feature that is not served gets the errno that an older
/// kernel without it gives; the backend says so once on stderr by [`Backend::unsupported`].
pub trait Backend: Send + Sync {
    /// CPUs that per-CPU values are given for: the kernel's count of possible CPUs.
    fn cpus(&self) -> u32;

    /// Creates a map. Errors: EINVAL, E2BIG, ENOMEM, EPERM as the kernel's; EBADF for a map of maps without inner map, and
    /// ENOTSUPP for one whose inner map cannot be one.
    fn map_create(&self, spec: &MapSpec) -> Result<Id, Errno>;
    /// The memory file of a map or of a perf ring, laid out so that the tool's own `mmap` of it is right.
    fn memory(&self, id: Id) -> Result<OwnedFd, Errno>;
    /// Bytes of a value as the system calls see it: `value_size`, or for per-CPU maps
    /// `cpus * round_up(value_size, 8)`.
    fn map_value_len(&self, map: Id) -> Result<usize, Errno>;
    /// `BPF_MAP_LOOKUP_ELEM`; `value` has [`Self::map_value_len`] bytes.
    fn map_lookup(&self, map: Id, key: &[u8], value: &mut [u8], flags: u64) -> Result<(), Errno>;
    /// `BPF_MAP_UPDATE_ELEM`.
    fn map_update(&self, map: Id, key: &[u8], value: &[u8], flags: u64) -> Result<(), Errno>;
    /// `BPF_MAP_UPDATE_ELEM` on a map of objects: its elements read as the objects' ids. EINVAL for an object of another
    /// kind, a program of another type, or a map that is not like the map of maps' own inner map. An object stays alive as
    /// long as it is an element.
    fn map_set_object(
        &self,
        map: Id,
        key: &[u8],
        object: ObjectRef,
        flags: u64,
    ) -> Result<(), Errno>;
    /// `BPF_MAP_DELETE_ELEM`.
    fn map_delete(&self, map: Id, key: &[u8]) -> Result<(), Errno>;
    /// `BPF_MAP_LOOKUP_AND_DELETE_ELEM`.
    fn map_lookup_and_delete(
        &self,
        map: Id,
        key: &[u8],
        value: &mut [u8],
        flags: u64,
    ) -> Result<(), Errno>;
    /// `BPF_MAP_GET_NEXT_KEY`; `None` asks for the first.
    fn map_next_key(&self, map: Id, key: Option<&[u8]>, next: &mut [u8]) -> Result<(), Errno>;
    /// `BPF_MAP_LOOKUP_BATCH` and `BPF_MAP_LOOKUP_AND_DELETE_BATCH` of a hash or an array: fills keys and
    /// values with as many whole buckets of a hash as have room, from the bucket `cursor` on (ENOSPC if not even the first
    /// that is not empty has), or with elements of an array, from the index `cursor` on.
    fn map_read_batch(
        &self,
        map: Id,
        cursor: u32,
        room: (&mut [u8], &mut [u8]),
        delete: bool,
    ) -> Result<Batch, Errno>;
    /// `BPF_MAP_FREEZE`: no more changes from the tool.
    fn map_freeze(&self, map: Id) -> Result<(), Errno>;

    /// Creates the ring behind a `PERF_COUNT_SW_BPF_OUTPUT` event of one CPU.
    fn perf_ring_create(&self, cpu: u32) -> Result<Id, Errno>;
    /// The tool maps `pages` data pages (a power of two) after the control page. To be called before its `mmap`.
    fn perf_ring_resize(&self, ring: Id, pages: u32) -> Result<(), Errno>;
    /// `PERF_EVENT_IOC_ENABLE` or `DISABLE` on such an event.
    fn perf_ring_enable(&self, ring: Id, on: bool) -> Result<(), Errno>;
    /// Puts a ring into an element of a `PERF_EVENT_ARRAY`.
    fn perf_array_set(&self, map: Id, index: u32, ring: Id) -> Result<(), Errno>;
    /// An eventfd that is written when a ring-buffer map or a perf ring has something to read (never read back:
    /// wait on it edge-triggered).
    fn wakeup(&self, id: Id) -> Result<OwnedFd, Errno>;
    /// Has a ring-buffer map or a perf ring something to read?
    fn readable(&self, id: Id) -> Result<bool, Errno>;

    /// Verifies, compiles and seals a program.
    fn program_load(&self, spec: &ProgramSpec) -> Result<Loaded, LoadError>;
    /// `BPF_PROG_BIND_MAP`: the program keeps the map alive.
    fn program_bind_map(&self, program: Id, map: Id) -> Result<(), Errno>;
    /// `BPF_PROG_TEST_RUN` on a raw tracepoint or syscall program: runs it once here; gives r0.
    fn program_test_run(&self, program: Id, context: &[u8]) -> Result<u64, Errno>;

    /// Attaches, enabled. When it returns every target that is there is patched.
    fn attach(&self, program: Id, point: &AttachPoint) -> Result<Id, Errno>;
    /// Is there such a place? Checked when the tool opens the event, before it names a program.
    fn attach_check(&self, point: &AttachPoint) -> Result<(), Errno>;

    /// A process, under the tool's filter, makes eBPF calls: it is a tool itself, and no target unless it is named.
    fn found_tool(&self, pid: i32) {
        let _ = pid;
    }

    /// Is it of interest which programs the tool starts?
    fn follows_programs(&self) -> bool {
        false
    }

    /// A process under the tool's filter waits to run another program, and may when this returns.
    fn begins_program(&self, pid: i32) {
        let _ = pid;
    }

    /// A process of the tool asks for map operations again and again, by the `syscall` instruction that ends at `ip`: they
    /// may be done in the process itself from now on. Not to be waited for.
    fn shorten(&self, pid: i32, ip: u64) {
        let _ = (pid, ip);
    }

    /// What an object is.
    fn info(&self, id: Id) -> Result<Info, Errno>;
    /// The tool has no descriptor of the object any more. A link is detached before this returns.
    fn release(&self, id: Id);
    /// The reading end of a new pipe that lines of `bpf_trace_printk` come out of, in the shape of the kernel's
    /// `trace_pipe`; each line comes out of one pipe only.
    fn trace_pipe(&self) -> Result<OwnedFd, Errno>;
    /// Counts memory that is taken for the tool outside of the backend, as long as the charge lives. ENOMEM: the tool has all that it
    /// may have.
    fn charge(&self, bytes: u64) -> Result<Charge, Errno> {
        let _ = bytes;
        Ok(Charge::default())
    }
    /// A call of the tool's fails with ENOMEM, which the user is to be told.
    fn out_of_memory(&self) {}
    /// Tells the user, once for each `what`, that something is not served.
    fn unsupported(&self, what: &str);
}
