//! The interface behind the handlers of a tool's calls. The user-space runtime implements it.
//!
//! Objects are named by ids, as in the kernel. The supervisor owns the tool's descriptors, maps
//! them to ids, and calls [`Backend::release`] when the last descriptor of an object is gone. The
//! backend keeps an object alive as long as other objects of its own need it, such as a program's
//! maps or a link's program.

mod places;
mod programs;

use std::os::fd::OwnedFd;
use std::sync::Arc;

pub use beeline_maps::Batch;
use beeline_maps::Spec;
use beeline_uapi::{Errno, MapType, ProgramType};
use beeline_verifier::program::FieldKind;

use crate::budget::Charge;
use crate::packet::Packet;
use crate::runner::PacketResult;
pub use beeline_verifier::program::is_gpl_compatible;
pub use places::*;
pub use programs::*;

/// A kernel-style object id, never 0 and never reused in a session. Maps, programs, links and rings
/// share one space.
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
    /// The number of hash functions of a Bloom filter; 0 for other types.
    pub map_extra: u64,
    /// At most 15 bytes.
    pub name: String,
    /// For a map of maps: the map that its inner maps must resemble.
    pub inner: Option<Id>,
    /// The special fields that the value's type has.
    pub fields: SpecialFields,
    /// The value's type, if the tool gave types.
    pub value_type: Option<ValueType>,
}

impl MapSpec {
    /// Returns the part that the map's memory depends on.
    pub fn plain(&self) -> Spec {
        Spec {
            map_type: self.map_type,
            key_size: self.key_size,
            value_size: self.value_size,
            max_entries: self.max_entries,
            flags: self.flags,
            map_extra: self.map_extra,
        }
    }
}

/// A type in some BTF.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValueType {
    /// The BTF.
    pub btf: Arc<[u8]>,
    /// Its number there.
    pub id: u32,
    /// The number of the key's type.
    pub key: u32,
}

/// The object that an element of a map of objects is set to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectRef {
    /// For `ARRAY_OF_MAPS` and `HASH_OF_MAPS`.
    Map(Id),
    /// For `PROG_ARRAY`.
    Program(Id),
    /// For `CGROUP_ARRAY`: the kernel's id of a cgroup of version 2, which is its directory's inode
    /// number.
    Cgroup(u64),
}

/// The offsets, in bytes from a map value's start, of the fields that belong to the kernel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SpecialFields {
    /// A `struct bpf_spin_lock`.
    pub spin_lock: Option<u32>,
    /// A `struct bpf_timer`.
    pub timer: Option<u32>,
}

impl SpecialFields {
    /// Finds the special fields of a value.
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
        /// The maps that it keeps alive: those that it uses in the order of first use, then those
        /// bound to it.
        maps: Vec<Id>,
    },
    /// A link.
    Link {
        /// Its program.
        program: Id,
    },
}

/// The interface between the supervisor and the objects behind it. Every method may be called from
/// several threads.
///
/// # Errors
///
/// Errors are the kernel's own for the same call. A feature that is not supported gets the errno
/// that an older kernel without it gives; the backend says so once on stderr by
/// [`Backend::unsupported`].
pub trait Backend: Send + Sync {
    /// Returns the number of CPUs that per-CPU values are given for: the kernel's count of possible
    /// CPUs.
    fn cpus(&self) -> u32;

    /// Creates a map.
    ///
    /// # Errors
    ///
    /// `EINVAL`, `E2BIG` and `ENOMEM` as the kernel's. `EBADF` for a map of maps without an inner
    /// map, or if that is no map; `ENOTSUPP` if the inner map cannot be one; those of
    /// `memfd_create(2)`, `mmap(2)` and `eventfd(2)`.
    fn map_create(&self, spec: &MapSpec) -> Result<Id, Errno>;

    /// Creates a map that the tool may map, for programs in processes and in the host's kernel. It
    /// is an ordinary one if the kernel has no memory for it.
    ///
    /// # Errors
    ///
    /// Those of [`Self::map_create`].
    fn map_create_on_both_sides(&self, spec: &MapSpec) -> Result<Id, Errno> {
        self.map_create(spec)
    }

