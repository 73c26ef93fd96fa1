//! libFuzzer's door to [`netwright_fuzz::said::plugin_keys`].

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| netwright_fuzz::said::plugin_keys(data));
