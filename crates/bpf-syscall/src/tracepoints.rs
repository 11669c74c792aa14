//! The tracepoints that are served: on each system call and on all of them, before and after.
//!
//! They have names, numbers, and a text that describes the context of their programs.

use std::collections::HashMap;
use std::fmt::Write;
use std::fs;
use std::mem::offset_of;
use std::path::Path;
use std::sync::OnceLock;

use beeline_runtime::backend::{AttachPoint, CallContext, Edge};
use beeline_uapi::tracepoint::{
    SysEnter, SysExit, SyscallTraceEnter, SyscallTraceExit, TraceEntry,
};

use crate::syscall_table::SystemCall;
use crate::tracefs::{MOUNTS, is_readable};

/// A tracepoint on system calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tracepoint {
    /// The call; `None` for all calls.
    pub(crate) call: Option<&'static SystemCall>,
    pub(crate) edge: Edge,
}

/// The groups: of all calls, and of each.
pub(crate) const GROUPS: [&str; 2] = ["raw_syscalls", "syscalls"];

/// The first number used where the kernel's cannot be read: far above the kernel's.
const OWN_IDS: u32 = 0x0bee_0000;

/// The offset and the bytes of a field.
macro_rules! place {
    ($of:ident.$field:ident) => {
        (offset_of!($of, $field), size_of_val(&$of::default().$field))
    };
}

impl Tracepoint {
    /// Returns all tracepoints of a group.
    pub(crate) fn of_group(group: &str) -> Vec<Self> {
        let both = |call| [Edge::Enter, Edge::Exit].map(|edge| Self { call, edge });
        match group {
            "raw_syscalls" => both(None).into(),
            "syscalls" => {
                let calls = SystemCall::all().iter();
                calls.flat_map(|call| both(Some(call))).collect()
            }
            _ => Vec::new(),
        }
    }

    pub(crate) fn named(group: &str, name: &str) -> Option<Self> {
        let (edge, call) = match name.strip_prefix("sys_enter") {
            Some(rest) => (Edge::Enter, rest),
            None => (Edge::Exit, name.strip_prefix("sys_exit")?),
        };
        let call = match group {
            "raw_syscalls" if call.is_empty() => None,
            "syscalls" => Some(SystemCall::by_name(call.strip_prefix('_')?)?),
            _ => return None,
        };
        Some(Self { call, edge })
    }

