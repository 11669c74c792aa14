//! Another user owns, or has prepared, the places where root's session keeps files.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use beeline_e2e::{Ended, Scratch, Tool, Turn, Workload, beeline, find_program, map_counts, need};

use crate::world::{USERS, World, as_user};

/// The user that attacks: Debian's "daemon".
const ATTACKER: u32 = 1;
/// Calls of `wl_add` in a round.
const CALLS: u64 = 1000;
const KEPT: &str = "keep this\n";

/// Directories of root's and of the attacker's.
struct Places {
    scratch: Scratch,
    /// The attacker's directory.
    theirs: PathBuf,
    /// A directory of root's, of which nothing may change.
    victim: PathBuf,
}

impl Places {
    /// Makes them. The error says what the machine lacks.
    fn new() -> Result<Self, String> {
        // SAFETY: geteuid only answers a number.
        if unsafe { libc::geteuid() } != 0 {
            return Err("only root can become another user".to_owned());
        }
        let scratch = Scratch::new();
        let [theirs, victim] = ["theirs", "victim"].map(|name| scratch.path().join(name));
        for directory in [&theirs, &victim] {
            fs::create_dir(directory).expect("a new directory");
        }
        for name in ["available_events", "file"] {
            fs::write(victim.join(name), KEPT).expect("writable");
        }
        chown(&theirs, Some(ATTACKER), Some(ATTACKER)).expect("root may");
        Ok(Self {
            scratch,
            theirs,
            victim,
        })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// Makes a directory with this mode.
    fn directory(&self, name: &str, mode: u32) -> PathBuf {
        let path = self.path(name);
        fs::create_dir(&path).expect("a new directory");
        fs::set_permissions(&path, Permissions::from_mode(mode)).expect("ours");
        path
    }

    /// Makes a symbolic link of the attacker's.
    fn their_link(&self, to: &Path, at: &Path) {
        symlink(to, at).expect("a new name");
        lchown(at, Some(ATTACKER), Some(ATTACKER)).expect("root may");
    }

    /// Fails if anything has changed at the victim's.
    fn check_victim(&self) {
        let kept = |name: &str| (self.victim.join(name), KEPT.to_owned());
        let expected = BTreeMap::from(["available_events", "file"].map(kept));
        assert_eq!(contents(&self.victim), expected);
    }
}

/// Returns what is in a directory: the beginnings of files, and nothing for directories.
fn contents(directory: &Path) -> BTreeMap<PathBuf, String> {
    let entries = fs::read_dir(directory).expect("readable").flatten();
    let text = |path: &Path| {
        let text = fs::read_to_string(path).unwrap_or_default();
        text.chars().take(40).collect::<String>()
    };
    entries
        .map(|entry| (entry.path(), text(&entry.path())))
        .collect()
}

/// Returns the lines that name a path.
fn told<'a>(ended: &'a Ended, path: &Path) -> Vec<&'a String> {
    let path = path.display().to_string();
    let lines = ended.stderr.iter();
    lines.filter(|line| line.contains(&path)).collect()
}

/// Looks at the session's own tracefs and BPF file system, and again when it is told to.
const LOOK: &str = "import os
events = '/sys/kernel/tracing/events/'
print('groups', 'syscalls' in os.listdir(events))
os.mkdir('/sys/fs/bpf/one')
print(*os.listdir('/sys/fs/bpf'), flush=True)
input()
try: print(open(events + 'syscalls/sys_enter_read/format').readline().strip())
except OSError as error: print(error)
os.mkdir('/sys/fs/bpf/two')
print(*sorted(os.listdir('/sys/fs/bpf')))
";
/// Swaps each directory of Beeline's for a symbolic link: `python3 -c SWAP PLACE VICTIM`.
const SWAP: &str = "import os, sys
place, victim = sys.argv[1:]
os.chdir(place)
print('ready', flush=True)
input()
for name in os.listdir():
    os.rename(name, 'old-' + name)
    os.symlink(victim, name)
print('swapped', flush=True)
input()
";
/// Hides the kernel's own tracefs, so that the session has one.
const WITHOUT_TRACEFS: &str = "umount -lq /sys/kernel/tracing /sys/kernel/debug; exec \"$@\"";

