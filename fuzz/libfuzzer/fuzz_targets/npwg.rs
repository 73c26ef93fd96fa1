//! libFuzzer's door to [`netwright_fuzz::npwg::annotations`].

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| netwright_fuzz::npwg::annotations(data));