    /// Takes a map of the kernel's that others have made. `spec` has `BPF_F_RDONLY_PROG` if the
    /// descriptor does not allow changes.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` for types that cannot be used so; `EPERM` if the session keeps out of the
    /// kernel; `ENOMEM`, and those of mmap(2).
    fn map_of_kernel(&self, spec: &MapSpec, map: OwnedFd) -> Result<Id, Errno> {
        let _ = (spec, map);
        Err(Errno::EOPNOTSUPP)
    }

    /// Creates a map of a type that only the kernel has, in the kernel.
    ///
    /// # Errors
    ///
    /// Those of bpf(2), and `ENOMEM` if the tool may not have as much memory.
    fn map_create_in_kernel(&self, spec: &MapSpec) -> Result<Id, Errno> {
        self.map_create(spec)
    }

    /// Returns the kernel's map of a map that was made by [`Self::map_create_in_kernel`]; `None`
    /// for other maps.
    ///
    /// # Errors
    ///
    /// `EBADF` if there is no such map, `EMFILE` and the like if Beeline may have no more files
    /// open.
    fn kernels_map(&self, map: Id) -> Result<Option<OwnedFd>, Errno> {
        let _ = map;
        Ok(None)
    }

    /// Returns the map in the host's kernel that stands for a map, with all its elements, for an
    /// iterator. It is made if there is none.
    ///
    /// # Errors
    ///
    /// `EBADF` if there is no such map, `EBUSY` if not all of it can be in the kernel, which the
    /// user is told.
    fn map_in_kernel(&self, map: Id) -> Result<OwnedFd, Errno> {
        let _ = map;
        Err(Errno(libc::EPERM))
    }

    /// Returns whether there is a map in the host's kernel that stands for a map.
    fn has_map_in_kernel(&self, map: Id) -> bool {
        let _ = map;
        false
    }

    /// Returns the kernel's array whose pages are a map's memory, for the tool to map in place of
    /// its file; `None` for other maps.
    ///
    /// # Errors
    ///
    /// `EBADF` if there is no such map, `EMFILE` and the like if Beeline may have no more files
    /// open.
    fn kernels_array(&self, map: Id) -> Result<Option<OwnedFd>, Errno> {
        let _ = map;
        Ok(None)
    }

    /// Returns the memory file of a map or of a perf ring, laid out so that the tool's own `mmap`
    /// of it is right.
    ///
    /// # Errors
    ///
    /// `EBADF` if there is no such map or ring, `EMFILE` and the like if Beeline may have no more
    /// files open.
    fn memory(&self, id: Id) -> Result<OwnedFd, Errno>;

    /// Returns the size in bytes of a value as the system calls see it: `value_size`, or for
    /// per-CPU maps `cpus * round_up(value_size, 8)`.
    ///
    /// # Errors
    ///
    /// `EBADF` if there is no such map.
    fn map_value_len(&self, map: Id) -> Result<usize, Errno>;

    /// `BPF_MAP_LOOKUP_ELEM`; `value` has [`Self::map_value_len`] bytes.
    ///
    /// # Errors
    ///
    /// `EBADF` if there is no such map, `ENOENT` if there is no such element, `EINVAL` for flags or
    /// wrong lengths, `ENOTSUPP` for a type without look-ups, `EBUSY` as for [`Self::map_update`].
    fn map_lookup(&self, map: Id, key: &[u8], value: &mut [u8], flags: u64) -> Result<(), Errno>;

    /// `BPF_MAP_UPDATE_ELEM`.
    ///
    /// # Errors
    ///
    /// `EBADF` if there is no such map, `EPERM` if it is frozen, `EINVAL` for flags or wrong
    /// lengths, `EEXIST` and `ENOENT` as the flags say, `E2BIG` if the map is full or has no such
    /// index, `EBUSY` if another holds the element's lock for too long.
    fn map_update(&self, map: Id, key: &[u8], value: &[u8], flags: u64) -> Result<(), Errno>;

    /// `BPF_MAP_UPDATE_ELEM` on a map of objects, with elements that read as the objects' ids.
    ///
    /// An object stays alive as long as it is an element.
    ///
    /// # Errors
    ///
    /// `EINVAL` for an object of another kind, a program of another type, or a map that is not like
    /// the inner map of the map of maps. `EBADF` if there is no such map or object; otherwise as
    /// for [`Self::map_update`].
    fn map_set_object(
        &self,
        map: Id,
        key: &[u8],
        object: ObjectRef,
        flags: u64,
    ) -> Result<(), Errno>;

