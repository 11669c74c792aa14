//! The helper functions: everything that a program can call, by the kernel's numbers.
//!
//! Semantics and numbers are those of `include/uapi/linux/bpf.h`. A helper is a function over typed
//! arguments; `convention` says how these come from the registers of a call. To add one, write
//! the function and list it in the table below:
//!
//! ```ignore
//! /// `bpf_ringbuf_query(ringbuf, flags)`.
//! pub fn ringbuf_query(_: &mut Context, map: &MapHandle, what: u64) -> u64 {
//!     ringbuf::Ring::of(&map.map).map_or(0, |ring| ring.query(what))
//! }
//! ```

mod callbacks;
mod change;
mod convention;
pub mod dynptr;
mod errands;
mod identity;
mod lock;
mod maps;
mod objects;
mod output;
mod own_memory;
mod packet;
mod parse;
pub(crate) mod read;
pub(crate) mod signal;
mod stack;
mod task;
mod text;
pub(crate) mod time;
mod words;

use beeline_isa::abi::{HELPER_SLOTS, Helper};
use beeline_uapi::HelperId;

use convention::shim;
pub use lock::{release as release_lock, thread_holds_one};
pub use read::copy;

pub use crate::arch::fault_fixup;

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
    ($($id:ident = $helper:expr;)*) => {
        /// Every helper.
        pub const ALL: &[Numbered] = &[$(
            Numbered {
                number: HelperId::$id.0,
                name: HelperId::$id.name().expect("the kernel has it"),
                helper: shim($helper),
            }
        ),*];

        /// Fills the table that programs call through, with this copy of the agent's addresses.
        ///
        /// # Safety
        ///
        /// `table` must have room for [`HELPER_SLOTS`] addresses.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn beeline_helpers(table: *mut usize) {
            $(
                const { assert!((HelperId::$id.0 as usize) < HELPER_SLOTS) };
                // SAFETY: the number is below `HELPER_SLOTS`, and the caller promises that the
                // table has room for as many addresses.
                unsafe { table.add(HelperId::$id.0 as usize).write(shim($helper) as usize) };
            )*
            // SAFETY: the caller promises that the table has room for `HELPER_SLOTS` addresses.
            unsafe {
                maps::put_hash_look_ups(table);
                read::put_sized_reads(table);
                packet::put_packet_loads(table);
            }
        }
    };
}

