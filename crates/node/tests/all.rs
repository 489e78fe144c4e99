//! All tests of whole nodes in one program, which is linked once.

mod support;

mod cluster;
mod hung_disk;
mod principals;
mod settling;
