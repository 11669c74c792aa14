//! A killed Beeline leaves its targets hooked. The next session works as if there had been none,
//! removes what was left, and touches nothing of a living session.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Instant;

use beeline_e2e::{
    Ended, Footprint, PATIENCE, Scratch, Tool, Turn, Workload, altered_text, beeline,
    beeline_wanted, compile_anew, find_program, is_alive, map_counts, members_of_group, need,
    skipped, soak, until,
};

/// The calls in one round of counts.c: 1,000, 1,000 and 20.
const SCRIPT: &str = "uprobe:{prog}:wl_add { @in = count(); } uretprobe:{prog}:wl_add { @out = count(); } \
    tracepoint:syscalls:sys_enter_clock_nanosleep { @naps = count(); }";

/// The number of targets to start until a jump hooks one.
const TRIES: u32 = 20;

/// The number of times a session is killed by default.
const TIMES: u32 = 3;

/// A target with a known amount of work, and its untraced state.
struct Target {
    workload: Workload,
    program: PathBuf,
    honest: String,
    before: Footprint,
    scratch: Scratch,
}

impl Target {
    fn start() -> Self {
        let scratch = Scratch::new();
        let program = scratch.build("counts.c");
        let mut workload = Workload::start(&program);
        // One round first: the C library maps and allocates at first use.
        let honest = workload.go();
        Self {
            before: Footprint::of(workload.pid()),
            workload,
            program,
            honest,
            scratch,
        }
    }

    fn pid(&self) -> u32 {
        self.workload.pid()
    }

    fn go(&mut self) {
        assert_eq!(self.workload.go(), self.honest);
    }

    fn script(&self) -> String {
        SCRIPT.replace("{prog}", &self.program.display().to_string())
    }

    fn trace(&self) -> Tool {
        let tool = start(&[self.pid()], &self.script());
        tool.wait_attached();
        tool
    }

    /// Starts a session, which sees the target work, and kills it.
    fn orphan(&mut self) {
        let tool = self.trace();
        self.go();
        kill(tool);
        assert!(!left_in(self.pid()).is_empty());
    }

    /// Asserts that nothing is left in the target, and that it ends as it should.
    fn finish(mut self) {
        self.assert_untouched();
        self.go();
        self.workload.finish();
    }

    fn assert_untouched(&self) {
        let pid = self.pid();
        assert_eq!(altered_text(pid), [""; 0]);
        assert_eq!(left_in(pid), [""; 0]);
        assert_eq!(Footprint::of(pid), self.before);
    }
}

/// Starts a bpftrace that reaches these processes.
fn start(pids: &[u32], script: &str) -> Tool {
    let bpftrace = find_program("bpftrace").expect("asked for before");
    let mut command = Command::new(beeline());
    command.arg("run");
    for pid in pids {
        command.args(["--pid", &pid.to_string()]);
    }
    command.arg("--").arg(bpftrace);
    compile_anew(&mut command);
    Tool::bpftrace(command, script)
}

/// Kills Beeline and everything that it has started.
fn kill(tool: Tool) {
    let group = tool.pid();
    tool.signal_group(libc::SIGKILL);
    tool.wait();
    assert!(until(PATIENCE, || members_of_group(group).is_empty()));
}

/// Returns Beeline's mappings in a process.
fn left_in(pid: u32) -> Vec<String> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let ours = maps.lines().filter(|line| line.contains("/memfd:beeline-"));
    ours.map(str::to_owned).collect()
}

/// Asserts that a session has counted one round.
fn assert_one_round(ended: &Ended) {
    let known = [("@in", 1000), ("@out", 1000), ("@naps", 20)];
    let counts = map_counts(&ended.stdout);
    let counts: BTreeMap<&str, u64> = known
        .iter()
        .filter_map(|(name, _)| Some((*name, *counts.get(*name)?)))
        .collect();
    assert_eq!(counts, BTreeMap::from(known), "{ended:?}");
}

