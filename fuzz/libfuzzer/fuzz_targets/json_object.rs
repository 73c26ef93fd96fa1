//! libFuzzer's door to [`netwright_fuzz::json_object`].

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| netwright_fuzz::json_object(data));
