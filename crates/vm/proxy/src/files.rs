//! The files that a guest serves: those of its kernel that eBPF tools read. One table lists them;
//! nothing else can be reached but the programs and libraries that processes run ([`executed`]).

use std::os::fd::OwnedFd;
use std::time::Instant;

use beeline_uapi::linux::PATH_MAX;
use beeline_vm_protocol::messages::{Entry, File, Look};
use rustix::fs::{Dir, FileType, OFlags};

use crate::digests::{self, Digests};
use crate::executed;
use crate::fs_roots::Root;
use crate::glob;
use crate::policy::Policy;
use crate::refusal::Refusal;

/// A group of served files.
struct Served {
    /// The beginning of the path.
    at: &'static str,
    root: Root,
    /// The served files, by patterns of their components; `**` at the end is everything below.
    /// Symbolic links may be followed up to and including a component in angle brackets.
    files: &'static [&'static str],
}

const TRACING: &[&str] = &[
    "README",
    "available_events",
    "available_filter_functions",
    "available_filter_functions_addrs",
    "available_tracers",
    "current_tracer",
    "enabled_functions",
    "events/enable",
    "events/header_event",
    "events/header_page",
    "events/*/enable",
    "events/*/filter",
    "events/*/*/enable",
    "events/*/*/filter",
    "events/*/*/format",
    "events/*/*/id",
    "events/*/*/trigger",
    "kprobe_events",
    "kprobe_profile",
    "printk_formats",
    "touched_functions",
    "trace_clock",
    "tracing_on",
    "uprobe_events",
    "uprobe_profile",
];

/// A longer beginning stands before one that it starts with.
const SERVED: &[Served] = &[
    Served {
        at: "/sys/kernel/tracing",
        root: Root::Tracing,
        files: TRACING,
    },
    Served {
        at: "/sys/kernel/debug/tracing",
        root: Root::Tracing,
        files: TRACING,
    },
    Served {
        at: "/sys/kernel/debug",
        root: Root::Debug,
        files: &[
            "error_injection/list",
            "kprobes/blacklist",
            "kprobes/enabled",
            "kprobes/list",
        ],
    },
    Served {
        at: "/sys/kernel/security",
        root: Root::Security,
        files: &["lockdown", "lsm"],
    },
    Served {
        at: "/sys",
        root: Root::Sys,
        files: &[
            "bus/event_source/devices/<*>/caps/*",
            "bus/event_source/devices/<*>/cpumask",
            "bus/event_source/devices/<*>/cpus",
            "bus/event_source/devices/<*>/events/*",
            "bus/event_source/devices/<*>/format/*",
            "bus/event_source/devices/<*>/nr_addr_filters",
            "bus/event_source/devices/<*>/perf_event_mux_interval_ms",
            "bus/event_source/devices/<*>/type",
            "devices/system/cpu/cpu*/cache/**",
            "devices/system/cpu/cpu*/online",
            "devices/system/cpu/cpu*/topology/*",
            "devices/system/cpu/isolated",
            "devices/system/cpu/kernel_max",
            "devices/system/cpu/offline",
            "devices/system/cpu/online",
            "devices/system/cpu/possible",
            "devices/system/cpu/present",
            "fs/bpf",
            "kernel/btf/*",
            "kernel/kheaders.tar.xz",
            "kernel/notes",
        ],
    },
    Served {
        at: "/proc",
        root: Root::Proc,
        files: &[
            "cmdline",
            "config.gz",
            "cpuinfo",
            "devices",
            "filesystems",
            "kallsyms",
            "modules",
            "partitions",
            "sys/kernel/bpf_stats_enabled",
            "sys/kernel/ftrace_enabled",
            "sys/kernel/hostname",
            "sys/kernel/kptr_restrict",
            "sys/kernel/osrelease",
            "sys/kernel/ostype",
            "sys/kernel/perf_cpu_time_max_percent",
            "sys/kernel/perf_event_max_contexts_per_stack",
            "sys/kernel/perf_event_max_sample_rate",
            "sys/kernel/perf_event_max_stack",
            "sys/kernel/perf_event_mlock_kb",
            "sys/kernel/perf_event_paranoid",
            "sys/kernel/pid_max",
            "sys/kernel/random/boot_id",
            "sys/kernel/randomize_va_space",
            "sys/kernel/threads-max",
            "sys/kernel/unprivileged_bpf_disabled",
            "sys/kernel/version",
            "sys/net/core/bpf_jit_enable",
            "sys/net/core/bpf_jit_harden",
            "sys/net/core/bpf_jit_kallsyms",
            "sys/net/core/bpf_jit_limit",
            "stat",
            "uptime",
            "version",
            "version_signature",
        ],
    },
    Served {
        at: "/boot",
        root: Root::Boot,
        files: &["config-*"],
    },
];

/// The served files of a process, below `/proc/PID`; for those that may see processes.
const OF_PROCESS: &[&str] = &["*/cmdline", "*/comm", "*/maps", "*/stat", "*/status"];

/// Bytes of content of one answer.
pub const MOST: usize = 16 << 20;

