//! The user ids of a thread, while threads and children change theirs.

use beeline_e2e::{Scratch, Turn, engines, need};

use crate::trace::{Traced, plain};

/// Prints a thread's user ids at a call, and after one that changes them.
const SHOWN: &str = r#"tracepoint:syscalls:sys_enter_getppid /{ours}/ { printf("E %llu %d %d/%d\n", nsecs, tid, uid, gid); }"#;
const SET: &str = r#"tracepoint:syscalls:sys_exit_setresuid /{ours}/ { printf("E %llu %d set/%d\n", nsecs, tid, uid); }"#;

/// Asserts that each thread has the same user ids on each engine, at its calls in their order.
fn same_users(scenes: &[&str], script: &str) {
    let _turn = Turn::take();
    let scratch = Scratch::new();
    let target = plain(&scratch.build("calls/users.c"));
    let mut all = Vec::new();
    for engine in need!(engines()) {
        let mut traced =
            Traced::start(engine, target(), script).unwrap_or_else(|why| panic!("{why}"));
        for scene in scenes {
            assert_eq!(traced.workload.tell(scene), format!("done {scene}"));
        }
        all.push(by_thread(&traced.finish()));
    }
    if let [kernel, beeline] = all.as_slice() {
        assert_eq!(beeline, kernel, "beeline (left), the kernel (right)");
    }
}

fn by_thread(lines: &[String]) -> Vec<Vec<String>> {
    let words = |line: &String| {
        let words: Vec<_> = line.strip_prefix("E ")?.split(' ').collect();
        let [time, thread, user] = words.as_slice() else {
            return None;
        };
        let time: u64 = time.parse().ok()?;
        Some(((*thread).to_owned(), time, (*user).to_owned()))
    };
    let mut events: Vec<_> = lines.iter().filter_map(words).collect();
    events.sort();
    let threads = events.chunk_by(|one, other| one.0 == other.0);
    let users = |thread: &[(String, u64, String)]| thread.iter().map(|one| one.2.clone()).collect();
    let mut threads: Vec<Vec<String>> = threads.map(users).collect();
    threads.sort();
    assert!(!threads.is_empty());
    threads
}

#[test]
fn users_are_those_of_the_moment() {
    same_users(&["turns", "failing", "turns"], &format!("{SHOWN} {SET}"));
}

#[test]
fn users_are_each_threads_own() {
    same_users(&["threads", "threads"], &format!("{SHOWN} {SET}"));
}

#[test]
fn children_and_handlers_become_other_users() {
    let script = format!("{SHOWN} {SET}");
    same_users(&["children", "handlers", "children"], &script);
}

#[test]
fn code_that_nobody_sees_makes_another_user() {
    same_users(&["turns", "written", "children", "written"], SHOWN);
}