/// Beeline's message about what it has cleared.
fn told(ended: &Ended) -> Vec<&String> {
    let lines = ended.stderr.iter();
    lines.filter(|line| line.contains("cleared what")).collect()
}

fn ask(arguments: &[&str]) -> Output {
    let mut command = Command::new(beeline());
    command.args(arguments).output().expect("beeline runs")
}

/// Returns the output of `beeline ps` for a process.
fn listed(pid: u32) -> Vec<serde_json::Value> {
    let output = ask(&["ps", "--json"]);
    let list: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).expect("JSON");
    list.into_iter().filter(|one| one["pid"] == pid).collect()
}

#[test]
fn the_next_session_counts_as_if_there_had_been_none() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    need!(find_program("bpftrace"));
    let mut target = Target::start();
    let (begun, mut round) = (Instant::now(), 0);
    while round < TIMES || begun.elapsed() < soak() {
        round += 1;
        target.orphan();
        target.go();
        let next = target.trace();
        target.go();
        let ended = next.interrupt();
        assert_one_round(&ended);
        let told = told(&ended);
        assert!(
            matches!(told[..], [line] if line.contains(&target.pid().to_string())),
            "{told:?}"
        );
        target.assert_untouched();
    }
    target.finish();
}

/// Either session may remove the remains, and both see everything that happens. System calls belong
/// to one of them, and Beeline tells the other so.
#[test]
fn two_next_sessions_do_not_harm_each_other() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    need!(find_program("bpftrace"));
    let mut target = Target::start();
    let probe = format!(
        "uprobe:{}:wl_add {{ @in = count(); }}",
        target.program.display()
    );
    let call = "tracepoint:syscalls:sys_enter_clock_nanosleep { @naps = count(); }";
    for _ in 0..TIMES {
        target.orphan();
        let both = [(); 2].map(|()| start(&[target.pid()], &probe));
        both.iter().for_each(Tool::wait_attached);
        target.go();
        for one in both {
            let ended = one.interrupt();
            assert_eq!(
                map_counts(&ended.stdout).get("@in"),
                Some(&1000),
                "{ended:?}"
            );
        }
        target.orphan();
        let both = [(); 2].map(|()| start(&[target.pid()], call));
        let (winner, loser): (Vec<_>, Vec<_>) = both
            .into_iter()
            .partition(|one| one.expect_line(|line| line == beeline_e2e::TICK).is_ok());
        target.go();
        assert_eq!((winner.len(), loser.len()), (1, 1));
        for one in loser {
            let ended = one.wait();
            let why = "traces its system calls";
            assert!(
                ended.stderr.iter().any(|line| line.contains(why)),
                "{ended:?}"
            );
        }
        for one in winner {
            let ended = one.interrupt();
            assert_eq!(
                map_counts(&ended.stdout).get("@naps"),
                Some(&20),
                "{ended:?}"
            );
        }
        target.assert_untouched();
    }
    target.finish();
}

