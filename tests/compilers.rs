//! The user chooses the compiler of a tool's programs, which makes no difference to the tool's
//! output: not even while LLVM's code replaces the baseline compiler's.

use beeline_e2e::{
    PATIENCE, Scratch, TICK, Tool, Turn, Workload, beeline, beeline_wanted, find_program, need,
    until,
};
use std::os::unix::fs::chown;
use std::path::Path;
use std::process::Command;

/// Calls of `wl_add` in one round of `counts.c`, and the sum of their first arguments.
const CALLS: u64 = 1000;
const SUM: u64 = 499_500;

/// A target, and a bpftrace that counts its calls.
struct Session {
    workload: Workload,
    tool: Tool,
    rounds: u64,
    _scratch: Scratch,
}

impl Session {
    /// Starts them with a directory for compiled code, or none if it is empty.
    fn start(options: &[&str], cache: &Path) -> Session {
        let scratch = Scratch::new();
        let program = scratch.build("counts.c");
        let workload = Workload::start(&program);
        let mut command = Command::new(beeline());
        command.env("BEELINE_CACHE", cache);
        command.args(["run", "--verbose"]).args(options).arg("--");
        command.arg(find_program("bpftrace").expect("looked for before"));
        command.args(["-p", &workload.pid().to_string()]);
        let script = "uprobe:PROG:wl_add { @calls = count(); @sum = sum(arg0); } \
             uretprobe:PROG:wl_add { @returns = count(); }";
        let tool = Tool::bpftrace(
            command,
            &script.replace("PROG", &program.display().to_string()),
        );
        tool.wait_attached();
        Session {
            workload,
            tool,
            rounds: 0,
            _scratch: scratch,
        }
    }

    fn go(&mut self) {
        self.workload.go();
        self.rounds += 1;
    }

    /// Returns the compiler of the code that runs in the target, according to `beeline ps`.
    fn engines(&self) -> Vec<String> {
        let output = Command::new(beeline()).args(["ps", "--json"]).output();
        let output = output.expect("beeline can be started");
        let list: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let ours = |process: &&serde_json::Value| process["pid"] == self.workload.pid();
        let processes = list.as_array().into_iter().flatten().filter(ours);
        let sites = processes.flat_map(|process| process["sites"].as_array().into_iter().flatten());
        let programs = sites.flat_map(|site| site["programs"].as_array().into_iter().flatten());
        let engine = |program: &serde_json::Value| program["engine"].as_str().map(str::to_owned);
        programs.filter_map(engine).collect()
    }

    /// Ends the tool, whose counts are exact; returns Beeline's messages.
    fn end(self) -> Vec<String> {
        let ended = self.tool.interrupt();
        let printed = |what: &str| {
            let line = ended.stdout.iter().find(|line| line.starts_with(what));
            line.unwrap_or_else(|| panic!("no {what} in {ended:?}"))
                .clone()
        };
        for name in ["@calls", "@returns"] {
            assert_eq!(printed(name), format!("{name}: {}", self.rounds * CALLS));
        }
        assert_eq!(printed("@sum"), format!("@sum: {}", self.rounds * SUM));
        assert!(self.rounds > 0 && printed(TICK) == TICK);
        self.workload.finish();
        ended.stderr
    }
}

fn has_llvm() -> Result<(), String> {
    beeline_wanted()?;
    find_program("bpftrace")?;
    let path = beeline().with_file_name("beeline-llvm");
    match path.is_file() {
        true => Ok(()),
        false => Err(format!("there is no {}", path.display())),
    }
}

#[test]
fn llvms_code_takes_over_and_nothing_is_lost() {
    let _turn = Turn::take();
    need!(has_llvm());
    let mut session = Session::start(&[], Path::new(""));
    let changed = until(PATIENCE, || {
        session.go();
        session.engines() == ["llvm", "llvm"]
    });
    assert!(changed, "{:?}", session.engines());
    session.go();
    let said = session.end();
    assert!(
        said.iter().any(|line| line.contains("code of llvm after")),
        "{said:?}"
    );
}

#[test]
fn the_user_can_choose_the_compiler() {
    let _turn = Turn::take();
    need!(has_llvm());
    for engine in ["baseline", "llvm"] {
        let mut session = Session::start(&["--engine", engine], Path::new(""));
        assert_eq!(session.engines(), [engine, engine], "from the start");
        session.go();
        session.end();
    }
    let mut command = Command::new(beeline());
    let unknown = command
        .args(["run", "--engine", "other", "--", "true"])
        .output();
    assert_eq!(
        unknown.expect("beeline can be started").status.code(),
        Some(2)
    );
}

#[test]
fn compiled_code_is_found_again_and_only_if_it_is_ours() {
    let _turn = Turn::take();
    need!(has_llvm());
    let cache = tempfile::tempdir().expect("a temporary directory");
    let cache = cache.path().join("cache");
    let mut first = Session::start(&["--engine", "llvm"], &cache);
    first.go();
    first.end();
    let files = std::fs::read_dir(&cache)
        .expect("made by the first")
        .count();
    assert!(files >= 2, "one for each program, and there are {files}");
    let mut second = Session::start(&[], &cache);
    assert_eq!(second.engines(), ["llvm", "llvm"], "at once");
    second.go();
    second.end();
    if chown(&cache, Some(12345), None).is_ok() {
        let mut third = Session::start(&["--engine", "llvm"], &cache);
        third.go();
        let said = third.end();
        let refused = |line: &String| line.contains("belongs to user 12345");
        assert!(said.iter().any(refused), "{said:?}");
    }
}

#[test]
fn a_file_that_is_no_compiled_program_is_refused() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let mut command = Command::new(beeline());
    command.args(["run", "--aot", "/bin/true", "--", "true"]);
    let output = command.output().expect("beeline can be started");
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("/bin/true") && said.contains("compile it again"),
        "{said}"
    );
}