/// A path that is served.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    root: Root,
    patterns: &'static [&'static str],
    components: Vec<String>,
}

/// The degree to which a path fits a pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fit {
    No,
    /// It is a directory above the file that the pattern names.
    Above,
    Whole,
}

fn fit(pattern: &str, components: &[&str]) -> Fit {
    let mut parts = pattern.split('/');
    for component in components {
        match parts.next() {
            Some("**") => return Fit::Whole,
            Some(part) if glob::fits(bare(part), component) => {}
            _ => return Fit::No,
        }
    }
    match parts.next() {
        None => Fit::Whole,
        Some(_) => Fit::Above,
    }
}

fn bare(part: &str) -> &str {
    let inside = part.strip_prefix('<');
    inside
        .and_then(|inside| inside.strip_suffix('>'))
        .unwrap_or(part)
}

impl Place {
    /// Returns `None` for a path that is not served.
    fn of(path: &str) -> Option<Self> {
        if path.len() > PATH_MAX || path.contains('\0') {
            return None;
        }
        let served = SERVED.iter();
        let mut served = served.filter_map(|served| {
            let rest = path.strip_prefix(served.at)?;
            (rest.is_empty() || rest.starts_with('/')).then_some((served, rest))
        });
        let (served, rest) = served.next()?;
        let components: Vec<String> = match rest.strip_prefix('/') {
            None | Some("") => Vec::new(),
            Some(rest) => rest.split('/').map(str::to_owned).collect(),
        };
        let mut place = Self {
            root: served.root,
            patterns: served.files,
            components,
        };
        if place.is_of_process() {
            place.patterns = OF_PROCESS;
        }
        let odd = |component: &String| matches!(component.as_str(), "" | "." | "..");
        let good = !place.components.iter().any(odd) && place.fit(None) != Fit::No;
        good.then_some(place)
    }

    /// True if it is below a process's directory.
    fn is_of_process(&self) -> bool {
        let first = self.components.first();
        let is_number = |name: &String| name.bytes().all(|letter| letter.is_ascii_digit());
        self.root == Root::Proc && first.is_some_and(|name| !name.is_empty() && is_number(name))
    }

    /// Returns how far it fits, with one more component if there is one.
    fn fit(&self, entry: Option<&str>) -> Fit {
        let mut components: Vec<&str> = self.components.iter().map(String::as_str).collect();
        components.extend(entry);
        let fits = self
            .patterns
            .iter()
            .map(|pattern| fit(pattern, &components));
        fits.max_by_key(|fit| *fit as u8).unwrap_or(Fit::No)
    }

    /// True if both lead to one file.
    fn is_same(&self, other: &Self) -> bool {
        self.root == other.root && self.components == other.components
    }

    fn open(&self, flags: OFlags) -> Result<OwnedFd, rustix::io::Errno> {
        let path = self.components.join("/");
        let components: Vec<&str> = self.components.iter().map(String::as_str).collect();
        // The number of components after which links have come to an end.
        let links = self.patterns.iter().find_map(|pattern| {
            let links = 1 + pattern.split('/').position(|part| part.starts_with('<'))?;
            let fits = components.len() >= links && fit(pattern, &components) != Fit::No;
            fits.then_some(links)
        });
        match links {
            None => self.root.open(&path, flags),
            Some(links) => {
                let (link, rest) = self.components.split_at(links);
                self.root
                    .open_behind(&link.join("/"), &rest.join("/"), flags)
            }
        }
    }

    fn entries(&self) -> Result<Vec<Entry>, Refusal> {
        let directory = self.open(OFlags::RDONLY | OFlags::DIRECTORY)?;
        let mut entries = Vec::new();
        for entry in Dir::new(directory)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else {
                continue;
            };
            if matches!(name, "." | "..") {
                continue;
            }
            let fit = self.fit(Some(name));
            let is_directory = match entry.file_type() {
                FileType::Directory => true,
                // Links to a directory, where they may be followed.
                FileType::Symlink => fit == Fit::Above,
                _ => false,
            };
            if fit == Fit::No || fit == Fit::Above && !is_directory {
                continue;
            }
            entries.push(Entry {
                name: name.to_owned(),
                is_directory,
            });
        }
        Ok(entries)
    }
}

/// True if the path is one of the table's, or above one.
pub fn is_served(path: &str) -> bool {
    Place::of(path).is_some()
}

/// Returns the name by which a large file that lasts is known, wherever it is looked at.
fn lasting(place: &Place) -> Option<&'static str> {
    [digests::TYPES, digests::FUNCTIONS]
        .into_iter()
        .find(|name| Place::of(name).is_some_and(|of| of.is_same(place)))
}

/// Returns the whole of a file, if it is served and no longer than one answer.
pub fn whole(path: &str) -> Option<Vec<u8>> {
    let opened = Place::of(path)?.open(OFlags::RDONLY).ok()?;
    let (content, more) = content(&opened, 0).ok()?;
    (!more).then_some(content)
}

