//! The numbers, compared with two sources: generated bindings from another project, and the running
//! kernel's own types.

use std::fmt::Debug;
use std::fs;

use aya_obj::generated as theirs;
use aya_obj::generated::{bpf_attach_type, bpf_link_type, bpf_map_type, bpf_prog_type};
use beeline_btf::{Btf, kind};
use beeline_uapi::{
    AttachType, Command, HelperId, LinkType, MapType, PerfEventType, ProgramType, flags, packet,
    perf,
};

/// Higher than any number in use.
const BEYOND: u32 = 1000;
/// The end of the bindings' name of a map type that the kernel has renamed.
const DEPRECATED: &str = "_DEPRECATED";

/// Compares all numbers that the bindings know, and finds at least `least` of them.
fn compare<T: TryFrom<u32> + Debug>(name: impl Fn(u32) -> Option<&'static str>, least: usize) {
    let known = (0..BEYOND).filter_map(|number| Some((number, T::try_from(number).ok()?)));
    let known: Vec<_> = known
        .map(|(number, theirs)| (number, format!("{theirs:?}")))
        .filter(|(_, theirs)| !theirs.starts_with("__MAX"))
        .collect();
    assert!(known.len() >= least, "{known:?}");
    for (number, theirs) in known {
        let theirs = theirs.trim_end_matches(DEPRECATED);
        assert_eq!(name(number), Some(theirs), "{number}");
    }
}

#[test]
fn numbers_are_those_of_other_bindings() {
    compare::<bpf_map_type>(|number| MapType(number).name(), 34);
    compare::<bpf_prog_type>(|number| ProgramType(number).name(), 33);
    compare::<bpf_attach_type>(|number| AttachType(number).name(), 56);
    compare::<bpf_link_type>(|number| LinkType(number).name(), 14);
}

