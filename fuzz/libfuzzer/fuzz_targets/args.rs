//! libFuzzer's door to [`netwright_fuzz::args`].

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| netwright_fuzz::args(data));