    pub(crate) fn group(&self) -> &'static str {
        match self.call {
            None => "raw_syscalls",
            Some(_) => "syscalls",
        }
    }

    pub(crate) fn name(&self) -> String {
        let edge = match self.edge {
            Edge::Enter => "sys_enter",
            Edge::Exit => "sys_exit",
        };
        match self.call {
            None => edge.into(),
            Some(call) => format!("{edge}_{}", call.name),
        }
    }

    /// Returns the number used where the kernel's cannot be read.
    pub(crate) fn own_id(&self) -> u32 {
        let call = self.call.map_or(0, |call| call.number + 1);
        OWN_IDS + 2 * call + u32::from(self.edge == Edge::Exit)
    }

    pub(crate) fn with_own_id(id: u64) -> Option<Self> {
        let place = u32::try_from(id).ok()?.checked_sub(OWN_IDS)?;
        let edge = match place % 2 {
            0 => Edge::Enter,
            _ => Edge::Exit,
        };
        let call = match (place / 2).checked_sub(1) {
            None => None,
            Some(number) => Some(SystemCall::by_number(number)?),
        };
        Some(Self { call, edge })
    }

    /// Returns the bytes of context that a program on it may look at: to the end of the last field,
    /// as the kernel counts.
    pub(crate) fn context_end(&self) -> u32 {
        let end = match (self.edge, self.call) {
            (Edge::Exit, None) => size_of::<SysExit>(),
            (Edge::Exit, Some(_)) => size_of::<SyscallTraceExit>(),
            (Edge::Enter, None) => size_of::<SysEnter>(),
            (Edge::Enter, Some(call)) => SyscallTraceEnter::end(call.arguments.len()),
        };
        end as u32
    }

    /// Returns the tracepoint that an event's program is attached to.
    pub(crate) fn of_point(point: &AttachPoint) -> Option<Self> {
        Self::of(point, CallContext::Tracepoint)
    }

    /// Returns the raw tracepoint that a program is attached to.
    pub(crate) fn of_raw(point: &AttachPoint) -> Option<Self> {
        Self::of(point, CallContext::RawTracepoint)
    }

    fn of(point: &AttachPoint, wanted: CallContext) -> Option<Self> {
        let AttachPoint::SystemCall {
            number,
            edge,
            context,
            ..
        } = *point
        else {
            return None;
        };
        let call = match number {
            None => None,
            Some(number) => Some(SystemCall::by_number(number)?),
        };
        (context == wanted).then_some(Self { call, edge })
    }

    /// Returns the point that the backend is to attach to.
    pub(crate) fn point(&self) -> AttachPoint {
        AttachPoint::SystemCall {
            number: self.call.map(|call| call.number),
            edge: self.edge,
            context: CallContext::Tracepoint,
            cookie: 0,
        }
    }

    /// Returns the text of the file `format` in tracefs, as Linux 6.18 writes it.
    pub(crate) fn format(&self, id: u32) -> String {
        let mut text = format!("name: {}\nID: {id}\nformat:\n", self.name());
        write_common(&mut text);
        text.push('\n');
        match (self.call, self.edge) {
            (None, Edge::Enter) => {
                field(&mut text, "long id", place!(SysEnter.id), true);
                field(
                    &mut text,
                    "unsigned long args[6]",
                    place!(SysEnter.args),
                    false,
                );
                text += "\nprint fmt: \"NR %ld (%lx, %lx, %lx, %lx, %lx, %lx)\", REC->id, \
                         REC->args[0], REC->args[1], REC->args[2], REC->args[3], REC->args[4], \
                         REC->args[5]\n";
            }
            (None, Edge::Exit) => {
                field(&mut text, "long id", place!(SysExit.id), true);
                field(&mut text, "long ret", place!(SysExit.ret), true);
                text += "\nprint fmt: \"NR %ld = %ld\", REC->id, REC->ret\n";
            }
            (Some(call), Edge::Enter) => {
                let number = place!(SyscallTraceEnter.nr);
                field(&mut text, "int __syscall_nr", number, true);
                write_arguments(&mut text, call);
            }
            (Some(_), Edge::Exit) => {
                let number = place!(SyscallTraceExit.nr);
                field(&mut text, "int __syscall_nr", number, true);
                field(&mut text, "long ret", place!(SyscallTraceExit.ret), true);
                text += "\nprint fmt: \"0x%lx\", REC->ret\n";
            }
        }
        text
    }
}

/// Writes the line of a field, given its declaration in C and whether it is a signed number.
fn field(text: &mut String, declaration: &str, (offset, size): (usize, usize), is_signed: bool) {
    let signed = u8::from(is_signed);
    // Writing to a string does not fail.
    let _ = writeln!(
        text,
        "\tfield:{declaration};\toffset:{offset};\tsize:{size};\tsigned:{signed};"
    );
}

