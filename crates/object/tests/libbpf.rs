//! libbpf and this crate make the same of an object file.
//!
//! The files are those inside the programs of libbpf-tools, and some with further features. The
//! tests need clang 19, libbpf-dev and root; `oracle.c` asks libbpf.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::thread;

use beeline_isa::{Imm64, Insn, Op};
use beeline_object::{Contents, MapDefinition, Object, ObjectProgram, RunningKernel, SectionKind};
use beeline_uapi::{AttachType, MapType, ProgramType};

#[test]
fn the_programs_of_libbpf_tools_are_linked_as_libbpf_does() {
    let (mut compared, mut wrong) = (0, String::new());
    for (name, data) in embedded_objects() {
        let file = scratch(&format!("{name}.o"));
        fs::write(&file, data).unwrap();
        match compare(&file) {
            Ok(programs) => compared += programs,
            Err(why) => writeln!(wrong, "{name}: {why}").unwrap(),
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert!(compared > 100, "only {compared} programs in libbpf-tools");
}

#[test]
fn rare_features_are_linked_as_libbpf_does() {
    linked_as_libbpf_does(&sources("."));
}

/// Debian's libbpf is too old for them. `CPATH` and `LIBRARY_PATH` name another one; `known.rs`
/// tests them without.
#[test]
fn newer_features_are_linked_as_a_newer_libbpf_does() {
    if version() < [1, 5] {
        eprintln!("skipped: libbpf 1.5 or newer is needed");
        return;
    }
    linked_as_libbpf_does(&sources("newer"));
}

fn linked_as_libbpf_does(sources: &[PathBuf]) {
    assert!(!sources.is_empty());
    for source in sources {
        let programs = compare(&compiled(source));
        match programs {
            Ok(0) => panic!("{}: libbpf does not take it", source.display()),
            Ok(_) => {}
            Err(why) => panic!("{}: {why}", source.display()),
        }
    }
}

#[test]
fn section_names_mean_what_they_mean_to_libbpf() {
    let newer = [
        "kprobe.session/a",
        "uprobe.multi/a:b",
        "uretprobe.multi",
        "uprobe.session",
        "uprobe.multi.s",
        "uretprobe.multi.s/a:b",
        "uprobe.session.s",
        "usdt.s/a:b:c",
        "tc/ingress",
        "tc/egress",
        "tcx/ingress",
        "tcx/egress",
        "netkit/primary",
        "netkit/peer",
        "cgroup/connect_unix",
        "cgroup/sendmsg_unix",
        "cgroup/recvmsg_unix",
        "cgroup/getpeername_unix",
        "cgroup/getsockname_unix",
        "struct_ops.s/x",
        "netfilter",
    ];
    let mut names = vec![
        "socket",
        "sk_reuseport/migrate",
        "sk_reuseport",
        "kprobe/f",
        "uprobe",
        "uprobe.s/x",
        "kretprobe",
        "uretprobe/a:b",
        "uretprobe.s",
        "kprobe.multi/a*",
        "kretprobe.multi",
        "ksyscall/x",
        "kretsyscall",
        "usdt/a:b:c",
        "tc",
        "classifier",
        "action",
        "tracepoint/a/b",
        "tp/a/b",
        "raw_tracepoint/x",
        "raw_tp",
        "raw_tracepoint.w",
        "raw_tp.w/x",
        "tp_btf/x",
        "fentry",
        "fmod_ret/x",
        "fexit",
        "fentry.s",
        "fmod_ret.s",
        "fexit.s",
        "freplace/x",
        "lsm/x",
        "lsm.s",
        "lsm_cgroup",
        "iter/task",
        "iter.s",
        "syscall",
        "xdp.frags/devmap",
        "xdp/devmap",
        "xdp.frags/cpumap",
        "xdp/cpumap",
        "xdp.frags",
        "xdp",
        "perf_event",
        "lwt_in",
        "lwt_out",
        "lwt_xmit",
        "lwt_seg6local",
        "sockops",
        "sk_skb/stream_parser",
        "sk_skb/stream_verdict",
        "sk_skb",
        "sk_msg",
        "lirc_mode2",
        "flow_dissector",
        "cgroup_skb/ingress",
        "cgroup_skb/egress",
        "cgroup/skb",
        "cgroup/sock_create",
        "cgroup/sock_release",
        "cgroup/sock",
        "cgroup/post_bind4",
        "cgroup/post_bind6",
        "cgroup/bind4",
        "cgroup/bind6",
        "cgroup/connect4",
        "cgroup/connect6",
        "cgroup/sendmsg4",
        "cgroup/sendmsg6",
        "cgroup/recvmsg4",
        "cgroup/recvmsg6",
        "cgroup/getpeername4",
        "cgroup/getpeername6",
        "cgroup/getsockname4",
        "cgroup/getsockname6",
        "cgroup/sysctl",
        "cgroup/getsockopt",
        "cgroup/setsockopt",
        "cgroup/dev",
        "struct_ops/x",
        "sk_lookup",
        "kprobes",
        "nothing",
    ];
    if version() >= [1, 6] {
        names.extend(newer);
    }
    let mut oracle = Command::new(oracle())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = oracle.stdin.take().unwrap();
    input.write_all(names.join("\n").as_bytes()).unwrap();
    drop(input);
    let answer = oracle.wait_with_output().unwrap().stdout;
    let known: HashMap<String, (ProgramType, AttachType)> = String::from_utf8(answer)
        .unwrap()
        .lines()
        .map(|line| {
            let words: Vec<_> = line.split(' ').collect();
            let number = |at: usize| words[at].parse().unwrap();
            let kind = (ProgramType(number(1)), AttachType(number(2)));
            (words[0].to_owned(), kind)
        })
        .collect();
    for name in names {
        let kind = SectionKind::of(name);
        let wanted = known.get(name).copied().unwrap_or_default();
        assert_eq!(
            (kind.prog_type, kind.expected_attach_type),
            wanted,
            "{name}"
        );
    }
}

/// Returns libbpf's major and minor version.
fn version() -> [u32; 2] {
    let output = Command::new(oracle()).arg("--version").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let mut numbers = text.split_whitespace().map(|it| it.parse().unwrap());
    [numbers.next().unwrap(), numbers.next().unwrap()]
}

/// Returns every object file inside a program of libbpf-tools.
fn embedded_objects() -> Vec<(String, Vec<u8>)> {
    let list = Command::new("dpkg")
        .args(["-L", "libbpf-tools"])
        .output()
        .unwrap()
        .stdout;
    let mut objects = Vec::new();
    for path in String::from_utf8(list).unwrap().lines() {
        let path = Path::new(path);
        let Some(data) = path.is_file().then(|| fs::read(path).unwrap()) else {
            continue;
        };
        let name = path.file_name().unwrap().to_str().unwrap();
        let starts = (1..data.len().saturating_sub(64)).filter(|&at| {
            let header = &data[at..at + 64];
            // ELF of 64 bits, little-endian; relocatable, for eBPF.
            header.starts_with(b"\x7fELF\x02\x01\x01") && header[16..20] == [1, 0, 247, 0]
        });
        for (number, start) in starts.enumerate() {
            let number_at = |at: usize, len: usize| {
                let mut bytes = [0; 8];
                bytes[..len].copy_from_slice(&data[start + at..][..len]);
                u64::from_le_bytes(bytes) as usize
            };
            // The section headers come last.
            let end = number_at(40, 8) + number_at(58, 2) * number_at(60, 2);
            objects.push((
                format!("{name}.{number}"),
                data[start..start + end].to_vec(),
            ));
        }
    }
    objects
}

/// Compares everything in one file; returns the number of programs.
fn compare(file: &Path) -> Result<usize, String> {
    let ours = Object::parse(&fs::read(file).unwrap(), &RunningKernel::default());
    let output = Command::new(oracle()).arg(file).output().unwrap();
    let theirs = String::from_utf8(output.stdout).unwrap();
    let words = |kind: &'static str| {
        theirs
            .lines()
            .filter_map(move |line| Some(line.strip_prefix(kind)?.split(' ').collect::<Vec<_>>()))
    };
    let ours = match ours {
        Err(_) if !output.status.success() => return Ok(0),
        Err(error) => return Err(error.to_string()),
        Ok(ours) => ours,
    };
    if !output.status.success() {
        return Err(format!(
            "libbpf: {}",
            String::from_utf8_lossy(&output.stderr)
        ));
    }
    // A structure that programs implement is a map to libbpf.
    let is_map = |it: &Vec<&str>| it[1].parse() != Ok(MapType::STRUCT_OPS.0);
    let names: Vec<_> = words("map ").filter(is_map).collect();
    let made: Vec<_> = words("made ").map(|it| numbers(&it)).collect();
    if (names.len(), made.len()) != (ours.maps.len(), ours.maps.len()) {
        return Err(format!("{} maps, not {}", ours.maps.len(), names.len()));
    }
    for ((name, made), ours) in names.iter().zip(&made).zip(&ours.maps) {
        // libbpf prefixes a section's name with the file's, and cuts it.
        let named = name[0] == ours.name || ours.name.starts_with('.') && name[0].contains('.');
        if !named || !is_made_so(made, ours) {
            return Err(format!("map {ours:?}, not {name:?} {made:?}"));
        }
    }
    let fds: HashMap<i32, usize> = made
        .iter()
        .enumerate()
        .map(|(at, it)| (it[0] as i32, at))
        .collect();
    let held = words("value ").chain(words("element ")).collect::<Vec<_>>();
    compare_contents(&ours, &held, &fds)?;
    let programs: Vec<_> = words("program ").collect();
    if programs.len() != ours.programs.len() {
        return Err(format!(
            "{} programs, not {}",
            ours.programs.len(),
            programs.len()
        ));
    }
    for (theirs, ours) in programs.iter().zip(&ours.programs) {
        let name = &ours.name[..ours.name.len().min(15)];
        let kind = [
            ours.kind.prog_type.0,
            ours.kind.expected_attach_type.0,
            ours.kind.flags,
        ];
        let mut their_kind = numbers(&theirs[1..4]);
        if ours.section.starts_with("usdt") {
            // By a link of many places, where libbpf and the kernel know them.
            their_kind[1] = 0;
        }
        if theirs[0] != name || their_kind != kind.map(u64::from) {
            return Err(format!(
                "program {name} of {:?}, not {:?}",
                ours.kind,
                &theirs[..4]
            ));
        }
        compare_infos(theirs, ours)?;
        let mut insns = with_indexes(&bytes(theirs[4]), &fds);
        for (theirs, ours) in insns.iter_mut().zip(&ours.insns) {
            // libbpf before 1.2 leaves a missing weak kernel function as number 0, later ones
            // poison its call. They number externs in another order.
            let is_missing =
                matches!(theirs.op(), Ok(Op::Poison { imm }) if imm == 0 || imm >= 2_002_000_000);
            if is_missing && matches!(ours.op(), Ok(Op::Poison { .. })) {
                *theirs = *ours;
            }
        }
        let different = insns
            .iter()
            .zip(&ours.insns)
            .position(|(theirs, ours)| theirs != ours);
        if let Some(at) = different {
            let (theirs, ours) = (insns[at], ours.insns[at]);
            return Err(format!(
                "{name}, insn {at}: {ours} ({ours:?}), not {theirs} ({theirs:?})"
            ));
        }
        if insns.len() != ours.insns.len() {
            return Err(format!(
                "{name}: {} insns, not {}",
                ours.insns.len(),
                insns.len()
            ));
        }
    }
    let types: Vec<_> = words("types ").collect();
    let is_ours = |it: &Vec<&str>| bytes(&it[0][1..]) == ours.btf;
    if !ours.btf.is_empty() && !types.iter().any(is_ours) {
        return Err(format!("none of {} types is ours", types.len()));
    }
    Ok(programs.len())
}

fn numbers(words: &[&str]) -> Vec<u64> {
    words.iter().map(|word| word.parse().unwrap()).collect()
}

/// Returns whether the kernel made this of the map, at libbpf's request. The oracle has given a
/// depth to stack traces, and elements to maps without, as tools do.
fn is_made_so(made: &[u64], map: &MapDefinition) -> bool {
    const STORAGE: &[MapType] = &[
        MapType::CGROUP_STORAGE,
        MapType::PERCPU_CGROUP_STORAGE,
        MapType::SK_STORAGE,
        MapType::INODE_STORAGE,
        MapType::TASK_STORAGE,
        MapType::CGRP_STORAGE,
    ];
    let cpus = thread::available_parallelism().unwrap().get() as u32;
    let is_storage = STORAGE.contains(&map.map_type);
    let entries = map.entries(cpus, 4096).max(u32::from(!is_storage));
    let value_size = match map.map_type {
        MapType::STACK_TRACE => 127 * 8,
        _ => map.value_size,
    };
    let facts = [map.map_type.0, map.key_size, value_size, entries, map.flags];
    let has_types = [
        map.map_extra,
        u64::from(map.key_type),
        u64::from(map.value_type),
    ];
    // Many types of maps take no types, and libbpf gives them none.
    let [extra, key_type, value_type] = has_types;
    made[1..6].iter().copied().eq(facts.map(u64::from))
        && made[6] == extra
        && (made[7..] == [key_type, value_type] || made[7..] == [0, 0])
}

/// Compares the maps' contents before a program runs, according to libbpf and to the file:
/// variables, maps and programs.
fn compare_contents(
    ours: &Object,
    held: &[Vec<&str>],
    fds: &HashMap<i32, usize>,
) -> Result<(), String> {
    let of_map = |at: usize| {
        held.iter()
            .filter(move |words| fds[&words[0].parse().unwrap()] == at)
    };
    for (at, map) in ours.maps.iter().enumerate() {
        let mut elements: Vec<(u32, usize)> = match &map.contents {
            Contents::Empty => Vec::new(),
            Contents::Value(value) => {
                let theirs = of_map(at).next().map(|words| bytes(&words[1][1..]));
                if theirs.as_deref() != Some(value) {
                    return Err(format!("{} holds {value:?}, not {theirs:?}", map.name));
                }
                continue;
            }
            Contents::Maps(maps) => maps.clone(),
            Contents::Programs(programs) => {
                let place = |name: &str| ours.programs.iter().position(|it| it.name == name);
                let programs = programs.iter();
                programs
                    .map(|(index, name)| (*index, place(name).unwrap()))
                    .collect()
            }
        };
        elements.sort_unstable();
        let theirs: Vec<(u32, usize)> = of_map(at)
            .filter(|words| words.len() == 3)
            .map(|words| (words[1].parse().unwrap(), words[2].parse().unwrap()))
            .collect();
        if theirs != elements {
            return Err(format!("{} holds {elements:?}, not {theirs:?}", map.name));
        }
    }
    Ok(())
}

/// Compares the data that accompanies the instructions: the target's number, and the positions of
/// functions and lines.
fn compare_infos(theirs: &[&str], ours: &ObjectProgram) -> Result<(), String> {
    let packed = |words: &mut dyn Iterator<Item = u32>| words.flat_map(u32::to_le_bytes).collect();
    let functions: Vec<u8> = packed(&mut ours.func_info.iter().flatten().copied());
    let lines: Vec<u8> = packed(&mut ours.line_info.iter().flatten().copied());
    let name = &ours.name;
    if bytes(&theirs[6][1..]) != functions {
        return Err(format!(
            "{name}: functions {:?}, not {}",
            ours.func_info, theirs[6]
        ));
    }
    if bytes(&theirs[7][1..]) != lines {
        return Err(format!("{name}: lines differ from {}", theirs[7]));
    }
    // The oracle sets these targets.
    let is_set = ours.section.starts_with("fe");
    let target = ours.target.btf_id().to_string();
    if !is_set && theirs[5] != target {
        return Err(format!(
            "{name}: target {:?}, not {}",
            ours.target, theirs[5]
        ));
    }
    Ok(())
}

/// Replaces the descriptors of maps by their indices.
fn with_indexes(bytes: &[u8], fds: &HashMap<i32, usize>) -> Vec<Insn> {
    let mut insns: Vec<_> = Insn::decode_all(bytes).unwrap().collect();
    for insn in &mut insns {
        if let Ok(Op::Imm64 {
            kind: Imm64::Map | Imm64::MapValue,
            low,
            ..
        }) = insn.op()
        {
            insn.imm = fds.get(&low).map_or(-1, |&index| index as i32);
        }
    }
    insns
}

fn bytes(hex: &str) -> Vec<u8> {
    let digit = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    (0..hex.len()).step_by(2).map(digit).collect()
}

/// Returns the programs in a directory beside this file.
fn sources(directory: &str) -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/programs")
        .join(directory);
    let entries = fs::read_dir(directory).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths
        .filter(|path| path.extension().is_some_and(|it| it == "c"))
        .collect()
}

fn scratch(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

fn compiled(source: &Path) -> PathBuf {
    let object = scratch(
        source
            .with_extension("o")
            .file_name()
            .unwrap()
            .to_str()
            .unwrap(),
    );
    // Older ones cannot ask if a type matches.
    let done = Command::new("clang-19")
        .args(["-target", "bpf", "-mcpu=v3", "-g", "-O2", "-c", "-o"])
        .args([&object, source])
        .arg("-I/usr/include/x86_64-linux-gnu")
        .status()
        .unwrap();
    assert!(done.success());
    object
}

fn oracle() -> &'static Path {
    static ORACLE: OnceLock<PathBuf> = OnceLock::new();
    ORACLE.get_or_init(|| {
        let program = scratch("oracle");
        let done = Command::new("cc")
            .args(["-O1", "-w", "-D_GNU_SOURCE", "-o"])
            .arg(&program)
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/oracle.c"))
            .args(["-lbpf", "-lelf", "-lz", "-ldl"])
            .status()
            .unwrap();
        assert!(done.success());
        program
    })
}
