//! The layouts of the kernel's answers on objects, compared with generated bindings from another
//! project and with the running kernel's own types.

use std::fs;
use std::mem::offset_of;

use aya_obj::generated as theirs;
use beeline_btf::{Btf, kind};
use beeline_uapi::info::*;

/// Compares a structure with that of the other bindings, field by field.
macro_rules! same {
    ($ours:ident = $theirs:ident: $($field:ident),* $(,)?) => {
        $(assert_eq!(
            offset_of!($ours, $field),
            offset_of!(theirs::$theirs, $field),
            concat!(stringify!($ours), "::", stringify!($field)),
        );)*
    };
}

/// The kernel that the layouts are of. An older one may lack fields.
const KERNEL: (u32, u32) = (6, 18);

/// Returns the version of the running kernel.
fn release() -> (u32, u32) {
    let text = fs::read_to_string("/proc/sys/kernel/osrelease").expect("each kernel has one");
    let mut numbers = text.split(|character: char| !character.is_ascii_digit());
    let mut number = || numbers.next().and_then(|text| text.parse().ok());
    (number().expect("a number"), number().expect("a number"))
}

#[test]
fn layouts_are_those_of_other_bindings() {
    same!(MapInfo = bpf_map_info: id, key_size, value_size, max_entries, map_flags, name, ifindex,
        btf_vmlinux_value_type_id, netns_dev, netns_ino, btf_id, btf_key_type_id,
        btf_value_type_id, btf_vmlinux_id, map_extra);
    same!(ProgInfo = bpf_prog_info: id, tag, jited_prog_len, xlated_prog_len, jited_prog_insns,
        xlated_prog_insns, load_time, created_by_uid, nr_map_ids, map_ids, name, ifindex,
        netns_dev, netns_ino, nr_jited_ksyms, nr_jited_func_lens, jited_ksyms, jited_func_lens,
        btf_id, func_info_rec_size, func_info, nr_func_info, nr_line_info, line_info,
        jited_line_info, nr_jited_line_info, line_info_rec_size, jited_line_info_rec_size,
        nr_prog_tags, prog_tags, run_time_ns, run_cnt, recursion_misses, verified_insns,
        attach_btf_obj_id, attach_btf_id);
    same!(BtfInfo = bpf_btf_info: btf, btf_size, id, name, name_len, kernel_btf);
    same!(FuncInfo = bpf_func_info: insn_off, type_id);
    same!(LineInfo = bpf_line_info: insn_off, file_name_off, line_off, line_col);
    same!(LinkInfo = bpf_link_info: id, prog_id);
    assert_eq!(size_of::<FuncInfo>(), size_of::<theirs::bpf_func_info>());
    assert_eq!(size_of::<LineInfo>(), size_of::<theirs::bpf_line_info>());
    assert_eq!(size_of::<ProgInfo>(), size_of::<theirs::bpf_prog_info>());
    assert_eq!(size_of::<BtfInfo>(), size_of::<theirs::bpf_btf_info>());
}

/// A structure of the running kernel's: its name, and fields of ours with the kernel's paths.
type Layout = (&'static str, Vec<(&'static str, usize)>);

macro_rules! fields {
    ($name:literal = $ours:ident $prefix:literal: $($field:ident),* $(,)?) => {
        ($name, vec![$((
            concat!($prefix, stringify!($field)),
            offset_of!($ours, $field),
        )),*])
    };
}