/// The children have copies of the hooked code, and no session has adopted them.
#[test]
fn children_forked_after_the_death_are_cleared_too() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    need!(find_program("bpftrace"));
    let scratch = Scratch::new();
    let program = scratch.build("forks.c");
    let mut workload = Workload::start(&program);
    let script = format!(
        "uprobe:{prog}:f_work {{ @[pid] = count(); }} uretprobe:{prog}:f_work {{ @returned[pid] = count(); }} \
         tracepoint:raw_syscalls:sys_enter {{ @calls[pid] = count(); }}",
        prog = program.display()
    );
    let first = start(&[workload.pid()], &script);
    first.wait_attached();
    assert_eq!(workload.go(), "done 10000");
    kill(first);
    let answer = workload.tell("fork");
    let children = answer.strip_prefix("children ").expect("their numbers");
    let children: Vec<u32> = children
        .split(' ')
        .map(|pid| pid.parse().expect("a number"))
        .collect();
    assert!(children.iter().all(|pid| !left_in(*pid).is_empty()));
    let mut all = children.clone();
    all.push(workload.pid());
    let next = start(&all, &script);
    next.wait_attached();
    assert_eq!(workload.go(), "done 10000");
    next.settle();
    let ended = next.interrupt();
    let counts = map_counts(&ended.stdout);
    let of = |map: &str, pid: u32| counts.get(&format!("{map}[{pid}]")).copied();
    assert_eq!(of("@", workload.pid()), Some(100), "{ended:?}");
    assert_eq!(of("@returned", workload.pid()), Some(100), "{ended:?}");
    for pid in &children {
        assert!(of("@", *pid) > Some(1000), "{ended:?}");
        assert!(of("@calls", *pid) > Some(0), "{ended:?}");
        assert!(is_alive(*pid));
    }
    let told = told(&ended);
    assert!(
        matches!(told[..], [line] if line.contains("in 5 processes")),
        "{told:?}"
    );
    for pid in &all {
        assert_eq!((left_in(*pid), altered_text(*pid)), (vec![], vec![]));
    }
    assert_eq!(workload.tell("end"), "ended 33 34 35 36");
    workload.finish();
}

/// Its process number means nothing here: it belongs to another process, or to none. Beeline must
/// not take it for dead.
#[test]
fn a_live_session_of_another_pid_namespace_is_not_touched() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    need!(find_program("bpftrace"));
    let (unshare, nsenter) = (
        need!(find_program("unshare")),
        need!(find_program("nsenter")),
    );
    let scratch = Scratch::new();
    let program = scratch.build("counts.c");
    let mut command = Command::new(unshare);
    command
        .args(["--pid", "--fork", "--mount-proc", "--kill-child"])
        .arg(&program);
    need!(allowed(&command));
    let mut workload = Workload::start_command(command);
    let honest = workload.go();
    let children = format!("/proc/{0}/task/{0}/children", workload.pid());
    let pid = fs::read_to_string(children).expect("unshare has a child");
    let pid: u32 = pid.trim().parse().expect("one child");
    let script = SCRIPT.replace("{prog}", &program.display().to_string());
    let mut command = Command::new(nsenter);
    command.args(["--target", &pid.to_string(), "--pid", "--mount", "--"]);
    command.arg(beeline()).args(["run", "--pid", "1", "--"]);
    command.arg(find_program("bpftrace").expect("asked for before"));
    compile_anew(&mut command);
    let first = Tool::bpftrace(command, &script);
    first.wait_attached();
    let list = listed(pid);
    assert!(
        matches!(&list[..], [one] if one["live"] == true),
        "{list:?}"
    );
    let refused = start(&[pid], &script).wait();
    let why = "traces its system calls";
    assert!(
        refused.stderr.iter().any(|line| line.contains(why)),
        "{refused:?}"
    );
    assert!(String::from_utf8_lossy(&ask(&["detach", "--dead"]).stdout).contains("nothing"));
    assert_eq!(workload.go(), honest);
    assert_one_round(&first.interrupt());
    assert_eq!((left_in(pid), altered_text(pid)), (vec![], vec![]));
    workload.finish();
}

/// Returns whether a command that begins like this one runs at all.
fn allowed(command: &Command) -> Result<(), String> {
    let mut trial = Command::new(command.get_program());
    let output = trial
        .args(["--pid", "--fork", "--mount-proc", "true"])
        .output();
    match output.is_ok_and(|output| output.status.success()) {
        true => Ok(()),
        false => Err("no pid namespace can be made here".to_owned()),
    }
}

