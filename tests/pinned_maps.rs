//! Maps of the kernel's that somebody else has made and pinned with ordinary permissions: programs in
//! processes of an ordinary user use them, as far as those permissions go.

use beeline_e2e::{
    Scratch, Turn, as_user, beeline, beeline_wanted, file_offset, find_program, has_host_kernel,
    need,
};
use std::path::Path;
use std::process::{Command, Output};

/// Debian's user "nobody".
const NOBODY: u32 = 65534;
/// The calls of `wl_add` in one round of the workload, which ends with the code 7.
const CALLS: u64 = 1000;
/// The value that the program adds for each.
const CONSTANT: u64 = 3;

/// Pins maps in a file system of its own, runs the rest of its arguments, and says what the maps hold
/// then.
const OWNER: &str = r#"
mkdir "$0" && mount -t bpf nodev "$0" && chmod 755 "$0" || exit 1
map() { bpftool map create "$0/$1" type $2 key $3 value $4 entries $5 name $1 flags $6; chmod $7 "$0/$1"; }
map hash hash 8 8 64 0 666 && map array array 4 8 1 0x400 666 && map read_only hash 8 8 64 0 644
map closed hash 8 8 64 0 600 && map ring ringbuf 0 0 4096 0 666 || exit 1
bpftool map update pinned "$0/read_only" key 1 0 0 0 0 0 0 0 value 3 0 0 0 0 0 0 0 || exit 1
"$@" || exit $?
bpftool -j map lookup pinned "$0/hash" key 1 0 0 0 0 0 0 0
bpftool -j map lookup pinned "$0/array" key 0 0 0 0
"#;

/// Runs the tool over the workload, by a command, beside an owner of the maps.
fn run(scratch: &Scratch, name: &str, tool: impl FnOnce(&mut Command)) -> Output {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "bash", "-c", OWNER]);
    command.arg(scratch.path().join(name));
    tool(&mut command);
    command.output().expect("unshare runs")
}

#[test]
fn an_ordinary_users_processes_use_maps_that_others_have_pinned() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    need!(has_host_kernel());
    need!(find_program("bpftool"));
    let scratch = Scratch::new();
    let (tool, work) = (scratch.build("pinned_maps.c"), scratch.build("counts.c"));
    let offset = need!(file_offset(&work, "wl_add")).to_string();
    let copy = scratch.path().join("beeline");
    std::fs::copy(beeline(), &copy).expect("copying beeline");

    let arguments = |directory: &str| {
        let directory = scratch.path().join(directory);
        let words = [&work, Path::new(&offset), &directory, &work];
        let words = words.map(|word| word.to_string_lossy().into_owned());
        [&words[..], &["now".to_owned()]].concat()
    };
    let kernel = run(&scratch, "kernels", |command| {
        command.arg(&tool).args(arguments("kernels"));
    });
    let user = run(&scratch, "users", |command| {
        let user = as_user(NOBODY, &copy);
        command.arg(user.get_program()).args(user.get_args());
        command
            .args(["run", "--"])
            .arg(&tool)
            .args(arguments("users"));
    });
    let lines = |output: &Output| String::from_utf8_lossy(&output.stdout).into_owned();
    let (told, errors) = (lines(&user), String::from_utf8_lossy(&user.stderr));
    let sum = CALLS * CONSTANT;
    let line = format!(
        "sum {sum} count {CALLS} mapped {CALLS} constant {CONSTANT} status {}",
        7 << 8
    );
    assert!(told.contains(&line), "{told}{errors}");
    // Root may open everything.
    let of_user = "opening it to write: Permission denied";
    let of_root = lines(&kernel).replace("opening it to write: Success", of_user);
    let closed = "opening a closed one: ";
    let of_root = of_root.replace(
        &format!("{closed}Success"),
        &format!("{closed}Permission denied"),
    );
    assert_eq!(of_root, told, "{errors}");
    assert!(
        errors.contains("a program that deletes from it: Permission denied"),
        "{errors}"
    );
    assert!(
        errors.contains("ring: a BPF_MAP_TYPE_RINGBUF map that is another's"),
        "{errors}"
    );
}
