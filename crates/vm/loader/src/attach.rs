//! Attaching programs by the names of their sections, as libbpf does.

use std::sync::Arc;

use beeline_uapi::flags::KPROBE_MULTI_RETURN;
use beeline_uapi::{AttachType, Command, attr, attr_offset as at};

use crate::error::{Error, Refusal};
use crate::guest::{read, read_line};
use crate::handle::{Answer, Attr, Handle, Line, given};
use crate::load::{Loaded, LoadedProgram};
use crate::perf::{Event, Source, online_cpus, run_at};
use crate::symbols;

/// The most functions that one link may have here: more would be a mistake in a pattern.
const MOST_FUNCTIONS: usize = 1 << 16;

/// Settings that sections' names leave open.
#[derive(Debug, Clone)]
pub struct Attachment {
    /// Samples per second of each CPU's time, for programs in `perf_event` sections. libbpf
    /// attaches those to nothing by itself.
    pub frequency: u64,
}

impl Default for Attachment {
    /// Returns 49 samples a second, out of step with events at round numbers.
    fn default() -> Self {
        Self { frequency: 49 }
    }
}

/// A program that is attached.
#[derive(Debug)]
pub struct Attached {
    /// Its name.
    pub program: String,
    /// Its section.
    pub section: String,
    _links: Vec<Handle>,
}

/// The place to attach to.
#[derive(Debug, PartialEq, Eq)]
enum Place<'a> {
    Tracepoint {
        category: &'a str,
        name: &'a str,
    },
    RawTracepoint(&'a str),
    /// The place that it was loaded for: the kernel knows it.
    Loaded,
    Kprobe {
        function: String,
        offset: u64,
        returns: bool,
    },
    KprobeMulti {
        pattern: &'a str,
        returns: bool,
    },
    Uprobe {
        path: &'a str,
        function: &'a str,
        returns: bool,
    },
    Samples,
}

impl Loaded {
    /// Attaches the programs, by their sections' names.
    ///
    /// Programs with names that attach to nothing (sockets, packets, `syscall`, ...) are left
    /// alone; [`Self::unattached`] lists them. If no program at all is attached, the error names
    /// them.
    ///
    /// # Errors
    ///
    /// [`Error::Attach`] if a section's name is wrong, or the guest refuses the place that it
    /// names. [`Error::NothingToAttach`] if nothing is attached in the end. [`Error::File`] if the
    /// guest does not show a file that is needed for that. [`Error::Lost`] and [`Error::Nonsense`]
    /// if the guest does not answer as it should.
    pub fn attach(&mut self, attachment: &Attachment) -> Result<(), Error> {
        let machine = self.guest.welcome().machine.clone();
        for program in &self.programs {
            let wrong = |why: String| Error::Attach {
                name: program.name.clone(),
                section: program.section.clone(),
                why,
            };
            let Some(place) = place(&program.section, &machine).map_err(|why| wrong(why.into()))?
            else {
                continue;
            };
            let links = links(&self.guest.line, program, &place, attachment)?;
            self.attached.push(Attached {
                program: program.name.clone(),
                section: program.section.clone(),
                _links: links.map_err(|refusal| wrong(refusal.to_string()))?,
            });
        }
        match self.attached.is_empty() {
            true => Err(Error::NothingToAttach(self.unattached())),
            false => Ok(()),
        }
    }

    /// Detaches all programs; they stay loaded.
    pub fn detach(&mut self) {
        self.attached.clear();
    }

    /// Returns the attached programs.
    pub fn attached(&self) -> &[Attached] {
        &self.attached
    }

    /// Returns the programs that are loaded and not attached, with their sections.
    pub fn unattached(&self) -> Vec<String> {
        let is_attached = |name: &str| self.attached.iter().any(|it| it.program == name);
        let programs = self.programs.iter();
        let programs = programs.filter(|program| !is_attached(&program.name));
        programs
            .map(|program| format!("{} ({})", program.name, program.section))
            .collect()
    }
}

