//! What a hub, a mirror and a disk may say: lists of files, descriptions, indexes, headers, chunk maps and
//! references. No panic, whatever it is.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| exo_hub::fuzzing::answers(data));
