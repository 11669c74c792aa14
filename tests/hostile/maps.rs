//! Maps of which each user's processes have a part: the tool sees one map.

use std::collections::BTreeMap;
use std::process::Command;

use beeline_e2e::{Ended, Tool, Turn, Workload, map_counts, need};

use crate::world::{USERS, World, isolated, together};

const ROUNDS: usize = 3;
/// Calls of `wl_add` in a round.
const CALLS: usize = 1000;

/// Runs a script while processes of these users work. Returns what the tool has printed.
fn traced(world: &World, tool: Command, script: &str, users: &[u32]) -> Ended {
    let mut workloads: Vec<Workload> = users.iter().map(|user| world.start_as(*user)).collect();
    let tool = Tool::bpftrace(tool, &world.script(script));
    tool.wait_attached();
    for _ in 0..ROUNDS {
        for workload in &mut workloads {
            workload.go();
        }
    }
    tool.settle();
    let ended = tool.interrupt();
    assert!(ended.status.success(), "{ended:?}");
    workloads.into_iter().for_each(Workload::finish);
    ended
}

#[test]
fn stacks_of_all_users_are_found_by_their_ids() {
    let _turn = Turn::take();
    let world = need!(World::new("counts.c"));
    let script = "uprobe:{prog}:wl_add { @[uid, ustack(1)] = count(); }";
    let ended = traced(&world, isolated(&world.bpftrace), script, &USERS);
    assert_eq!(ended.stderr, [""; 0], "{ended:?}");
    // "@[0, ", a line for the frame, "]: 3000"
    let shown: BTreeMap<&str, (&str, &str)> = ended
        .stdout
        .windows(3)
        .filter_map(|lines| {
            let user = lines[0].strip_prefix("@[")?.strip_suffix(", ")?;
            Some((user, (lines[1].trim(), lines[2].as_str())))
        })
        .collect();
    let count = format!("]: {}", ROUNDS * CALLS);
    for user in USERS {
        let (frame, counted) = shown[user.to_string().as_str()];
        assert!(frame.starts_with("wl_add+"), "{ended:?}");
        assert_eq!(counted, count, "{ended:?}");
    }
}

#[test]
fn a_map_that_cannot_be_split_works_for_one_user_and_beeline_says_so() {
    let _turn = Turn::take();
    let world = need!(World::new("counts.c"));
    let script = "uprobe:{prog}:wl_add { @most = max(arg0); @ = count(); }";
    let ended = traced(&world, isolated(&world.bpftrace), script, &USERS);
    let counts = map_counts(&ended.stdout);
    assert_eq!(counts["@"], (ROUNDS * CALLS) as u64, "{ended:?}");
    assert_eq!(counts["@most"], CALLS as u64 - 1, "{ended:?}");
    let is_told = |line: &&String| line.contains("map AT_most is in use by other users' processes");
    let told = ended.stderr.iter().filter(is_told).count();
    assert_eq!(told, USERS.len() - 1, "{ended:?}");

    let ended = traced(&world, together(&world.bpftrace), script, &USERS);
    let counts = map_counts(&ended.stdout);
    let all = USERS.len() * ROUNDS * CALLS;
    assert_eq!(counts["@"], all as u64, "{ended:?}");
    assert_eq!(counts["@most"], CALLS as u64 - 1, "{ended:?}");
}

#[test]
fn a_process_of_another_user_reads_what_the_tool_has_set() {
    let _turn = Turn::take();
    let world = need!(World::new("counts.c"));
    let script = "BEGIN { @limit = 500; } \
                  uprobe:{prog}:wl_add /arg0 >= @limit/ { @ = count(); @last = arg0; }";
    let ended = traced(&world, isolated(&world.bpftrace), script, &[65534]);
    let counts = map_counts(&ended.stdout);
    assert_eq!(counts["@last"], CALLS as u64 - 1, "{ended:?}");
    assert_eq!(counts["@"], CALLS as u64 / 2 * ROUNDS as u64, "{ended:?}");
}

#[test]
fn what_a_user_has_counted_stays_when_the_last_process_has_ended() {
    let _turn = Turn::take();
    let world = need!(World::new("counts.c"));
    let mut tool = isolated(&world.bpftrace);
    tool.env("BEELINE_LOG", "beeline_runtime::domain=info");
    let script = "uprobe:{prog}:wl_add { @ = count(); @by[comm] = count(); @last[tid] = arg0; }";
    let tool = Tool::bpftrace(tool, &world.script(script));
    tool.wait_attached();
    for round in 0..2 {
        let mut workload = world.start_as(65534);
        tool.settle();
        workload.go();
        workload.finish();
        if round == 0 {
            tool.wait_to_be_told(|line| line.contains("retired a security domain"));
        }
    }
    tool.settle();
    let ended = tool.interrupt();
    let counts = map_counts(&ended.stdout);
    let all = 2 * CALLS as u64;
    assert_eq!(counts["@"], all, "{ended:?}");
    assert_eq!(counts["@by[counts]"], all, "{ended:?}");
    let last = format!("]: {}", CALLS - 1);
    let is_last = |line: &&String| line.starts_with("@last[") && line.ends_with(&last);
    assert_eq!(ended.stdout.iter().filter(is_last).count(), 2, "{ended:?}");
}
