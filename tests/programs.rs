//! Everyday programs, started by a shell all of whose system calls are traced, with those of its
//! children and their programs: they end as they do untraced, print the same, and no program that
//! they run is missed.
//!
//! `BEELINE_SOAK` makes the tests run for so many seconds.

use beeline_e2e::{
    Lines, Scratch, Tool, Turn, beeline_wanted, compile_anew, find_program, map_counts, need,
    skipped, soak,
};
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A script for a shell.
struct Job {
    /// The programs that it needs (Debian's own Python, as others are scripts that run it); without
    /// one of them it is skipped.
    needs: &'static [&'static str],
    /// The script, for an empty directory. Its output has to be the same each time.
    script: &'static str,
    /// The number of program runs (successful `execve`), if it is always the same.
    runs: Option<u64>,
}

const JOBS: &[Job] = &[
    Job {
        needs: &[],
        script: "i=0; while [ $i -lt 50 ]; do echo $i | cat | tr 0-9 a-j; i=$((i+1)); done; \
                 sh -c 'exit 3'; echo $?; sh -c 'kill -9 $$'; echo $?; (exit 4) & wait $!; echo $?",
        runs: Some(102),
    },
    Job {
        needs: &["gcc"],
        script: "for i in 1 2 3; do printf '#include <stdio.h>\nint f%d(int x) { return printf(\"%%d\", x); }\n' \
                 $i >$i.c; gcc -O2 -c $i.c & done; wait; ld -r -o all.o 1.o 2.o 3.o && nm all.o",
        runs: None,
    },
    Job {
        needs: &["/usr/bin/python3"],
        script: "/usr/bin/python3 -c '
import asyncio, multiprocessing, os, signal, subprocess, threading
print([subprocess.run([\"sh\", \"-c\", f\"exit {i}\"]).returncode for i in range(5)])
with multiprocessing.get_context(\"fork\").Pool(2) as pool: print(pool.map(abs, range(-9, 9)))
async def ask():
    asked = [await asyncio.create_subprocess_exec(\"echo\", str(i), stdout=-1) for i in range(5)]
    print([(await one.communicate())[0] for one in asked])
asyncio.run(ask())
said = []
def run(): said.append(subprocess.check_output([\"echo\", \"thread\"]))
threads = [threading.Thread(target=run) for _ in range(5)]
[thread.start() for thread in threads]; [thread.join() for thread in threads]; print(said)
signal.signal(signal.SIGALRM, lambda *_: None); signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
print(sum(len(os.listdir(\"/etc\")) > 0 and os.stat(\"/\").st_nlink > 0 for _ in range(300)))
'",
        runs: Some(16),
    },
    // Not the first thread of the process.
    Job {
        needs: &["/usr/bin/python3"],
        script: "for i in 1 2 3 4 5; do /usr/bin/python3 -c '
import os, threading
thread = threading.Thread(target=os.execvp, args=(\"sh\", [\"sh\", \"-c\", \"echo run; ls / >/dev/null; exit 7\"]))
thread.start(); thread.join()'; echo $?; done",
        runs: Some(15),
    },
    Job {
        needs: &["perl"],
        script: "perl -e 'for (1..20) { my $p = fork; exit $_ if !$p; waitpid $p, 0; print $? >> 8, \" \" } \
                 $SIG{USR1} = sub { print \"caught\\n\" }; kill USR1, $$ for 1..5; print `echo said`'",
        runs: Some(2),
    },
    Job {
        needs: &["strace"],
        script: "strace -f -o /dev/null sh -c 'echo traced by somebody else | cat'; echo $?",
        runs: None,
    },
    Job {
        needs: &["tar", "gzip", "xargs", "md5sum"],
        script: "tar cf - -C /etc default | gzip | tar tzf - | sort | md5sum; seq 1 40 | xargs -n1 -P4 echo | sort -n; \
                 timeout 0.2 sleep 5; echo $?",
        runs: None,
    },
];

/// Scripts that take too long for every run of the tests.
const LONG_JOBS: &[Job] = &[
    Job {
        needs: &["/usr/bin/python3"],
        script: "/usr/bin/python3 -c 'import test.test_subprocess' 2>/dev/null || exit 0
                 for t in subprocess popen fork1 wait3 wait4 select epoll mmap pty posix; do \
                 /usr/bin/python3 -m test -q test_$t >out 2>&1; echo $t $?; done",
        runs: None,
    },
    Job {
        needs: &["git"],
        script: "git init -q one; cd one; seq 1 2000 >numbers; git add .; \
                 git -c user.name=a -c user.email=a@b commit -qm one; cd ..; git clone -q one two; cd two; \
                 git log --format=%s; git gc -q; git fsck 2>&1; md5sum numbers",
        runs: None,
    },
    Job {
        needs: &["node"],
        script: "node -e '
const http = require(\"http\"), child = require(\"child_process\");
const server = http.createServer((q, a) => a.end(\"ok\" + q.url)).listen(0, \"127.0.0.1\", async () => {
    let count = 0;
    const ask = path => new Promise((done, failed) => http.get({ port: server.address().port, host: \"127.0.0.1\", path },
        answer => answer.on(\"data\", () => count++).on(\"end\", done)).on(\"error\", failed));
    await Promise.all([...Array(10)].map(async () => { for (let i = 0; i < 30; i++) await ask(\"/\" + i); }));
    console.log(count, child.execSync(\"echo said\").toString(), child.spawnSync(\"sh\", [\"-c\", \"exit 7\"]).status);
    process.exit(0);
});'",
        runs: None,
    },
    Job {
        needs: &["javac", "java"],
        script: "echo 'import java.util.concurrent.*; public class T { public static void main(String[] a) \
                 throws Exception { var pool = Executors.newFixedThreadPool(8); var all = new \
                 java.util.ArrayList<Future<Long>>(); for (int i = 0; i < 64; i++) all.add(pool.submit(() -> { \
                 long s = 0; for (int j = 0; j < 200; j++) s += new byte[100000].length; return s; })); \
                 long sum = 0; for (var one : all) sum += one.get(); pool.shutdown(); System.gc(); \
                 System.out.println(sum); } }' >T.java; javac T.java && java -Xmx64m T",
        runs: None,
    },
    Job {
        needs: &["cargo"],
        script: "cargo init -q --name tiny --vcs none . && CARGO_TARGET_DIR=built cargo build -q --offline && built/debug/tiny",
        runs: None,
    },
    Job {
        needs: &["gdb"],
        script: "gdb -batch -ex 'break exit' -ex run -ex continue /bin/true 2>&1 | grep -c 'exited normally'",
        runs: None,
    },
];

#[test]
fn they_run_as_they_do_untraced() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let bpftrace = need!(find_program("bpftrace"));
    let end = Instant::now() + soak();
    let long = if soak().is_zero() { &[] } else { LONG_JOBS };
    let jobs: Vec<&Job> = JOBS.iter().chain(long).filter(|job| can_run(job)).collect();
    loop {
        for job in &jobs {
            check(job.script, job.runs, &bpftrace);
        }
        if Instant::now() >= end {
            break;
        }
    }
}

#[test]
fn a_go_server_answers() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let bpftrace = need!(find_program("bpftrace"));
    let go = need!(find_program("go"));
    let scratch = Scratch::new();
    let program = scratch.build_go(&go, "server.go");
    check(&program.display().to_string(), Some(11), &bpftrace);
}

fn can_run(job: &Job) -> bool {
    let missing = job.needs.iter().find_map(|name| find_program(name).err());
    missing.inspect(|why| skipped(why)).is_none()
}

/// Runs a script untraced, and traced.
fn check(script: &str, runs: Option<u64>, bpftrace: &Path) {
    let alone = Shell::start(script).run();
    let shell = Shell::start(script);
    let mut command = Command::new(beeline_e2e::beeline());
    command.args(["run", "--pid", &shell.child.id().to_string(), "--"]);
    command.arg(bpftrace);
    compile_anew(&mut command);
    let tool = Tool::bpftrace(command, SCRIPT);
    tool.wait_attached();
    let traced = shell.run();
    tool.settle();
    let ended = tool.interrupt();
    assert!(ended.status.success(), "{script}\n{ended:?}");
    assert_eq!(traced, alone, "{script}\n{ended:?}");
    let counts = map_counts(&ended.stdout);
    assert!(counts.get("@calls") > Some(&0), "{script}\n{ended:?}");
    if runs.is_some() {
        assert_eq!(counts.get("@runs").copied(), runs, "{script}\n{ended:?}");
    }
    // bpftrace's messages about a Ctrl-C that interrupts it do not matter. Beeline cannot trace the
    // processes that strace and gdb trace, and says so, as it does of instructions that end Go's
    // threads and handlers.
    let expected = |line: &str| {
        let expected = ["traced by strace", "traced by gdb", "are not seen;"];
        expected.iter().any(|words| line.contains(words))
    };
    let matters = |line: &&String| line.starts_with("beeline") && !expected(line);
    let said: Vec<_> = ended.stderr.iter().filter(matters).collect();
    assert!(said.is_empty(), "{script}: {said:?}");
}

const SCRIPT: &str = "tracepoint:raw_syscalls:sys_enter { @calls = count(); } \
    tracepoint:raw_syscalls:sys_exit { @exits = count(); } \
    tracepoint:syscalls:sys_exit_execve /args->ret == 0/ { @runs = count(); }";

/// The time limit of a script: traced ones take long on a slow machine.
const SCRIPT_PATIENCE: Duration = Duration::from_secs(400);

/// A shell that waits for a line, and then runs a script in a directory of its own.
struct Shell {
    child: Child,
    output: Lines,
    _directory: Scratch,
}

impl Shell {
    fn start(script: &str) -> Self {
        let directory = Scratch::new();
        let script = format!(
            "exec 2>&1; read go; cd {}; {script}",
            directory.path().display()
        );
        let mut child = Command::new("sh")
            .args(["-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("there is a shell");
        let output = Lines::collect(child.stdout.take().expect("stdout is piped"));
        Self {
            child,
            output,
            _directory: directory,
        }
    }

    /// Returns its exit status in words, and its output.
    fn run(mut self) -> (String, Vec<String>) {
        let mut input = self.child.stdin.take().expect("stdin is piped");
        input.write_all(b"go\n").expect("the shell reads");
        drop(input);
        let output = self.output.to_the_end(SCRIPT_PATIENCE);
        let status = self.child.try_wait().expect("it is our child");
        let status = status.map_or_else(|| self.wait_a_moment(), |status| status.to_string());
        (status, output)
    }

    /// It may close its output a moment before it ends.
    fn wait_a_moment(&mut self) -> String {
        let ended = beeline_e2e::until(beeline_e2e::PATIENCE, || {
            self.child.try_wait().is_ok_and(|status| status.is_some())
        });
        match ended {
            true => self.child.wait().expect("it is our child").to_string(),
            false => "it hangs".to_owned(),
        }
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
