#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| safetensors_fuzz::foreign::run(data));
