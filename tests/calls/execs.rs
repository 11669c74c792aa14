//! Programs that run other programs: their calls are seen up to the `execve`, and those of the new
//! programs from the first on.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use beeline_e2e::{Scratch, find_program, need};

use crate::trace::{same_calls, same_calls_but};

/// Returns a directory with the workload and the programs that it runs.
struct Stage(Scratch);

impl Stage {
    fn new() -> Stage {
        let scratch = Scratch::new();
        scratch.build("calls/execs.c");
        let stage = Stage(scratch);
        stage.0.build("calls/leaf.c");
        stage
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Adds one more leaf, built differently.
    fn leaf(&self, name: &str, build: impl FnOnce(&Scratch) -> std::path::PathBuf) {
        let other = Scratch::new();
        let built = build(&other);
        std::fs::copy(built, self.path().join(name)).expect("a copy of the leaf");
    }

    fn write_executable(&self, name: &str, mode: u32, content: &[u8]) {
        let file = self.path().join(name);
        std::fs::write(&file, content).expect("a file in the scratch directory");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode))
            .expect("a file of our own");
    }

    fn target(&self) -> Command {
        let mut command = Command::new(self.path().join("execs"));
        // The loader's search path depends on it.
        command
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .current_dir(self.path());
        command
    }
}

#[test]
fn programs_that_children_run_are_seen() {
    let stage = Stage::new();
    need!(same_calls(
        || stage.target(),
        &["fork exec", "vfork exec", "by descriptor", "fork exec"]
    ));
}

#[test]
fn an_exec_that_fails_changes_nothing() {
    let stage = Stage::new();
    need!(same_calls(|| stage.target(), &["failing", "fork exec"]));
}

/// Its child ends while it is followed, and the parent is told.
#[test]
fn an_exec_that_kills_ends_the_process() {
    let stage = Stage::new();
    stage.write_executable("nowhere", 0o755, &program_for_nowhere());
    // Events that the kernel shows after the call that kills are not seen: the program that could
    // run anything is gone.
    let kills = libc::SYS_execve as u32;
    need!(same_calls_but(
        || stage.target(),
        &["given up", "fork exec"],
        |number| number == kills
    ));
}

/// An executable (`ElfN_Ehdr` and one `ElfN_Phdr` of elf(5)) that asks to be loaded where nothing
/// can be.
fn program_for_nowhere() -> Vec<u8> {
    let mut elf = b"\x7fELF\x02\x01\x01".to_vec();
    elf.resize(16, 0);
    let (executable, x86_64, version) = (2_u16, 62_u16, 1_u32);
    elf.extend(
        [executable, x86_64]
            .iter()
            .flat_map(|half| half.to_le_bytes()),
    );
    elf.extend(version.to_le_bytes());
    let (entry, headers, sections) = (0x40_0000_u64, 64_u64, 0_u64);
    elf.extend(
        [entry, headers, sections]
            .iter()
            .flat_map(|long| long.to_le_bytes()),
    );
    elf.extend([0; 4]);
    let (size, header_size, count) = (64_u16, 56_u16, 1_u16);
    elf.extend(
        [size, header_size, count, 0, 0, 0]
            .iter()
            .flat_map(|half| half.to_le_bytes()),
    );
    let (load, readable_code) = (1_u32, 5_u32);
    elf.extend(
        [load, readable_code]
            .iter()
            .flat_map(|word| word.to_le_bytes()),
    );
    let (offset, address, physical, in_file, in_memory, align) =
        (0, 0xffff_f000_0000_0000, 0, 120, 4096, 4096_u64);
    let longs = [offset, address, physical, in_file, in_memory, align];
    elf.extend(longs.iter().flat_map(|long: &u64| long.to_le_bytes()));
    elf
}

#[test]
fn scripts_are_seen_as_their_interpreters() {
    let stage = Stage::new();
    stage.write_executable("script", 0o755, b"#!/bin/sh\n./leaf $1\n");
    need!(same_calls(|| stage.target(), &["script"]));
}

#[test]
fn static_programs_are_seen() {
    let stage = Stage::new();
    stage.leaf("leaf-static", |scratch| {
        scratch.build_with("calls/leaf.c", &["-static"])
    });
    // Repeated, as each run has its heap elsewhere, and the heap must not find itself hemmed in.
    need!(same_calls(|| stage.target(), &["static"; 20]));
}

#[test]
fn programs_of_musl_are_seen() {
    let stage = Stage::new();
    let musl = need!(find_program("musl-gcc"));
    stage.leaf("leaf-musl", |scratch| {
        scratch.build_by(&musl, "calls/leaf.c", &["-static"])
    });
    need!(same_calls(|| stage.target(), &["musl"]));
}

#[test]
fn programs_of_go_are_seen() {
    let stage = Stage::new();
    let go = need!(find_program("go"));
    stage.leaf("leaf-go", |scratch| scratch.build_go(&go, "calls/leaf.go"));
    // Its runtime makes calls of its own at random.
    let own = [libc::SYS_getppid, libc::SYS_execve, libc::SYS_wait4].map(|number| number as u32);
    let threads = need!(same_calls_but(
        || stage.target(),
        &["go"],
        |number| !own.contains(&number)
    ));
    let asked = |thread: &Vec<String>| thread.iter().filter(|call| *call == "+110").count();
    let total: usize = threads.iter().map(asked).sum();
    assert_eq!(total, 7, "{threads:?}");
}

#[test]
fn programs_that_become_another_user_are_seen() {
    let stage = Stage::new();
    let leaf = std::fs::read(stage.path().join("leaf")).expect("the leaf was built");
    stage.write_executable("leaf-suid", 0o4755, &leaf);
    need!(same_calls(|| stage.target(), &["set user"]));
}

#[test]
fn a_program_that_runs_another_one_itself_is_seen() {
    let stage = Stage::new();
    need!(same_calls(
        || stage.target(),
        &["became", "fork exec", "became", "became"]
    ));
}

#[test]
fn children_of_threads_run_programs() {
    let stage = Stage::new();
    // It is random which of the threads waits for which.
    let by_chance = libc::SYS_futex as u32;
    need!(same_calls_but(
        || stage.target(),
        &["exec of thread"],
        |number| number == by_chance
    ));
}
