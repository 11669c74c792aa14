//! The tests' own check of a process's code tells a kernel uprobe from a patch.

use std::fs::File;
use std::os::unix::fs::FileExt;

use beeline_e2e::{Scratch, Turn, Workload, altered_text, file_offset, kernel_available, need};

#[test]
fn kernel_uprobes_of_others_are_no_patches() {
    let _turn = Turn::take();
    need!(kernel_available());
    let scratch = Scratch::new();
    let program = scratch.build("counts.c");
    let mut workload = Workload::start(&program);
    let pid = workload.pid();
    let mut kernel = Workload::start(&scratch.build("kernel_probes.c"));
    let offset = file_offset(&program, "wl_add").expect("it has the function");
    let told = kernel.tell(&format!("on {} {offset} entry", program.display()));
    assert!(told.parse::<u32>().is_ok(), "{told}");
    let place = address(pid, &program.display().to_string(), offset);
    let memory = File::options()
        .read(true)
        .write(true)
        .open(format!("/proc/{pid}/mem"));
    let memory = memory.expect("the memory can be opened");
    let byte = |at: u64| {
        let mut byte = [0];
        memory
            .read_exact_at(&mut byte, at)
            .expect("code can be read");
        byte
    };
    assert_eq!(byte(place), [0xcc], "the kernel has its breakpoint there");
    assert_eq!(altered_text(pid), [""; 0]);
    workload.go();
    assert_eq!(altered_text(pid), [""; 0]);
    // A breakpoint that is not the kernel's, and another byte.
    for (behind, other) in [(1, 0xcc), (2, 0x90)] {
        let before = byte(place + behind);
        memory
            .write_all_at(&[other], place + behind)
            .expect("code can be written");
        assert_eq!(altered_text(pid).len(), 1, "{other:#x}");
        memory
            .write_all_at(&before, place + behind)
            .expect("code can be written");
    }
    assert_eq!(altered_text(pid), [""; 0]);
    kernel.tell("off all");
    assert_eq!(altered_text(pid), [""; 0]);
    workload.go();
    workload.finish();
}

/// Returns the address where a file offset is mapped as executable.
fn address(pid: u32, path: &str, offset: u64) -> u64 {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("maps can be read");
    let number = |text: &str| u64::from_str_radix(text, 16).expect("a number");
    let code = maps
        .lines()
        .filter(|line| line.contains("r-xp") && line.ends_with(path));
    let mut places = code.map(|line| {
        let (range, rest) = line.split_once(' ').expect("a range");
        let (start, _) = range.split_once('-').expect("a range");
        let from = number(rest.split(' ').nth(1).expect("an offset"));
        number(start) + offset - from
    });
    places.next().expect("the program's code is mapped")
}
