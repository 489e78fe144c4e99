use super::{Isa, Kernel};
use crate::packed::Group;
use crate::products::{Products, Sums};
use crate::rounded::{RoundedBlock, RoundedRows};
use crate::simd::Scalar;

levels!();