/// Returns the place of a section, or `None` for a section that nothing is attached by. Fails if
/// the place is missing or wrong.
fn place<'a>(section: &'a str, machine: &str) -> Result<Option<Place<'a>>, &'static str> {
    let (kind, at) = section.split_once('/').unwrap_or((section, ""));
    let needs = |what| if at.is_empty() { Err(what) } else { Ok(at) };
    let returns = kind.starts_with("kret") || kind.starts_with("uret");
    Ok(Some(match kind {
        "tracepoint" | "tp" => {
            let (category, name) = at.split_once('/').ok_or(
                "behind tracepoint/ stand its category and its name, as in tracepoint/sched/sched_switch",
            )?;
            Place::Tracepoint { category, name }
        }
        "raw_tp" | "raw_tracepoint" | "raw_tp.w" | "raw_tracepoint.w" => {
            Place::RawTracepoint(needs("behind raw_tp/ stands the tracepoint's name")?)
        }
        "tp_btf" | "fentry" | "fentry.s" | "fexit" | "fexit.s" | "fmod_ret" | "fmod_ret.s"
        | "lsm" | "lsm.s" => Place::Loaded,
        "kprobe" | "kretprobe" => {
            let at = needs("behind kprobe/ stands the function's name")?;
            let (function, offset) = with_offset(at)?;
            if returns && offset != 0 {
                return Err("a kretprobe has no offset");
            }
            Place::Kprobe {
                function: function.to_owned(),
                offset,
                returns,
            }
        }
        "ksyscall" | "kretsyscall" => {
            let call = needs("behind ksyscall/ stands the system call's name")?;
            Place::Kprobe {
                function: system_call(machine, call),
                offset: 0,
                returns,
            }
        }
        "kprobe.multi" | "kretprobe.multi" => Place::KprobeMulti {
            pattern: needs("behind kprobe.multi/ stands a pattern of functions")?,
            returns,
        },
        "kprobe.session" => Place::KprobeMulti {
            pattern: needs("behind kprobe.session/ stands a pattern of functions")?,
            returns: false,
        },
        "uprobe" | "uretprobe" | "uprobe.s" | "uretprobe.s" => {
            let split = at
                .rsplit_once(':')
                .filter(|(path, _)| path.starts_with('/'));
            let (path, function) = split.ok_or(
                "behind uprobe/ stand a file's whole path and a function, as in uprobe//usr/bin/bash:readline",
            )?;
            Place::Uprobe {
                path,
                function,
                returns,
            }
        }
        "perf_event" => Place::Samples,
        _ => return Ok(None),
    }))
}

/// Splits a name and the bytes behind it: `vfs_read+0x10`.
fn with_offset(at: &str) -> Result<(&str, u64), &'static str> {
    let Some((name, offset)) = at.split_once('+') else {
        return Ok((at, 0));
    };
    let offset = symbols::number(offset);
    Ok((name, offset.ok_or("behind + stands a number")?))
}

/// Returns the function of a system call: kernels since 4.17 wrap them.
fn system_call(machine: &str, call: &str) -> String {
    match machine {
        "x86_64" => format!("__x64_sys_{call}"),
        "aarch64" => format!("__arm64_sys_{call}"),
        "s390x" => format!("__s390x_sys_{call}"),
        "riscv64" => format!("__riscv_sys_{call}"),
        _ => format!("sys_{call}"),
    }
}

