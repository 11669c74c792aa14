//! What libbpf hands to the kernel for an object file, and what this crate makes of it, are the same.
//!
//! The files are those inside the programs of libbpf-tools, and some that test what those do not have. The tests need clang 19,
//! libbpf-dev and root; `oracle.c` asks libbpf.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use beeline_isa::{Imm64, Insn, Op};
use beeline_object::{Object, Program, RunningKernel, SectionKind};

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
fn what_tools_rarely_have_is_linked_as_libbpf_does() {
    for source in fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs")).unwrap() {
        let source = source.unwrap().path();
        let object = compiled(&source);
        if let Err(why) = compare(&object) {
            panic!("{}: {why}", source.display());
        }
    }
}

#[test]
fn section_names_mean_what_they_mean_to_libbpf() {
    let names = [
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
        "struct_ops.s",
        "sk_lookup",
        "kprobes",
        "nothing",
    ];
    let mut oracle = Command::new(oracle())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = oracle.stdin.take().unwrap();
    input.write_all(names.join("\n").as_bytes()).unwrap();
    drop(input);
    let answer = oracle.wait_with_output().unwrap().stdout;
    let known: HashMap<String, (u32, u32)> = String::from_utf8(answer)
        .unwrap()
        .lines()
        .map(|line| {
            let words: Vec<_> = line.split(' ').collect();
            let number = |at: usize| words[at].parse().unwrap();
            (words[0].to_owned(), (number(1), number(2)))
        })
        .collect();
    // This libbpf is older than these.
    let newer = ["struct_ops.s"];
    for name in names.iter().filter(|name| !newer.contains(name)) {
        let kind = SectionKind::of(name);
        let wanted = known.get(*name).copied().unwrap_or_default();
        assert_eq!(
            (kind.prog_type, kind.expected_attach_type),
            wanted,
            "{name}"
        );
    }
}

/// Every object file inside a program of libbpf-tools.
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

/// Compares all of one file; gives the number of programs.
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
    let maps: Vec<_> = words("map ").collect();
    if maps.len() != ours.maps.len() {
        return Err(format!("{} maps, not {}", ours.maps.len(), maps.len()));
    }
    for (theirs, ours) in maps.iter().zip(&ours.maps) {
        let facts = [
            ours.map_type,
            ours.key_size,
            ours.value_size,
            ours.max_entries,
            ours.flags,
        ];
        let mine = facts.map(|fact| fact.to_string());
        // libbpf puts the file's name before a section's, and cuts it.
        let named = theirs[0] == ours.name || ours.name.starts_with('.') && theirs[0].contains('.');
        if !named || theirs[1..] != mine {
            return Err(format!("map {ours:?}, not {theirs:?}"));
        }
    }
    let fds: HashMap<i32, usize> = words("fd ")
        .enumerate()
        .map(|(at, it)| (it[0].parse().unwrap(), at))
        .collect();
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
        if theirs[0] != name || theirs[1] != ours.kind.prog_type.to_string() {
            return Err(format!(
                "program {name} of {:?}, not {:?}",
                ours.kind,
                &theirs[..4]
            ));
        }
        compare_infos(theirs, ours)?;
        let mut insns = with_indexes(&bytes(theirs[4]), &fds);
        for (theirs, ours) in insns.iter_mut().zip(&ours.insns) {
            // libbpf before 1.2 leaves a weak kernel function that is not there as number 0, later ones poison its call.
            let is_missing = matches!(theirs.op(), Ok(Op::Poison { imm: 0 }));
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

/// What goes to the kernel beside the instructions: the target's number, and where functions and lines are.
fn compare_infos(theirs: &[&str], ours: &Program) -> Result<(), String> {
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

/// Replaces the descriptors of maps by their places.
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
            .args(["-lbpf", "-ldl"])
            .status()
            .unwrap();
        assert!(done.success());
        program
    })
}