helpers! {
    MAP_LOOKUP_ELEM = maps::map_lookup_elem;
    MAP_UPDATE_ELEM = maps::map_update_elem;
    MAP_DELETE_ELEM = maps::map_delete_elem;
    PROBE_READ = read::probe_read;
    KTIME_GET_NS = time::ktime_get_ns;
    TRACE_PRINTK = text::trace_printk;
    GET_PRANDOM_U32 = words::get_prandom_u32;
    GET_SMP_PROCESSOR_ID = identity::get_smp_processor_id;
    SKB_STORE_BYTES = packet::skb_store_bytes;
    L3_CSUM_REPLACE = packet::checksum::l3_csum_replace;
    L4_CSUM_REPLACE = packet::checksum::l4_csum_replace;
    TAIL_CALL = objects::tail_call;
    GET_CURRENT_PID_TGID = identity::get_current_pid_tgid;
    GET_CURRENT_UID_GID = identity::get_current_uid_gid;
    GET_CURRENT_COMM = identity::get_current_comm;
    REDIRECT = packet::redirect;
    PERF_EVENT_OUTPUT = output::perf_event_output;
    SKB_LOAD_BYTES = packet::skb_load_bytes;
    GET_STACKID = stack::get_stackid;
    CSUM_DIFF = packet::checksum::csum_diff;
    SKB_CHANGE_TYPE = packet::skb_change_type;
    GET_CURRENT_TASK = task::get_current_task;
    PROBE_WRITE_USER = change::probe_write_user;
    CURRENT_TASK_UNDER_CGROUP = objects::current_task_under_cgroup;
    SKB_CHANGE_TAIL = packet::room::skb_change_tail;
    SKB_PULL_DATA = packet::skb_pull_data;
    CSUM_UPDATE = packet::checksum::csum_update;
    SET_HASH_INVALID = packet::set_hash_invalid;
    GET_NUMA_NODE_ID = identity::get_numa_node_id;
    SKB_CHANGE_HEAD = packet::room::skb_change_head;
    XDP_ADJUST_HEAD = packet::xdp::xdp_adjust_head;
    PROBE_READ_STR = read::probe_read_str;
    SET_HASH = packet::set_hash;
    SKB_ADJUST_ROOM = packet::room::skb_adjust_room;
    XDP_ADJUST_META = packet::xdp::xdp_adjust_meta;
    OVERRIDE_RETURN = change::override_return;
    XDP_ADJUST_TAIL = packet::xdp::xdp_adjust_tail;
    GET_STACK = stack::get_stack;
    SKB_LOAD_BYTES_RELATIVE = packet::skb_load_bytes_relative;
    GET_CURRENT_CGROUP_ID = objects::get_current_cgroup_id;
    MAP_PUSH_ELEM = maps::map_push_elem;
    MAP_POP_ELEM = maps::map_pop_elem;
    MAP_PEEK_ELEM = maps::map_peek_elem;
    SPIN_LOCK = lock::spin_lock;
    SPIN_UNLOCK = lock::spin_unlock;
    STRTOL = parse::strtol;
    STRTOUL = parse::strtoul;
    SEND_SIGNAL = signal::send_signal;
    PROBE_READ_USER = read::probe_read;
    PROBE_READ_KERNEL = read::probe_read;
    PROBE_READ_USER_STR = read::probe_read_str;
    PROBE_READ_KERNEL_STR = read::probe_read_str;
    SEND_SIGNAL_THREAD = signal::send_signal_thread;
    JIFFIES64 = time::jiffies64;
    GET_NS_CURRENT_PID_TGID = identity::get_ns_current_pid_tgid;
    GET_CURRENT_ANCESTOR_CGROUP_ID = objects::get_current_ancestor_cgroup_id;
    KTIME_GET_BOOT_NS = time::ktime_get_boot_ns;
    RINGBUF_OUTPUT = output::ringbuf_output;
    RINGBUF_RESERVE = output::ringbuf_reserve;
    RINGBUF_SUBMIT = output::ringbuf_submit;
    RINGBUF_DISCARD = output::ringbuf_discard;
    RINGBUF_QUERY = output::ringbuf_query;
    CSUM_LEVEL = packet::checksum::csum_level;
    COPY_FROM_USER = read::probe_read;
    TASK_STORAGE_GET = task::task_storage_get;
    TASK_STORAGE_DELETE = task::task_storage_delete;
    GET_CURRENT_TASK_BTF = task::get_current_task_btf;
    KTIME_GET_COARSE_NS = time::ktime_get_coarse_ns;
    FOR_EACH_MAP_ELEM = callbacks::for_each_map_elem;
    SNPRINTF = text::snprintf;
    GET_FUNC_IP = identity::get_func_ip;
    GET_ATTACH_COOKIE = identity::get_attach_cookie;
    TRACE_VPRINTK = text::trace_vprintk;
    LOOP = callbacks::loop_;
    STRNCMP = words::strncmp;
    XDP_GET_BUFF_LEN = packet::xdp::xdp_get_buff_len;
    XDP_LOAD_BYTES = packet::xdp::xdp_load_bytes;
    XDP_STORE_BYTES = packet::xdp::xdp_store_bytes;
    MAP_LOOKUP_PERCPU_ELEM = maps::map_lookup_percpu_elem;
    DYNPTR_FROM_MEM = dynptr::dynptr_from_mem;
    RINGBUF_RESERVE_DYNPTR = dynptr::ringbuf_reserve_dynptr;
    RINGBUF_SUBMIT_DYNPTR = dynptr::ringbuf_submit_dynptr;
    RINGBUF_DISCARD_DYNPTR = dynptr::ringbuf_discard_dynptr;
    DYNPTR_READ = dynptr::dynptr_read;
    DYNPTR_WRITE = dynptr::dynptr_write;
    DYNPTR_DATA = dynptr::dynptr_data;
    KTIME_GET_TAI_NS = time::ktime_get_tai_ns;
    USER_RINGBUF_DRAIN = callbacks::user_ringbuf_drain;
}
