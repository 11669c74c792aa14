//! Processes of different users have no memory in common.

use std::path::Path;
use std::process::Command;

use beeline_e2e::{Tool, Turn, Workload, beeline_wanted, find_program, map_counts, need};

use crate::world::{USERS, World, as_user, isolated, memory_files};

const ROUNDS: usize = 3;
/// Remembers names by thread from a call's beginning to its end.
const OPENS_BY_THREAD: &str = "tracepoint:syscalls:sys_enter_openat { @names[tid] = args->filename; } \
    tracepoint:syscalls:sys_exit_openat /@names[tid]/ \
    { printf(\"%d %s\\n\", uid, str(@names[tid])); delete(@names[tid]); } END { clear(@names); }";
/// Files that a program opens when it is told to; none of them exists.
const OPENS: usize = 50;
const OPENER: &str = "import os, sys
print('ready', flush=True)
for line in sys.stdin:
    for i in range(50):
        try: os.open(f'/nonexistent/{os.getpid()}-{i}-', 0)
        except OSError: pass
    print('done', flush=True)
";

#[test]
fn processes_of_different_users_share_no_memory() {
    let _turn = Turn::take();
    let world = need!(World::new("counts.c"));
    let mut workloads: Vec<(u32, Workload)> = USERS
        .into_iter()
        .chain(USERS)
        .map(|user| (user, world.start_as(user)))
        .collect();
    let tool = Tool::bpftrace(
        isolated(&world.bpftrace),
        &world.script(
            "uprobe:{prog}:wl_add { @ = count(); @by[uid] = count(); @names[comm] = count(); } \
             uprobe:{prog}:wl_square { @sum = sum(arg0); @hist = hist(arg0); }",
        ),
    );
    tool.wait_attached();
    for _ in 0..ROUNDS {
        for (_, workload) in &mut workloads {
            workload.go();
        }
    }
    check_apart(&workloads);
    tool.settle();
    let ended = tool.interrupt();
    assert!(ended.status.success(), "{ended:?}");
    assert_eq!(ended.stderr, [""; 0], "{ended:?}");
    let counts = map_counts(&ended.stdout);
    let all = (ROUNDS * workloads.len() * 1000) as u64;
    assert_eq!(counts.get("@"), Some(&all), "{ended:?}");
    for user in USERS {
        let key = format!("@by[{user}]");
        assert_eq!(counts.get(key.as_str()), Some(&(all / 3)), "{ended:?}");
    }
    assert_eq!(counts.get("@names[counts]"), Some(&all), "{ended:?}");
    let sum = (ROUNDS * workloads.len() * (0..100).sum::<usize>()) as u64;
    assert_eq!(counts.get("@sum"), Some(&sum), "{ended:?}");
    for (_, workload) in workloads {
        workload.finish();
    }
}

/// Fails if processes of different users have memory in common, or processes of one user have not.
fn check_apart(workloads: &[(u32, Workload)]) {
    let files: Vec<_> = workloads
        .iter()
        .map(|(user, workload)| (*user, memory_files(workload.pid())))
        .collect();
    for (user, own) in &files {
        assert!(!own.is_empty(), "user {user} is not traced");
        for (other, others) in &files {
            let common: Vec<_> = own
                .iter()
                .filter(|(inode, _)| others.contains_key(inode))
                .map(|(_, (name, _))| name)
                .collect();
            match other == user {
                true => assert!(common.iter().any(|name| *name == "session"), "{user}"),
                false => assert!(
                    common.is_empty(),
                    "users {user} and {other} share {common:?}"
                ),
            }
        }
    }
}

#[test]
fn containers_share_no_memory_with_the_host_nor_with_each_other() {
    let _turn = Turn::take();
    let world = need!(World::new("counts.c"));
    need!(find_program("unshare"));
    let container = |options: &[&str]| {
        let mut command = Command::new("unshare");
        command
            .args(options)
            .args(["--pid", "--fork", "--kill-child"])
            .arg(&world.program);
        Workload::start_command(command)
    };
    let mut workloads = [
        world.start_as(0),
        container(&[]),
        container(&[]),
        container(&["--user", "--map-root-user"]),
    ];
    let tool = Tool::bpftrace(
        isolated(&world.bpftrace),
        &world.script("uprobe:{prog}:wl_add { @ = count(); @by[pid] = count(); }"),
    );
    tool.wait_attached();
    for _ in 0..ROUNDS {
        workloads.iter_mut().for_each(|workload| {
            workload.go();
        });
    }
    let inside = |workload: &Workload| {
        let pid = workload.pid();
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        let children = children.expect("it lives");
        children.trim().parse().unwrap_or(pid)
    };
    let files = workloads
        .each_ref()
        .map(|workload| memory_files(inside(workload)));
    for (at, own) in files.iter().enumerate() {
        assert!(!own.is_empty(), "{at} is not traced");
        for (other, others) in files.iter().enumerate().skip(at + 1) {
            let common: Vec<_> = own
                .iter()
                .filter(|(inode, _)| others.contains_key(inode))
                .collect();
            assert!(common.is_empty(), "{at} and {other} share {common:?}");
        }
    }
    tool.settle();
    let ended = tool.interrupt();
    assert!(ended.status.success(), "{ended:?}");
    let counts = map_counts(&ended.stdout);
    let each = (ROUNDS * 1000) as u64;
    assert_eq!(counts["@"], 4 * each, "{ended:?}");
    let by_pid = counts.iter().filter(|(key, _)| key.starts_with("@by["));
    assert_eq!(
        by_pid.filter(|(_, count)| **count == each).count(),
        4,
        "{ended:?}"
    );
    for workload in workloads {
        workload.finish();
    }
}

#[test]
fn opens_of_all_users_are_shown() {
    let _turn = Turn::take();
    let bpftrace = need!(find_program("bpftrace"));
    let python = Path::new("/usr/bin/python3");
    need!(match python.exists() {
        true => Ok(()),
        false => Err("no python3 that every user may run"),
    });
    need!(beeline_wanted());
    let start = |user| {
        let mut command = as_user(user, python);
        command.args(["-c", OPENER]);
        (user, Workload::start_command(command))
    };
    let mut workloads: Vec<_> = USERS.into_iter().chain(USERS).map(start).collect();
    let tool = Tool::bpftrace(isolated(&bpftrace), OPENS_BY_THREAD);
    tool.wait_attached();
    for (_, workload) in &mut workloads {
        assert_eq!(workload.go(), "done");
    }
    check_apart(&workloads);
    for (_, workload) in &workloads {
        let last = format!("/nonexistent/{}-{}-", workload.pid(), OPENS - 1);
        tool.wait_for_line(|line| line.contains(&last));
    }
    let ended = tool.interrupt();
    for (user, workload) in &workloads {
        let name = format!("{user} /nonexistent/{}-", workload.pid());
        let shown = ended.stdout.iter().filter(|line| line.starts_with(&name));
        assert_eq!(shown.count(), OPENS, "{user}: {:?}", ended.stderr);
    }
}
