#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    shardgate_fuzz::segment_footer(data);
});
