//! libFuzzer's door to [`netwright_fuzz::said::owner_comment`].

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| netwright_fuzz::said::owner_comment(data));
