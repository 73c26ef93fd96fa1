//! libFuzzer's door to [`netwright_fuzz::plugin_config`].

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| netwright_fuzz::plugin_config(data));
