//! `trace_pipe`: everything printed in a guest is read, or reported as lost, as inside.

use super::place::{Place, Setting};
use super::*;
use beeline_e2e::remark;

#[test]
fn of_a_burst_each_line_is_read_or_told_as_lost() {
    /// Many more than wait for a reader in the kernel's buffer or in Beeline's, and fewer than
    /// would be lost whole.
    const BURSTS: [u32; 3] = [1, 10, 40];
    const TOOL: &str = "/test/burst";
    let guest = need!(shared());
    let setting = need!(Setting::new(&guest));
    let scratch = Scratch::new();
    let tool = scratch.build_with("burst.c", &["-static"]);
    guest.put(&std::fs::read(&tool).expect("it was built"), TOOL);
    for &place in &setting.places {
        for thousands in BURSTS {
            let path = match place {
                Place::Inside => TOOL,
                _ => tool.to_str().expect("a name in ASCII"),
            };
            let output = setting.run(place, &[path, &thousands.to_string()]);
            assert_eq!(output.code, Some(0), "{place}: {output:?}");
            let line = output.stdout.concat();
            let numbers: Vec<u32> = line
                .split([' ', ','])
                .filter_map(|word| word.parse().ok())
                .collect();
            let [printed, read, lost] = numbers[..] else {
                panic!("{place}: {line}");
            };
            remark(&format!("{place}: {line}"));
            assert_eq!(printed, thousands * 1000, "{place}");
            assert_eq!(read + lost, printed, "{place}: {line}");
        }
    }
}
