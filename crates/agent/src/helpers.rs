//! The helper functions: everything that a program can call, by the kernel's numbers.
//!
//! Semantics and numbers are those of `include/uapi/linux/bpf.h`. Each helper takes the five
//! argument registers and the [`Context`] of the run, and returns r0.

mod callbacks;
mod change;
pub mod dynptr;
mod identity;
mod lock;
mod maps;
mod objects;
mod output;
mod parse;
mod read;
pub(crate) mod signal;
mod stack;
mod task;
mod text;
pub(crate) mod time;
mod words;

use beeline_isa::abi::{HELPER_SLOTS, Helper, Run};

use crate::abi::Context;

pub use lock::{release as release_lock, thread_holds_one};
pub use read::{copy, fault_fixup};

/// A helper's number, its name in the kernel, and its address.
pub struct Numbered {
    /// `BPF_FUNC_*`.
    pub number: u32,
    /// Without the `bpf_` prefix.
    pub name: &'static str,
    /// The function.
    pub helper: Helper,
}

/// Declares the table of all helpers once: exported by name for the freestanding agent, listed for
/// the runtime.
macro_rules! helpers {
    ($($number:literal $name:ident = $path:path;)*) => {
        /// Every helper.
        pub const ALL: &[Numbered] = &[$(Numbered { number: $number, name: stringify!($name), helper: $path }),*];

        /// Fills the table that programs call through, with this copy of the agent's addresses.
        ///
        /// # Safety
        ///
        /// `table` must have room for [`HELPER_SLOTS`] addresses.
        #[unsafe(no_mangle)]
        pub unsafe extern "sysv64" fn beeline_helpers(table: *mut usize) {
            $(
                const { assert!($number < HELPER_SLOTS) };
                // SAFETY: the number is below `HELPER_SLOTS`, and the caller promises that the
                // table has room for as many addresses.
                unsafe { table.add($number).write($path as *const () as usize) };
            )*
            // SAFETY: the caller promises that the table has room for `HELPER_SLOTS` addresses.
            unsafe {
                maps::put_hash_look_ups(table);
                read::put_sized_reads(table);
            }
        }
    };
}

helpers! {
    1 map_lookup_elem = maps::map_lookup_elem;
    2 map_update_elem = maps::map_update_elem;
    3 map_delete_elem = maps::map_delete_elem;
    4 probe_read = read::probe_read;
    5 ktime_get_ns = time::ktime_get_ns;
    6 trace_printk = text::trace_printk;
    7 get_prandom_u32 = words::get_prandom_u32;
    8 get_smp_processor_id = identity::get_smp_processor_id;
    12 tail_call = objects::tail_call;
    14 get_current_pid_tgid = identity::get_current_pid_tgid;
    15 get_current_uid_gid = identity::get_current_uid_gid;
    16 get_current_comm = identity::get_current_comm;
    25 perf_event_output = output::perf_event_output;
    27 get_stackid = stack::get_stackid;
    35 get_current_task = task::get_current_task;
    36 probe_write_user = change::probe_write_user;
    37 current_task_under_cgroup = objects::current_task_under_cgroup;
    42 get_numa_node_id = identity::get_numa_node_id;
    45 probe_read_str = read::probe_read_str;
    58 override_return = change::override_return;
    67 get_stack = stack::get_stack;
    80 get_current_cgroup_id = objects::get_current_cgroup_id;
    87 map_push_elem = maps::map_push_elem;
    88 map_pop_elem = maps::map_pop_elem;
    89 map_peek_elem = maps::map_peek_elem;
    93 spin_lock = lock::spin_lock;
    94 spin_unlock = lock::spin_unlock;
    105 strtol = parse::strtol;
    106 strtoul = parse::strtoul;
    109 send_signal = signal::send_signal;
    112 probe_read_user = read::probe_read;
    113 probe_read_kernel = read::probe_read;
    114 probe_read_user_str = read::probe_read_str;
    115 probe_read_kernel_str = read::probe_read_str;
    117 send_signal_thread = signal::send_signal_thread;
    118 jiffies64 = time::jiffies64;
    120 get_ns_current_pid_tgid = identity::get_ns_current_pid_tgid;
    123 get_current_ancestor_cgroup_id = objects::get_current_ancestor_cgroup_id;
    125 ktime_get_boot_ns = time::ktime_get_boot_ns;
    130 ringbuf_output = output::ringbuf_output;
    131 ringbuf_reserve = output::ringbuf_reserve;
    132 ringbuf_submit = output::ringbuf_submit;
    133 ringbuf_discard = output::ringbuf_discard;
    134 ringbuf_query = output::ringbuf_query;
    148 copy_from_user = read::probe_read;
    156 task_storage_get = task::task_storage_get;
    157 task_storage_delete = task::task_storage_delete;
    158 get_current_task_btf = task::get_current_task_btf;
    160 ktime_get_coarse_ns = time::ktime_get_coarse_ns;
    164 for_each_map_elem = callbacks::for_each_map_elem;
    165 snprintf = text::snprintf;
    173 get_func_ip = identity::get_func_ip;
    174 get_attach_cookie = identity::get_attach_cookie;
    177 trace_vprintk = text::trace_vprintk;
    181 loop = callbacks::loop_;
    182 strncmp = words::strncmp;
    195 map_lookup_percpu_elem = maps::map_lookup_percpu_elem;
    197 dynptr_from_mem = dynptr::dynptr_from_mem;
    198 ringbuf_reserve_dynptr = dynptr::ringbuf_reserve_dynptr;
    199 ringbuf_submit_dynptr = dynptr::ringbuf_submit_dynptr;
    200 ringbuf_discard_dynptr = dynptr::ringbuf_discard_dynptr;
    201 dynptr_read = dynptr::dynptr_read;
    202 dynptr_write = dynptr::dynptr_write;
    203 dynptr_data = dynptr::dynptr_data;
    208 ktime_get_tai_ns = time::ktime_get_tai_ns;
    209 user_ringbuf_drain = callbacks::user_ringbuf_drain;
}

/// Returns the run's context, from a helper's last argument.
///
/// # Safety
///
/// `run` must be what the compiled program passed on: the first field of a [`Context`] that only
/// this run uses.
unsafe fn context<'a>(run: *const Run) -> &'a mut Context {
    // SAFETY: the caller promises that `run` is the first field of a `Context` that only this run
    // uses.
    unsafe { &mut *run.cast::<Context>().cast_mut() }
}

/// Returns a negative error number as r0.
fn failed(errno: i32) -> u64 {
    i64::from(-errno) as u64
}
