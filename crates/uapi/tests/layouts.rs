//! The layouts of attributes, types and contexts, compared with two sources: generated bindings
//! from another project, and the running kernel's own types.

use std::fs;
use std::mem::offset_of;

use aya_obj::generated as theirs;
use beeline_btf::{Btf, kind};
use beeline_uapi::attr;
use beeline_uapi::btf::{
    self, BtfArray, BtfDeclTag, BtfEnum, BtfEnum64, BtfHeader, BtfMember, BtfParam, BtfType,
    BtfVar, BtfVarSecinfo,
};
use beeline_uapi::info::{CoreRelo, LineInfo, core_relo};
use beeline_uapi::linux::{Rseq, RseqCs};
use beeline_uapi::object::{Dynptr, SpecialField};
use beeline_uapi::tracepoint::{
    SchedProcessExec, SysEnter, SysExit, SyscallTraceEnter, SyscallTraceExit, TraceEntry,
};

/// The offsets of some fields of a structure.
type Fields = Vec<(&'static str, usize)>;

macro_rules! fields {
    ($of:ty: $($field:ident),* $(,)?) => {
        vec![$((stringify!($field).trim_start_matches("r#"), offset_of!($of, $field))),*]
    };
}

/// Compares a structure with that of the other bindings, field by field.
macro_rules! same {
    ($ours:ident = $theirs:ident: $($field:ident),* $(,)?) => {
        $(assert_eq!(
            offset_of!(attr::$ours, $field),
            offset_of!(theirs::$theirs, $field),
            concat!(stringify!($ours), "::", stringify!($field)),
        );)*
    };
}

#[test]
fn layouts_are_those_of_other_bindings() {
    same!(MapCreate = bpf_attr__bindgen_ty_1: map_type, key_size, value_size, max_entries,
        map_flags, inner_map_fd, numa_node, map_name, map_ifindex, btf_fd, btf_key_type_id,
        btf_value_type_id, btf_vmlinux_value_type_id, map_extra);
    same!(Element = bpf_attr__bindgen_ty_2: map_fd, key, flags);
    same!(Batch = bpf_attr__bindgen_ty_3: in_batch, out_batch, keys, values, count, map_fd,
        elem_flags, flags);
    same!(ProgLoad = bpf_attr__bindgen_ty_4: prog_type, insn_cnt, insns, license, log_level,
        log_size, log_buf, kern_version, prog_flags, prog_name, prog_ifindex,
        expected_attach_type, prog_btf_fd, func_info_rec_size, func_info, func_info_cnt,
        line_info_rec_size, line_info, line_info_cnt, attach_btf_id, core_relo_cnt, fd_array,
        core_relos, core_relo_rec_size, log_true_size);
    same!(TestRun = bpf_attr__bindgen_ty_7: prog_fd, retval, data_size_in, data_size_out, data_in,
        data_out, repeat, duration, ctx_size_in, ctx_size_out, ctx_in, ctx_out, flags, cpu,
        batch_size);
}

#[test]
fn btf_is_that_of_other_bindings() {
    macro_rules! same_fields {
        ($ours:ident = $theirs:ident: $($field:ident),* $(,)?) => {
            $(assert_eq!(
                offset_of!($ours, $field),
                offset_of!(theirs::$theirs, $field),
                stringify!($field),
            );)*
            assert_eq!(size_of::<$ours>(), size_of::<theirs::$theirs>());
        };
    }
    macro_rules! same_numbers {
        ($($of:ident: $($ours:ident = $theirs:ident)*;)*) => {
            $($(assert_eq!(u64::from(btf::$of::$ours), theirs::$theirs as u64, stringify!($theirs));)*)*
        };
    }
    same_fields!(BtfHeader = btf_header: magic, version, flags, hdr_len, type_off, type_len,
        str_off, str_len);
    same_fields!(BtfType = btf_type: name_off, info);
    same_fields!(BtfMember = btf_member: name_off, offset);
    same_fields!(BtfArray = btf_array: index_type, nelems);
    same_fields!(BtfEnum = btf_enum: name_off, val);
    same_fields!(BtfParam = btf_param: name_off);
    same_fields!(BtfVar = btf_var: linkage);
    same_fields!(BtfVarSecinfo = btf_var_secinfo: offset, size);
    same_fields!(BtfDeclTag = btf_decl_tag: component_idx);
    same_fields!(CoreRelo = bpf_core_relo: insn_off, type_id, access_str_off, kind);
    same_numbers! {
        kind: INT = BTF_KIND_INT PTR = BTF_KIND_PTR ARRAY = BTF_KIND_ARRAY
            STRUCT = BTF_KIND_STRUCT UNION = BTF_KIND_UNION ENUM = BTF_KIND_ENUM
            FWD = BTF_KIND_FWD TYPEDEF = BTF_KIND_TYPEDEF VOLATILE = BTF_KIND_VOLATILE
            CONST = BTF_KIND_CONST RESTRICT = BTF_KIND_RESTRICT FUNC = BTF_KIND_FUNC
            FUNC_PROTO = BTF_KIND_FUNC_PROTO VAR = BTF_KIND_VAR DATASEC = BTF_KIND_DATASEC
            FLOAT = BTF_KIND_FLOAT DECL_TAG = BTF_KIND_DECL_TAG TYPE_TAG = BTF_KIND_TYPE_TAG
            ENUM64 = BTF_KIND_ENUM64;
        int: SIGNED = BTF_INT_SIGNED CHAR = BTF_INT_CHAR BOOL = BTF_INT_BOOL;
    }
    for (ours, variable, function) in [
        (
            btf::linkage::STATIC,
            theirs::BTF_VAR_STATIC,
            theirs::btf_func_linkage::BTF_FUNC_STATIC,
        ),
        (
            btf::linkage::GLOBAL,
            theirs::BTF_VAR_GLOBAL_ALLOCATED,
            theirs::btf_func_linkage::BTF_FUNC_GLOBAL,
        ),
        (
            btf::linkage::EXTERN,
            theirs::BTF_VAR_GLOBAL_EXTERN,
            theirs::btf_func_linkage::BTF_FUNC_EXTERN,
        ),
    ] {
        assert_eq!([variable, function as u32], [ours; 2]);
    }
}

#[test]
fn kinds_of_relocations_are_those_of_other_bindings() {
    macro_rules! same_kinds {
        ($($ours:ident = $theirs:ident)*) => {
            $(assert_eq!(core_relo::$ours, theirs::bpf_core_relo_kind::$theirs as u32);)*
        };
    }
    same_kinds! {
        FIELD_BYTE_OFFSET = BPF_CORE_FIELD_BYTE_OFFSET
        FIELD_BYTE_SIZE = BPF_CORE_FIELD_BYTE_SIZE
        FIELD_EXISTS = BPF_CORE_FIELD_EXISTS
        FIELD_SIGNED = BPF_CORE_FIELD_SIGNED
        FIELD_LSHIFT_U64 = BPF_CORE_FIELD_LSHIFT_U64
        FIELD_RSHIFT_U64 = BPF_CORE_FIELD_RSHIFT_U64
        TYPE_ID_LOCAL = BPF_CORE_TYPE_ID_LOCAL
        TYPE_ID_TARGET = BPF_CORE_TYPE_ID_TARGET
        TYPE_EXISTS = BPF_CORE_TYPE_EXISTS
        TYPE_SIZE = BPF_CORE_TYPE_SIZE
        ENUMVAL_EXISTS = BPF_CORE_ENUMVAL_EXISTS
        ENUMVAL_VALUE = BPF_CORE_ENUMVAL_VALUE
        TYPE_MATCHES = BPF_CORE_TYPE_MATCHES
    }
}

/// The other bindings lack this one.
#[test]
fn values_of_64_bits_are_those_of_the_running_kernel() {
    let Ok(data) = fs::read("/sys/kernel/btf/vmlinux") else {
        return eprintln!("skipped: the kernel does not show its types");
    };
    let btf = Btf::parse(&data).expect("the kernel's types");
    let [id] = btf.find([(kind::STRUCT, "btf_enum64")]);
    if id == 0 {
        return eprintln!("skipped: the kernel has no such values");
    }
    let mut theirs = Vec::new();
    flattened(&btf, id, 0, &mut theirs);
    let ours = fields!(BtfEnum64: name_off, val_lo32, val_hi32);
    let ours = ours.into_iter().map(|(name, at)| (name.to_owned(), at));
    assert_eq!(theirs, ours.collect::<Vec<_>>());
    assert_eq!(btf.size(id), Some(size_of::<BtfEnum64>() as u32));
}

/// The other bindings lack these ones, too.
#[test]
fn structures_are_those_of_the_running_kernel() {
    let Ok(data) = fs::read("/sys/kernel/btf/vmlinux") else {
        return eprintln!("skipped: the kernel does not show its types");
    };
    let btf = Btf::parse(&data).expect("the kernel's types");
    let special = SpecialField::ALL.map(|field| (field.name(), field.size()));
    let dynptr = ("bpf_dynptr", size_of::<Dynptr>() as u32);
    for (name, size) in special.into_iter().chain([dynptr]) {
        match btf.find([(kind::STRUCT, name)]) {
            [0] => eprintln!("the kernel has no {name}"),
            [id] => assert_eq!(btf.size(id), Some(size), "{name}"),
        }
    }
    for (name, ours) in [
        ("rseq", fields!(Rseq: cpu_id_start, cpu_id, rseq_cs, flags)),
        (
            "rseq_cs",
            fields!(RseqCs: version, flags, start_ip, post_commit_offset, abort_ip),
        ),
        (
            "trace_entry",
            fields!(TraceEntry: r#type, flags, preempt_count, pid),
        ),
        (
            "syscall_trace_enter",
            fields!(SyscallTraceEnter: ent, nr, args),
        ),
        (
            "syscall_trace_exit",
            fields!(SyscallTraceExit: ent, nr, ret),
        ),
        (
            "trace_event_raw_sys_enter",
            fields!(SysEnter: ent, id, args),
        ),
        ("trace_event_raw_sys_exit", fields!(SysExit: ent, id, ret)),
        (
            "trace_event_raw_sched_process_exec",
            fields!(SchedProcessExec: ent, __data_loc_filename, pid, old_pid),
        ),
    ] {
        same_as_kernels(&btf, name, &ours);
    }
    #[cfg(target_arch = "x86_64")]
    registers_are_those_of_the_running_kernel(&btf);
}

/// Compares fields with those of a structure of the running kernel, if it has that.
fn same_as_kernels(btf: &Btf<'_>, structure: &str, ours: &Fields) {
    let [id] = btf.find([(kind::STRUCT, structure)]);
    for &(name, ours) in ours {
        let theirs = btf.field(id, name).map(|field| field.offset as usize);
        assert_eq!(theirs, (id != 0).then_some(ours), "{structure}.{name}");
    }
}

#[cfg(target_arch = "x86_64")]
fn registers_are_those_of_the_running_kernel(btf: &Btf<'_>) {
    use beeline_uapi::linux::{PtRegs, RtSigframe, Sigcontext, SigcontextRegs, Ucontext};

    let saved = fields!(SigcontextRegs: r8, r9, r10, r11, r12, r13, r14, r15, di, si, bp, bx, dx,
        ax, cx, sp, ip, flags);
    let of_signal = fields!(Sigcontext: cs, gs, fs, ss, err, trapno, oldmask, cr2, fpstate,
        reserved1);
    let registers = fields!(PtRegs: r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si,
        di, orig_ax, ip, cs, flags, sp, ss);
    let context = fields!(Ucontext: uc_flags, uc_link, uc_stack, uc_mcontext, uc_sigmask);
    for (name, ours) in [
        ("pt_regs", registers),
        ("sigcontext_64", saved),
        ("sigcontext_64", of_signal),
        ("ucontext", context),
        ("rt_sigframe", fields!(RtSigframe: pretcode, uc, info)),
    ] {
        same_as_kernels(btf, name, &ours);
    }
    for (name, size) in [
        ("pt_regs", size_of::<PtRegs>()),
        ("sigcontext_64", size_of::<Sigcontext>()),
        ("ucontext", size_of::<Ucontext>()),
    ] {
        let [id] = btf.find([(kind::STRUCT, name)]);
        let theirs = (id != 0).then_some(size as u32);
        assert_eq!(btf.size(id).filter(|_| id != 0), theirs, "{name}");
    }
}

#[test]
fn words_are_taken_apart_as_the_kernel_does() {
    let info = btf::info(kind::ENUM64, 0x1234) | 1 << 31;
    assert_eq!(btf::info_kind(info), kind::ENUM64);
    assert_eq!(btf::info_vlen(info), 0x1234);
    assert!(btf::info_kflag(info) && !btf::info_kflag(!(1 << 31)));
    assert_eq!(btf::member_bitfield_size(0x0312_3456), 3);
    assert_eq!(btf::member_bit_offset(0x0312_3456), 0x12_3456);
    assert_eq!(btf::int::word(btf::int::SIGNED, 32), 0x0100_0020);
    let word = 0xf412_0056;
    assert_eq!(btf::int::encoding(word), btf::int::BOOL);
    assert_eq!(btf::int::offset(word), 0x12);
    assert_eq!(btf::int::bits(word), 0x56);
    let line = LineInfo::from([0, 0, 0, 7 << 10 | 1023]);
    assert_eq!((line.line(), line.column()), (7, 1023));
}

/// A union's or structure's fields, with those of its unnamed members; `at` is its own offset.
fn flattened(btf: &Btf<'_>, id: u32, at: usize, fields: &mut Vec<(String, usize)>) {
    let Some((_, of)) = btf.resolve(id) else {
        return;
    };
    for member in btf.members(of) {
        let at = at + member.offset as usize;
        match member.name {
            b"" => flattened(btf, member.type_id, at, fields),
            name => fields.push((String::from_utf8_lossy(name).into_owned(), at)),
        }
    }
}

/// Returns the fields of the structure in `union bpf_attr` that is called `name`, or that has no
/// name and begins with the field `first`.
fn of_union(btf: &Btf<'_>, name: &str, first: &str) -> Vec<(String, usize)> {
    let [union] = btf.find([(kind::UNION, "bpf_attr")]);
    let of = btf.get(union).expect("the union");
    let mut members = btf.members(of);
    let found = members.find_map(|member| {
        let mut fields = Vec::new();
        flattened(btf, member.type_id, 0, &mut fields);
        let is_it = match member.name {
            b"" => name.is_empty() && fields.iter().take(3).any(|(field, _)| field == first),
            other => other == name.as_bytes(),
        };
        is_it.then_some(fields)
    });
    found.unwrap_or_else(|| panic!("no structure {name:?} with {first}"))
}

#[test]
fn layouts_are_those_of_the_running_kernel() {
    let Ok(data) = fs::read("/sys/kernel/btf/vmlinux") else {
        return eprintln!("skipped: the kernel does not show its types");
    };
    let btf = Btf::parse(&data).expect("the kernel's types");
    use attr::*;
    let all: [(&str, Fields); 18] = [
        (
            "",
            fields!(MapCreate: map_type, key_size, value_size, max_entries, map_flags,
            inner_map_fd, numa_node, map_name, map_ifindex, btf_fd, btf_key_type_id,
            btf_value_type_id, btf_vmlinux_value_type_id, map_extra, value_type_btf_obj_fd,
            map_token_fd, excl_prog_hash, excl_prog_hash_size),
        ),
        ("", fields!(Element: map_fd, key, value, flags)),
        (
            "batch",
            fields!(Batch: in_batch, out_batch, keys, values, count, map_fd, elem_flags, flags),
        ),
        (
            "",
            fields!(ProgLoad: prog_type, insn_cnt, insns, license, log_level, log_size, log_buf,
            kern_version, prog_flags, prog_name, prog_ifindex, expected_attach_type, prog_btf_fd,
            func_info_rec_size, func_info, func_info_cnt, line_info_rec_size, line_info,
            line_info_cnt, attach_btf_id, attach_prog_fd, core_relo_cnt, fd_array, core_relos,
            core_relo_rec_size, log_true_size, prog_token_fd, fd_array_cnt, signature,
            signature_size, keyring_id),
        ),
        ("", fields!(ObjPin: pathname, bpf_fd, file_flags, path_fd)),
        (
            "",
            fields!(ProgAttach: attach_bpf_fd, attach_type, attach_flags, replace_bpf_fd,
            relative_fd, expected_revision),
        ),
        (
            "test",
            fields!(TestRun: prog_fd, retval, data_size_in, data_size_out, data_in, data_out,
            repeat, duration, ctx_size_in, ctx_size_out, ctx_in, ctx_out, flags, cpu, batch_size),
        ),
        (
            "",
            fields!(GetId: start_id, next_id, open_flags, fd_by_id_token_fd),
        ),
        ("info", fields!(Info: bpf_fd, info_len, info)),
        (
            "query",
            fields!(Query: target_fd, attach_type, query_flags, attach_flags, prog_ids,
            count, prog_attach_flags, link_ids, link_attach_flags, revision),
        ),
        (
            "raw_tracepoint",
            fields!(RawTracepoint: name, prog_fd, cookie),
        ),
        (
            "",
            fields!(BtfLoad: btf, btf_log_buf, btf_size, btf_log_size, btf_log_level,
            btf_log_true_size, btf_flags, btf_token_fd),
        ),
        (
            "task_fd_query",
            fields!(TaskFdQuery: pid, fd, flags, buf_len, buf, prog_id, fd_type,
            probe_offset, probe_addr),
        ),
        (
            "link_create",
            fields!(LinkCreate: prog_fd, target_fd, attach_type, flags),
        ),
        (
            "link_create",
            fields!(LinkCreateIter: iter_info, iter_info_len),
        ),
        (
            "link_update",
            fields!(LinkUpdate: link_fd, new_prog_fd, flags, old_prog_fd),
        ),
        ("iter_create", fields!(IterCreate: link_fd, flags)),
        (
            "prog_bind_map",
            fields!(ProgBindMap: prog_fd, map_fd, flags),
        ),
    ];
    for (name, ours) in all {
        let theirs = of_union(&btf, name, ours[0].0);
        for (field, at) in ours {
            let found = theirs.iter().find(|(other, _)| other == field);
            // An older kernel may lack the last ones.
            if let Some((_, theirs)) = found {
                assert_eq!(at, *theirs, "{name} {field}");
            }
        }
    }
}

#[test]
fn layouts_of_links_are_those_of_the_running_kernel() {
    let Ok(data) = fs::read("/sys/kernel/btf/vmlinux") else {
        return eprintln!("skipped: the kernel does not show its types");
    };
    let btf = Btf::parse(&data).expect("the kernel's types");
    use attr::*;
    let kinds: [(&str, Fields); 6] = [
        ("perf_event", fields!(LinkCreatePerfEvent: bpf_cookie)),
        ("tracing", fields!(LinkCreateTracing: target_btf_id, cookie)),
        (
            "kprobe_multi",
            fields!(LinkCreateKprobeMulti: flags, cnt, syms, addrs, cookies),
        ),
        (
            "uprobe_multi",
            fields!(LinkCreateUprobeMulti: path, offsets, ref_ctr_offsets, cookies,
            cnt, flags, pid),
        ),
        (
            "tcx",
            fields!(LinkCreateRelative: relative_fd, expected_revision),
        ),
        (
            "netfilter",
            fields!(LinkCreateNetfilter: pf, hooknum, priority, flags),
        ),
    ];
    let [union] = btf.find([(kind::UNION, "bpf_attr")]);
    for (name, ours) in kinds {
        for (field, at) in ours {
            let path = format!("link_create.{name}.{field}");
            let theirs = btf
                .field(union, &path)
                .unwrap_or_else(|| panic!("no {path}"));
            assert_eq!(at, theirs.offset as usize, "{path}");
        }
    }
    let [perf] = btf.find([(kind::STRUCT, "perf_event_attr")]);
    let mut theirs = Vec::new();
    flattened(&btf, perf, 0, &mut theirs);
    let ours = fields!(PerfEvent: r#type, size, config, sample_period, sample_type, read_format,
        wakeup_events, bp_type, config1, config2, branch_sample_type,
        sample_regs_user, sample_stack_user, clockid, sample_regs_intr, aux_watermark,
        sample_max_stack, aux_sample_size, sig_data, config3);
    for (field, at) in ours {
        let found = theirs.iter().find(|(other, _)| other == field);
        let (_, theirs) = found.unwrap_or_else(|| panic!("no {field}"));
        assert_eq!(at, *theirs, "{field}");
    }
}

#[test]
fn contexts_are_those_of_the_running_kernel() {
    let Ok(data) = fs::read("/sys/kernel/btf/vmlinux") else {
        return eprintln!("skipped: the kernel does not show its types");
    };
    let btf = Btf::parse(&data).expect("the kernel's types");
    use beeline_uapi::context::*;
    macro_rules! same {
        ($ours:ident = $theirs:ident: $($field:ident),* $(,)?) => {
            let [id] = btf.find([(kind::STRUCT, stringify!($theirs))]);
            let mut theirs = Vec::new();
            flattened(&btf, id, 0, &mut theirs);
            $(
                let name = stringify!($field).trim_start_matches("r#");
                // An older kernel may lack the structure, or its last fields.
                if let Some((_, theirs)) = theirs.iter().find(|(other, _)| other == name) {
                    assert_eq!(offset_of!($ours, $field), *theirs, "{}.{name}", stringify!($theirs));
                }
            )*
        };
    }
    same!(SkBuff = __sk_buff: len, pkt_type, mark, queue_mapping, protocol, vlan_present, vlan_tci,
        vlan_proto, priority, ingress_ifindex, ifindex, tc_index, cb, hash, tc_classid, data,
        data_end, napi_id, family, remote_ip4, local_ip4, remote_ip6, local_ip6, remote_port,
        local_port, data_meta, flow_keys, tstamp, wire_len, gso_segs, sk, gso_size, tstamp_type,
        hwtstamp);
    same!(XdpMd = xdp_md: data, data_end, data_meta, ingress_ifindex, rx_queue_index,
        egress_ifindex);
    same!(NfCtx = bpf_nf_ctx: state, skb);
    same!(Sock = bpf_sock: bound_dev_if, family, r#type, protocol, mark, priority, src_ip4,
        src_ip6, src_port, dst_port, dst_ip4, dst_ip6, state, rx_queue_mapping);
    same!(TcpSock = bpf_tcp_sock: snd_cwnd, srtt_us, rtt_min, snd_ssthresh, rcv_nxt, snd_nxt,
        snd_una, mss_cache, ecn_flags, rate_delivered, rate_interval_us, packets_out, retrans_out,
        total_retrans, segs_in, data_segs_in, segs_out, data_segs_out, lost_out, sacked_out,
        bytes_received, bytes_acked, dsack_dups, delivered, delivered_ce, icsk_retransmits);
    same!(XdpSock = bpf_xdp_sock: queue_id);
    same!(SockOps = bpf_sock_ops: op, args, family, remote_ip4, local_ip4, remote_ip6, local_ip6,
        remote_port, local_port, is_fullsock, snd_cwnd, srtt_us, bpf_sock_ops_cb_flags, state,
        rtt_min, snd_ssthresh, rcv_nxt, snd_nxt, snd_una, mss_cache, ecn_flags, rate_delivered,
        rate_interval_us, packets_out, retrans_out, total_retrans, segs_in, data_segs_in, segs_out,
        data_segs_out, lost_out, sacked_out, sk_txhash, bytes_received, bytes_acked, sk, skb_data,
        skb_data_end, skb_len, skb_tcp_flags, skb_hwtstamp);
    same!(SkMsgMd = sk_msg_md: data, data_end, family, remote_ip4, local_ip4, remote_ip6,
        local_ip6, remote_port, local_port, size, sk);
    same!(SkReuseportMd = sk_reuseport_md: data, data_end, len, eth_protocol, ip_protocol,
        bind_inany, hash, sk, migrating_sk);
    same!(SkLookup = bpf_sk_lookup: sk, family, protocol, remote_ip4, remote_ip6, remote_port,
        local_ip4, local_ip6, local_port, ingress_ifindex);
    same!(SockAddr = bpf_sock_addr: user_family, user_ip4, user_ip6, user_port, family, r#type,
        protocol, msg_src_ip4, msg_src_ip6, sk);
    same!(Sockopt = bpf_sockopt: sk, optval, optval_end, level, optname, optlen, retval);
    same!(Sysctl = bpf_sysctl: write, file_pos);
    same!(CgroupDevCtx = bpf_cgroup_dev_ctx: access_type, major, minor);
    same!(FlowKeys = bpf_flow_keys: nhoff, thoff, addr_proto, is_frag, is_first_frag, is_encap,
        ip_proto, n_proto, sport, dport, ipv6_src, ipv6_dst, flags, flow_label);
}
