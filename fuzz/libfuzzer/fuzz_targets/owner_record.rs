//! libFuzzer's door to [`netwright_fuzz::kept::owner_record`].

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| netwright_fuzz::kept::owner_record(data));
