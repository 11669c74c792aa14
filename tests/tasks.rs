//! The current task, as tools see it through the kernel's own layout, and values with locks: under
//! Beeline both read the same as on the kernel.

use beeline_e2e::Compare::Sorted;
use beeline_e2e::{Case, Engine, Scratch, Tool, Turn, beeline_wanted, engines, file_offset, need};
use beeline_runtime::btf::{Btf, kind};
use std::process::Command;

/// Runs a script whose probes set `$t` to the current task.
fn check(script: &str, known: &[&str]) {
    let _turn = Turn::take();
    let script = script.replace(
        "TASK",
        "uprobe:{prog}:wl_outer, uprobe:{prog}:wl_threaded { $t = (struct task_struct *)curtask;",
    );
    let case = Case {
        options: &[],
        script: &script,
        compare: Sorted,
        known,
    };
    need!(case.check("counts.c"));
}

#[test]
fn threads_have_their_own_ids_and_names() {
    check(
        "TASK @same[$t->pid == (int32)tid, $t->tgid == (int32)pid] = count(); @[$t->comm] = count(); }",
        &[
            "@same[1, 1]: 1012",
            "@[counts]: 12",
            "@[worker-0]: 250",
            "@[worker-3]: 250",
        ],
    );
}

#[test]
fn the_group_leader_is_the_main_thread() {
    check(
        "TASK @[$t->group_leader->pid == $t->tgid, $t->group_leader->comm, $t->group_leader == $t] = count(); }",
        &["@[1, counts, 1]: 12", "@[1, counts, 0]: 1000"],
    );
}

#[test]
fn parents_lead_to_the_first_process() {
    check(
        "TASK @[$t->real_parent->tgid, $t->parent->real_parent->tgid, $t->real_parent->real_parent->comm] = count(); }",
        &[],
    );
}

#[test]
fn namespaces_have_their_numbers() {
    check(
        "TASK $n = $t->nsproxy; @[$n->uts_ns->ns.inum, $n->ipc_ns->ns.inum, $n->mnt_ns->ns.inum, \
         $n->pid_ns_for_children->ns.inum, $n->net_ns->ns.inum, $n->cgroup_ns->ns.inum] = count(); \
         @level[$t->thread_pid->level] = count(); }",
        &["@level[0]: 1012"],
    );
}

#[test]
fn users_and_scheduling_are_the_processes() {
    check(
        "TASK @[$t->cred->uid.val, $t->cred->euid.val, $t->real_cred->gid.val, $t->cred->user_ns->ns.inum] = count(); \
         @as[$t->flags, $t->prio, $t->static_prio, $t->policy, $t->exit_signal] = count(); }",
        &[],
    );
}

#[test]
fn the_arguments_are_where_the_memory_descriptor_says() {
    check(
        "TASK @[str(uptr($t->mm->arg_start)) == \"{prog}\"] = count(); }",
        &["@[1]: 1012"],
    );
}

#[test]
fn it_started_a_moment_ago() {
    check(
        "TASK @[(nsecs - $t->start_boottime) / 60000000000, $t->start_boottime >= $t->start_time] = count(); }",
        &["@[0, 1]: 1012"],
    );
}

#[test]
fn unknown_fields_read_as_zero() {
    let _turn = Turn::take();
    let case = Case {
        options: &[],
        script: "uprobe:{prog}:wl_outer { $t = (struct task_struct *)curtask; \
                 @[$t->signal->nr_threads] = count(); }",
        compare: Sorted,
        known: &["@[0]: 12"],
    };
    let scratch = Scratch::new();
    let program = scratch.build("counts.c");
    need!(case.check_beeline(&program, || Command::new(&program)));
}

/// Returns the offset in bytes of a field in the running kernel's tasks.
fn field_of_task(name: &str) -> Result<u32, String> {
    let data = std::fs::read("/sys/kernel/btf/vmlinux").map_err(|error| error.to_string())?;
    let btf = Btf::parse(&data).ok_or("the kernel's BTF cannot be read")?;
    let [task] = btf.find([(kind::STRUCT, "task_struct")]);
    let field = btf.field(task, name);
    Ok(field.ok_or("tasks have no such field")?.offset)
}

/// A program's null pointer ends neither a thread that blocks SIGSEGV nor Beeline itself.
#[test]
fn null_pointers_are_followed_where_signals_are_blocked_and_in_test_runs() {
    need!(beeline_wanted());
    let _turn = Turn::take();
    let scratch = Scratch::new();
    let program = scratch.build_with("nulls.c", &["-pthread"]);
    let offset = file_offset(&program, "probed").expect("a function of the program");
    let field = need!(field_of_task("last_wakee"));
    let mut command = Engine::Beeline.command(&program);
    command.args([offset.to_string(), field.to_string()]);
    let ended = Tool::start(command).wait();
    assert!(ended.status.success(), "{ended:?}");
    assert_eq!(
        ended.stdout,
        [
            "test run 0: 1, 0 not null",
            "blocks SIGSEGV: 0",
            "blocks SIGSEGV: 1",
            "status 1792: 200, 0 not null",
        ],
        "{:?}",
        ended.stderr
    );
}

/// Every attempt of `values.c` has the same outcome.
#[test]
fn values_with_locks_are_the_kernels() {
    let _turn = Turn::take();
    let scratch = Scratch::new();
    let program = scratch.build("values.c");
    let outputs = need!(engines()).into_iter().map(|engine| {
        let output = engine.command(&program).output().expect("values starts");
        assert!(output.status.success(), "{engine}: {output:?}");
        String::from_utf8(output.stdout).expect("text")
    });
    let outputs: Vec<_> = outputs.collect();
    for output in &outputs {
        assert!(output.ends_with("done\n"), "{output}");
    }
    if let [kernel, beeline] = outputs.as_slice() {
        for (number, (kernel, beeline)) in kernel.lines().zip(beeline.lines()).enumerate() {
            assert_eq!(beeline, kernel, "line {}", number + 1);
        }
        assert_eq!(beeline.lines().count(), kernel.lines().count());
    }
}