#[test]
fn flags_are_those_of_other_bindings() {
    macro_rules! same {
        ($($module:ident :: $name:ident = $theirs:ident,)*) => {
            $(assert_eq!(u64::from($module::$name), u64::from(theirs::$theirs), stringify!($name));)*
        };
    }
    same! {
        packet::F_RECOMPUTE_CSUM = BPF_F_RECOMPUTE_CSUM,
        packet::F_INVALIDATE_HASH = BPF_F_INVALIDATE_HASH,
        packet::F_HDR_FIELD_MASK = BPF_F_HDR_FIELD_MASK,
        packet::F_PSEUDO_HDR = BPF_F_PSEUDO_HDR,
        packet::F_MARK_MANGLED_0 = BPF_F_MARK_MANGLED_0,
        packet::F_MARK_ENFORCE = BPF_F_MARK_ENFORCE,
        packet::F_INGRESS = BPF_F_INGRESS,
        packet::F_ADJ_ROOM_FIXED_GSO = BPF_F_ADJ_ROOM_FIXED_GSO,
        packet::F_ADJ_ROOM_NO_CSUM_RESET = BPF_F_ADJ_ROOM_NO_CSUM_RESET,
        flags::NO_PREALLOC = BPF_F_NO_PREALLOC,
        flags::NO_COMMON_LRU = BPF_F_NO_COMMON_LRU,
        flags::NUMA_NODE = BPF_F_NUMA_NODE,
        flags::RDONLY = BPF_F_RDONLY,
        flags::STACK_BUILD_ID = BPF_F_STACK_BUILD_ID,
        flags::WRONLY = BPF_F_WRONLY,
        flags::ZERO_SEED = BPF_F_ZERO_SEED,
        flags::RDONLY_PROG = BPF_F_RDONLY_PROG,
        flags::WRONLY_PROG = BPF_F_WRONLY_PROG,
        flags::CLONE = BPF_F_CLONE,
        flags::MMAPABLE = BPF_F_MMAPABLE,
        flags::PRESERVE_ELEMS = BPF_F_PRESERVE_ELEMS,
        flags::INNER_MAP = BPF_F_INNER_MAP,
        flags::PATH_FD = BPF_F_PATH_FD,
        flags::VTYPE_BTF_OBJ_FD = BPF_F_VTYPE_BTF_OBJ_FD,
        flags::TOKEN_FD = BPF_F_TOKEN_FD,
        flags::STRICT_ALIGNMENT = BPF_F_STRICT_ALIGNMENT,
        flags::ANY_ALIGNMENT = BPF_F_ANY_ALIGNMENT,
        flags::TEST_RND_HI32 = BPF_F_TEST_RND_HI32,
        flags::TEST_STATE_FREQ = BPF_F_TEST_STATE_FREQ,
        flags::SLEEPABLE = BPF_F_SLEEPABLE,
        flags::XDP_HAS_FRAGS = BPF_F_XDP_HAS_FRAGS,
        flags::TEST_REG_INVARIANTS = BPF_F_TEST_REG_INVARIANTS,
        flags::TEST_RUN_ON_CPU = BPF_F_TEST_RUN_ON_CPU,
        flags::TEST_XDP_LIVE_FRAMES = BPF_F_TEST_XDP_LIVE_FRAMES,
        flags::REPLACE = BPF_F_REPLACE,
        flags::LOCK = BPF_F_LOCK,
        flags::KPROBE_MULTI_RETURN = BPF_F_KPROBE_MULTI_RETURN,
        flags::RINGBUF_BUSY_BIT = BPF_RINGBUF_BUSY_BIT,
        flags::RINGBUF_DISCARD_BIT = BPF_RINGBUF_DISCARD_BIT,
        flags::RINGBUF_HDR_SZ = BPF_RINGBUF_HDR_SZ,
        flags::SKIP_FIELD_MASK = BPF_F_SKIP_FIELD_MASK,
        flags::USER_STACK = BPF_F_USER_STACK,
        flags::FAST_STACK_CMP = BPF_F_FAST_STACK_CMP,
        flags::REUSE_STACKID = BPF_F_REUSE_STACKID,
        flags::USER_BUILD_ID = BPF_F_USER_BUILD_ID,
        flags::INDEX_MASK = BPF_F_INDEX_MASK,
        flags::CURRENT_CPU = BPF_F_CURRENT_CPU,
        perf::PERF_MAX_STACK_DEPTH = PERF_MAX_STACK_DEPTH,
        perf::PERF_FLAG_FD_NO_GROUP = PERF_FLAG_FD_NO_GROUP,
        perf::PERF_FLAG_FD_OUTPUT = PERF_FLAG_FD_OUTPUT,
        perf::PERF_FLAG_PID_CGROUP = PERF_FLAG_PID_CGROUP,
        perf::PERF_FLAG_FD_CLOEXEC = PERF_FLAG_FD_CLOEXEC,
    }
    let create = theirs::BPF_LOCAL_STORAGE_GET_F_CREATE as u64;
    assert_eq!(flags::LOCAL_STORAGE_GET_F_CREATE, create);
    let levels = [
        (packet::CSUM_LEVEL_QUERY, theirs::BPF_CSUM_LEVEL_QUERY),
        (packet::CSUM_LEVEL_INC, theirs::BPF_CSUM_LEVEL_INC),
        (packet::CSUM_LEVEL_DEC, theirs::BPF_CSUM_LEVEL_DEC),
        (packet::CSUM_LEVEL_RESET, theirs::BPF_CSUM_LEVEL_RESET),
    ];
    for (level, theirs) in levels {
        assert_eq!(level, theirs as u64);
    }
    let kinds = [
        (
            PerfEventType::UPROBE,
            theirs::bpf_perf_event_type::BPF_PERF_EVENT_UPROBE,
        ),
        (
            PerfEventType::URETPROBE,
            theirs::bpf_perf_event_type::BPF_PERF_EVENT_URETPROBE,
        ),
        (
            PerfEventType::KPROBE,
            theirs::bpf_perf_event_type::BPF_PERF_EVENT_KPROBE,
        ),
        (
            PerfEventType::KRETPROBE,
            theirs::bpf_perf_event_type::BPF_PERF_EVENT_KRETPROBE,
        ),
        (
            PerfEventType::TRACEPOINT,
            theirs::bpf_perf_event_type::BPF_PERF_EVENT_TRACEPOINT,
        ),
        (
            PerfEventType::EVENT,
            theirs::bpf_perf_event_type::BPF_PERF_EVENT_EVENT,
        ),
    ];
    for (ours, theirs) in kinds {
        assert_eq!(ours.0, theirs as u32);
    }
    let commands = [
        (perf::ioc::ENABLE, theirs::PERF_EVENT_IOC_ENABLE),
        (perf::ioc::DISABLE, theirs::PERF_EVENT_IOC_DISABLE),
        (perf::ioc::REFRESH, theirs::PERF_EVENT_IOC_REFRESH),
        (perf::ioc::RESET, theirs::PERF_EVENT_IOC_RESET),
        (perf::ioc::PERIOD, theirs::PERF_EVENT_IOC_PERIOD),
        (perf::ioc::SET_OUTPUT, theirs::PERF_EVENT_IOC_SET_OUTPUT),
        (perf::ioc::SET_FILTER, theirs::PERF_EVENT_IOC_SET_FILTER),
        (perf::ioc::ID, theirs::PERF_EVENT_IOC_ID),
        (perf::ioc::SET_BPF, theirs::PERF_EVENT_IOC_SET_BPF),
        (perf::ioc::PAUSE_OUTPUT, theirs::PERF_EVENT_IOC_PAUSE_OUTPUT),
        (perf::ioc::QUERY_BPF, theirs::PERF_EVENT_IOC_QUERY_BPF),
    ];
    for (ours, theirs) in commands {
        assert_eq!(
            (ours, ours & perf::ioc::TYPE_MASK),
            (theirs, perf::ioc::TYPE)
        );
    }
}

