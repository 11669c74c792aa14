//! What a tool starts, and what that starts in its turn, is traced from its first instruction to its last: as on the kernel.

use std::collections::BTreeMap;

use beeline_e2e::{
    Engine, Scratch, Tool, Turn, engines, find_program, map_counts, need, with_tracefs,
};

const FUNCTIONS: &str = "uprobe:{prog}:family_forked { @forked = count(); } \
    uprobe:{prog}:family_run { @run = count(); } \
    uretprobe:{prog}:family_daemon { @daemon = count(); } \
    uprobe:{lib}:plugin_work { @loaded = count(); }";
const CALLS: &str = "tracepoint:syscalls:sys_enter_setsid { @setsid = count(); } \
    tracepoint:syscalls:sys_enter_execve /comm == \"family\"/ { @execve = count(); }";

/// How often each of [`FUNCTIONS`] runs in what `family.c` does.
const TIMES: [(&str, u64); 4] = [
    ("@forked", 200),
    ("@run", 600),
    ("@daemon", 100),
    ("@loaded", 200),
];
/// And each of [`CALLS`].
const CALL_TIMES: [(&str, u64); 2] = [("@setsid", 10), ("@execve", 60)];

#[test]
fn all_that_a_tool_starts_is_traced_however_short_it_lives() {
    let _turn = Turn::take();
    let scratch = Scratch::new();
    let program = scratch.build("family.c").display().to_string();
    let plugin = scratch.build_with("plugin.c", &["-shared", "-fPIC"]);
    let plugin = plugin.display().to_string();
    let bpftrace = need!(find_program("bpftrace"));
    for engine in need!(engines()) {
        for script in [
            FUNCTIONS.to_owned(),
            CALLS.to_owned(),
            format!("{FUNCTIONS} {CALLS}"),
        ] {
            let mut command = match engine {
                Engine::Kernel => with_tracefs(&bpftrace),
                Engine::Beeline => engine.command(&bpftrace),
            };
            let what = format!("{engine}: {script}");
            let filled = script.replace("{prog}", &program).replace("{lib}", &plugin);
            let child = format!("{program} {plugin}");
            command.args(["-e", &filled, "-c", &child]);
            let ended = Tool::start(command).wait();
            assert!(ended.status.success(), "{what}: {ended:?}");
            let mut expected = BTreeMap::new();
            let functions = TIMES.iter().filter(|_| script.contains(FUNCTIONS));
            let calls = CALL_TIMES.iter().filter(|_| script.contains(CALLS));
            for (name, count) in functions.chain(calls) {
                expected.insert((*name).to_owned(), *count);
            }
            assert_eq!(map_counts(&ended.stdout), expected, "{what}: {ended:?}");
            assert!(
                ended.stdout.contains(&"done".to_owned()),
                "{what}: {ended:?}"
            );
            if engine == Engine::Beeline {
                assert_eq!(ended.stderr, Vec::<String>::new(), "{what}");
            }
        }
    }
}
