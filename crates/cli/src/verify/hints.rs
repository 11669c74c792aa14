//! Advice on refusals.

/// Pieces of a reason's text, which must follow each other, and the advice for it.
type Hint = (&'static [&'static str], &'static str);

/// Returns advice for a verifier's line, if there is any.
pub fn hint(reason: &str, errno: i32) -> Option<&'static str> {
    let matches = |(pieces, _): &&Hint| {
        let mut rest = reason;
        pieces.iter().all(|piece| {
            let found = rest.split_once(piece);
            rest = found.map_or(rest, |(_, after)| after);
            found.is_some()
        })
    };
    let found = HINTS.iter().find(matches).map(|(_, what)| *what);
    let by_error = || BY_ERROR.iter().find(|(it, _)| *it == errno);
    found.or_else(|| by_error().map(|(_, what)| *what))
}

/// The hints. The first that fits is given.
const HINTS: &[Hint] = &[
    (
        &["invalid mem access 'map_value_or_null'"],
        "a look-up gives NULL where there is no element: test the pointer before it is used, if (!value) return 0;",
    ),
    (
        &["invalid mem access '", "_or_null"],
        "the pointer may be NULL: test it before it is used",
    ),
    (
        &["Possibly NULL pointer"],
        "the pointer may be NULL: test it before it is handed on",
    ),
    (
        &["invalid mem access 'scalar'"],
        "to the verifier this is a number, no pointer: read the kernel's memory by BPF_CORE_READ or bpf_probe_read_kernel(), a process's by bpf_probe_read_user()",
    ),
    (
        &["pointer arithmetic on ", "_or_null prohibited"],
        "the pointer may be NULL: test it before anything is added to it",
    ),
    (
        &["pointer arithmetic"],
        "this pointer can be used only as it is: compute with numbers, or copy what it points to",
    ),
    (
        &["invalid access to packet"],
        "compare with data_end first: if (data + offset + size > data_end) return ...;",
    ),
    (
        &["min value is negative"],
        "the number may be negative: make it unsigned, or test it before it is used as offset or size",
    ),
    (
        &["value ", "makes ", "pointer be out of bounds"],
        "the number added to the pointer may be negative or far too large: make it unsigned, and test it first",
    ),
    (
        &["unbounded memory access"],
        "the offset or size has no bound: test it right before its use, if (n >= SIZE) return 0; or n &= SIZE - 1; (look at the bytecode: a compiler may test another register)",
    ),
    (
        &["unbounded min value"],
        "the number added to the pointer has no bound: test it first, if (n >= SIZE) return 0; or n &= SIZE - 1;",
    ),
    (
        &["outside of the allowed memory range"],
        "the largest offset that is possible here is past the end: test against the size minus what is accessed",
    ),
    (
        &["invalid access to map value"],
        "the access is past the end of the map's value: test the index against the array's size before, or make value_size fit",
    ),
    (
        &["invalid zero-sized read"],
        "the size may be 0: test it first",
    ),
    (
        &["invalid access to memory"],
        "the access is past the end of what the pointer leads to: test offset and size first",
    ),
    (
        &["invalid indirect read from stack"],
        "not every byte that the helper reads was written: set the whole variable, padding too, by = {} or __builtin_memset()",
    ),
    (
        &["invalid read from stack"],
        "not every byte that is read was written: set the whole variable, padding too, by = {} or __builtin_memset()",
    ),
    (
        &["invalid variable-offset", "stack"],
        "the offset into a variable on the stack is not known: test it, or keep the variable in a map of one element",
    ),
    (
        &["stack", "invalid size"],
        "the access leaves the 512 bytes of stack: keep large variables in a per-CPU array",
    ),
    (
        &["invalid write to stack"],
        "the access leaves the 512 bytes of stack: keep large variables in a per-CPU array",
    ),
    (
        &["combined stack size"],
        "the functions that call each other need more than 512 bytes of stack together: keep large variables in a per-CPU array",
    ),
    (
        &["R0 !read_ok"],
        "nothing sets the result on some path: return a number everywhere",
    ),
    (
        &["!read_ok"],
        "nothing sets this register on some path: give the variable a value where it is declared; the kernel's helpers overwrite r1 to r5",
    ),
    (
        // libbpf, too, puts this in the place of such an instruction.
        &["invalid func unknown#195896080"],
        "this kernel has no such field, type or enumerator (CO-RE): test with bpf_core_field_exists() and its like before",
    ),
    (
        &["invalid func unknown#"],
        "this kernel has no such helper: the program is for a newer one; test with bpf_core_enum_value_exists() before the call",
    ),
    (
        &["cannot use helper bpf_probe_write_user"],
        "it writes into the processes' memory, which kernels that are locked down refuse; beeline run --unsafe lets it",
    ),
    (
        &["cannot use helper bpf_override_return"],
        "it changes what functions return, which only kernels with CONFIG_BPF_KPROBE_OVERRIDE let kprobes do; beeline run --unsafe lets it at system calls",
    ),
    (
        &["cannot use helper"],
        "programs of this type must do without this helper: docs/helpers.md lists which may call it, or change the section",
    ),
    (
        &["cannot call GPL-restricted function"],
        "the helper is for programs under the GPL: char LICENSE[] SEC(\"license\") = \"GPL\";",
    ),
    (
        &["infinite loop detected"],
        "on this path the loop changes nothing that would end it: count up to a constant, or use bpf_loop() or bpf_for()",
    ),
    (
        &["back-edge"],
        "the loop has no end that the verifier sees: count up to a constant, or use bpf_loop() or bpf_for()",
    ),
    (
        &["BPF program is too large. Processed"],
        "there are too many paths: put the loop's body into bpf_loop(), parts into global functions or behind tail calls, and bound loops lower",
    ),
    (
        &["jumps is too complex"],
        "there are too many branches on a path: put the loop's body into bpf_loop(), or parts into global functions",
    ),
    (
        &["the call stack of"],
        "functions may call each other up to 8 deep, and never themselves: inline some, or loop",
    ),
    (&["insns are more than"], "split the program by tail calls"),
    (
        &["At program exit the register R0", "should have been in"],
        "the result must be one of those that the kind of program knows: return such a constant",
    ),
    (
        &["At subprogram exit"],
        "the callback or global function must return a number within these bounds",
    ),
    (
        &["invalid bpf_context access"],
        "the context has no field there, or not of this size, or not for writing: check the program's section and the structure's type",
    ),
    (
        &["dereference of modified ctx ptr"],
        "fields of the context are read at constant offsets only: read each into a variable, not through a computed pointer",
    ),
    (
        &["Unreleased reference"],
        "what was acquired must be given back on every path: bpf_ringbuf_submit() or _discard(), bpf_sk_release(), ...",
    ),
    (
        &["reference leak"],
        "what was acquired must be given back on every path: bpf_ringbuf_submit() or _discard(), bpf_sk_release(), ...",
    ),
    (
        &["arg", "is an unacquired reference"],
        "only what was acquired by the program can be given back, and once",
    ),
    (
        &["write into map forbidden"],
        "the map is read-only for programs: const variables are in .rodata; leave the const out, or use another map",
    ),
    (
        &["cannot write into rdonly_"],
        "this memory is for reading only: copy it first",
    ),
    (
        &["type=", "expected="],
        "the helper wants another kind of argument there: see bpf-helpers(7)",
    ),
    (
        &["is not a known constant"],
        "the helper needs a constant there: pass a number, not a variable",
    ),
    (
        &["misaligned"],
        "the access is not aligned to its size: use __builtin_memcpy(), or order the structure's fields by size",
    ),
    (
        &["cannot access ptr member"],
        "the field is read with another size than it has: check the type, or use BPF_CORE_READ",
    ),
    (
        &["access beyond struct"],
        "the kernel's structure ends before: build against this kernel's vmlinux.h",
    ),
    (
        &["while holding a lock"],
        "between bpf_spin_lock() and bpf_spin_unlock() nothing can be called: prepare before, hand on after",
    ),
    (
        &["missing btf func_info"],
        "the program has callbacks or global functions, and no types: compile it with -g",
    ),
    (
        &["might sleep"],
        "this helper sleeps: only programs of sections such as uprobe.s, fentry.s, lsm.s or iter.s may call it",
    ),
    (&["div by zero"], "the divisor is the constant 0"),
    (
        &["unreachable insn"],
        "no path leads there: the file was not made by a compiler, or a weak function that is missing was called",
    ),
    (
        &["unknown opcode"],
        "the instruction is newer than this verifier, or the file is damaged: try -mcpu=v3",
    ),
    (
        &["must be held for"],
        "take the lock that protects the list or tree first, and give it back after: bpf_spin_lock(), bpf_spin_unlock()",
    ),
    (
        &["direct access to ", " is disallowed"],
        "this field is the kernel's: only its functions may look at it, such as bpf_spin_lock() or bpf_list_push_front()",
    ),
    (
        &["type ID argument must"],
        "what is made is a structure that the program itself describes: bpf_obj_new(struct node), without fields of the kernel's where none may be",
    ),
    (
        &["tracing progs cannot use"],
        "use a map, or a program of another kind",
    ),
    (
        &["kptr"],
        "pointers of the kernel's that maps hold are exchanged by bpf_kptr_xchg(), and read under bpf_rcu_read_lock(); test what comes of it",
    ),
    (
        &["must be a rcu pointer"],
        "the pointer is good only between bpf_rcu_read_lock() and bpf_rcu_read_unlock(), or once it is acquired and tested",
    ),
    (
        &["expects refcounted"],
        "give back only what was acquired, and tested, by the same program",
    ),
    (
        &["must be referenced or trusted"],
        "the function wants a pointer that it can rely on: one of the context, or one that was acquired and tested",
    ),
    (
        &["Caller passes invalid args into func#"],
        "a global function is verified by itself, by the types of its arguments: tag one by __arg_nonnull, __arg_trusted or __arg_ctx, or make the function static; -v tells which",
    ),
    (
        &["only read is supported"],
        "the kernel's structures are for reading: keep what is to change in a map",
    ),
    (
        &["not found at offset"],
        "give the whole node or head, the member that __contains() names, of an object of bpf_obj_new()",
    ),
    (
        &["arg#", "expected"],
        "the function wants another kind of argument there: see its comment in the kernel's source",
    ),
    (
        &["attach_btf_id"],
        "the kernel must be told what to attach to: write it behind the section's slash",
    ),
];

/// Hints for errors with reasons that say nothing.
const BY_ERROR: &[(i32, &str)] = &[
    (
        libc::EPERM,
        "loading programs takes privilege (CAP_BPF, CAP_PERFMON), and the kernel may be locked down: --verifier beeline needs neither",
    ),
    (
        libc::E2BIG,
        "the program is larger than the kernel takes: split it by tail calls",
    ),
];
