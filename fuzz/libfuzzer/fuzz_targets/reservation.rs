//! libFuzzer's door to [`netwright_fuzz::kept::reservation`].

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| netwright_fuzz::kept::reservation(data));