#[test]
fn another_users_runtime_directory_cannot_be_swapped_under_a_session() {
    let _turn = Turn::take();
    let places = need!(Places::new());
    let python = Path::new("/usr/bin/python3");
    need!(python.exists().then_some(()).ok_or("no python3"));
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private"]);
    command.args(["sh", "-c", WITHOUT_TRACEFS, "sh"]);
    command.arg(beeline()).args(["run", "--"]);
    command.arg(python).args(["-c", LOOK]);
    command.env("XDG_RUNTIME_DIR", &places.theirs);
    command.env("BEELINE_CACHE", "");
    let mut tool = Tool::start(command);
    tool.wait_for_line(|line| line == "one");
    let mut attacker = as_user(ATTACKER, python);
    attacker
        .args(["-c", SWAP])
        .args([&places.theirs, &places.victim]);
    assert_eq!(Workload::start_command(attacker).go(), "swapped");
    tool.send("go on");
    let ended = tool.wait();
    // What Beeline leaves alone at its end counts as well.
    places.check_victim();
    assert!(ended.status.success(), "{ended:?}");
    let expected = ["groups True", "one", "name: sys_enter_read", "one two"];
    assert_eq!(ended.stdout, expected, "{ended:?}");
    assert!(contents(&places.theirs).is_empty());
    let [line] = told(&ended, &places.theirs)[..] else {
        panic!("{ended:?}");
    };
    for word in ["belongs to user 1", "XDG_RUNTIME_DIR"] {
        assert!(line.contains(word), "{line}");
    }
}

#[test]
fn a_session_traces_whoever_owns_the_places_that_the_environment_names() {
    let _turn = Turn::take();
    let (world, places) = (need!(World::new("counts.c")), need!(Places::new()));
    let cache = places.theirs.join("cache");
    fs::create_dir(&cache).expect("a new directory");
    let forged = cache.join("forged.code");
    fs::write(&forged, KEPT).expect("writable");
    for path in [&cache, &forged] {
        chown(path, Some(ATTACKER), Some(ATTACKER)).expect("root may");
        fs::set_permissions(path, Permissions::from_mode(0o777)).expect("ours");
    }
    let mut workload = world.start_as(0);
    let mut command = Command::new(beeline());
    command.args(["run", "--"]).arg(&world.bpftrace);
    command.args(["-p", &workload.pid().to_string()]);
    for variable in ["XDG_RUNTIME_DIR", "TMPDIR"] {
        command.env(variable, &places.theirs);
    }
    command.env("BEELINE_CACHE", &cache);
    let script = world.script("uprobe:{prog}:wl_add { @ = count(); }");
    let tool = Tool::bpftrace(command, &script);
    tool.wait_attached();
    workload.go();
    tool.settle();
    let ended = tool.interrupt();
    assert_eq!(
        map_counts(&ended.stdout).get("@"),
        Some(&CALLS),
        "{ended:?}"
    );
    let kept = "compiled code is not kept: ";
    let lines = ended.stderr.iter().filter(|line| line.contains(kept));
    assert_eq!(lines.count(), 1, "{ended:?}");
    assert_eq!(
        contents(&cache),
        BTreeMap::from([(forged, KEPT.to_owned())])
    );
    assert_eq!(fs::read_dir(&places.theirs).expect("readable").count(), 1);
    workload.finish();
}

/// Returns what `beeline run` says when code is to be kept there.
fn kept_in(cache: &Path) -> Ended {
    let mut command = Command::new(beeline());
    command
        .args(["run", "--", "true"])
        .env("BEELINE_CACHE", cache);
    let ended = Tool::start(command).wait();
    assert!(ended.status.success(), "{ended:?}");
    ended
}

