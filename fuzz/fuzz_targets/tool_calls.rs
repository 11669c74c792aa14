#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| beeline_untrusted::tool_calls(data));
