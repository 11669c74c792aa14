//! The files that the guest's processes run, in which a host's tools look up the names of functions.
//!
//! Of a process there are `/proc/PID/exe`, and below `/proc/PID/root` the files that it has mapped to
//! run them, by the names that `/proc/PID/maps` shows, and its `/tmp/perf-PID.map`, in which it lists
//! functions that it has compiled. Nothing else of its file systems can be reached. A file is opened by the mapping, not by its name: so it is the one that the process
//! runs, even if another has taken its place, if it was deleted, or if it is in a mount namespace
//! of the process's own.

use std::os::fd::OwnedFd;

use beeline_vm_protocol::messages::{File, Look};
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, Stat, fstat, openat2};

use crate::files;
use crate::fs_roots::Root;
use crate::refusal::Refusal;

/// The words behind the name of a file that has none any more.
const DELETED: &[u8] = b" (deleted)";

/// A file of a process.
#[derive(Debug, PartialEq, Eq)]
pub struct Executed<'a> {
    pid: &'a str,
    which: Which<'a>,
}

#[derive(Debug, PartialEq, Eq)]
enum Which<'a> {
    /// The program.
    Program,
    /// The root directory.
    Root,
    /// A file that is mapped under this name.
    Mapped(&'a str),
}

/// Returns the file that a path leads to; `None` if it is not of this kind.
pub fn of(path: &str) -> Option<Executed<'_>> {
    let (pid, rest) = path.strip_prefix("/proc/")?.split_once('/')?;
    let is_number = !pid.is_empty() && pid.bytes().all(|letter| letter.is_ascii_digit());
    let which = match rest {
        "exe" => Which::Program,
        "root" => Which::Root,
        _ => Which::Mapped(
            rest.strip_prefix("root")
                .filter(|name| name.starts_with('/'))?,
        ),
    };
    (is_number && !path.contains('\0')).then_some(Executed { pid, which })
}

impl Executed<'_> {
    /// Looks at the file.
    ///
    /// # Errors
    ///
    /// `ENOENT` if there is no such process or it does not run such a file, `EACCES` if that is no
    /// regular file, `EINVAL` for an offset that no file has, and the kernel's errors.
    pub fn look(&self, request: &Look) -> Result<File, Refusal> {
        let pid = self.pid;
        let (link, target) = match self.which {
            Which::Root => {
                let stat = fstat(Root::Proc.open(pid, OFlags::PATH)?)?;
                return Ok(File {
                    mode: stat.st_mode,
                    target: "/".into(),
                    ..File::default()
                });
            }
            Which::Program => {
                let link = format!("{pid}/exe");
                let target = Root::Proc.read_link(&link)?;
                (link, target)
            }
            Which::Mapped(name) if is_list(name) => {
                let (opened, stat) = open_list(pid, name)?;
                return described(&opened, &stat, String::new(), request);
            }
            Which::Mapped(name) => {
                let maps = Root::Proc.read_all(&format!("{pid}/maps"))?;
                let range = executable(&maps, name.as_bytes())
                    .ok_or_else(|| Refusal::new(libc::ENOENT, ""))?;
                (format!("{pid}/map_files/{range}"), String::new())
            }
        };
        let (opened, stat) = open_regular(&link)?;
        described(&opened, &stat, target, request)
    }
}

/// Describes a file, with its content if that is wanted.
fn described(
    opened: &OwnedFd,
    stat: &Stat,
    target: String,
    request: &Look,
) -> Result<File, Refusal> {
    let mut file = File {
        mode: stat.st_mode,
        size: stat.st_size as u64,
        identity: identity(stat),
        target,
        ..File::default()
    };
    if request.content {
        (file.content, file.more) = files::content(opened, request.from)?;
    }
    Ok(file)
}

/// The beginning and the end of the name of a list of compiled functions.
const LIST: (&str, &str) = ("/tmp/perf-", ".map");

/// True for the name of a list of compiled functions.
fn is_list(name: &str) -> bool {
    let number = name
        .strip_prefix(LIST.0)
        .and_then(|rest| rest.strip_suffix(LIST.1));
    number.is_some_and(|number| {
        !number.is_empty() && number.bytes().all(|letter| letter.is_ascii_digit())
    })
}