/// Reads the file, unless the host is known to have it.
fn read_lasting(
    place: &Place,
    name: &'static str,
    request: &Look,
    digests: &Digests,
    file: &mut File,
) -> Result<(), Refusal> {
    let begun = Instant::now();
    let known = digests.now(name);
    file.same = known.is_some_and(|sum| request.held == sum);
    if file.same {
        return Ok(());
    }
    let opened = place.open(OFlags::RDONLY)?;
    (file.content, file.more) = content(&opened, 0)?;
    if known.is_none() && !file.more && digests.take(name, begun, &file.content) == *request.held {
        file.same = true;
        file.content = Vec::new();
    }
    Ok(())
}

/// Looks at a file or a directory. `digests` tells which lasting files the host holds.
///
/// # Errors
///
/// `ENOENT` for a file that is not served, `EOPNOTSUPP` for `trace_pipe`, `EACCES` for neither file
/// nor directory, `EINVAL` for an offset that no file has, and the kernel's errors.
pub fn look(request: &Look, digests: &Digests, policy: &Policy) -> Result<File, Refusal> {
    if request.path.rsplit('/').next() == Some("trace_pipe") {
        let why = "trace_pipe takes lines away from whoever else reads it, and is not served";
        return Err(Refusal::new(libc::EOPNOTSUPP, why));
    }
    let hidden = || {
        let why = "the guest's processes are not shown";
        Refusal::forbidden("processes.visible", why)
    };
    if let Some(file) = executed::of(&request.path) {
        return match policy.shows_processes() {
            true => file.look(request),
            false => Err(hidden()),
        };
    }
    let place = Place::of(&request.path).ok_or_else(|| {
        let why = format!(
            "{} is not among the files that a guest serves",
            request.path
        );
        Refusal::new(libc::ENOENT, why)
    })?;
    if place.is_of_process() && !policy.shows_processes() {
        return Err(hidden());
    }
    let stat = rustix::fs::fstat(place.open(OFlags::PATH)?)?;
    let mut file = File {
        mode: stat.st_mode,
        size: stat.st_size as u64,
        ..File::default()
    };
    let kind = FileType::from_raw_mode(stat.st_mode);
    if kind == FileType::RegularFile && place.fit(None) != Fit::Whole {
        return Err(Refusal::new(libc::ENOENT, ""));
    }
    if !request.content {
        return Ok(file);
    }
    match kind {
        FileType::Directory => file.entries = place.entries()?,
        FileType::RegularFile => match lasting(&place).filter(|_| request.from == 0) {
            Some(name) => read_lasting(&place, name, request, digests, &mut file)?,
            None => {
                let opened = place.open(OFlags::RDONLY)?;
                (file.content, file.more) = content(&opened, request.from)?;
            }
        },
        _ => {
            return Err(Refusal::new(
                libc::EACCES,
                "that is neither file nor directory",
            ));
        }
    }
    Ok(file)
}

/// Returns the content from an offset on, and whether there is more than fits. For most of these
/// files a read returns at most a page, however much room there is, so the room is not zeroed for
/// each.
pub fn content(file: &OwnedFd, from: u64) -> Result<(Vec<u8>, bool), Refusal> {
    const STEP: usize = 256 << 10;
    let mut bytes = Vec::new();
    while bytes.len() < MOST {
        bytes.reserve(STEP);
        let at = from
            .checked_add(bytes.len() as u64)
            .filter(|at| *at <= i64::MAX as u64);
        let at = at.ok_or_else(|| Refusal::new(libc::EINVAL, ""))?;
        let room = rustix::buffer::spare_capacity(&mut bytes);
        if rustix::io::pread(file, room, at)? == 0 {
            return Ok((bytes, false));
        }
    }
    Ok((bytes, true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_table_is_served() {
        for path in [
            "/proc",
            "/proc/kallsyms",
            "/sys/kernel/debug/tracing/events/syscalls/sys_enter_openat/id",
            "/sys/kernel/tracing/events",
            "/sys/bus/event_source/devices/kprobe/type",
            "/sys/bus/event_source/devices/kprobe",
            "/sys/devices/system/cpu/cpu12/topology/core_id",
            "/boot/config-6.12",
            "/proc/1/maps",
            "/proc/12",
        ] {
            assert!(is_served(path), "{path}");
        }
        for path in [
            "",
            "/",
            "/etc/passwd",
            "/proc/1/environ",
            "/proc/1/root/etc",
            "/proc/1/task/1/comm",
            "/proc/self/maps",
            "/proc/self/mem",
            "/procx",
            "/proc/../etc/passwd",
            "/proc//kallsyms",
            "/proc/./kallsyms",
            "/proc/kallsyms/",
            "/proc/kallsyms/x",
            "/sys/kernel/tracing/trace",
            "/sys/kernel/tracing/per_cpu/cpu0/trace_pipe_raw",
            "/sys/bus/event_source/devices/kprobe/subsystem/devices",
            "/sys/kernel/security/../../kernel/vmcoreinfo",
            "proc/kallsyms",
            "/boot/vmlinuz",
            "/boot/config-x/y",
        ] {
            assert!(!is_served(path), "{path}");
        }
    }
}
