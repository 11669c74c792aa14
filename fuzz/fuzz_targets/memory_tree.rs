#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| beeline_untrusted::memory_tree(data));