fn links(
    line: &Arc<Line>,
    program: &LoadedProgram,
    place: &Place<'_>,
    attachment: &Attachment,
) -> Answer<Vec<Handle>> {
    let events = match place {
        Place::Tracepoint { category, name } => {
            let path = format!("/sys/kernel/tracing/events/{category}/{name}/id");
            let id = match read_line(line, &path) {
                Ok(id) => id,
                Err(Error::File { .. }) => {
                    return Ok(refused(format!(
                        "the guest has no tracepoint {category}:{name}"
                    )));
                }
                Err(error) => return Err(error),
            };
            let id = id.parse();
            vec![Event::tracepoint(id.map_err(|_| {
                Error::Nonsense("a tracepoint whose id is no number")
            })?)]
        }
        Place::Kprobe {
            function,
            offset,
            returns,
        } => {
            let source = Source::of(line, "kprobe", *returns)?;
            vec![Event::probe(&source, function, *offset, Vec::new())]
        }
        Place::Uprobe {
            path,
            function,
            returns,
        } => {
            let source = Source::of(line, "uprobe", *returns)?;
            let found = match symbols::find(path, function) {
                Ok(found) => found,
                Err(why) => return Ok(refused(why)),
            };
            vec![Event::probe(&source, path, found.offset, found.build_id)]
        }
        Place::Samples => {
            let cpus = online_cpus(line)?.into_iter();
            cpus.map(|cpu| Event::clock(cpu, attachment.frequency))
                .collect()
        }
        Place::RawTracepoint(name) => return one(raw_tracepoint(line, program, Some(name))),
        Place::Loaded => return one(raw_tracepoint(line, program, None)),
        Place::KprobeMulti { pattern, returns } => {
            return one(kprobe_multi(line, program, pattern, *returns));
        }
    };
    let mut links = Vec::with_capacity(events.len());
    for event in events {
        let event = match event.open(line)? {
            Ok(event) => event,
            Err(refusal) => return Ok(Err(refusal)),
        };
        if let Err(mut refusal) = run_at(&event, &program.handle)? {
            // The verifier does not know at which tracepoint a program will run.
            if let Place::Tracepoint { name, .. } = place
                && refusal.errno == libc::EACCES
                && refusal.why.is_empty()
            {
                refusal.why = format!("it reads behind the end of what {name} has");
            }
            return Ok(Err(refusal));
        }
        links.push(event);
    }
    Ok(Ok(links))
}

fn one(link: Answer<Handle>) -> Answer<Vec<Handle>> {
    Ok(link?.map(|link| vec![link]))
}

fn refused<T>(why: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal {
        errno: libc::ENOENT,
        why: why.into(),
    })
}

/// Attaches to a raw tracepoint; without a name, to the one that the program was loaded for.
fn raw_tracepoint(line: &Arc<Line>, program: &LoadedProgram, name: Option<&str>) -> Answer<Handle> {
    let attr = Attr::new(size_of::<attr::RawTracepoint>())
        .with(at!(RawTracepoint.prog_fd), program.handle.number)
        .bytes();
    let parts = name.map(|name| given(at!(RawTracepoint.name), name.as_bytes()));
    line.make(
        Command::RAW_TRACEPOINT_OPEN,
        attr,
        parts.into_iter().collect(),
    )
}

fn kprobe_multi(
    line: &Arc<Line>,
    program: &LoadedProgram,
    pattern: &str,
    returns: bool,
) -> Answer<Handle> {
    let functions = match pattern.contains(['*', '?']) {
        false => vec![pattern.to_owned()],
        true => {
            let all = read(line, "/sys/kernel/tracing/available_filter_functions")?;
            matching(&String::from_utf8_lossy(&all), pattern)
        }
    };
    if functions.is_empty() || functions.len() > MOST_FUNCTIONS {
        let count = functions.len();
        return Ok(refused(format!(
            "{count} functions of the guest's kernel match {pattern}"
        )));
    }
    let count = u32::try_from(functions.len()).unwrap_or(u32::MAX);
    let attr = Attr::new(size_of::<attr::LinkCreateUprobeMulti>())
        .with(at!(LinkCreate.prog_fd), program.handle.number)
        .with(
            at!(LinkCreate.attach_type),
            program.attach_type.max(AttachType::TRACE_KPROBE_MULTI).0,
        )
        .with(
            at!(LinkCreateKprobeMulti.flags),
            if returns { KPROBE_MULTI_RETURN } else { 0 },
        )
        .with(at!(LinkCreateKprobeMulti.cnt), count)
        .bytes();
    let names: Vec<u8> = functions
        .iter()
        .flat_map(|name| name.bytes().chain([0]))
        .collect();
    line.make(
        Command::LINK_CREATE,
        attr,
        vec![given(at!(LinkCreateKprobeMulti.syms), names)],
    )
}

