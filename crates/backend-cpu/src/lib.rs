//! The processor as a device: reference kernels, written to be read.
