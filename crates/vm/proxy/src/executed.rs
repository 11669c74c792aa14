//! The files that the guest's processes run, where a host's tools look up the names of functions.
//!
//! For each process these are `/proc/PID/exe`; below `/proc/PID/root`, the files that it has mapped
//! as executable, by the names in `/proc/PID/maps`; and its `/tmp/perf-PID.map`, where it lists the
//! functions that it has compiled. Nothing else in its file systems can be reached. A file is opened
//! through the mapping rather than by name: so it is the one that the process runs, even if it has
//! been replaced or deleted since, or belongs to a mount namespace of the process's own.

use std::fs::File as OpenFile;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::OwnedFd;

use beeline_vm_protocol::messages::{File, Look};
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, Stat, fstat, openat2};

use crate::files;
use crate::fs_roots::Root;
use crate::refusal::Refusal;

/// The words behind the name of a file that has none any more.
const DELETED: &[u8] = b" (deleted)";

/// The most bytes of a process's list of mappings that are read.
const MOST_MAPS: u64 = 64 << 20;
/// The most bytes of a line of it. The kernel's names have one page, with four bytes for each
/// odd one.
const LONGEST_LINE: usize = 64 << 10;

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
    /// `ENOENT` if there is no such process or it does not run such a file, `ESTALE` if it runs
    /// several of that name, `EFBIG` if it has too many mappings, `EACCES` if that is no regular
    /// file, `EINVAL` for an offset that no file has, and the kernel's errors.
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
                let maps = Root::Proc.open(&format!("{pid}/maps"), OFlags::RDONLY)?;
                let range = executable(OpenFile::from(maps), name.as_bytes())?
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

/// Opens a process's list of compiled functions, which has the number that the process itself
/// knows. It is the one of a process only if it belongs to the process's user.
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

/// A file that a process runs.
#[derive(Debug, Clone)]
struct Candidate {
    /// The range of its first executable mapping, as `map_files` names it.
    range: String,
    /// Its device and inode, in the words of `maps`.
    node: (Vec<u8>, Vec<u8>),
    /// False if another file has the same name.
    is_one: bool,
}

/// Returns the range of the first executable mapping of that name, as `map_files` names it. A file
/// that has the name now comes before one that had it until it was deleted.
fn executable(maps: impl Read, name: &[u8]) -> Result<Option<String>, Refusal> {
    let too_long = || Refusal::new(libc::EFBIG, "the process's list of mappings is too long");
    let mut maps = BufReader::with_capacity(LONGEST_LINE, maps.take(MOST_MAPS + 1));
    let (mut exact, mut deleted) = (None, None);
    let (mut line, mut total) = (Vec::with_capacity(LONGEST_LINE), 0);
    loop {
        line.clear();
        let mut rest = (&mut maps).take(LONGEST_LINE as u64);
        total += rest.read_until(b'\n', &mut line)? as u64;
        if total > MOST_MAPS {
            return Err(too_long());
        }
        match line.pop() {
            None => break,
            Some(b'\n') => {}
            Some(_) if line.len() + 1 == LONGEST_LINE => return Err(too_long()),
            Some(last) => line.push(last),
        }
        let Some((candidate, shown)) = mapped(&line) else {
            continue;
        };
        let known = match shown {
            _ if shown == name => &mut exact,
            _ if shown.strip_suffix(DELETED) == Some(name) => &mut deleted,
            _ => continue,
        };
        let first: &Candidate = known.get_or_insert_with(|| candidate.clone());
        if first.node != candidate.node {
            *known = Some(Candidate {
                is_one: false,
                ..first.clone()
            });
        }
    }
    match exact.or(deleted) {
        Some(found) if !found.is_one => {
            let why = "the process runs several files of that name";
            Err(Refusal::new(libc::ESTALE, why))
        }
        found => Ok(found.map(|found| found.range)),
    }
}

/// Returns what a line of `maps` says of an executable mapping, and its name.
fn mapped(line: &[u8]) -> Option<(Candidate, &[u8])> {
    // Range, permissions, offset, device, inode; then the name, behind any number of spaces.
    let mut words = line.splitn(6, |byte| *byte == b' ');
    let (range, permissions) = (words.next()?, words.next()?);
    let (device, inode) = (words.nth(1)?, words.next()?);
    let shown = words.next()?.trim_ascii_start();
    if permissions.get(2) != Some(&b'x') {
        return None;
    }
    let (start, end) = std::str::from_utf8(range).ok()?.split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    let candidate = Candidate {
        // Those of `maps` have zeros before them.
        range: format!("{:x}-{:x}", number(start)?, number(end)?),
        node: (device.to_owned(), inode.to_owned()),
        is_one: true,
    };
    Some((candidate, shown))
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
        let found = |name: &str| executable(MAPS, name.as_bytes()).unwrap();
        assert_eq!(found("/bin/a b").as_deref(), Some("401000-402000"));
        assert_eq!(found("/memfd:x").as_deref(), Some("7f00000000-7f00001000"));
        assert_eq!(found("/memfd:x (deleted)"), found("/memfd:x"));
        for name in ["/etc/secret", "/bin/a", "b", "", " /bin/a b", "/"] {
            assert_eq!(found(name), None, "{name}");
        }
    }

    #[test]
    fn a_file_that_has_the_name_comes_before_one_that_had_it() {
        let line = |range: &str, inode: u32, name: &str| {
            format!("{range} r-xp 00001000 fe:00 {inode}      {name}\n")
        };
        let found = |lines: &[String], name: &str| {
            let found = executable(lines.concat().as_bytes(), name.as_bytes());
            found.map_err(|refused| refused.errno)
        };
        let old = line("1000-2000", 7, "/lib/a (deleted)");
        let new = line("3000-4000", 8, "/lib/a");
        let more = line("5000-6000", 8, "/lib/a");
        let both = [old.clone(), new.clone(), more];
        assert_eq!(found(&both, "/lib/a"), Ok(Some("3000-4000".into())));
        let its_name = found(&both, "/lib/a (deleted)");
        assert_eq!(its_name, Ok(Some("1000-2000".into())));
        let only = [old.clone()];
        assert_eq!(found(&only, "/lib/a"), Ok(Some("1000-2000".into())));
        let other = line("5000-6000", 9, "/lib/a");
        assert_eq!(found(&[new.clone(), other], "/lib/a"), Err(libc::ESTALE));
        let older = line("5000-6000", 9, "/lib/a (deleted)");
        let deleted = [old, older];
        assert_eq!(found(&deleted, "/lib/a"), Err(libc::ESTALE));
        let all = [&deleted[..], &[new]].concat();
        assert_eq!(found(&all, "/lib/a"), Ok(Some("3000-4000".into())));
    }

    #[test]
    fn a_list_of_mappings_without_an_end_is_not_read_to_it() {
        let errno = |maps: &mut dyn Read| executable(maps, b"/x").map_err(|refused| refused.errno);
        assert_eq!(errno(&mut std::io::repeat(b'a')), Err(libc::EFBIG));
        let long = MAPS.repeat(MOST_MAPS as usize / MAPS.len() + 1);
        assert_eq!(errno(&mut long.as_slice()), Err(libc::EFBIG));
        assert_eq!(errno(&mut &*MAPS), Ok(None));
        assert_eq!(errno(&mut &MAPS[..MAPS.len() - 1]), Ok(None));
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
