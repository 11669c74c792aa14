#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| beeline_fuzz_api::unwind_info(data));
