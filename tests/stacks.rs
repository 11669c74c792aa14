//! Stack traces of code without frame pointers: the callers are those that the C library's
//! `backtrace()` finds. The kernel's own traces go by frame pointers, so only Beeline promises this.

use beeline_e2e::{
    Engine, Scratch, Tool, Turn, Workload, beeline, beeline_wanted, compile_anew, file_offset,
    find_program, kernel_available, need,
};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The most addresses of a stack.
const MOST: usize = 127;

const OPTIMIZED: [&str; 3] = ["-O2", "-fomit-frame-pointer", "-fno-optimize-sibling-calls"];

/// The ways by which the workload calls the probed function.
const WAYS: [&str; 9] = [
    "plain",
    "deep",
    "callback",
    "handler",
    "alternate",
    "thread",
    "catch",
    "cleanup",
    "made",
];

/// A tool that shows stacks, and the program that it does so of.
struct Setting {
    scratch: Scratch,
    tool: PathBuf,
    program: PathBuf,
}

impl Setting {
    fn new(workload: &str, options: &[&str]) -> Setting {
        let scratch = Scratch::new();
        Setting {
            tool: scratch.build("stack_tool.c"),
            program: scratch.build_with(workload, options),
            scratch,
        }
    }

    fn without_frame_pointers(further: &[&str]) -> Setting {
        Setting::new("stacks.cpp", &[&OPTIMIZED, further].concat())
    }

    /// Returns a place as the tool takes it: a function, or "r" and a function for its return.
    fn place(&self, place: &str) -> Result<String, String> {
        let (mark, function) = match place.strip_prefix("r ") {
            Some(function) => ("r", function),
            None => ("", place),
        };
        Ok(format!("{mark}{:x}", file_offset(&self.program, function)?))
    }

    /// Starts the tool by a command for it, for some places of a process.
    fn start(
        &self,
        mut command: Command,
        process: &Workload,
        places: &[&str],
    ) -> Result<Workload, String> {
        command.arg(process.pid().to_string()).arg(&self.program);
        for place in places {
            command.arg(self.place(place)?);
        }
        Ok(Workload::start_command(command))
    }

    fn on_beeline(&self, options: &[&str]) -> Command {
        let mut command = Command::new(beeline());
        command.arg("run").args(options).arg("--").arg(&self.tool);
        compile_anew(&mut command);
        command
    }

    /// Has the program call the probed function by each way. The tool has to show its callers each
    /// time, behind `own` addresses.
    fn shows_callers(&self, ways: &[&str], places: &[&str], own: usize) -> Result<(), String> {
        beeline_wanted()?;
        let mut process = Workload::start(&self.program);
        let mut tool = self.start(self.on_beeline(&[]), &process, places)?;
        for way in ways {
            let answer = process.tell(way);
            let stack = tool.tell("");
            assert_callers(&stack, own, &answer, way);
        }
        tool.finish();
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", process.pid()));
        let maps = maps.map_err(|error| error.to_string())?;
        assert!(!maps.contains("memfd:beeline"), "{maps}");
        process.finish();
        Ok(())
    }

    /// Has bpftrace start the program and show the callers of the probed function at once.
    fn shows_first_callers(&self) -> Result<(), String> {
        beeline_wanted()?;
        let place = self.program.display();
        let mut command = Engine::Beeline.command(find_program("bpftrace")?);
        command.args(["-c", &format!("{place} callback")]);
        let script = format!("uprobe:{place}:s_leaf {{ print(ustack(perf)); }}");
        let ended = Tool::start(with_script(command, &script)).wait();
        let is_answer = |line: &&String| {
            line.starts_with(|c: char| c.is_ascii_digit() || ('a'..='f').contains(&c))
        };
        let answer = ended.stdout.iter().find(is_answer);
        let answer = answer.ok_or_else(|| format!("{ended:?}"))?;
        let frames = ended.stdout.iter().filter(|line| line.starts_with('\t'));
        let addresses = frames.filter_map(|line| line.split_whitespace().next());
        let stack = addresses.collect::<Vec<_>>().join(" ");
        assert_callers(&stack, 1, answer, "started by the tool");
        Ok(())
    }

