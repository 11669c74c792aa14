//! The interface between a compiled program and its environment.
//!
//! Compiled code is position-independent and holds no address: the same bytes serve every target.
//! It takes everything it needs from a [`Run`], which the code that starts the program passes in.
//!
//! A program is entered as a function of the platform's ABI (System V on x86-64, AAPCS64 on
//! aarch64), [`Entry`]. A helper is called as such a function of six arguments: the five eBPF
//! registers r1 to r5, then the [`Run`] (so a helper knows its caller), and returns r0. Code and
//! helpers use general registers only, never x87, vector or mask ones, and on aarch64 not x18.
//!
//! A **callback**, the address that `LD_IMM64` with `BPF_PSEUDO_FUNC` loads, is called like a
//! helper: [`Helper`].
//!
//! A **tail call** is a call of helper [`HelperId::TAIL_CALL`] `(context, program array, index)`.
//! If it returns 0, the program goes on behind the call. Otherwise it returns the [`Entry`] of the
//! next program, after it has made the [`Run`]'s tables that program's. Then the calling function's
//! frame is left, and the next program is entered with [`Run::context`]. It returns in place of the
//! function that called it: compiled code restores the tables if that was not the program's own
//! entry.
//!
//! In a target, a [`Run`] is the start of a larger structure: the agent's context of the run, from
//! which helpers answer. Compiled code may look there itself where it is told so; the `CONTEXT_`
//! constants are the offsets. (The agent checks them as it is compiled.)

use beeline_uapi::HelperId;

/// The version of this interface, and of all else that compiled code relies on: stored code is for
/// one version only.
pub const VERSION: u32 = 3;

/// One more than the highest helper number that a program may call.
pub const HELPER_SLOTS: usize = 256;

/// The middle of the helper table's places that are not helpers of Linux's; [`hash_lookup`] and
/// [`sized_read`] assign those from here on, and [`packet_load`] those before.
const SPECIAL: u32 = 240;

/// Returns the place in the helper table of a special `bpf_map_lookup_elem` for hashes of one kind.
///
/// It is for keys of this many bytes; `None` if there is no special one. Compilers that know the
/// map call it in place of the general one.
pub const fn hash_lookup(key_size: u32, per_cpu: bool, lru: bool) -> Option<u32> {
    let size = match key_size {
        4 => 0,
        8 => 1,
        16 => 2,
        _ => return None,
    };
    Some(SPECIAL + size + 3 * per_cpu as u32 + 6 * lru as u32)
}

/// Returns the place in the helper table of a special `bpf_probe_read_user` or one of its kin for
/// so many bytes.
///
/// `None` if there is no special one.
pub const fn sized_read(bytes: u64) -> Option<u32> {
    match bytes {
        1 | 2 | 4 | 8 => Some(SPECIAL + 12 + bytes.trailing_zeros()),
        _ => None,
    }
}

/// Returns the place in the helper table of the function that stands for a load from the packet by
/// the classic instructions (`BPF_LD | BPF_ABS`, `BPF_LD | BPF_IND`).
///
/// It takes the context and the offset, and returns the number in host order, or a negative one if
/// the packet is too short. It is for so many bytes; `None` if there is no such load.
pub const fn packet_load(bytes: u64) -> Option<u32> {
    match bytes {
        1 | 2 | 4 => Some(SPECIAL - 4 + bytes.trailing_zeros()),
        _ => None,
    }
}

const _: () = assert!(
    HelperId::COUNT <= SPECIAL - 4,
    "the special places are not helpers"
);

/// The data that a program can reach while it runs.
///
/// The agent keeps more behind these fields, which compiled code reads only if it is told that it
/// is there. Compiled code writes the three fields of the tables when a program returns into one
/// that has others.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Run {
    /// A table of [`HELPER_SLOTS`] addresses, indexed by helper number; 0 where there is no such
    /// helper.
    ///
    /// In the agent it has those of [`hash_lookup`], [`sized_read`] and [`packet_load`] too.
    pub helpers: *const usize,
    /// The value of `LD_IMM64` with `BPF_PSEUDO_MAP_FD`, by the program's map index: a map handle's
    /// address.
    pub maps: *const usize,
    /// The base of `LD_IMM64` with `BPF_PSEUDO_MAP_VALUE`, by the program's map index: the first
    /// value's address.
    pub values: *const usize,
    /// The number of entries of `maps` and of `values`.
    pub map_count: usize,
    /// The context of this run, which the next program of a tail call gets too; null while nothing
    /// runs.
    pub context: *const u8,
}

/// Byte offset of [`Run::helpers`].
pub const RUN_HELPERS: usize = core::mem::offset_of!(Run, helpers);
/// Byte offset of [`Run::maps`].
pub const RUN_MAPS: usize = core::mem::offset_of!(Run, maps);
/// Byte offset of [`Run::values`].
pub const RUN_VALUES: usize = core::mem::offset_of!(Run, values);

