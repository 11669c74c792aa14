//! Yama's settings, in a virtual machine whose kernel has it.

use std::path::{Path, PathBuf};
use std::process::Command;

use beeline_e2e::{
    Answer, Guest, Options, Scratch, Turn, beeline, beeline_wanted, file_offset, find_program, need,
};

use crate::start_library;

/// Starts a server by the command `$1`, then a tool in a session of its own, which does not descend
/// from the server, nor the server from it. Prints what the tool says.
const TRACED: &str = r#"
cd "$(mktemp -d)" && mkfifo server tool
sh -c "$1" <server >served 2>server.err & shell=$!
exec 4>server
until grep -q ready served; do kill -0 $shell || { cat server.err; exit 1; }; sleep 0.05; done
server=$(pidof "$2")
beeline run -- /test/attach "$server" "/test/$2" 1 "P:$3" <tool >traced & tool=$!
exec 5>tool
until grep -q attached traced || ! kill -0 $tool 2>/dev/null; do sleep 0.05; done
echo go >&4
until grep -q done served; do sleep 0.05; done
exec 4>&- 5>&-
wait $tool
code=$?
wait $shell
cat server.err >&2
cat traced
exit $code
"#;

/// Nobody may write read-only memory by `/proc/PID/mem`.
const HARDENED: &str = "proc_mem.force_override=never";

/// A guest in which an ordinary user runs servers and tools.
struct Place {
    guest: Guest,
    /// Programs with a function that is called a hundred times, and that function's offset.
    servers: Vec<(&'static str, u64)>,
}

impl Place {
    fn new() -> Result<Self, String> {
        beeline_wanted()?;
        Guest::available("6.12")?;
        let scratch = Scratch::new();
        let archive = start_library("libbeeline_start.a")?.display().to_string();
        let asking = ["-static", "-Wl,-u,beeline_start", &archive];
        // All are built at the same path.
        let built = [
            (
                "static",
                renamed(scratch.build_with("counts.c", &["-static"]), "static"),
            ),
            (
                "asking",
                renamed(scratch.build_with("counts.c", &asking), "asking"),
            ),
            ("counts", scratch.build("counts.c")),
        ];
        let offset =
            |path: &Path| file_offset(path, "wl_square").expect("a symbol of the workload");
        let servers = built.iter().map(|(name, path)| (*name, offset(path)));
        let servers = servers.collect();
        let mut files = vec![
            (stripped(&scratch)?, "/test/beeline".to_owned()),
            (
                start_library("libbeeline_start.so")?,
                "/test/libbeeline_start.so".to_owned(),
            ),
            (scratch.build("attach.c"), "/test/attach".to_owned()),
        ];
        files.extend(built.map(|(name, path)| (path, format!("/test/{name}"))));
        let guest = Guest::boot(&Options {
            parameters: HARDENED,
            files,
            ..Options::default()
        })?;
        guest.check("echo user:x:1000:1000::/tmp:/bin/sh >>/etc/passwd; chmod 1777 /tmp");
        guest.put(TRACED.as_bytes(), "/tmp/traced");
        Ok(Self { guest, servers })
    }

    /// Sets kernel.yama.ptrace_scope.
    fn set(&self, scope: u32) {
        self.guest
            .check(&format!("echo {scope} >/proc/sys/kernel/yama/ptrace_scope"));
    }

    fn as_user(&self, script: &str) -> Answer {
        self.guest.put(script.as_bytes(), "/tmp/script");
        self.guest
            .run("su user -c 'PATH=/test:$PATH exec sh /tmp/script'")
    }

    /// Starts a server by a command, and traces it.
    fn trace(&self, command: &str, server: &str) -> Answer {
        let known = self.servers.iter().find(|(name, _)| *name == server);
        let (_, offset) = known.expect("a server");
        self.as_user(&format!(
            "exec sh /tmp/traced '{command}' {server} {offset:#x}"
        ))
    }

    fn assert_traced(&self, command: &str, server: &str) -> Answer {
        let answer = self.trace(command, server);
        assert_eq!(
            answer.stdout, "attached\ncount 100\n",
            "{command}: {answer:?}"
        );
        answer
    }

    fn assert_refused(&self, command: &str, server: &str, words: &[&str]) {
        let answer = self.trace(command, server);
        assert_eq!(answer.code, 1, "{command}: {answer:?}");
        for word in words {
            assert!(
                answer.stderr.contains(word),
                "{command}: no {word}: {answer:?}"
            );
        }
    }
}

fn renamed(path: PathBuf, name: &str) -> PathBuf {
    let new = path.with_file_name(name);
    std::fs::rename(path, &new).expect("the same directory");
    new
}

/// Returns Beeline without what only debuggers read, for which a guest has no room.
fn stripped(scratch: &Scratch) -> Result<PathBuf, String> {
    let small = scratch.path().join("beeline");
    let mut strip = Command::new(find_program("strip")?);
    let status = strip.arg("-o").arg(&small).arg(beeline()).status();
    assert!(status.expect("strip runs").success());
    Ok(small)
}

/// One boot serves all: it takes seconds.
#[test]
fn a_process_that_asks_is_traced_by_those_whom_yama_would_refuse() {
    let _turn = Turn::take();
    let place = need!(Place::new());

    place.set(1);
    place.assert_refused(
        "exec counts",
        "counts",
        &[
            "those that have asked for it, are traced",
            "may not be traced: kernel.yama.ptrace_scope is 1",
            "beeline start",
            "libbeeline_start.so",
        ],
    );
    place.assert_traced("LD_PRELOAD=/test/libbeeline_start.so exec counts", "counts");
    place.assert_traced("exec asking", "asking");
    let doctor = place.as_user("beeline doctor");
    let fix = "LD_PRELOAD=/test/libbeeline_start.so";
    assert!(
        doctor.code == 1 && doctor.stdout.contains(fix),
        "{doctor:?}"
    );

    // What `beeline start` asks for lasts through `execve`, and its library is loaded by children.
    let answer = place.assert_traced("exec beeline start --wait 0 -- static", "static");
    assert!(
        answer.stderr.contains("static is linked statically"),
        "{answer:?}"
    );
    let child = r#"exec beeline start --wait 0 -- sh -c "exec 3<&0; counts <&3 & wait""#;
    place.assert_traced(child, "counts");

    // Here, asking is of no use.
    for (scope, remedy) in [(2, "CAP_SYS_PTRACE"), (3, "boot")] {
        place.set(scope);
        let answer = place.as_user(
            "LD_PRELOAD=/test/libbeeline_start.so sleep 9 & beeline run --pid $! -- echo begun; kill $!",
        );
        let why = format!("may not be traced: kernel.yama.ptrace_scope is {scope}");
        let is_said = answer.stderr.contains(&why) && answer.stderr.contains(remedy);
        assert!(is_said && answer.stdout.is_empty(), "{scope}: {answer:?}");
    }
}
