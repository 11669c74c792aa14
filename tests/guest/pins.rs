//! Named objects in the BPF file system, and iterators: bpftool on this machine shows the same for
//! a guest as inside it.

use super::place::{Place, Setting};
use super::*;
use beeline_e2e::{GUEST_PATIENCE, beeline_wanted, find_program, until, without_sizes};
use std::path::Path;
use std::process::Command;

/// The paths in the guest of bpftool, its libraries and the object file.
const BPFTOOL: &str = "/test/bpftool";
const LIBRARIES: &str = "/test/lib";
const OBJECT: &str = "/test/iterates.o";

/// Copies bpftool into the guest. Returns the command that runs it there.
fn put_bpftool(guest: &Guest, bpftool: &Path) -> String {
    guest.put(&read(bpftool), BPFTOOL);
    guest.check(&format!("mkdir -p {LIBRARIES}"));
    let listed = Command::new("ldd").arg(bpftool).output().expect("ldd runs");
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    // "NAME => PATH (ADDRESS)"
    let libraries = listed.lines().filter_map(|line| {
        let (name, rest) = line.trim().split_once(" => ")?;
        Some((name, Path::new(rest.split(' ').next()?)))
    });
    for (name, library) in libraries {
        let has_it = format!("test -e /usr/lib/x86_64-linux-gnu/{name}");
        if guest.run(&has_it).code != 0 {
            guest.put(&read(library), &format!("{LIBRARIES}/{name}"));
        }
    }
    format!("env LD_LIBRARY_PATH={LIBRARIES} {BPFTOOL}")
}

/// Returns a line of bpftool's without the parts that differ between runs.
fn without_ids(line: &str) -> String {
    const NUMBERED: [&str; 4] = ["btf_id", "map_ids", "prog", "map_id"];
    let line = without_sizes(line);
    let mut before = "";
    let words = line.split(' ').map(|word| {
        let is_id = NUMBERED.contains(&before) && word.ends_with(|end: char| end.is_ascii_digit());
        before = word.trim_start();
        if is_id { "N" } else { word }
    });
    words.collect::<Vec<_>>().join(" ")
}

