//! libFuzzer's door to [`netwright_fuzz::ovsdb::messages`].

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| netwright_fuzz::ovsdb::messages(data));
