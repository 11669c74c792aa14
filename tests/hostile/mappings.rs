//! A process does what it can to the memory that Beeline has mapped into it, and to the files behind
//! it that pass through its descriptors for a moment.
//!
//! An honest process works meanwhile, and every call of its is counted.

use std::time::{Duration, Instant};

use beeline_e2e::{Ended, Tool, Turn, Workload, find_program, map_counts, need, remark};

use crate::world::{World, as_user, isolated};

/// Calls of `wl_add` in a round of the honest process.
const CALLS: u64 = 1000;
const ROUNDS: u64 = 2;
/// The user that attacks: Debian's "daemon".
const STRANGER: u32 = 1;
/// The user whose process is honest, and Beeline's own.
const OWN: u32 = 0;
/// The time after which Beeline is taken not to end, on the busiest machine. It should take 2 s.
const PATIENCE: Duration = Duration::from_secs(20);
const SCRIPT: &str = "uprobe:{prog}:wl_add { @ = count(); @by[pid] = count(); if (arg0 == 123456) { printf(\"never\"); } }";

/// An attacker's work: the answer to each of its attacks, `None` once it has died of one.
type Answers = Vec<Option<String>>;

/// Has a process attack, and an honest one work before and after each attack. Returns the answers.
/// The honest process's calls are counted to the last.
fn attack(world: &World, user: u32, attacks: &[&str]) -> (Answers, Ended) {
    let mut honest = world.start_as(OWN);
    let mut attacker = start(world, user, &["attack"]);
    let script = world.script(SCRIPT);
    let tool = Tool::bpftrace(isolated(&world.bpftrace), &script);
    tool.wait_attached();
    let mut answers = Vec::new();
    for attack in attacks {
        honest.go();
        answers.push(attacker.ask(attack).ok());
        // The agent runs into what is left of its memory.
        let _ = attacker.ask("go");
        honest.go();
    }
    let ended = end(tool);
    let key = format!("@by[{}]", honest.pid());
    let counted = map_counts(&ended.stdout).get(key.as_str()).copied();
    let known = CALLS * ROUNDS * attacks.len() as u64;
    assert_eq!(counted, Some(known), "{attacks:?}: {ended:?}");
    honest.finish();
    attacker.kill();
    (answers, ended)
}

fn start(world: &World, user: u32, arguments: &[&str]) -> Workload {
    let mut command = as_user(user, &world.program);
    command.args(arguments);
    Workload::start_command(command)
}

/// Interrupts a tool, which must end soon and well.
fn end(tool: Tool) -> Ended {
    tool.settle();
    let since = Instant::now();
    let ended = tool.interrupt();
    let took = since.elapsed();
    remark(&format!("it took {took:?} to end"));
    assert!(ended.status.success(), "{ended:?}");
    assert!(took < PATIENCE, "took {took:?}: {ended:?}");
    ended
}

/// Asserts that an attack was made on some mappings, and has worked on none of them.
fn assert_harmless(attack: &str, answer: Option<&String>) {
    let answer = answer.unwrap_or_else(|| panic!("{attack}: it has died"));
    let (count, harmed) = answer.split_once(" mappings, ").expect("two numbers");
    assert!(count != "0" && harmed == "0 harmed", "{attack}: {answer}");
}

/// Nobody but Beeline may write these: the agent runs in all targets, and a pool holds the programs,
/// sites and links of one.
#[test]
fn code_of_beelines_can_be_written_by_no_target() {
    let _turn = Turn::take();
    let world = need!(World::new("mappings.c"));
    let attacks: Vec<String> = ["agent", "trampolines"]
        .iter()
        .flat_map(|file| {
            let attacks = [
                "protect",
                "poke",
                "poke_sibling",
                "write_vector",
                "alias",
                "resize",
                "overwrite",
                "punch",
            ];
            attacks.map(|attack| format!("{attack} {file}"))
        })
        .collect();
    let attacks: Vec<&str> = attacks.iter().map(String::as_str).collect();
    for user in [STRANGER, OWN] {
        let (answers, ended) = attack(&world, user, &attacks);
        for (attack, answer) in attacks.iter().zip(&answers) {
            assert_harmless(attack, answer.as_ref());
        }
        // Whoever tries goes on being traced.
        let all = map_counts(&ended.stdout)["@"];
        let known = (CALLS * ROUNDS + 1) * attacks.len() as u64;
        assert_eq!(all, known, "{ended:?}");
    }
}