    /// Compares the stacks of one process by frame pointers, as the kernel and as Beeline find
    /// them.
    fn agrees_with_the_kernel(&self, function: &str, way: &str) -> Result<(), String> {
        beeline_wanted()?;
        kernel_available()?;
        let mut process = Workload::start(&self.program);
        let by_frame_pointers = self.on_beeline(&["--stacks", "frame-pointers"]);
        let stacks = [Command::new(&self.tool), by_frame_pointers].map(|command| {
            let mut tool = self.start(command, &process, &[function])?;
            process.tell(way);
            let stack = tool.tell("");
            tool.finish();
            Ok::<String, String>(stack)
        });
        let [kernel, own] = stacks;
        assert_eq!(own?, kernel?, "Beeline (left) and the kernel (right)");
        process.finish();
        Ok(())
    }
}

fn with_script(mut command: Command, script: &str) -> Command {
    command.args(["-e", script]);
    command
}

/// Fails unless a stack has these callers behind its first addresses.
fn assert_callers(stack: &str, own: usize, answer: &str, what: &str) {
    let found: Vec<_> = stack.split_whitespace().skip(own).collect();
    let expected: Vec<_> = answer.split_whitespace().take(MOST - own).collect();
    let is_equal = |(found, expected): (&&str, &&str)| *expected == "*" || found == expected;
    assert!(
        !found.is_empty()
            && found.len() == expected.len()
            && found.iter().zip(&expected).all(is_equal),
        "{what}: {found:?} in place of {expected:?}"
    );
}

#[test]
fn callers_are_those_of_the_c_library() {
    let _turn = Turn::take();
    let setting = Setting::without_frame_pointers(&[]);
    need!(setting.shows_callers(&WAYS, &["s_leaf"], 1));
}

#[test]
fn callers_are_found_in_a_static_program() {
    let _turn = Turn::take();
    let setting = Setting::without_frame_pointers(&["-static"]);
    need!(setting.shows_callers(&WAYS, &["s_leaf"], 1));
}

/// A watched return has a trampoline's address on the stack.
#[test]
fn callers_are_found_behind_return_probes() {
    let _turn = Turn::take();
    let setting = Setting::without_frame_pointers(&[]);
    let places = [
        "r s_leaf",
        "r s_recurses",
        "r s_wide",
        "r s_variable",
        "r s_sorts",
        "r s_handler",
        "r s_cleans",
    ];
    need!(setting.shows_callers(&WAYS, &places, 0));
    need!(setting.shows_callers(&WAYS, &[&["s_leaf"], &places[1..]].concat(), 1));
}

#[test]
fn libraries_may_come_and_go() {
    let _turn = Turn::take();
    let setting = Setting::without_frame_pointers(&[]);
    let options = [&OPTIMIZED[..], &["-shared", "-fPIC"]].concat();
    let library = setting.scratch.build_with("stacks_library.c", &options);
    let library = path_text(&library);
    let ways = [library, "plain", library, "callback", library];
    need!(setting.shows_callers(&ways, &["s_leaf"], 1));
}

/// The libraries of such a program are mapped after Beeline has come to it.
#[test]
fn callers_are_found_in_a_program_that_the_tool_starts() {
    let _turn = Turn::take();
    let setting = Setting::without_frame_pointers(&[]);
    need!(setting.shows_first_callers());
}

#[test]
fn whole_stacks_by_frame_pointers_are_the_kernels() {
    let _turn = Turn::take();
    // At an endbr64 the kernel takes the caller's caller for the caller.
    let setting = Setting::new("counts.c", &["-fcf-protection=none"]);
    need!(setting.agrees_with_the_kernel("wl_inner", "1"));
}

fn path_text(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}
