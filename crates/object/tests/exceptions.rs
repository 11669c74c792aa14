//! A function without callers that runs when a program throws belongs to that program. libbpf does
//! so since 1.3, and is not asked here. The test needs clang 19.

mod compiled;

use beeline_object::{Object, RunningKernel};
use compiled::compiled;

const SOURCE: &str = r#"
#define SEC(name) __attribute__((section(name), used))
__attribute__((noinline)) int shared(int x) { asm volatile("" : "+r"(x)); return x + 1; }
__attribute__((noinline)) int caught(unsigned long long cookie) { return shared(cookie) + 2; }
SEC("tc") __attribute__((btf_decl_tag("exception_callback:caught")))
int throws(void *ctx) { return shared(1); }
SEC("tc") int does_not(void *ctx) { return shared(2); }
char _license[] SEC("license") = "GPL";
"#;

#[test]
fn exception_callbacks_stand_at_a_programs_end() {
    let Some(object) = compiled("exceptions", SOURCE) else {
        return;
    };
    let object = Object::parse(&object, &RunningKernel::default()).expect("a good file");
    let functions = |name: &str| {
        let program = object.programs.iter().find(|it| it.name == name);
        let program = program.expect("it is in the file");
        assert_eq!(program.func_info.len(), program.functions.len());
        let functions = program.functions.iter();
        functions.map(|(_, name)| name.as_str()).collect::<Vec<_>>()
    };
    assert_eq!(functions("throws"), ["throws", "shared", "caught"]);
    assert_eq!(functions("does_not"), ["does_not", "shared"]);
}
