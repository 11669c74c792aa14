//! `beeline start` under sessions that ask for every process, in a pid namespace of their own: they
//! do not affect the machine's other processes.

use std::process::{Command, Stdio};

use beeline_e2e::{Scratch, Tool, Turn, beeline, beeline_wanted, find_program, map_counts, need};

/// Starts the commands given after the script, one after the other, once the script is attached.
/// Each line of output describes a command's end; 124 if it took 30 seconds.
const WITHIN: &str = r#"
# Without it what is started in the background ignores SIGINT.
set -m
"$0" run -- bpftrace -e "$1" > output & session=$!
while ! grep -q begun output; do kill -0 $session || exit 1; sleep 0.02; done
shift
for command; do timeout -k 1 30 "$0" start --wait 15000 -- $command; echo "ended $?"; done
kill -INT $session
wait $session
cat output"#;

/// Returns bpftrace's final output.
fn started(script: &str, commands: &[&str]) -> Result<Vec<String>, String> {
    find_program("bpftrace")?;
    find_program("unshare")?;
    beeline_wanted()?;
    // SAFETY: geteuid only answers a number.
    if unsafe { libc::geteuid() } != 0 {
        return Err("only root can make a pid namespace".to_owned());
    }
    let scratch = Scratch::new();
    let mut command = Command::new("unshare");
    command
        .args(["--pid", "--fork", "--kill-child", "--mount", "--mount-proc"])
        .args(["bash", "-c", WITHIN])
        .arg(beeline())
        .arg(format!(
            "{script} interval:ms:50 {{ printf(\"begun\\n\"); }}"
        ))
        .args(commands)
        .current_dir(scratch.path())
        .stdin(Stdio::null());
    let ended = Tool::start(command).wait();
    let said: Vec<_> = ended
        .stdout
        .iter()
        .filter(|line| line.starts_with("ended"))
        .collect();
    assert!(
        said.len() == commands.len() && said.iter().all(|line| *line == "ended 0"),
        "{ended:?}"
    );
    assert!(
        !ended
            .stderr
            .iter()
            .any(|line| line.contains("runs untraced")),
        "{ended:?}"
    );
    Ok(ended.stdout)
}

/// The session also sees each failing `execve` of the search in `PATH`.
#[test]
fn a_command_is_looked_for_under_a_session_that_traces_calls() {
    let _turn = Turn::take();
    let script = "tracepoint:raw_syscalls:sys_enter /comm == \"true\"/ { @[comm] = count(); }";
    let counts = map_counts(&need!(started(script, &["true", "/bin/true", "true"])));
    assert!(
        counts.get("@[true]").is_some_and(|count| count % 3 == 0),
        "{counts:?}"
    );
}

#[test]
fn a_function_of_a_library_is_seen_from_the_first_call() {
    let _turn = Turn::take();
    let libc = "/lib/x86_64-linux-gnu/libc.so.6";
    let script = format!("uprobe:{libc}:exit /comm == \"true\"/ {{ @[comm] = count(); }}");
    let counts = map_counts(&need!(started(&script, &["true", "/bin/true"])));
    assert_eq!(counts.get("@[true]"), Some(&2), "{counts:?}");
}
