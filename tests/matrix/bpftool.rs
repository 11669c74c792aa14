//! bpftool's subcommands: small scripts, as it makes, shows and changes objects of its own.

use crate::entry::{Compare, Entry, Work};

/// Name, and script; `D` is a directory of a BPF file system, `O` and `I` are object
/// files: with a program, and with an iterator.
const SCRIPTS: &[(&str, &str)] = &[
    ("bpftool map create, show, dump", "M; bpftool map show pinned $D/m; bpftool map dump pinned $D/m; bpftool -j map show pinned $D/m"),
    ("bpftool map update, lookup, getnext, delete", "M; bpftool map update pinned $D/m key 1 0 0 0 value 5 0 0 0 0 0 0 0
bpftool map lookup pinned $D/m key 1 0 0 0; bpftool map getnext pinned $D/m; bpftool map delete pinned $D/m key 1 0 0 0; bpftool map dump pinned $D/m"),
    ("bpftool map push, peek, pop, enqueue, dequeue", "bpftool map create $D/s type stack value 4 entries 4 name s
bpftool map create $D/q type queue value 4 entries 4 name q
bpftool map push pinned $D/s value 1 2 3 4; bpftool map peek pinned $D/s; bpftool map pop pinned $D/s
bpftool map enqueue pinned $D/q value 4 3 2 1; bpftool map dequeue pinned $D/q"),
    ("bpftool map pin, freeze", "M; bpftool map pin pinned $D/m $D/n; bpftool map freeze pinned $D/n
bpftool map update pinned $D/m key 1 0 0 0 value 5 0 0 0 0 0 0 0; bpftool map show pinned $D/n"),
    ("bpftool map event_pipe", "bpftool map create $D/e type perf_event_array key 4 value 4 entries 8 name e
timeout -s INT 1 bpftool map event_pipe pinned $D/e; echo ended with $?"),
    ("bpftool prog load, show", "bpftool prog load $O $D/p && bpftool prog show pinned $D/p"),
    ("bpftool prog load autoattach, detach", "bpftool prog load $O $D/l autoattach && bpftool link show pinned $D/l; bpftool link detach pinned $D/l; echo ended with $?"),
    ("bpftool prog loadall, pin", "bpftool prog loadall $O $D/all && ls $D/all; bpftool prog pin pinned $D/all/counted $D/again && bpftool -j prog show pinned $D/again"),
    ("bpftool prog dump xlated", "bpftool prog load $O $D/p && bpftool prog dump xlated pinned $D/p linum"),
    ("bpftool prog dump jited", "bpftool prog load $O $D/p && bpftool prog dump jited pinned $D/p opcodes | wc -l | sed 's/[1-9][0-9]*/some/'"),
    ("bpftool prog run", "head -c 64 /dev/zero >$D2/in; bpftool prog load $O $D/p && bpftool prog run pinned $D/p ctx_in $D2/in repeat 0"),
    ("bpftool prog profile", "bpftool prog load $O $D/p && bpftool prog profile pinned $D/p duration 1 cycles"),
    ("bpftool prog tracelog", "timeout -s INT 1 bpftool prog tracelog; echo ended with $?"),
    ("bpftool link show, pin", "bpftool prog load $O $D/l autoattach && bpftool link pin pinned $D/l $D/again && bpftool link show pinned $D/again; bpftool -j link show pinned $D/l"),
    ("bpftool btf dump of the kernel, of a file", "bpftool btf dump file /sys/kernel/btf/vmlinux | head -5; bpftool btf dump id 1 | head -5; bpftool btf dump file $O | head -5"),
    ("bpftool btf dump of a program", "bpftool prog load $O $D/p && bpftool btf dump prog pinned $D/p | head -20; bpftool btf dump prog pinned $D/p format c | head -20"),
    ("bpftool iter pin", "bpftool map create $D/m type array key 4 value 8 entries 3 name numbers
bpftool iter pin $I $D/iter map pinned $D/m && cat $D/iter"),
    ("bpftool perf list", "bpftool prog load $O $D/l autoattach; bpftool perf list; bpftool -j perf list; echo ended with $?"),
    ("bpftool feature probe", "bpftool feature probe | grep -v -e 'is_supported' -e '	- bpf_' | head -80"),
    ("bpftool gen object, skeleton, min_core_btf", "bpftool gen object $D2/o.o $O; bpftool gen skeleton $O | head -5; bpftool gen min_core_btf /sys/kernel/btf/vmlinux $D2/b.btf $O; ls $D2"),
    ("bpftool cgroup tree", "bpftool cgroup tree; echo ended with $?"),
    ("bpftool net list", "bpftool net list; echo ended with $?"),
    ("bpftool struct_ops list", "bpftool struct_ops list; echo ended with $?"),
    ("bpftool batch", "printf 'map create %s/b type array key 4 value 4 entries 2 name b\\nmap dump pinned %s/b\\n' $D $D | bpftool batch file -"),
];

/// The beginning of each script: a directory, and its end; `M` makes a map with two elements.
const FRAME: &str = "D=/sys/fs/bpf/matrix D2={scratch}/files O={object} I={iterator}; rm -rf $D; mkdir -p $D $D2; trap 'rm -rf $D' EXIT
M() { bpftool map create $D/m type hash key 4 value 8 entries 4 name held
bpftool map update pinned $D/m key 7 0 0 0 value 1 2 3 4 5 6 7 8; }
";

/// Returns the lines of the matrix.
pub fn entries() -> Vec<Entry> {
    let of = |&(name, script): &(&str, &str)| Entry {
        tool: name.to_owned(),
        args: vec![format!("{FRAME}{script}")],
        work: Work::None,
        compare: Compare::All,
    };
    SCRIPTS.iter().map(of).collect()
}