/// Opens a process's list of compiled functions, which has the number that the process itself knows.
/// It is the one of a process only if it belongs to the process's user.
fn open_list(pid: &str, name: &str) -> Result<(OwnedFd, Stat), Refusal> {
    let status = Root::Proc.read(&format!("{pid}/status"))?;
    let words = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key));
        line.unwrap_or_default().split_whitespace()
    };
    let own = words("NSpid:").last().unwrap_or(pid);
    let user = words("Uid:").nth(1).and_then(|user| user.parse().ok());
    let missing = || Refusal::new(libc::ENOENT, "");
    if name != format!("{}{own}{}", LIST.0, LIST.1) {
        return Err(missing());
    }
    let root = Root::Proc.open_linked(&format!("{pid}/root"), OFlags::PATH | OFlags::DIRECTORY)?;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let name = name.trim_start_matches('/');
    let is_it = |stat: &Stat| {
        FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && Some(stat.st_uid) == user
    };
    let found = openat2(
        &root,
        name,
        OFlags::PATH | OFlags::CLOEXEC,
        Mode::empty(),
        resolve,
    )?;
    if !is_it(&fstat(found)?) {
        return Err(missing());
    }
    let opened = openat2(&root, name, flags, Mode::empty(), resolve)?;
    let stat = fstat(&opened)?;
    match is_it(&stat) {
        true => Ok((opened, stat)),
        false => Err(missing()),
    }
}

/// Opens a regular file. Whatever else a process has mapped, opening it could do something.
fn open_regular(link: &str) -> Result<(OwnedFd, Stat), Refusal> {
    let is_regular = |stat: &Stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    let irregular = || Refusal::new(libc::EACCES, "that is no regular file");
    let before = fstat(Root::Proc.open_linked(link, OFlags::PATH)?)?;
    if !is_regular(&before) {
        return Err(irregular());
    }
    let opened = Root::Proc.open_linked(link, OFlags::RDONLY)?;
    let stat = fstat(&opened)?;
    match is_regular(&stat) {
        true => Ok((opened, stat)),
        false => Err(irregular()),
    }
}

/// Returns the range of the first executable mapping of that name, as `map_files` names it.
fn executable(maps: &[u8], name: &[u8]) -> Option<String> {
    maps.split(|byte| *byte == b'\n').find_map(|line| {
        // Range, permissions, offset, device, inode; then the name, behind any number of spaces.
        let mut words = line.splitn(6, |byte| *byte == b' ');
        let (range, permissions) = (words.next()?, words.next()?);
        let shown = words.nth(3)?.trim_ascii_start();
        let is_it = shown == name || shown.strip_suffix(DELETED) == Some(name);
        if permissions.get(2) != Some(&b'x') || !is_it {
            return None;
        }
        let (start, end) = std::str::from_utf8(range).ok()?.split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        // Those of `maps` have zeros before them.
        Some(format!("{:x}-{:x}", number(start)?, number(end)?))
    })
}