#[test]
fn code_is_kept_only_where_nobody_else_can_put_any() {
    let places = need!(Places::new());
    let (group, sticky) = (
        places.directory("group", 0o770),
        places.directory("sticky", 0o1777),
    );
    chown(&group, None, Some(ATTACKER)).expect("root may");
    places.their_link(&places.victim, &sticky.join("link"));
    let link = sticky.join("link");
    let new = |place: &Path| place.join("new/deep");
    for (cache, named, why) in [
        (places.theirs.clone(), &places.theirs, "belongs to user 1"),
        (new(&places.theirs), &places.theirs, "belongs to user 1"),
        (group.clone(), &group, "other users may write"),
        (new(&group), &group, "other users may write"),
        (sticky.clone(), &sticky, "other users may write"),
        (link.clone(), &link, "symbolic link of user 1's"),
        (new(&link), &link, "symbolic link of user 1's"),
    ] {
        let ended = kept_in(&cache);
        let [line] = told(&ended, named)[..] else {
            panic!("{}: {ended:?}", cache.display());
        };
        assert!(line.contains(why), "{line}");
        assert!(line.contains("BEELINE_CACHE"), "{line}");
    }
    places.check_victim();
    for (place, entries) in [(&places.theirs, 0), (&group, 0), (&sticky, 1)] {
        assert_eq!(fs::read_dir(place).expect("readable").count(), entries);
    }
    // These are as they should be.
    for cache in [places.victim.clone(), sticky.join("new/deep")] {
        assert_eq!(kept_in(&cache).stderr, [""; 0]);
        assert!(cache.is_dir());
    }
}

