//! A process of another user overwrites what Beeline has mapped into it.

use std::process::Command;

use beeline_e2e::{Ended, TICK, Tool, Turn, Workload, map_counts, need};

use crate::world::{World, as_user, isolated};

const ROUNDS: usize = 3;
/// Calls of `wl_add` in a round.
const CALLS: usize = 1000;
/// The user that attacks: Debian's "daemon".
const ATTACKER: u32 = 1;
/// The users whose processes work meanwhile.
const HONEST: [u32; 2] = [0, 65534];

/// Has a process overwrite the files with this text in their names, while others work. Returns what
/// the tool has printed.
fn attacked(world: &World, script: &str, files: &str) -> Ended {
    let mut honest: Vec<Workload> = HONEST.iter().map(|user| world.start_as(*user)).collect();
    let results: Vec<String> = honest.iter_mut().map(Workload::go).collect();
    let mut command: Command = as_user(ATTACKER, &world.program);
    command.arg("attack");
    let mut attacker = Workload::start_command(command);
    let tool = Tool::bpftrace(isolated(&world.bpftrace), &world.script(script));
    tool.wait_attached();
    let answer = attacker.tell(files);
    assert!(
        answer.starts_with("attacks ") && answer != "attacks 0",
        "{answer}"
    );
    for _ in 0..ROUNDS {
        for (workload, result) in honest.iter_mut().zip(&results) {
            assert_eq!(workload.go(), *result);
        }
    }
    tool.settle();
    let ended = tool.interrupt();
    assert!(ended.status.success(), "{ended:?}");
    for workload in honest {
        workload.finish();
    }
    ended
}

#[test]
fn leases_that_one_user_takes_do_not_stop_another() {
    let _turn = Turn::take();
    let world = need!(World::new("attacks.c"));
    let script = "uprobe:{prog}:wl_add /uid != 1/ { @[uid] = count(); }";
    let ended = attacked(&world, script, "-session");
    let counts = map_counts(&ended.stdout);
    for user in HONEST {
        let key = format!("@[{user}]");
        let all = (ROUNDS * CALLS) as u64;
        assert_eq!(counts.get(key.as_str()), Some(&all), "{ended:?}");
    }
}

#[test]
fn rings_that_one_user_overwrites_bring_the_events_of_others() {
    let _turn = Turn::take();
    let world = need!(World::new("attacks.c"));
    let script = "uprobe:{prog}:wl_name { printf(\"user %d\\n\", uid); } \
                  uprobe:{prog}:wl_add /uid == 1/ { printf(\"attacker\\n\"); }";
    let ended = attacked(&world, script, "-ring-");
    for user in HONEST {
        let line = format!("user {user}");
        let shown = ended.stdout.iter().filter(|shown| **shown == line).count();
        assert_eq!(shown, ROUNDS * 60, "{line}: {:?}", ended.stderr);
    }
    let known = |line: &String| {
        let is_tools = line.is_empty() || line == TICK || line.starts_with("Attaching");
        is_tools || line.starts_with("user ") || line == "attacker"
    };
    let strange: Vec<_> = ended.stdout.iter().filter(|line| !known(line)).collect();
    assert!(strange.is_empty(), "{strange:?}");
    let told = ended
        .stderr
        .iter()
        .filter(|line| line.contains("user 1 has overwritten"));
    assert_eq!(told.count(), 1, "{:?}", ended.stderr);
}

#[test]
fn maps_that_one_user_overwrites_leave_others_work_alone() {
    let _turn = Turn::take();
    let world = need!(World::new("attacks.c"));
    let script = "uprobe:{prog}:wl_add { @ = count(); @by[uid] = count(); @s[tid] = nsecs; } \
                  uretprobe:{prog}:wl_add /@s[tid]/ { @took = count(); delete(@s[tid]); } END { clear(@s); }";
    attacked(&world, script, "-map-");
}
