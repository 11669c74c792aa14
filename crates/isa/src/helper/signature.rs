//! What helpers take and give, in the words of the kernel's `struct bpf_func_proto`.

use super::name;

/// A helper's arguments, r1 first, and its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signature {
    /// At most five.
    pub arguments: &'static [Argument],
    /// What r0 is afterwards.
    pub result: Returned,
}

/// One argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Argument {
    /// Any value: a number, an address that the helper itself checks, what a callback gets.
    Any,
    /// The program's context.
    Context,
    /// A map; [`suits`](beeline_uapi::helper::maps::suits) says of which types.
    Map,
    /// A key of the map, to be read.
    Key,
    /// A value of the map, to be read.
    Value,
    /// The same, or null.
    ValueOrNull,
    /// Room for a value of the map, to be written.
    ValueRoom,
    /// Memory to be read, of as many bytes as the next argument says.
    Read,
    /// The same, or null where that is 0.
    ReadOrNull,
    /// Memory to be written, of as many bytes as the next argument says.
    Write,
    /// The same, or null where that is 0.
    WriteOrNull,
    /// Memory of a map's value, of as many bytes as the next argument says.
    Stored,
    /// Bytes of the argument before it; not 0.
    Size,
    /// Bytes of the argument before it.
    SizeOrZero,
    /// A text that ends with a zero byte.
    Text,
    /// Room for eight bytes, to be written.
    Long,
    /// A `struct bpf_spin_lock` in a map's value.
    Lock,
    /// A `struct bpf_timer` in a map's value.
    Timer,
    /// A record that was reserved in a ring buffer; it is handed back.
    Record,
    /// A function of the program.
    Callback,
    /// A task, as `bpf_get_current_task_btf` gives it.
    Task,
    /// A dynptr.
    Dynptr,
    /// The dynptr of a record that was reserved in a ring buffer; it is handed back.
    RecordDynptr,
    /// Room for a dynptr, to be made.
    NewDynptr,
    /// The same; it is one of a record, and has to be handed back.
    NewRecordDynptr,
    /// Another object of the kernel's.
    Kernel,
}

/// A result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Returned {
    /// r0 is not to be read.
    Nothing,
    /// A number, or an address that is none of the program's.
    Number,
    /// A value of the map, or for a map of maps a map; or null.
    ValueOrNull,
    /// A record of as many bytes as the second argument says, or null.
    RecordOrNull,
    /// Memory of a dynptr, of as many bytes as the third argument says, or null.
    PartOrNull,
    /// A task, or null.
    Task,
    /// Another object of the kernel's, or null.
    Kernel,
}

/// The signature of a helper; `None` where this table has none.
pub fn signature(id: u32) -> Option<Signature> {
    let arguments = arguments_of(name(id)?)?;
    Some(Signature {
        arguments,
        result: result_of(name(id)?),
    })
}