#[test]
fn numbers_are_those_of_the_running_kernel() {
    let Ok(data) = fs::read("/sys/kernel/btf/vmlinux") else {
        return eprintln!("skipped: the kernel does not show its types");
    };
    let btf = Btf::parse(&data).expect("the kernel's types");
    let names = [
        "bpf_cmd",
        "bpf_map_type",
        "bpf_prog_type",
        "bpf_attach_type",
        "bpf_link_type",
        "bpf_func_id",
    ];
    let [command, map, program, attach, link, helper] = btf
        .find(names.map(|name| (kind::ENUM, name)))
        .map(|id| btf.get(id).expect("an enumeration"));
    let has = |of, name: &str, value: u32| {
        let mut all = btf.enumerators(of);
        all.any(|one| one.name == name.as_bytes() && one.value == value.into())
    };
    // An older kernel may only lack the last ones.
    let count = |of| {
        btf.enumerators(of)
            .filter(|one| !one.name.starts_with(b"__"))
            .count()
    };
    let check = |of, ours: &[(u32, Option<&str>)]| {
        for (number, name) in ours.iter().take(count(of)) {
            let name = name.expect("a name");
            assert!(has(of, name, *number), "{name} is not {number}");
        }
    };
    macro_rules! check {
        ($of:expr, $type:ty) => {
            check(
                $of,
                &<$type>::ALL
                    .iter()
                    .map(|one| (one.0, one.name()))
                    .collect::<Vec<_>>(),
            )
        };
    }
    check!(command, Command);
    check!(map, MapType);
    check!(program, ProgramType);
    check!(attach, AttachType);
    check!(link, LinkType);
    for number in (1..HelperId::COUNT).take(count(helper) - 1) {
        let name = HelperId(number).name().expect("a name");
        assert!(
            has(helper, &format!("BPF_FUNC_{name}"), number),
            "{name} is not {number}"
        );
    }
}

#[test]
fn unknown_numbers_are_shown_as_they_are() {
    assert_eq!(MapType(BEYOND).name(), None);
    assert_eq!(MapType(BEYOND).to_string(), "MapType(1000)");
    assert_eq!(ProgramType::KPROBE.to_string(), "BPF_PROG_TYPE_KPROBE");
    assert_eq!(HelperId::MAP_LOOKUP_ELEM.to_string(), "bpf_map_lookup_elem");
    assert_eq!(HelperId(BEYOND).to_string(), "helper 1000");
    assert_eq!(HelperId(0).name(), None);
}
