//! libFuzzer's door to [`netwright_fuzz::network_list`].

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| netwright_fuzz::network_list(data));
