#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| beeline_fuzz_api::trace_ring(data));