/// Byte offset of [`Run::map_count`].
pub const RUN_MAP_COUNT: usize = core::mem::offset_of!(Run, map_count);

/// The offsets of the fields that a tail call may change, and that must be restored when the
/// program is returned to.
pub const RUN_TABLES: [usize; 3] = [RUN_MAPS, RUN_VALUES, RUN_MAP_COUNT];

/// The limit of map indexes: far beyond what a program can have.
pub const MAX_MAPS: i32 = 1 << 20;

/// Byte offset of [`Run::context`].
pub const RUN_CONTEXT: usize = core::mem::offset_of!(Run, context);

/// In the agent's context, an address: the target, alive as long as the run.
pub const CONTEXT_TARGET: usize = 40;
/// In the agent's context, an address: the hooked site; or null.
pub const CONTEXT_SITE: usize = 64;
/// In the agent's context, 32 bits: the number that programs see as their CPU, below the number of
/// values that per-CPU maps have.
pub const CONTEXT_CPU: usize = 72;
/// In the agent's context, 64 bits: the result of `bpf_get_attach_cookie`.
pub const CONTEXT_COOKIE: usize = 80;
/// In a hooked site, 64 bits: the result of `bpf_get_func_ip`.
pub const SITE_ADDRESS: usize = 8;
/// In a target, the address of 32 bits that hold the process's id, or 0 in a forked child.
pub const TARGET_CONTROL: usize = HELPER_SLOTS * 8;
/// In a target, 32 bits, signed: the offset of a thread's id from the thread pointer;
/// [`TID_UNKNOWN`] if it is not known.
pub const TARGET_TID_OFFSET: usize = TARGET_CONTROL + 72;
/// At [`TARGET_TID_OFFSET`]: a thread's id must be asked for.
pub const TID_UNKNOWN: i32 = i32::MIN;

/// The numbers of this module that stand in compiled code: builds with different numbers do not run
/// each other's code.
pub const LAYOUT: [usize; 20] = [
    VERSION as usize,
    HELPER_SLOTS,
    HelperId::TAIL_CALL.0 as usize,
    place(hash_lookup(4, false, false)),
    place(hash_lookup(16, true, true)),
    place(sized_read(1)),
    place(sized_read(8)),
    place(packet_load(4)),
    RUN_HELPERS,
    RUN_MAPS,
    RUN_VALUES,
    RUN_MAP_COUNT,
    RUN_CONTEXT,
    CONTEXT_TARGET,
    CONTEXT_SITE,
    CONTEXT_CPU,
    CONTEXT_COOKIE,
    SITE_ADDRESS,
    TARGET_CONTROL,
    TARGET_TID_OFFSET,
];

const fn place(special: Option<u32>) -> usize {
    match special {
        Some(place) => place as usize,
        None => 0,
    }
}

/// A function type of the ABI that compiled code uses.
#[cfg(target_arch = "x86_64")]
macro_rules! function {
    ($($argument:ty),* => $result:ty) => { unsafe extern "sysv64" fn($($argument),*) -> $result };
}
#[cfg(not(target_arch = "x86_64"))]
macro_rules! function {
    ($($argument:ty),* => $result:ty) => { unsafe extern "C" fn($($argument),*) -> $result };
}

/// Defines a function of that ABI that compiled code may call, such as a [`Helper`].
#[cfg(target_arch = "x86_64")]
#[macro_export]
macro_rules! platform_fn {
    (
        unsafe fn $name:ident $(<$($parameter:ident $(: $bound:path)?),+>)?
        ($($argument:ident: $of:ty),* $(,)?) -> $result:ty $body:block
    ) => {
        unsafe extern "sysv64" fn $name $(<$($parameter $(: $bound)?),+>)?
        ($($argument: $of),*) -> $result $body
    };
}
/// Defines a function of that ABI that compiled code may call, such as a [`Helper`].
#[cfg(not(target_arch = "x86_64"))]
#[macro_export]
macro_rules! platform_fn {
    (
        unsafe fn $name:ident $(<$($parameter:ident $(: $bound:path)?),+>)?
        ($($argument:ident: $of:ty),* $(,)?) -> $result:ty $body:block
    ) => {
        unsafe extern "C" fn $name $(<$($parameter $(: $bound)?),+>)?
        ($($argument: $of),*) -> $result $body
    };
}

/// A compiled program: `(context, run) -> r0`.
pub type Entry = function!(*const u8, *const Run => u64);

/// A helper: `(r1, r2, r3, r4, r5, run) -> r0`.
pub type Helper = function!(u64, u64, u64, u64, u64, *const Run => u64);