    /// `BPF_MAP_DELETE_ELEM`.
    ///
    /// # Errors
    ///
    /// `EBADF` if there is no such map, `EPERM` if it is frozen, `ENOENT` if there is no such
    /// element, `E2BIG` if an array of rings or objects has no such index, `EINVAL` for an array of
    /// values or a wrong length, `EBUSY` as for [`Self::map_update`]; `EINVAL`, `ENOTSUPP` or
    /// `EOPNOTSUPP`, as in the kernel, for a type without keys.
    fn map_delete(&self, map: Id, key: &[u8]) -> Result<(), Errno>;

    /// `BPF_MAP_LOOKUP_AND_DELETE_ELEM`.
    ///
    /// # Errors
    ///
    /// `EBADF` if there is no such map, `EPERM` if it is frozen, `ENOENT` if there is no such
    /// element, `EINVAL` for flags or wrong lengths, `ENOTSUPP` for another type of map, `EBUSY` as
    /// for [`Self::map_update`].
    fn map_lookup_and_delete(
        &self,
        map: Id,
        key: &[u8],
        value: &mut [u8],
        flags: u64,
    ) -> Result<(), Errno>;

    /// `BPF_MAP_GET_NEXT_KEY`; `None` asks for the first.
    ///
    /// # Errors
    ///
    /// `EBADF` if there is no such map, `ENOENT` after the last key, `EINVAL` for wrong lengths,
    /// `ENOTSUPP` for a type without keys, `EBUSY` as for [`Self::map_update`].
    fn map_next_key(&self, map: Id, key: Option<&[u8]>, next: &mut [u8]) -> Result<(), Errno>;

    /// `BPF_MAP_LOOKUP_BATCH` and `BPF_MAP_LOOKUP_AND_DELETE_BATCH` of a hash or an array.
    ///
    /// For a hash it fills keys and values with as many whole buckets as have room, from the bucket
    /// `cursor` on. For an array it fills them with elements, from the index `cursor` on.
    ///
    /// # Errors
    ///
    /// `ENOSPC` if there is no room even for the first bucket of a hash that is not empty;
    /// `ENOTSUPP` for another type of map, or to delete from an array; `EBADF` if there is no such
    /// map; `EBUSY` as for [`Self::map_update`], if nothing was read.
    fn map_read_batch(
        &self,
        map: Id,
        cursor: u32,
        room: (&mut [u8], &mut [u8]),
        delete: bool,
    ) -> Result<Batch, Errno>;

    /// `BPF_MAP_FREEZE`: no more changes from the tool.
    ///
    /// # Errors
    ///
    /// `EBADF` if there is no such map, `EBUSY` if it is frozen already.
    fn map_freeze(&self, map: Id) -> Result<(), Errno>;

    /// Creates the ring behind a `PERF_COUNT_SW_BPF_OUTPUT` event of one CPU.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if the budget has no room for it; those of `memfd_create(2)`, `mmap(2)` and
    /// `eventfd(2)`.
    fn perf_ring_create(&self, cpu: u32) -> Result<Id, Errno>;

    /// Prepares for the tool to map `pages` data pages (a power of two) after the control page.
    /// Call it before the tool's `mmap`.
    ///
    /// # Errors
    ///
    /// `EBADF` if there is no such ring; `EINVAL` if `pages` is no power of two, or not the number
    /// that was set before; `ENOMEM` if it is too large or the budget has no room; those of
    /// `ftruncate(2)` and `mmap(2)`.
    fn perf_ring_resize(&self, ring: Id, pages: u32) -> Result<(), Errno>;

    /// `PERF_EVENT_IOC_ENABLE` or `DISABLE` on such an event.
    ///
    /// # Errors
    ///
    /// `EBADF` if there is no such ring.
    fn perf_ring_enable(&self, ring: Id, on: bool) -> Result<(), Errno>;

    /// `PERF_EVENT_IOC_PAUSE_OUTPUT` on such an event.
    ///
    /// # Errors
    ///
    /// `EBADF` if there is no such ring.
    fn perf_ring_pause(&self, ring: Id, on: bool) -> Result<(), Errno>;

