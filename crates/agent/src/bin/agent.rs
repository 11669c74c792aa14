//! The freestanding agent: the library's entry points, linked alone.
#![cfg_attr(target_os = "none", no_std, no_main)]

#[cfg(target_os = "none")]
mod freestanding {
    use beeline_agent::{
        builtin_probes, enter, fast_path, helpers, signals, syscalls, trapped, unwinding,
    };

    // The blob starts with the offsets of its entry points, in the order of
    // `beeline_agent::abi::EntryPoints`.
    core::arch::global_asm!(
        ".section .beeline_table, \"a\"",
        "beeline_table:",
        ".quad {enter} - beeline_table",
        ".quad {leave} - beeline_table",
        ".quad {signal} - beeline_table",
        ".quad {helpers} - beeline_table",
        ".quad {sigaction} - beeline_table",
        ".quad {find_object} - beeline_table",
        ".quad {iterate_objects} - beeline_table",
        ".quad {landing} - beeline_table",
        ".quad {listed} - beeline_table",
        ".quad {fast_path} - beeline_table",
        ".quad {guest_fast_path} - beeline_table",
        ".quad {call_enter} - beeline_table",
        ".quad {call_exit} - beeline_table",
        ".quad {call_compact_enter} - beeline_table",
        ".quad {call_compact_exit} - beeline_table",
        ".quad {trapped} - beeline_table",
        ".quad {trapped_return} - beeline_table",
        enter = sym enter::beeline_enter,
        leave = sym enter::beeline_leave,
        signal = sym signals::beeline_signal,
        helpers = sym helpers::beeline_helpers,
        sigaction = sym builtin_probes::beeline_sigaction,
        find_object = sym unwinding::beeline_find_object,
        iterate_objects = sym unwinding::beeline_iterate_objects,
        landing = sym unwinding::beeline_landing,
        listed = sym unwinding::beeline_listed,
        fast_path = sym fast_path::beeline_fast_path,
        guest_fast_path = sym fast_path::prefetch::beeline_guest_fast_path,
        call_enter = sym syscalls::beeline_call_enter,
        call_exit = sym syscalls::beeline_call_exit,
        call_compact_enter = sym syscalls::beeline_call_compact_enter,
        call_compact_exit = sym syscalls::beeline_call_compact_exit,
        trapped = sym trapped::beeline_trapped,
        trapped_return = sym trapped::return_from_signal,
    );

    /// Never linked: the build refuses an agent that holds it.
    #[panic_handler]
    fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
        loop {}
    }
}

/// On a hosted target there is nothing to run.
#[cfg(not(target_os = "none"))]
fn main() {
    eprintln!("this program is the freestanding agent; build it for x86_64-unknown-none");
}