/// The superuser may open the files behind its mappings. To take one away would kill Beeline.
#[test]
fn no_file_can_be_resized() {
    let _turn = Turn::take();
    let world = need!(World::new("mappings.c"));
    let attacks = ["resize session", "resize map-", "resize ring-"];
    let (answers, _) = attack(&world, OWN, &attacks);
    for (attack, answer) in attacks.iter().zip(&answers) {
        assert_harmless(attack, answer.as_ref());
    }
}

/// An array that programs only read, as a tool's `.rodata`, is read-only in targets.
#[test]
fn constants_can_be_written_by_no_target() {
    let _turn = Turn::take();
    let world = need!(World::new("mappings.c"));
    let funclatency = need!(find_program("funclatency"));
    let mut attacker = start(&world, STRANGER, &["attack"]);
    let mut command = isolated(&funclatency);
    command.args(["-p", &attacker.pid().to_string(), ":wl_add"]);
    let tool = Tool::start_on_terminal(command);
    tool.wait_for_line(|line| line.starts_with("Tracing"));
    for attack in ["protect rodata", "poke rodata", "alias rodata"] {
        assert_harmless(attack, Some(&attacker.tell(attack)));
    }
    let ended = tool.interrupt();
    assert!(ended.status.success(), "{ended:?}");
    attacker.finish();
}

/// A process that attacks its own mappings ends at worst.
#[test]
fn what_a_target_takes_from_itself_harms_itself_alone() {
    let _turn = Turn::take();
    let world = need!(World::new("mappings.c"));
    for user in [STRANGER, OWN] {
        for attack_name in ["unmap", "forbid", "replace", "move", "forget"] {
            for file in ["agent", "trampolines", "session", "map-"] {
                // Processes of one user share their maps, and may ruin these.
                let attack_name = format!("{attack_name} {file}");
                let (answers, _) = attack(&world, user, &[&attack_name]);
                let answer = answers[0].as_ref();
                assert!(
                    answer.is_none_or(|answer| !answer.starts_with('0')),
                    "{attack_name}: {answer:?}"
                );
            }
        }
    }
}

/// Zeroes, written or punched into what a user's processes share, are that user's alone.
#[test]
fn holes_in_a_users_memory_are_not_in_others() {
    let _turn = Turn::take();
    let world = need!(World::new("mappings.c"));
    for file in ["session", "map-", "ring-"] {
        for name in ["punch", "zero"] {
            let name = format!("{name} {file}");
            attack(&world, STRANGER, &[&name, &name]);
        }
    }
}

/// A process that shares its descriptors with the target is not stopped when Beeline comes, and finds
/// the files that pass through.
#[test]
fn descriptors_that_pass_through_a_target_are_of_no_use() {
    let _turn = Turn::take();
    let world = need!(World::new("mappings.c"));
    for (user, file) in [
        (STRANGER, "agent"),
        (STRANGER, "trampolines"),
        (OWN, "agent"),
        (OWN, "trampolines"),
        (OWN, "ring-"),
    ] {
        let answer = caught(&world, user, "catch", file);
        let words: Vec<&str> = answer.split(' ').collect();
        let count = |name: &str| {
            let at = words.iter().position(|word| *word == name);
            at.map_or("", |at| words[at + 1])
        };
        let is_code = file != "ring-";
        assert_eq!(count("resized"), "0", "{user} {file}: {answer}");
        assert_eq!(count("sealed"), "0", "{user} {file}: {answer}");
        if is_code {
            assert_eq!(count("written"), "0", "{user} {file}: {answer}");
            assert_eq!(count("mapped"), "0", "{user} {file}: {answer}");
        }
        if user == STRANGER {
            assert_eq!(count("reopened"), "0", "{user} {file}: {answer}");
        }
    }
}

/// Closing them in the middle of it all keeps Beeline out of that process, and out of no other.
#[test]
fn a_target_that_closes_every_descriptor_is_left_out() {
    let _turn = Turn::take();
    let world = need!(World::new("mappings.c"));
    for user in [STRANGER, OWN] {
        caught(&world, user, "close", "all");
    }
}

/// Begins a session while a process attacks what passes through its descriptors; returns what that
/// has come to. The calls of an honest process are counted.
fn caught(world: &World, user: u32, how: &str, file: &str) -> String {
    let mut honest = world.start_as(OWN);
    let mut attacker = start(world, user, &["attack", how, file]);
    let tool = Tool::bpftrace(isolated(&world.bpftrace), &world.script(SCRIPT));
    tool.wait_attached();
    honest.go();
    let answer = attacker.tell("caught");
    let ended = end(tool);
    let key = format!("@by[{}]", honest.pid());
    let counted = map_counts(&ended.stdout).get(key.as_str()).copied();
    assert_eq!(counted, Some(CALLS), "{ended:?}");
    honest.finish();
    attacker.finish();
    answer
}