    /// Puts a ring into an element of a `PERF_EVENT_ARRAY`.
    ///
    /// # Errors
    ///
    /// `EBADF` if there is no such map or ring, `E2BIG` if the map has no such element.
    fn perf_array_set(&self, map: Id, index: u32, ring: Id) -> Result<(), Errno>;

    /// Returns an eventfd that is written when a ring-buffer map or a perf ring has something to
    /// read. It is never read back, so wait on it edge-triggered.
    ///
    /// # Errors
    ///
    /// `EBADF` if there is no such map or ring, `EMFILE` and the like if Beeline may have no more
    /// files open.
    fn wakeup(&self, id: Id) -> Result<OwnedFd, Errno>;

    /// Returns whether a ring-buffer map or a perf ring has something to read.
    ///
    /// # Errors
    ///
    /// `EBADF` if there is no such map or ring.
    fn readable(&self, id: Id) -> Result<bool, Errno>;

    /// Verifies, compiles and seals a program.
    ///
    /// # Errors
    ///
    /// [`LoadError`] with the verifier's errno and log if the program is rejected; `EBADF` if a
    /// descriptor names no map; `EINVAL` if the bytes are no program, or a program array takes
    /// other programs; `ENOTSUP` if no engine takes it; `E2BIG` if its code takes too much stack;
    /// `ENOMEM` if the budget has no room.
    fn program_load(&self, spec: &ProgramSpec) -> Result<Loaded, LoadError>;

    /// `BPF_PROG_BIND_MAP`: the program keeps the map alive.
    ///
    /// # Errors
    ///
    /// `EBADF` if there is no such program or map.
    fn program_bind_map(&self, program: Id, map: Id) -> Result<(), Errno>;

    /// `BPF_PROG_TEST_RUN` on a raw tracepoint or syscall program: runs it once here and returns
    /// r0.
    ///
    /// # Errors
    ///
    /// `EBADF` if there is no such program, `E2BIG` if the context is too long, `ENOTSUP` if the
    /// program has no code or was not verified, `EBUSY` if it could not be run now.
    fn program_test_run(&self, program: Id, context: &[u8]) -> Result<u64, Errno>;

    /// `BPF_PROG_TEST_RUN` on a program for packets: runs it so many times here.
    ///
    /// # Errors
    ///
    /// `EBADF` if there is no such program, `ENOTSUPP` if it has no code or was not verified,
    /// `EBUSY` if it could not be run now.
    fn packet_test_run(
        &self,
        program: Id,
        packet: Packet,
        repeat: u32,
    ) -> Result<PacketResult, Errno> {
        let _ = (program, packet, repeat);
        Err(Errno::ENOTSUPP)
    }

    /// Attaches a program, enabled. When it returns, every existing target is patched.
    ///
    /// # Errors
    ///
    /// `EBADF` if there is no such program, `ENOTSUP` if it has no code or was not verified,
    /// `ENOMEM` if the budget has no room, `EINVAL` if it cannot run at such a place or overrides
    /// results there, and those of [`Self::attach_check`]. If the user named the targets and none
    /// can be attached to, the error of the last.
    fn attach(&self, program: Id, point: &AttachPoint) -> Result<Id, Errno>;

    /// Returns the reason, in words, for which no program may be attached in the host's kernel;
    /// `None` if it may.
    fn kernel_refusal(&self) -> Option<&str> {
        Some("this session has no kernel")
    }

    /// Returns the host kernel's program, to be attached at one of its own events. It is loaded if
    /// there is none.
    ///
    /// # Errors
    ///
    /// The kernel's for the load; `EPERM` if the session's policy forbids what it may do; `EBUSY`
    /// if a map of the program cannot be on both sides; `EBADF` if there is no such program.
    fn program_in_kernel(&self, program: Id) -> Result<Arc<OwnedFd>, Errno> {
        let _ = program;
        Err(Errno::EINVAL)
    }

    /// Returns whether a program has code for user space. If not, only the kernel can run it.
    fn runs_here(&self, program: Id) -> bool {
        let _ = program;
        true
    }

    /// Returns the program that the kernel knows by this id, if it is one of the session's.
    fn program_by_kernels_id(&self, id: u32) -> Option<Id> {
        let _ = id;
        None
    }

    /// Has the runs of programs counted from now on, as far as Beeline makes them itself.
    fn count_runs(&self) {}

