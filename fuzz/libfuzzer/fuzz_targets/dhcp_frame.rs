//! libFuzzer's door to [`netwright_fuzz::dhcp::frame`].

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| netwright_fuzz::dhcp::frame(data));
