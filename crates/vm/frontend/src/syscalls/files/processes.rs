//! `/proc/PID`: the processes that a tool hears of from its programs are the guest's.
//!
//! A process of the tool's own session is this machine's, whichever number it has. Of all others the
//! guest shows a few files, by which tools name processes and look up the functions of a stack. No
//! other file is there: this machine's process of that number is a stranger, and a tool that took
//! its memory's map or its program for the guest's would print wrong names.

use std::path::{Component, Path, PathBuf};

use beeline_inject::procfs::{self, Stat};

/// The files that the guest's proxy shows, if the policy lets it.
const SHOWN: [&str; 5] = ["cmdline", "comm", "maps", "stat", "status"];
/// The link to the process's program.
const PROGRAM: &str = "exe";
/// The process's root directory. Below it are the files that it runs.
const ROOT: &str = "root";

/// The most ancestors that are looked at.
const MOST_ANCESTORS: usize = 1024;

/// Where a path below `/proc/PID` leads.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Leads {
    /// To the directory itself, or to one of the files that the guest shows.
    ToGuest,
    /// To the process's program, its root directory, or a file that it runs.
    ToExecuted,
    /// Nowhere.
    Nowhere,
}

/// Returns where a path leads that a thread of the tool's has given; `None` if it is of no process,
/// or of one of the session's.
pub(super) fn leads(path: &Path, tid: i32) -> Option<Leads> {
    let (pid, rest) = parse(path)?;
    match is_of_session(pid, tid) {
        true => None,
        false => Some(rest),
    }
}

fn parse(path: &Path) -> Option<(i32, Leads)> {
    let mut parts = path.strip_prefix("/proc").ok()?.components();
    let pid = parts.next()?.as_os_str().to_str()?;
    let is_number = pid.bytes().all(|letter| letter.is_ascii_digit());
    let pid = pid.parse().ok().filter(|_| is_number)?;
    let leads = match (parts.next(), parts.next()) {
        (None, _) => Leads::ToGuest,
        (Some(Component::Normal(name)), None) if SHOWN.iter().any(|shown| name == *shown) => {
            Leads::ToGuest
        }
        (Some(Component::Normal(name)), None) if name == PROGRAM => Leads::ToExecuted,
        (Some(Component::Normal(name)), _) if name == ROOT => Leads::ToExecuted,
        _ => Leads::Nowhere,
    };
    Some((pid, leads))
}

/// True for the caller, and for what this process has started, and they.
fn is_of_session(pid: i32, tid: i32) -> bool {
    let process = procfs::process_of(pid);
    if process.is_some() && process == procfs::process_of(tid) {
        return true;
    }
    let own = std::process::id() as i32;
    let parent = |pid: &i32| Stat::of(*pid)?.parent();
    let mut line = std::iter::successors(Some(pid), parent).take(MOST_ANCESTORS);
    line.any(|ancestor| ancestor == own)
}

/// Returns a path as the guest knows it. Tools put a process's root directory before the names in
/// its `maps`, which have it already ([`as_shown`]).
pub(super) fn as_guests(path: PathBuf) -> PathBuf {
    let mut parts = path.components();
    let first: PathBuf = parts.by_ref().take(4).collect();
    if !matches!(parse(&path), Some((_, Leads::ToExecuted))) || !first.ends_with(ROOT) {
        return path;
    }
    let mut rest = parts.as_path();
    while let Ok(inside) = rest.strip_prefix(first.strip_prefix("/").unwrap_or(&first)) {
        rest = inside;
    }
    match rest.as_os_str().is_empty() {
        true => first,
        false => first.join(rest),
    }
}

/// Returns where the link to a process's program leads, as the tool is to see it.
pub(super) fn target_as_shown(path: &Path, target: &str) -> String {
    match (path.file_name(), path.parent().and_then(Path::to_str)) {
        (Some(name), Some(directory)) if name == PROGRAM => format!("{directory}/{ROOT}{target}"),
        _ => target.to_owned(),
    }
}