const PROGRAM: &str = "#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
char LICENSE[] SEC(\"license\") = \"GPL\";
SEC(\"syscall\") int five(void *context) { return 5; }
";

/// Builds and compiles a program ahead of time.
fn compiled(places: &Places) -> Result<PathBuf, String> {
    let (source, object) = (places.path("it.c"), places.path("it.bpf.o"));
    fs::write(&source, PROGRAM).expect("writable");
    let mut clang = Command::new(find_program("clang")?);
    clang.args(["-target", "bpf", "-g", "-O2", "-c", "-o"]);
    clang.args([&object, &source]);
    clang.arg("-I/usr/include/x86_64-linux-gnu");
    let built = Tool::start(clang).wait();
    assert!(built.status.success(), "{built:?}");
    let aot = places.path("it.aot");
    let made = compile(&object, &aot);
    assert!(made.status.success(), "{made:?}");
    Ok(aot)
}

fn compile(object: &Path, aot: &Path) -> Ended {
    let mut command = Command::new(beeline());
    command.arg("compile").arg(object).arg("-o").arg(aot);
    Tool::start(command).wait()
}

/// Runs the code of a file in both ways.
fn run_both(aot: &Path) -> [Ended; 2] {
    let mut prog = Command::new(beeline());
    prog.args(["prog", "run"]).arg(aot);
    let mut run = Command::new(beeline());
    run.args(["run", "--aot"]).arg(aot).args(["--", "true"]);
    run.env("BEELINE_CACHE", "");
    [prog, run].map(|command| Tool::start(command).wait())
}

#[test]
fn compiled_files_are_run_only_if_nobody_else_could_have_written_them() {
    let places = need!(Places::new());
    let aot = need!(compiled(&places));
    for ended in run_both(&aot) {
        assert!(ended.status.success(), "{ended:?}");
    }
    let copy = |directory: &Path| {
        let copy = directory.join("copy.aot");
        fs::copy(&aot, &copy).expect("writable");
        copy
    };
    let (group, sticky) = (
        places.directory("group", 0o770),
        places.directory("sticky", 0o1777),
    );
    let (anyones, given) = (copy(&sticky), places.path("given.aot"));
    fs::set_permissions(&anyones, Permissions::from_mode(0o666)).expect("ours");
    fs::copy(&aot, &given).expect("writable");
    chown(&given, Some(ATTACKER), None).expect("root may");
    let (linked, named) = (sticky.join("linked.aot"), sticky.join("named.aot"));
    places.their_link(&aot, &linked);
    fs::copy(&aot, places.path("other.aot")).expect("writable");
    fs::hard_link(places.path("other.aot"), &named).expect("root may");
    for (file, why) in [
        (&anyones, "other users may write"),
        (&given, "belongs to user 1"),
        (&copy(&places.theirs), "belongs to user 1"),
        (&copy(&group), "other users may write"),
        (&linked, "symbolic link of user 1's"),
        (&named, "another name"),
    ] {
        for ended in run_both(file) {
            assert_eq!(ended.status.code(), Some(1), "{}", file.display());
            let [line] = &ended.stderr[..] else {
                panic!("{ended:?}");
            };
            assert!(line.contains(why), "{line}");
        }
    }
}

#[test]
fn no_file_is_written_over_what_another_user_points_at() {
    let places = need!(Places::new());
    let aot = need!(compiled(&places));
    let object = places.path("it.bpf.o");
    let (link, name) = (places.theirs.join("link"), places.theirs.join("name"));
    places.their_link(&places.victim.join("file"), &link);
    fs::hard_link(places.victim.join("file"), &name).expect("root may");
    let dangling = places.theirs.join("dangling");
    places.their_link(&places.victim.join("new"), &dangling);
    let write_data = |output: &Path| {
        let mut command = Command::new(beeline());
        command
            .args(["prog", "run"])
            .arg(&aot)
            .arg("--data-out")
            .arg(output);
        Tool::start(command).wait()
    };
    for output in [&link, &name, &dangling] {
        for ended in [compile(&object, output), write_data(output)] {
            assert_eq!(ended.status.code(), Some(1), "{ended:?}");
            assert_eq!(told(&ended, output).len(), 1, "{ended:?}");
        }
    }
    places.check_victim();
    // One's own is written anew, whatever the mask is.
    let mut again = Command::new("sh");
    again.args(["-c", "umask 0; exec \"$0\" compile \"$1\" -o \"$2\""]);
    again
        .arg(beeline())
        .arg(&object)
        .arg(places.path("new.aot"));
    assert!(Tool::start(again).wait().status.success());
    assert!(compile(&object, &aot).status.success());
    for file in [aot, places.path("new.aot")] {
        for ended in run_both(&file) {
            assert!(ended.status.success(), "{ended:?}");
        }
    }
}

#[test]
fn in_a_user_namespace_unknown_users_are_not_trusted() {
    let places = need!(Places::new());
    let copy = places.path("beeline");
    fs::copy(beeline(), &copy).expect("writable");
    let other = places.directory("other", 0o755);
    chown(&other, Some(USERS[2]), None).expect("root may");
    for kind in ["--map-root-user", "--user"] {
        let mut possible = as_user(ATTACKER, Path::new("unshare"));
        let possible = possible.args(["--user", kind, "true"]).status();
        need!(match possible.is_ok_and(|status| status.success()) {
            true => Ok(()),
            false => Err("users may make no namespaces here"),
        });
        let mut command = as_user(ATTACKER, Path::new("unshare"));
        command
            .args(["--user", kind])
            .arg(&copy)
            .args(["run", "--"]);
        command.args(["sh", "-c", "mkdir /sys/fs/bpf/one && ls /sys/fs/bpf"]);
        command.env("BEELINE_CACHE", &other);
        command.env("XDG_RUNTIME_DIR", &other);
        let ended = Tool::start(command).wait();
        assert_eq!(ended.stdout, ["one"], "{ended:?}");
        let unknown = ended
            .stderr
            .iter()
            .filter(|line| line.contains("does not know"));
        assert_eq!(unknown.count(), 2, "{ended:?}");
    }
}

#[test]
fn an_ordinary_user_keeps_to_his_own_places() {
    let places = need!(Places::new());
    let copy = places.path("beeline");
    fs::copy(beeline(), &copy).expect("writable");
    let mut command = as_user(ATTACKER, &copy);
    command.args(["run", "--", "true"]);
    command
        .env("HOME", &places.theirs)
        .env_remove("XDG_CACHE_HOME");
    command.env_remove("BEELINE_CACHE");
    let ended = Tool::start(command).wait();
    assert_eq!((ended.status.code(), &ended.stderr[..]), (Some(0), &[][..]));
    assert!(places.theirs.join(".cache/beeline").is_dir());
    let rooms = places.directory("rooms", 0o755);
    let mut command = as_user(ATTACKER, &copy);
    command
        .args(["run", "--", "true"])
        .env("BEELINE_CACHE", &rooms);
    assert_eq!(Tool::start(command).wait().stderr, [""; 0]);
}