fn arguments_of(name: &str) -> Option<&'static [Argument]> {
    use Argument::*;
    Some(match name {
        "ktime_get_ns"
        | "ktime_get_boot_ns"
        | "ktime_get_coarse_ns"
        | "ktime_get_tai_ns"
        | "jiffies64"
        | "get_prandom_u32"
        | "get_smp_processor_id"
        | "get_numa_node_id"
        | "get_current_pid_tgid"
        | "get_current_uid_gid"
        | "get_current_task"
        | "get_current_task_btf"
        | "get_current_cgroup_id" => &[],
        "get_func_ip" | "get_attach_cookie" | "get_func_arg_cnt" => &[Context],
        "send_signal" | "send_signal_thread" | "get_current_ancestor_cgroup_id" => &[Any],
        "spin_lock" | "spin_unlock" => &[Lock],
        "timer_cancel" => &[Timer],
        "this_cpu_ptr" => &[Kernel],
        "task_pt_regs" => &[Task],
        "map_lookup_elem" | "map_delete_elem" => &[Map, Key],
        "map_pop_elem" | "map_peek_elem" => &[Map, ValueRoom],
        "get_current_comm" => &[Write, Size],
        "perf_event_read" | "current_task_under_cgroup" | "ringbuf_query" => &[Map, Any],
        "override_return" => &[Context, Any],
        "ringbuf_submit" | "ringbuf_discard" => &[Record, Any],
        "per_cpu_ptr" => &[Kernel, Any],
        "ringbuf_submit_dynptr" | "ringbuf_discard_dynptr" => &[RecordDynptr, Any],
        "task_storage_delete" => &[Map, Task],
        "timer_set_callback" => &[Timer, Callback],
        "get_func_ret" => &[Context, Long],
        "probe_read"
        | "probe_read_str"
        | "probe_read_user"
        | "probe_read_user_str"
        | "probe_read_kernel"
        | "probe_read_kernel_str"
        | "copy_from_user" => &[Write, SizeOrZero, Any],
        "probe_write_user" => &[Any, Read, Size],
        "tail_call" | "get_stackid" => &[Context, Map, Any],
        "map_push_elem" => &[Map, Value, Any],
        "ringbuf_reserve" => &[Map, Any, Any],
        "perf_prog_read_value" => &[Context, Write, Size],
        "strncmp" => &[Read, Size, Text],
        "get_func_arg" => &[Context, Any, Long],
        "dynptr_data" => &[Dynptr, Any, Any],
        "timer_init" => &[Timer, Map, Any],
        "timer_start" => &[Timer, Any, Any],
        "map_lookup_percpu_elem" => &[Map, Key, Any],
        "map_update_elem" => &[Map, Key, Value, Any],
        "get_stack" => &[Context, Write, SizeOrZero, Any],
        "get_task_stack" => &[Task, Write, SizeOrZero, Any],
        "perf_event_read_value" => &[Map, Any, Write, Size],
        "ringbuf_output" => &[Map, Read, SizeOrZero, Any],
        "get_ns_current_pid_tgid" => &[Any, Any, Write, Size],
        "for_each_map_elem" | "user_ringbuf_drain" => &[Map, Callback, Any, Any],
        "task_storage_get" => &[Map, Task, ValueOrNull, Any],
        "loop" => &[Any, Callback, Any, Any],
        "trace_vprintk" => &[Read, Size, ReadOrNull, SizeOrZero],
        "strtol" | "strtoul" => &[Read, Size, Any, Long],
        "dynptr_from_mem" => &[Stored, SizeOrZero, Any, NewDynptr],
        "ringbuf_reserve_dynptr" => &[Map, Any, Any, NewRecordDynptr],
        "trace_printk" => &[Read, Size, Any, Any, Any],
        "perf_event_output" => &[Context, Map, Any, Read, SizeOrZero],
        "seq_printf" => &[Kernel, Read, Size, ReadOrNull, SizeOrZero],
        "snprintf" => &[WriteOrNull, SizeOrZero, Text, ReadOrNull, SizeOrZero],
        "snprintf_btf" => &[Write, Size, Read, Size, Any],
        "dynptr_read" => &[Write, SizeOrZero, Dynptr, Any, Any],
        "dynptr_write" => &[Dynptr, Any, Read, SizeOrZero, Any],
        "copy_from_user_task" => &[Write, SizeOrZero, Any, Task, Any],
        _ => return None,
    })
}

fn result_of(name: &str) -> Returned {
    match name {
        "tail_call"
        | "spin_lock"
        | "spin_unlock"
        | "ringbuf_submit"
        | "ringbuf_discard"
        | "ringbuf_submit_dynptr"
        | "ringbuf_discard_dynptr" => Returned::Nothing,
        "map_lookup_elem" | "map_lookup_percpu_elem" | "task_storage_get" => Returned::ValueOrNull,
        "ringbuf_reserve" => Returned::RecordOrNull,
        "dynptr_data" => Returned::PartOrNull,
        "get_current_task_btf" => Returned::Task,
        "task_pt_regs" | "this_cpu_ptr" | "per_cpu_ptr" => Returned::Kernel,
        _ => Returned::Number,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_follows_what_it_is_the_size_of() {
        use Argument::*;
        for id in 0..256 {
            let Some(signature) = signature(id) else {
                continue;
            };
            assert!(signature.arguments.len() <= 5);
            for (at, argument) in signature.arguments.iter().enumerate() {
                let before = at.checked_sub(1).and_then(|at| signature.arguments.get(at));
                let sized = matches!(
                    before,
                    Some(Read | ReadOrNull | Write | WriteOrNull | Stored)
                );
                assert_eq!(
                    matches!(argument, Size | SizeOrZero),
                    sized,
                    "{:?} of {:?}",
                    argument,
                    name(id)
                );
            }
        }
    }

    #[test]
    fn keys_and_values_have_a_map_before_them() {
        use Argument::*;
        for signature in (0..256).filter_map(signature) {
            let keyed =
                |argument: &Argument| matches!(argument, Key | Value | ValueOrNull | ValueRoom);
            if signature.arguments.iter().any(keyed) {
                assert_eq!(signature.arguments.first(), Some(&Map));
            }
        }
    }
}
