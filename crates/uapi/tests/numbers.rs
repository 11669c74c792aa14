//! The numbers, compared with two sources: bindings that somebody else has generated, and the running kernel's own types.

use std::fmt::Debug;
use std::fs;

use aya_obj::generated::{bpf_attach_type, bpf_link_type, bpf_map_type, bpf_prog_type};
use beeline_btf::{Btf, kind};
use beeline_uapi::{AttachType, Command, HelperId, LinkType, MapType, ProgramType};

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
    // An older kernel lacks the last ones: those have to be the last.
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
