//! Processes that become another user's while they are traced.

use std::collections::BTreeSet;
use std::time::Duration;

use beeline_e2e::{Ended, Tool, Turn, Workload, map_counts, need, until};

use crate::world::{World, isolated, memory_files};

/// A round looks at a few processes only, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn files(workload: &Workload) -> BTreeSet<u64> {
    memory_files(workload.pid()).into_keys().collect()
}

/// True if two processes have memory of Beeline's in common.
fn share(one: &Workload, other: &Workload) -> bool {
    !files(one).is_disjoint(&files(other))
}

/// Has a daemon become another user's while its threads do this, and returns the number of their
/// calls and what the tool has printed.
fn moved(world: &World, work: &str) -> (u64, Ended) {
    let [mut daemon, root, nobody] = [0, 0, 65534].map(|user| world.start_as(user));
    let tool = Tool::bpftrace(
        isolated(&world.bpftrace),
        &world.script("uprobe:{prog}:wl_add { @ = count(); @by[uid] = count(); }"),
    );
    tool.wait_attached();
    assert!(share(&daemon, &root) && !share(&daemon, &nobody));
    // The effective user alone changes nothing.
    for order in [work, "visit 65534"] {
        assert_eq!(daemon.tell(order), order);
    }
    tool.settle();
    assert!(share(&daemon, &root));
    for order in ["return", "become 65534"] {
        assert_eq!(daemon.tell(order), order);
    }
    let is_moved = || !share(&daemon, &root) && !files(&daemon).is_empty();
    assert!(until(PATIENCE, is_moved), "{:?}", files(&daemon));
    tool.settle();
    let calls = daemon.tell("stop").parse().expect("a number");
    tool.settle();
    let ended = tool.interrupt();
    assert!(ended.status.success(), "{ended:?}");
    for workload in [daemon, root, nobody] {
        workload.finish();
    }
    (calls, ended)
}

#[test]
fn a_daemon_that_gives_up_its_rights_leaves_the_memory_of_root() {
    let _turn = Turn::take();
    let world = need!(World::new("gives_up.c"));
    let (calls, ended) = moved(&world, "work");
    let counts = map_counts(&ended.stdout);
    assert_eq!(counts["@"] + ended.missed(), calls, "{ended:?}");
    assert!(counts["@by[65534]"] > 0, "{ended:?}");
    let is_told = |line: &String| line.contains("runs as another user now");
    assert!(!ended.stderr.iter().any(is_told), "{ended:?}");
}

#[test]
fn what_is_missed_while_a_busy_daemon_is_moved_is_told() {
    let _turn = Turn::take();
    let world = need!(World::new("gives_up.c"));
    let (calls, ended) = moved(&world, "spin");
    let counts = map_counts(&ended.stdout);
    let seen = counts["@"] + ended.missed();
    let is_told = |line: &String| line.contains("runs as another user now: it was not traced for");
    let is_told = ended.stderr.iter().any(is_told);
    assert!(counts["@by[65534]"] > 0, "{ended:?}");
    assert!(
        seen == calls || seen < calls && is_told,
        "{seen} of {calls}: {ended:?}"
    );
}
