//! libFuzzer's door to [`netwright_fuzz::npwg::messages`].

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| netwright_fuzz::npwg::messages(data));