/// Writes the fields that the kernel lays out before each event's own.
fn write_common(text: &mut String) {
    let (flags, count) = (place!(TraceEntry.flags), place!(TraceEntry.preempt_count));
    field(
        text,
        "unsigned short common_type",
        place!(TraceEntry.r#type),
        false,
    );
    field(text, "unsigned char common_flags", flags, false);
    field(text, "unsigned char common_preempt_count", count, false);
    field(text, "int common_pid", place!(TraceEntry.pid), true);
}

fn write_arguments(text: &mut String, call: &SystemCall) {
    let size = size_of::<u64>();
    let offsets = (offset_of!(SyscallTraceEnter, args)..).step_by(size);
    for (argument, offset) in call.arguments.iter().zip(offsets) {
        let declaration = format!("{} {}", argument.type_name, argument.name);
        field(text, &declaration, (offset, size), false);
    }
    let names = || call.arguments.iter().map(|argument| argument.name);
    let formats: Vec<_> = names().map(|name| format!("{name}: 0x%08lx")).collect();
    *text += &format!("\nprint fmt: \"{}\"", formats.join(", "));
    for name in names() {
        *text += &format!(", ((unsigned long)(REC->{name}))");
    }
    text.push('\n');
}

/// The kernel's numbers of these tracepoints, which differ between kernels.
#[derive(Default)]
pub(crate) struct KernelIds(OnceLock<HashMap<u64, Tracepoint>>);

impl KernelIds {
    /// Returns the tracepoint with a number, where the kernel's tracefs can be read.
    pub(crate) fn find(&self, id: u64) -> Option<Tracepoint> {
        if let Some(known) = self.0.get() {
            return known.get(&id).copied();
        }
        let read = Self::read();
        // The file system may be mounted later.
        if read.is_empty() {
            return None;
        }
        self.0.get_or_init(|| read).get(&id).copied()
    }

    fn read() -> HashMap<u64, Tracepoint> {
        let Some(mount) = MOUNTS.into_iter().find(|mount| is_readable(mount)) else {
            return HashMap::new();
        };
        let events = Path::new(mount).join("events");
        let served = GROUPS.into_iter().flat_map(Tracepoint::of_group);
        let numbered = served.filter_map(|tracepoint| {
            let path = events.join(tracepoint.group()).join(tracepoint.name());
            let text = fs::read_to_string(path.join("id")).ok()?;
            Some((text.trim().parse().ok()?, tracepoint))
        });
        numbered.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_lead_back() {
        for tracepoint in GROUPS.into_iter().flat_map(Tracepoint::of_group) {
            let name = tracepoint.name();
            assert_eq!(
                Tracepoint::named(tracepoint.group(), &name),
                Some(tracepoint)
            );
            let id = u64::from(tracepoint.own_id());
            assert_eq!(Tracepoint::with_own_id(id), Some(tracepoint), "{name}");
        }
        for (group, name) in [
            ("syscalls", "sys_enter"),
            ("syscalls", "sys_enter_none"),
            ("raw_syscalls", "sys_enter_read"),
            ("raw_syscalls", "sys_enter_"),
            ("sched", "sched_switch"),
        ] {
            assert_eq!(Tracepoint::named(group, name), None, "{group}:{name}");
        }
        for id in [
            0,
            1,
            u64::from(OWN_IDS) - 1,
            u64::from(OWN_IDS) + 10_000,
            u64::MAX,
        ] {
            assert_eq!(Tracepoint::with_own_id(id), None, "{id}");
        }
    }

    /// Returns the kernel's files, from tracefs mounted where nothing else sees it; `None` if it
    /// cannot be mounted.
    fn kernels_formats() -> Option<String> {
        let script = "test -e /sys/kernel/tracing/events || mount -t tracefs nodev /sys/kernel/tracing; \
                      cd /sys/kernel/tracing/events && \
                      cat raw_syscalls/*/format syscalls/*/format";
        let read = std::process::Command::new("unshare")
            .args(["-m", "sh", "-c", script])
            .output();
        let read = read.ok().filter(|read| read.status.success())?;
        String::from_utf8(read.stdout).ok()
    }

    #[test]
    fn formats_are_the_kernels() {
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        if !release.starts_with("6.18.") {
            return eprintln!("skipped: the table is of Linux 6.18");
        }
        let Some(formats) = kernels_formats() else {
            return eprintln!("skipped: the kernel's tracefs cannot be mounted here");
        };
        let mut compared = 0;
        let formats = formats.strip_prefix("name: ").expect("a format");
        let formats = formats.strip_suffix('\n').expect("its last line");
        // Arguments have names that end so, too.
        for format in formats.split("\nname: ") {
            let (name, rest) = format.split_once('\n').expect("a name's line");
            let id = rest
                .strip_prefix("ID: ")
                .and_then(|rest| rest.split_once('\n'));
            let id = id
                .and_then(|(id, _)| id.parse().ok())
                .expect("a number's line");
            let served = GROUPS
                .into_iter()
                .find_map(|group| Tracepoint::named(group, name));
            let served = served.unwrap_or_else(|| panic!("{name} is not in the table"));
            assert_eq!(served.format(id), format!("name: {format}\n"));
            compared += 1;
        }
        let all = GROUPS
            .into_iter()
            .map(|group| Tracepoint::of_group(group).len());
        assert_eq!(compared, all.sum::<usize>());
    }

    #[test]
    fn a_context_ends_with_its_last_field() {
        let end = |group, name| Tracepoint::named(group, name).map(|found| found.context_end());
        assert_eq!(end("syscalls", "sys_enter_getpid"), Some(12));
        assert_eq!(end("syscalls", "sys_enter_openat"), Some(48));
        assert_eq!(end("syscalls", "sys_exit_openat"), Some(24));
        assert_eq!(end("raw_syscalls", "sys_enter"), Some(64));
        assert_eq!(end("raw_syscalls", "sys_exit"), Some(24));
    }
}