/// Returns the functions that can be traced and match, each once. Of several with one name the
/// kernel would take none.
fn matching(functions: &str, pattern: &str) -> Vec<String> {
    let names = functions.lines().filter_map(|line| {
        // The second word is a module's name.
        let mut words = line.split_whitespace();
        let name = words.next()?;
        words.next().is_none().then_some(name)
    });
    let mut found: Vec<String> = names
        .filter(|name| fits(pattern.as_bytes(), name.as_bytes()))
        .map(str::to_owned)
        .collect();
    found.sort();
    let mut counted: Vec<(String, usize)> = Vec::new();
    for name in found {
        match counted.last_mut() {
            Some((last, count)) if *last == name => *count += 1,
            _ => counted.push((name, 1)),
        }
    }
    let once = counted.into_iter().filter(|(_, count)| *count == 1);
    once.map(|(name, _)| name).collect()
}

/// True if a name fits a pattern: `?` is a character, `*` any number of them.
fn fits(pattern: &[u8], name: &[u8]) -> bool {
    // The place of the last star, and how much of the name it has taken.
    let (mut at, mut in_name, mut star) = (0, 0, None);
    while in_name < name.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, in_name));
                at += 1;
            }
            Some(part) if *part == b'?' || *part == name[in_name] => {
                at += 1;
                in_name += 1;
            }
            _ => match star {
                Some((place, taken)) => {
                    star = Some((place, taken + 1));
                    at = place + 1;
                    in_name = taken + 1;
                }
                None => return false,
            },
        }
    }
    pattern[at..].iter().all(|part| *part == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_say_where() {
        let place = |section| place(section, "x86_64").expect("it is complete");
        let kprobe = |function: &str, offset, returns| Place::Kprobe {
            function: function.into(),
            offset,
            returns,
        };
        for (section, expected) in [
            (
                "tp/sched/sched_switch",
                Place::Tracepoint {
                    category: "sched",
                    name: "sched_switch",
                },
            ),
            ("raw_tp/sys_enter", Place::RawTracepoint("sys_enter")),
            ("tp_btf/sched_switch", Place::Loaded),
            ("fexit/vfs_read", Place::Loaded),
            ("kprobe/vfs_read+0x10", kprobe("vfs_read", 16, false)),
            ("kretprobe/vfs_read", kprobe("vfs_read", 0, true)),
            ("ksyscall/openat", kprobe("__x64_sys_openat", 0, false)),
            ("kretsyscall/openat", kprobe("__x64_sys_openat", 0, true)),
            (
                "kretprobe.multi/tcp_*",
                Place::KprobeMulti {
                    pattern: "tcp_*",
                    returns: true,
                },
            ),
            (
                "uretprobe//usr/bin/bash:readline",
                Place::Uprobe {
                    path: "/usr/bin/bash",
                    function: "readline",
                    returns: true,
                },
            ),
            ("perf_event", Place::Samples),
        ] {
            assert_eq!(place(section), Some(expected), "{section}");
        }
        for section in [
            "xdp",
            "syscall",
            "cgroup/skb",
            "iter/task",
            "struct_ops/x",
            "usdt/a:b",
        ] {
            assert_eq!(place(section), None, "{section}");
        }
    }

    #[test]
    fn incomplete_section_names_are_reported() {
        for section in [
            "tracepoint",
            "tp/sched",
            "raw_tp",
            "kprobe/",
            "kprobe/a+b",
            "kretprobe/a+4",
            "uprobe/bash:readline",
            "uprobe//bin/bash",
            "kprobe.multi",
        ] {
            assert!(place(section, "x86_64").is_err(), "{section}");
        }
    }

    #[test]
    fn patterns_match_functions_that_are_there_once() {
        let all = "tcp_a\ntcp_b\ntcp_b\ntcp_m [module]\nudp_a\nip_tcp\n";
        assert_eq!(matching(all, "tcp_*"), ["tcp_a"]);
        assert_eq!(matching(all, "*_a"), ["tcp_a", "udp_a"]);
        assert_eq!(matching(all, "*tcp*"), ["ip_tcp", "tcp_a"]);
        assert_eq!(matching(all, "?dp_?"), ["udp_a"]);
        assert_eq!(matching(all, "x*"), Vec::<String>::new());
    }
}
