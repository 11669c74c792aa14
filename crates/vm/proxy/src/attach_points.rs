//! The places that programs are attached to, by names that a policy can have patterns of:
//! `kprobe:vfs_read`, `uprobe:/usr/bin/bash:0x1234`, `tracepoint:sched:sched_switch`,
//! `raw_tracepoint:sched_switch`, `fentry:vfs_read`.

use std::collections::HashMap;
use std::sync::OnceLock;

use beeline_btf::OwnedBtf;
use beeline_uapi::fields::{u32_at, u64_at};
use beeline_uapi::perf::{PERF_TYPE_HARDWARE, PERF_TYPE_SOFTWARE, SOFTWARE_EVENTS};
use beeline_uapi::{AttachType, Command, ProgramType, attr_offset as at};
use beeline_vm_protocol::info::Kind;
use parking_lot::Mutex;
use rustix::fs::{Dir, OFlags};

use crate::call::Call;
use crate::fs_roots::Root;
use crate::handles::Object;
use crate::info;
use crate::refusal::Refusal;

/// The prefixes of the names of places, before a `:`.
pub const KINDS: [&str; 13] = [
    "kprobe",
    "uprobe",
    "tracepoint",
    "raw_tracepoint",
    "fentry",
    "fexit",
    "fmod_ret",
    "lsm",
    "iter",
    "freplace",
    "perf_event",
    "breakpoint",
    "program",
];

/// Returns the name of a type as policies have it: the kernel's in small letters, without the
/// common prefix.
pub fn program_type(of: ProgramType) -> String {
    let name = of
        .name()
        .and_then(|name| name.strip_prefix("BPF_PROG_TYPE_"));
    name.map_or_else(|| format!("type-{}", of.0), str::to_lowercase)
}

/// Offsets in the attribute of `BPF_PROG_LOAD`.
mod load {
    use super::at;

    pub(super) const TYPE: usize = at!(ProgLoad.prog_type);
    pub(super) const ATTACH_TYPE: usize = at!(ProgLoad.expected_attach_type);
    pub(super) const ATTACH_BTF_ID: usize = at!(ProgLoad.attach_btf_id);
    pub(super) const ATTACH_OBJECT: usize = at!(ProgLoad.attach_prog_fd);
}

/// The kinds of perf events by their numbers, with the names of their events: those of perf-list(1).
const EVENTS: [(u32, &str, &[&str]); 2] = [
    (
        PERF_TYPE_HARDWARE,
        "hardware",
        &[
            "cycles",
            "instructions",
            "cache-references",
            "cache-misses",
            "branches",
            "branch-misses",
            "bus-cycles",
            "stalled-cycles-frontend",
            "stalled-cycles-backend",
            "ref-cycles",
        ],
    ),
    (PERF_TYPE_SOFTWARE, "software", SOFTWARE_EVENTS),
];

/// Returns the name of a place with words for numbers, if it has one: `perf_event:1:0x0` is
/// `perf_event:software:cpu-clock`.
pub fn readable(place: &str) -> Option<String> {
    let (kind, config) = place.strip_prefix("perf_event:")?.split_once(':')?;
    let (kind, config) = (
        kind.parse::<u32>().ok()?,
        config
            .strip_prefix("0x")
            .and_then(|digits| usize::from_str_radix(digits, 16).ok())?,
    );
    let (_, kind, events) = EVENTS.iter().find(|(number, ..)| *number == kind)?;
    Some(format!("perf_event:{kind}:{}", events.get(config)?))
}

/// Returns the name of a kernel type by its number; `None` if there is none, or the kernel does not
/// describe its types.
pub fn kernel_type_name(id: u32) -> Option<String> {
    static TYPES: OnceLock<Option<OwnedBtf>> = OnceLock::new();
    let types = TYPES.get_or_init(|| {
        let file = Root::Sys.open("kernel/btf/vmlinux", OFlags::RDONLY).ok()?;
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut std::fs::File::from(file), &mut bytes).ok()?;
        OwnedBtf::parse(bytes)
    });
    let found = types.as_ref()?.view();
    let name = found.get(id)?.name;
    std::str::from_utf8(name).ok().map(str::to_owned)
}

/// Returns the place that a program is for, if it is loaded for a single one. `attr` has
/// descriptors in it.
pub fn of_program(call: &Call) -> Option<String> {
    let given = call.attr();
    let kind = match (
        ProgramType(u32_at(given, load::TYPE)),
        AttachType(u32_at(given, load::ATTACH_TYPE)),
    ) {
        (ProgramType::TRACING, AttachType::TRACE_RAW_TP) => "raw_tracepoint",
        (ProgramType::TRACING, AttachType::TRACE_FENTRY) => "fentry",
        (ProgramType::TRACING, AttachType::TRACE_FEXIT) => "fexit",
        (ProgramType::TRACING, AttachType::MODIFY_RETURN) => "fmod_ret",
        (ProgramType::TRACING, AttachType::TRACE_ITER) => "iter",
        (ProgramType::LSM, _) => "lsm",
        (ProgramType::EXT, _) => "freplace",
        _ => return None,
    };
    let id = u32_at(given, load::ATTACH_BTF_ID);
    let object = u32_at(given, load::ATTACH_OBJECT);
    let object = (object != 0).then(|| call.object(object));
    // The kernel's own types are the same named and unnamed.
    let object = object.filter(|object| !object.is_some_and(|object| info::is_kernels_own(object)));
    if let Some(object) = object {
        // Types of a module or a program have numbers of their own.
        let owner = match object.map(|object| object.kind) {
            Some(Kind::Btf) => "module",
            _ => "program",
        };
        return Some(format!("{kind}:{owner}:#{id}"));
    }
    let name = kernel_type_name(id).unwrap_or_else(|| format!("#{id}"));
    let prefix = match kind {
        "raw_tracepoint" => "btf_trace_",
        "iter" => "bpf_iter_",
        "lsm" => "bpf_lsm_",
        _ => "",
    };
    let name = name.strip_prefix(prefix).unwrap_or(&name);
    Some(format!("{kind}:{name}"))
}

