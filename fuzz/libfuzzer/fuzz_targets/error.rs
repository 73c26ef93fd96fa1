//! libFuzzer's door to [`netwright_fuzz::error`].

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| netwright_fuzz::error(data));