/// Returns what differs for each file and content.
fn identity(stat: &Stat) -> Vec<u8> {
    let numbers = [
        stat.st_dev,
        stat.st_ino,
        stat.st_size as u64,
        stat.st_mtime as u64,
        stat.st_mtime_nsec,
        stat.st_ctime as u64,
        stat.st_ctime_nsec,
    ];
    numbers.into_iter().flat_map(u64::to_le_bytes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digests::Digests;
    use crate::policy::Policy;

    const MAPS: &[u8] = b"00400000-00401000 r--p 00000000 fe:00 12    /bin/a b\n\
        00401000-00402000 r-xp 00001000 fe:00 12                        /bin/a b\n\
        7f00000000-7f00001000 r-xp 00000000 00:01 7  /memfd:x (deleted)\n\
        7f00002000-7f00003000 rw-p 00000000 00:00 0 \n\
        7f00004000-7f00005000 r--p 00000000 fe:00 13    /etc/secret\n";

    fn look(path: &str, content: bool) -> Result<File, Refusal> {
        let request = Look {
            path: path.into(),
            content,
            ..Look::default()
        };
        of(path).expect("it is one").look(&request)
    }

    #[test]
    fn paths_of_this_kind_are_told_from_others() {
        let is = |pid, which| Some(Executed { pid, which });
        assert_eq!(of("/proc/1/exe"), is("1", Which::Program));
        assert_eq!(of("/proc/12/root"), is("12", Which::Root));
        assert_eq!(of("/proc/12/root/a/b"), is("12", Which::Mapped("/a/b")));
        for path in [
            "/proc/self/exe",
            "/proc//exe",
            "/proc/1/exe/x",
            "/proc/1/rootx",
            "/proc/1/root/\0",
            "/proc/1/maps",
            "/x/1/exe",
        ] {
            assert_eq!(of(path), None, "{path}");
        }
    }

    #[test]
    fn only_what_is_mapped_to_run_is_found() {
        let found = |name: &str| executable(MAPS, name.as_bytes());
        assert_eq!(found("/bin/a b").as_deref(), Some("401000-402000"));
        assert_eq!(found("/memfd:x").as_deref(), Some("7f00000000-7f00001000"));
        assert_eq!(found("/memfd:x (deleted)"), found("/memfd:x"));
        for name in ["/etc/secret", "/bin/a", "b", "", " /bin/a b", "/"] {
            assert_eq!(found(name), None, "{name}");
        }
    }

    #[test]
    fn a_process_shows_what_it_runs_and_nothing_else() {
        let pid = std::process::id();
        let own = std::env::current_exe().unwrap();
        let name = own.to_str().unwrap();
        let program = look(&format!("/proc/{pid}/exe"), true).unwrap();
        assert_eq!(program.target, name);
        let size = std::fs::metadata(&own).unwrap().len();
        assert_eq!(program.size, size);
        assert!(program.content.starts_with(b"\x7fELF"));
        for path in ["/etc/passwd", "/", "/proc/self/environ"] {
            let refused = look(&format!("/proc/{pid}/root{path}"), true).unwrap_err();
            assert_eq!(refused.errno, libc::ENOENT, "{path}");
        }
        match look(&format!("/proc/{pid}/root{name}"), false) {
            Ok(mapped) => {
                assert_eq!(mapped.identity, program.identity);
                assert_eq!(mapped.content, b"");
            }
            // Only root may open what a mapping leads to.
            Err(refused) => assert_eq!(refused.errno, libc::EPERM),
        }
    }

    #[test]
    fn a_list_of_compiled_functions_is_the_processs_own() {
        let pid = std::process::id();
        let list = format!("/tmp/perf-{pid}.map");
        let path = format!("/proc/{pid}/root{list}");
        let content = b"7f0000000000 10 compiled\n";
        std::fs::write(&list, content).unwrap();
        let found = look(&path, true);
        let other = look(
            &format!("/proc/{}/root{list}", std::os::unix::process::parent_id()),
            true,
        );
        std::fs::remove_file(&list).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", &list).unwrap();
        let linked = look(&path, true);
        std::fs::remove_file(&list).unwrap();
        assert_eq!(found.unwrap().content, content);
        assert_eq!(other.unwrap_err().errno, libc::ENOENT);
        assert_eq!(linked.unwrap_err().errno, libc::ELOOP);
        for name in [
            "/tmp/perf-.map",
            "/tmp/perf-1x.map",
            "/tmp/perf-1/2.map",
            "/tmp/perf-1",
        ] {
            assert!(!is_list(name), "{name}");
        }
    }

    #[test]
    fn a_policy_that_hides_processes_hides_what_they_run() {
        let hides = Policy::parse("[processes]\nvisible = false").unwrap();
        let request = Look {
            path: format!("/proc/{}/exe", std::process::id()),
            content: true,
            ..Look::default()
        };
        let look = |policy| files::look(&request, &Digests::default(), policy);
        assert_eq!(look(&hides).unwrap_err().rule, "processes.visible");
        assert!(look(&Policy::default()).is_ok());
    }
}