#[test]
fn layouts_are_those_of_the_running_kernel() {
    let Ok(data) = fs::read("/sys/kernel/btf/vmlinux") else {
        return eprintln!("skipped: the kernel does not show its types");
    };
    let btf = Btf::parse(&data).expect("the kernel's types");
    let all: [Layout; 14] = [
        fields!("bpf_map_info" = MapInfo "": r#type, id, key_size, value_size, max_entries,
            map_flags, name, ifindex, btf_vmlinux_value_type_id, netns_dev, netns_ino, btf_id,
            btf_key_type_id, btf_value_type_id, btf_vmlinux_id, map_extra, hash, hash_size),
        fields!("bpf_prog_info" = ProgInfo "": r#type, id, tag, jited_prog_len, xlated_prog_len,
            jited_prog_insns, xlated_prog_insns, load_time, created_by_uid, nr_map_ids, map_ids,
            name, ifindex, netns_dev, netns_ino, nr_jited_ksyms, nr_jited_func_lens, jited_ksyms,
            jited_func_lens, btf_id, func_info_rec_size, func_info, nr_func_info, nr_line_info,
            line_info, jited_line_info, nr_jited_line_info, line_info_rec_size,
            jited_line_info_rec_size, nr_prog_tags, prog_tags, run_time_ns, run_cnt,
            recursion_misses, verified_insns, attach_btf_obj_id, attach_btf_id),
        fields!("bpf_btf_info" = BtfInfo "": btf, btf_size, id, name, name_len, kernel_btf),
        fields!("bpf_func_info" = FuncInfo "": insn_off, type_id),
        fields!("bpf_line_info" = LineInfo "": insn_off, file_name_off, line_off, line_col),
        fields!("bpf_link_info" = LinkInfo "": r#type, id, prog_id),
        fields!("bpf_link_info" = LinkInfoRawTracepoint "raw_tracepoint.": tp_name, tp_name_len,
            cookie),
        fields!("bpf_link_info" = LinkInfoTracing "tracing.": attach_type, target_obj_id,
            target_btf_id, cookie),
        fields!("bpf_link_info" = LinkInfoIter "iter.": target_name, target_name_len),
        fields!("bpf_link_info" = LinkInfoKprobeMulti "kprobe_multi.": addrs, count, flags,
            missed, cookies),
        fields!("bpf_link_info" = LinkInfoUprobeMulti "uprobe_multi.": path, offsets,
            ref_ctr_offsets, cookies, path_size, count, flags, pid),
        fields!("bpf_link_info" = LinkInfoPerfEvent "perf_event.": r#type),
        fields!("bpf_link_info" = LinkInfoTracepoint "perf_event.tracepoint.": cookie),
        fields!("bpf_link_info" = LinkInfoEvent "perf_event.event.": config, r#type, cookie),
    ];
    let probes: [Layout; 4] = [
        fields!("bpf_link_info" = LinkInfoUprobe "perf_event.uprobe.": cookie, ref_ctr_offset),
        fields!("bpf_link_info" = LinkInfoKprobe "perf_event.kprobe.": addr, missed, cookie),
        fields!("bpf_link_info" = LinkInfoNamed "perf_event.uprobe.": name_len, offset),
        fields!("bpf_link_info" = LinkInfoNamed "perf_event.kprobe.": name_len, offset),
    ];
    let name = offset_of!(LinkInfoNamed, name);
    let names = [(
        "bpf_link_info",
        vec![
            ("perf_event.uprobe.file_name", name),
            ("perf_event.kprobe.func_name", name),
            ("perf_event.tracepoint.tp_name", name),
        ],
    )];
    for (of, ours) in all.into_iter().chain(probes).chain(names) {
        let [id] = btf.find([(kind::STRUCT, of)]);
        assert_ne!(id, 0, "no {of}");
        for (path, at) in ours {
            let path = path.replace("r#", "");
            match btf.field(id, &path) {
                Some(theirs) => assert_eq!(at, theirs.offset as usize, "{of} {path}"),
                None => assert!(release() < KERNEL, "{of} {path}"),
            }
        }
    }
}

#[test]
fn every_kind_of_link_fits() {
    let all = size_of::<LinkInfoAny>();
    assert_eq!(all, size_of::<LinkInfoKprobe>());
    assert_eq!(all, size_of::<LinkInfoUprobeMulti>());
}
