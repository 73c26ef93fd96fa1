//! libFuzzer's door to [`netwright_fuzz::cluster::whereabouts`].

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| netwright_fuzz::cluster::whereabouts(data));