/// Returns a process's file as the tool is to see it. In `maps` the files of the guest stand below
/// the process's root directory: at their own paths the tool would find this machine's files, and
/// take the functions of another build for theirs.
pub(super) fn as_shown(path: &Path, content: Vec<u8>) -> Vec<u8> {
    let is_maps = parse(path).is_some() && path.file_name().is_some_and(|name| name == "maps");
    let Some(directory) = path.parent().and_then(Path::to_str).filter(|_| is_maps) else {
        return content;
    };
    let root = format!("{directory}/{ROOT}");
    let mut shown = Vec::with_capacity(content.len());
    for line in content.split_inclusive(|byte| *byte == b'\n') {
        // What stands before a path has no slash.
        let at = line.iter().position(|byte| *byte == b'/');
        let (facts, file) = line.split_at(at.unwrap_or(line.len()));
        shown.extend(facts);
        if !file.is_empty() {
            shown.extend(root.as_bytes());
        }
        shown.extend(file);
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_processes_are_told_from_others() {
        let whose = |path: &str| parse(Path::new(path));
        assert_eq!(whose("/proc/12"), Some((12, Leads::ToGuest)));
        assert_eq!(whose("/proc/12/comm"), Some((12, Leads::ToGuest)));
        for path in ["/proc/12/exe", "/proc/12/root", "/proc/12/root/etc"] {
            assert_eq!(whose(path), Some((12, Leads::ToExecuted)), "{path}");
        }
        for path in ["/proc/12/mem", "/proc/12/exe/x", "/proc/12/maps/x"] {
            assert_eq!(whose(path), Some((12, Leads::Nowhere)), "{path}");
        }
        for path in [
            "/proc/self/maps",
            "/proc",
            "/proc/1x/maps",
            "/proc/+1/maps",
            "/sys/1/maps",
        ] {
            assert_eq!(whose(path), None, "{path}");
        }
    }

    #[test]
    fn files_in_maps_are_below_the_processs_root() {
        let maps = "1000-2000 r--p 00000000 fe:00 12    /lib/libc.so.6\n3000-4000 rw-p 00000000 00:00 0  [heap]\n";
        let shown = as_shown(Path::new("/proc/12/maps"), maps.into());
        let wanted = maps.replace(" /lib/", " /proc/12/root/lib/");
        assert_eq!(String::from_utf8(shown).unwrap(), wanted);
        for path in ["/proc/12/comm", "/sys/kernel/maps"] {
            assert_eq!(as_shown(Path::new(path), b"/a".into()), b"/a");
        }
    }

    #[test]
    fn a_root_before_a_root_is_one() {
        let guests = |path: &str| as_guests(path.into()).display().to_string();
        let root = "/proc/12/root";
        for (path, wanted) in [
            ("/proc/12/root/proc/12/root/bin/a", "/proc/12/root/bin/a"),
            ("/proc/12/root/proc/12/root/proc/12/root", root),
            (
                "/proc/12/root/proc/13/root/a",
                "/proc/12/root/proc/13/root/a",
            ),
            ("/proc/12/root/bin", "/proc/12/root/bin"),
            (root, root),
            ("/proc/12/exe", "/proc/12/exe"),
            ("/proc/12/maps", "/proc/12/maps"),
            (
                "/proc/12/roots/proc/12/roots/a",
                "/proc/12/roots/proc/12/roots/a",
            ),
            ("/etc", "/etc"),
        ] {
            assert_eq!(guests(path), wanted);
        }
        let exe = Path::new("/proc/12/exe");
        assert_eq!(target_as_shown(exe, "/bin/a"), "/proc/12/root/bin/a");
        assert_eq!(target_as_shown(Path::new(root), "/"), "/");
    }

    #[test]
    fn the_sessions_processes_are_this_machines() {
        let own = std::process::id() as i32;
        let path = format!("/proc/{own}/maps");
        assert_eq!(leads(Path::new(&path), own), None);
        assert_eq!(leads(Path::new("/proc/1/maps"), own), Some(Leads::ToGuest));
        let mut child = std::process::Command::new("sleep")
            .arg("9")
            .spawn()
            .unwrap();
        let path = format!("/proc/{}/exe", child.id());
        assert_eq!(leads(Path::new(&path), own), None);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
