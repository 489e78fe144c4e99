//! What other programs, members and disks say of models: manifests of caches and of members, records of
//! hashes, maps of what is held. No panic, whatever it is.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| exo_store::fuzzing::stored(data));