fn read(file: &Path) -> Vec<u8> {
    std::fs::read(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// Loads and names programs; changes and reads a map by its name, also through an iterator with a
/// long text. Every command holds whatever its output depends on.
const SCRIPT: &str = "exec 2>&1
D=/sys/fs/bpf/d; mkdir $D
$B prog loadall $O $D/programs pinmaps $D/maps
echo $D/*/*
$B prog show pinned $D/programs/count
$B prog show pinned $D/programs/elements
$B map show pinned $D/maps/numbers
$B map update pinned $D/maps/numbers key 7 0 0 0 value 9 0 0 0 0 0 0 0
$B map lookup pinned $D/maps/numbers key 7 0 0 0
$B iter pin $O $D/iterator map pinned $D/maps/numbers
$B link show pinned $D/iterator
cat $D/iterator | sed -n '8p;$='
$B map update pinned $D/maps/numbers key 0 0 0 0 value 5 0 0 0 0 0 0 0
cat $D/iterator | head -n 1
$B prog dump xlated pinned $D/programs/count
mv $D/maps/numbers $D/renamed
$B map lookup pinned $D/renamed key 0 0 0 0
$B map show pinned $D/maps/numbers
rm -r $D; test -e $D || echo gone
$B prog show pinned $D/programs/count";

#[test]
fn bpftool_pins_and_iterates_as_inside() {
    let guest = need!(shared());
    let bpftool = need!(find_program("bpftool"));
    let scratch = Scratch::new();
    let object = need!(scratch.build_bpf("iterates.bpf.c"));
    let setting = need!(Setting::new(&guest));
    let inside = put_bpftool(&guest, &bpftool);
    guest.put(&read(&object), OBJECT);
    let shown: Vec<Vec<String>> = setting
        .places
        .iter()
        .map(|&place| {
            let (bpftool, object) = match place {
                Place::Inside => (inside.clone(), OBJECT.into()),
                _ => (bpftool.display().to_string(), object.display().to_string()),
            };
            let script = format!("B='{bpftool}' O={object}; {SCRIPT}");
            let output = setting.run(place, &["sh", "-c", &script]);
            assert_eq!(output.stderr, [""; 0], "{place}");
            let lines = output.stdout.iter().map(|line| without_ids(line));
            lines.collect()
        })
        .collect();
    for known in ["N: 9", "100000", "N: 5"] {
        for lines in &shown {
            assert!(lines.iter().any(|line| line == known), "{lines:#?}");
        }
    }
    if let [inside, host] = shown.as_slice() {
        assert_eq!(host, inside, "by beeline (left) and inside (right)");
    }
}

/// Checks a failing iterator: the length of its text, its last line, and that reading it was an
/// error.
const OVERFLOW: &str = "D=/sys/fs/bpf/o; mkdir $D
$B map create $D/map type array key 4 value 8 entries 1000 name numbers
$B iter pin $O $D/iterator map pinned $D/map
cat $D/iterator >/tmp/beeline-text; echo cat $?
wc -l </tmp/beeline-text; sed -n '$p' /tmp/beeline-text
rm -r $D /tmp/beeline-text";

#[test]
fn an_iterators_error_is_no_end() {
    let guest = need!(shared());
    let bpftool = need!(find_program("bpftool"));
    let scratch = Scratch::new();
    let object = need!(scratch.build_bpf("overflows.bpf.c"));
    let setting = need!(Setting::new(&guest));
    let inside = put_bpftool(&guest, &bpftool);
    guest.put(&read(&object), OBJECT);
    for &place in &setting.places {
        let (bpftool, object) = match place {
            Place::Inside => (inside.clone(), OBJECT.into()),
            _ => (bpftool.display().to_string(), object.display().to_string()),
        };
        let script = format!("B='{bpftool}' O={object}; {OVERFLOW}");
        let output = setting.run(place, &["sh", "-c", &script]);
        assert_eq!(
            output.stdout,
            ["cat 1", "500", "499"],
            "{place}: {output:?}"
        );
        // The kernel's own error cannot be had from a socket.
        let error = match place {
            Place::Inside => ["Argument list too long"].as_slice(),
            _ => &[
                "Connection reset by peer",
                "ends too early: Argument list too long",
            ],
        };
        for error in error {
            let is_said = |line: &String| line.contains(error);
            assert!(output.stderr.iter().any(is_said), "{place}: {output:?}");
        }
    }
}

#[test]
fn pins_end_with_the_session() {
    let guest = need!(shared());
    let bpftool = need!(find_program("bpftool"));
    let scratch = Scratch::new();
    let object = need!(scratch.build_bpf("iterates.bpf.c"));
    need!(beeline_wanted());
    let setting = need!(Setting::new(&guest));
    guest.put(&std::fs::read(&bpftool).expect("it is there"), BPFTOOL);
    let count = || {
        guest.check(&format!(
            "{BPFTOOL} prog show | grep -c 'name count' || true"
        ))
    };
    let before = count();
    let script = format!(
        "B={}; $B prog loadall {} /sys/fs/bpf/d && $B prog show pinned /sys/fs/bpf/d/count | grep -c 'name count'",
        bpftool.display(),
        object.display()
    );
    let host = setting.places.iter().find(|place| **place == Place::Host);
    let output = setting.run(*host.expect("Beeline is wanted"), &["sh", "-c", &script]);
    assert_eq!(output.stdout, ["1"], "{output:?}");
    // The guest's kernel frees programs a moment after it is told to.
    let gone = until(GUEST_PATIENCE, || count() == before);
    assert!(gone, "{before} before, {} now", count());
}