    /// Returns the number of a program's counted runs, in the kernel and in Beeline, and their time
    /// in nanoseconds.
    fn program_runs(&self, program: Id) -> (u64, u64) {
        let _ = program;
        (0, 0)
    }

    /// Returns whether programs may decide about what others do (`--unsafe`).
    fn may_decide(&self) -> bool {
        false
    }

    /// Returns whether programs at system calls run in the kernel.
    fn system_calls_are_kernels(&self) -> bool {
        false
    }

    /// Returns whether a timer that gets this program belongs in the kernel: the program is there
    /// already, or cannot run in user space.
    fn takes_timer_in_kernel(&self, program: Id) -> bool {
        let _ = program;
        false
    }

    /// Notes that a program in the kernel was detached: what it has sent until then is there when
    /// the tool looks.
    fn kernel_link_closed(&self) {}

    /// Checks that there is such a place. This is called when the tool opens the event, before it
    /// names a program.
    ///
    /// # Errors
    ///
    /// `EINVAL` if nothing can be probed there, those of `open(2)` for the file, `ESRCH` if there
    /// is no such process, `EPERM` if it may not be traced, `EBUSY` if another tracer has it or it
    /// cannot be stopped.
    fn attach_check(&self, point: &AttachPoint) -> Result<(), Errno>;

    /// Notes that a process under the tool's filter makes eBPF calls: it is a tool itself, and no
    /// target unless it is named.
    fn found_tool(&self, pid: i32) {
        let _ = pid;
    }

    /// Returns whether it matters which programs the tool starts.
    fn follows_programs(&self) -> bool {
        false
    }

    /// Notes that from now on any path may lead into the session's BPF file system: also one that
    /// begins there, because a process is there or has opened a directory there.
    fn let_no_path_pass(&self) {}

    /// Notes that a process under the tool's filter waits to run another program. It may run it
    /// when this returns.
    fn begins_program(&self, pid: i32) {
        let _ = pid;
    }

    /// Notes that a process of the tool repeats map operations by the `syscall` instruction that
    /// ends at `ip`, so that they may be done in the process itself from now on.
    fn shorten(&self, pid: i32, ip: u64, waiting: Release) {
        let _ = (pid, ip, waiting);
    }

    /// As [`Self::shorten`], for a process that has made a few such calls: only if it was forked
    /// from one whose operations have been shortened.
    fn shorten_copy(&self, pid: i32, ip: u64, waiting: Release) {
        let _ = (pid, ip, waiting);
    }

    /// Returns the facts of an object.
    ///
    /// # Errors
    ///
    /// `EBADF` if there is no such map, program or link.
    fn info(&self, id: Id) -> Result<Info, Errno>;

    /// Notes that the tool has no descriptor of the object any more. A link is detached before this
    /// returns.
    fn release(&self, id: Id);

    /// Returns the reading end of a new pipe with the lines of `bpf_trace_printk`, in the shape of
    /// the kernel's `trace_pipe`. Each line comes out of one pipe only.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if the budget has no room for the lines, those of `pipe2(2)` and
    /// `pthread_create(3)`.
    fn trace_pipe(&self) -> Result<OwnedFd, Errno>;

    /// Counts memory that is taken for the tool outside of the backend, as long as the charge
    /// lives.
    ///
    /// # Errors
    ///
    /// `ENOMEM`: the tool has all that it may have.
    fn charge(&self, bytes: u64) -> Result<Charge, Errno> {
        let _ = bytes;
        Ok(Charge::default())
    }

    /// Notes that a call of the tool fails with ENOMEM, so that the user is told.
    fn out_of_memory(&self) {}

    /// Tells the user, once for each `what`, that something is not supported.
    fn unsupported(&self, what: &str);
}

/// The answer to a call that a thread of the tool waits for. The thread goes on when this is
/// dropped.
pub struct Release(Option<Box<dyn FnOnce() + Send>>);

impl Release {
    /// `answer` is called when this is dropped.
    pub fn new(answer: impl FnOnce() + Send + 'static) -> Self {
        Self(Some(Box::new(answer)))
    }
}

impl Drop for Release {
    fn drop(&mut self) {
        if let Some(answer) = self.0.take() {
            answer();
        }
    }
}

impl std::fmt::Debug for Release {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Release").finish_non_exhaustive()
    }
}
