//! libFuzzer's door to [`netwright_fuzz::said::netlink`].

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| netwright_fuzz::said::netlink(data));