/// Returns the places that `BPF_LINK_CREATE` or `BPF_RAW_TRACEPOINT_OPEN` attaches to. Also
/// replaces the path of an executable by the one that it leads to.
///
/// # Errors
///
/// Those of [`executable`].
pub fn of_link(command: Command, call: &mut Call) -> Result<Vec<String>, Refusal> {
    let of_object = |object: Option<&std::sync::Arc<Object>>, unknown: &str| {
        let place = object.and_then(|object| object.place.clone());
        vec![place.unwrap_or_else(|| unknown.to_owned())]
    };
    if command == Command::RAW_TRACEPOINT_OPEN {
        let name = call.buffer(at!(RawTracepoint.name)).map(text);
        let name = name.filter(|name| !name.is_empty());
        let program = call.object(u32_at(call.attr(), at!(RawTracepoint.prog_fd)));
        return Ok(match name {
            Some(name) => vec![format!("raw_tracepoint:{name}")],
            None => of_object(program, "program:unknown"),
        });
    }
    let given = call.attr();
    Ok(
        match AttachType(u32_at(given, at!(LinkCreate.attach_type))) {
            AttachType::PERF_EVENT => {
                let event = call.object(u32_at(given, at!(LinkCreate.target_fd)));
                of_object(event, "perf_event:unknown")
            }
            AttachType::TRACE_KPROBE_MULTI | AttachType::TRACE_KPROBE_SESSION => {
                let names = call.texts(at!(LinkCreateKprobeMulti.syms)).map(|texts| {
                    let texts = texts
                        .split(|byte| *byte == 0)
                        .filter(|text| !text.is_empty());
                    texts.map(|name| format!("kprobe:{}", text(name))).collect()
                });
                let addresses = call.buffer(at!(LinkCreateKprobeMulti.addrs));
                let addresses = addresses.unwrap_or_default().chunks(8);
                let addresses =
                    addresses.map(|address| format!("kprobe:{:#x}", u64_at(address, 0)));
                let mut places: Vec<String> = names.unwrap_or_default();
                places.extend(addresses);
                places
            }
            AttachType::TRACE_UPROBE_MULTI | AttachType::TRACE_UPROBE_SESSION => {
                let path = call.buffer(at!(LinkCreateUprobeMulti.path));
                let path = path.map(text).unwrap_or_default();
                let path = executable(&path)?;
                call.set_text(at!(LinkCreateUprobeMulti.path), path.as_bytes());
                let offsets = call.buffer(at!(LinkCreateUprobeMulti.offsets));
                let offsets = offsets.unwrap_or_default().chunks(8);
                offsets
                    .map(|offset| format!("uprobe:{path}:{:#x}", u64_at(offset, 0)))
                    .collect()
            }
            _ => of_object(
                call.object(u32_at(given, at!(LinkCreate.prog_fd))),
                "program:unknown",
            ),
        },
    )
}

fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0);
    String::from_utf8_lossy(&bytes[..end.unwrap_or(bytes.len())]).into_owned()
}

/// Returns the file that a path leads to, without links, so that a pattern cannot be led astray.
///
/// # Errors
///
/// `EINVAL` if it is no file or its path is no text, and the kernel's errors, such as `ENOENT`.
pub fn executable(path: &str) -> Result<String, Refusal> {
    let found = std::fs::canonicalize(path).map_err(|error| {
        let mut refusal = Refusal::from(error);
        refusal.why = format!("{path} is not to be found in the guest");
        refusal
    })?;
    if !found.is_file() {
        return Err(Refusal::new(libc::EINVAL, format!("{path} is no file")));
    }
    let found = found.into_os_string().into_string();
    found.map_err(|_| Refusal::new(libc::EINVAL, "the path that it leads to is no text"))
}

/// Returns the place of a tracepoint by its number.
pub fn of_tracepoint(id: u64) -> String {
    static KNOWN: Mutex<Option<HashMap<u64, String>>> = Mutex::new(None);
    let mut known = KNOWN.lock();
    let name = known.as_ref().and_then(|known| known.get(&id));
    let name = name.cloned().or_else(|| {
        // The first call, or a tracepoint that a module has brought along since.
        let fresh = known.insert(tracepoints().unwrap_or_default());
        fresh.get(&id).cloned()
    });
    match name {
        Some(name) => format!("tracepoint:{name}"),
        None => format!("tracepoint:#{id}"),
    }
}

fn tracepoints() -> rustix::io::Result<HashMap<u64, String>> {
    let mut found = HashMap::new();
    let directory = OFlags::RDONLY | OFlags::DIRECTORY;
    for category in Dir::new(Root::Tracing.open("events", directory)?)? {
        let category = category?.file_name().to_string_lossy().into_owned();
        let Ok(events) = Root::Tracing.open(&format!("events/{category}"), directory) else {
            continue;
        };
        for event in Dir::new(events)? {
            let event = event?.file_name().to_string_lossy().into_owned();
            let id = Root::Tracing.read(&format!("events/{category}/{event}/id"));
            if let Some(id) = id.ok().and_then(|id| id.trim().parse().ok()) {
                found.insert(id, format!("{category}:{event}"));
            }
        }
    }
    Ok(found)
}
