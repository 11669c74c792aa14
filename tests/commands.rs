//! The commands of `bpf(2)` themselves: any request of a tool, valid or not, gets the kernel's
//! answer.

use beeline_e2e::{
    Engine, Scratch, Turn, beeline_wanted, engines, file_offset, find_program, kernel_available,
    need, without_sizes,
};
use beeline_uapi::MapType;
use std::process::{Command, Stdio};

/// Types whose commands are compared at random. An LRU hash evicts elements by the kernel's own
/// choice.
const TYPES: [MapType; 12] = [
    MapType::HASH,
    MapType::ARRAY,
    MapType::PERF_EVENT_ARRAY,
    MapType::PERCPU_HASH,
    MapType::PERCPU_ARRAY,
    MapType::STACK_TRACE,
    MapType::LPM_TRIE,
    MapType::QUEUE,
    MapType::STACK,
    MapType::RINGBUF,
    MapType::BLOOM_FILTER,
    MapType::USER_RINGBUF,
];
const SEEDS: std::ops::Range<u32> = 1..6;
const COMMANDS: u32 = 10_000;

#[test]
fn random_commands_get_the_kernels_answers() {
    let _turn = Turn::take();
    // A guest's kernel gives the same answers, but several faulty fields at once are detected in
    // another order on the way there.
    need!(beeline_wanted());
    need!(kernel_available());
    let scratch = Scratch::new();
    let commands = scratch.build("commands.c");
    for seed in SEEDS {
        let of = |engine: Engine| {
            let mut command = engine.command(&commands);
            command.args(["random", &seed.to_string(), &COMMANDS.to_string()]);
            command.args(TYPES.map(|map_type| map_type.0.to_string()));
            lines(command)
        };
        let kernel = of(Engine::Kernel);
        assert_eq!(kernel.len(), COMMANDS as usize);
        same(&kernel, &of(Engine::Beeline), &format!("seed {seed}"));
    }
}

#[test]
fn pinned_objects_are_found_by_their_names() {
    let _turn = Turn::take();
    need!(wanted());
    let scratch = Scratch::new();
    let commands = scratch.build("commands.c");
    // A program that never runs.
    let file = scratch.build("counts.c");
    let offset = file_offset(&file, "wl_add").expect("a symbol of the workload");
    let script = format!("{} pins {} {offset}", commands.display(), file.display());
    let pins = |engine| lines(with_bpffs(engine, &script));
    let here = pins(Engine::Beeline);
    assert!(
        here.iter().any(|line| line == "magic cafe4a11"),
        "{here:#?}"
    );
    need!(kernel_available());
    same(&pins(Engine::Kernel), &here, "names");
}

#[test]
fn waiting_for_rings_ends_with_data_or_a_signal() {
    let _turn = Turn::take();
    need!(wanted());
    let scratch = Scratch::new();
    let commands = scratch.build("commands.c");
    let wait = |engine: Engine| {
        let mut command = engine.command(&commands);
        command.arg("wait");
        lines(command)
    };
    let here = wait(Engine::Beeline);
    assert_eq!(here.len(), 4, "{here:#?}");
    need!(kernel_available());
    same(&wait(Engine::Kernel), &here, "waiting");
}

/// The output of bpftool on objects that another program has pinned. It excludes the moment when a
/// removed object disappears from the lists: the kernel keeps a program's maps for a grace period,
/// and lists those of an earlier run until then.
const BPFTOOL: &str = "
bpftool map show pinned $D/map
bpftool -j map show pinned $D/map
bpftool map dump pinned $D/map
bpftool -j map dump pinned $D/map
bpftool prog show pinned $D/program
bpftool -j prog show pinned $D/program
bpftool prog dump xlated pinned $D/program
bpftool map lookup pinned $D/map key 5 0 0 0
bpftool map getnext pinned $D/map
bpftool map delete pinned $D/map key 6 0 0 0
bpftool map pin pinned $D/map $D/again
bpftool map update pinned $D/again key 6 0 0 0 value 1 2 3 4 5 6 7 8
bpftool map dump pinned $D/map | tail -1
bpftool map freeze pinned $D/map
bpftool map update pinned $D/map key 5 0 0 0 value 1 1 1 1 1 1 1 1
bpftool map show name beeline_held | head -1
rm -r $D
ls /sys/fs/bpf/held";

#[test]
fn bpftool_shows_and_changes_what_is_pinned() {
    let _turn = Turn::take();
    need!(wanted());
    need!(find_program("bpftool"));
    let scratch = Scratch::new();
    let commands = scratch.build("commands.c");
    let script = format!(
        "exec 2>&1; D=/sys/fs/bpf/held; mkdir -p $D; {} hold $D; {BPFTOOL}",
        commands.display()
    );
    let shown = |engine| {
        let shown = lines(with_bpffs(engine, &script));
        shown.iter().map(|line| without_sizes(line)).collect()
    };
    let here: Vec<String> = shown(Engine::Beeline);
    assert!(
        here.iter().any(|line| line.contains("beeline_held")),
        "{here:#?}"
    );
    need!(kernel_available());
    same(&shown(Engine::Kernel), &here, "bpftool");
}

/// A shell script that finds a BPF file system of its own: Beeline's, or one mounted where no other
/// process sees it.
fn with_bpffs(engine: Engine, script: &str) -> Command {
    let mut command = match engine {
        Engine::Kernel => Command::new("unshare"),
        Engine::Beeline => engine.command("/bin/sh"),
    };
    match engine {
        Engine::Kernel => {
            command.args(["-m", "/bin/sh", "-c"]);
            command.arg(format!("mount -t bpf bpf /sys/fs/bpf && {{ {script}; }}"));
        }
        Engine::Beeline => {
            command.args(["-c", script]);
        }
    }
    command
}

/// Returns an error unless Beeline is to be tested: by itself, or through a guest's proxy.
fn wanted() -> Result<(), String> {
    let is_wanted = engines()?.contains(&Engine::Beeline);
    is_wanted
        .then_some(())
        .ok_or_else(|| "only the kernel is asked for".into())
}

/// Returns the lines that a command prints; it has to succeed.
fn lines(mut command: Command) -> Vec<String> {
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().map(str::to_owned).collect()
}

/// Describes where two transcripts begin to differ.
fn same(kernel: &[String], here: &[String], what: &str) {
    for (n, (theirs, ours)) in kernel.iter().zip(here).enumerate() {
        assert_eq!(theirs, ours, "{what}, line {n}: the kernel's and Beeline's");
    }
    assert_eq!(kernel.len(), here.len(), "{what}: lines");
}