#[test]
fn another_process_of_the_sessions_number_is_not_the_session() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    need!(find_program("bpftrace"));
    let mut target = Target::start();
    // Under a shell, which reaps it: its number is free again at once, and no process group has it.
    let mut command = Command::new("sh");
    command.args(["-c", r#""$@" & echo "number $!"; wait"#, "sh"]);
    command.arg(beeline());
    command.args(["run", "--pid", &target.pid().to_string(), "--"]);
    command.arg(find_program("bpftrace").expect("asked for before"));
    compile_anew(&mut command);
    let first = Tool::bpftrace(command, &target.script());
    let line = first.wait_for_line(|line| line.starts_with("number "));
    first.wait_attached();
    let number = line.trim_start_matches("number ").to_owned();
    let session: i32 = number.parse().expect("a number");
    // SAFETY: a plain number: a process of the group that this test has made.
    unsafe { libc::kill(session, libc::SIGKILL) };
    let is_gone = || !Path::new(&format!("/proc/{number}")).exists();
    assert!(until(PATIENCE, is_gone));
    kill(first);
    let mut command = Command::new(target.scratch.build("numbered.c"));
    let trial = command.arg(&number).output().expect("it was built");
    if trial.status.code() == Some(3) {
        return skipped("a process's number cannot be chosen here");
    }
    let impostor = Workload::start_command(command);
    let list = listed(target.pid());
    assert!(
        matches!(&list[..], [one] if one["live"] == false),
        "{list:?}"
    );
    let next = target.trace();
    target.go();
    assert_one_round(&next.interrupt());
    drop(impostor);
    target.finish();
}

/// A debugger's breakpoint lies on a jump, and will bring the jump back.
#[test]
fn patches_that_cannot_be_removed_stay_and_are_reported() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    need!(find_program("bpftrace"));
    // A breakpoint over a breakpoint would prove nothing, and where the heap happens to lie where a
    // jump's pads would go, there is no jump.
    let with_a_jump = || {
        let mut target = Target::start();
        target.orphan();
        let listed = listed(target.pid());
        let mut sites = listed[0]["sites"].as_array().into_iter().flatten();
        let jump = sites.find(|site| site["kind"] == "jump");
        let address = jump.and_then(|site| site["address"].as_u64());
        Some((target, address?))
    };
    let (mut target, site) = (0..TRIES).find_map(|_| with_a_jump()).expect("a jump");
    let memory = File::options()
        .write(true)
        .read(true)
        .open(format!("/proc/{}/mem", target.pid()));
    let memory = memory.expect("ours to write");
    let mut jump = [0];
    memory.read_exact_at(&mut jump, site).expect("mapped");
    memory.write_all_at(&[0xcc], site).expect("mapped");
    let ended = start(&[target.pid()], &target.script()).wait();
    let why = |line: &String| line.contains("was killed") && line.contains("somebody has patched");
    assert!(
        !ended.status.success() && ended.stderr.iter().any(why),
        "{ended:?}"
    );
    assert!(!ask(&["detach", "--dead"]).status.success());
    assert!(!left_in(target.pid()).is_empty());
    memory.write_all_at(&jump, site).expect("mapped");
    let next = target.trace();
    target.go();
    assert_one_round(&next.interrupt());
    target.finish();
}

#[test]
fn detach_takes_out_what_all_dead_sessions_left_and_no_more() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    need!(find_program("bpftrace"));
    let mut targets = [(); 3].map(|()| Target::start());
    let [one, other, living] = &mut targets;
    one.orphan();
    other.orphan();
    let live = living.trace();
    living.go();
    for target in [&*one, other] {
        let text = String::from_utf8_lossy(&ask(&["ps"]).stdout).into_owned();
        let number = target.pid().to_string();
        let line = text
            .lines()
            .find(|line| line.split_whitespace().next() == Some(&number));
        assert!(line.is_some_and(|line| line.contains(" dead ")), "{text}");
    }
    let detached = ask(&["detach", "--dead"]);
    assert!(detached.status.success(), "{detached:?}");
    one.assert_untouched();
    other.assert_untouched();
    assert!(!left_in(living.pid()).is_empty());
    assert_one_round(&live.interrupt());
    let again = ask(&["detach", "--dead"]);
    assert!(again.status.success(), "{again:?}");
    targets.into_iter().for_each(Target::finish);
}
