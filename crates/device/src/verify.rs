//! Whether a device does what it says: a driver that lists one may still not be able to use it.

use std::time::Duration;

use exo_backend::{AllocError, Alone, CancelToken, Device, Element, Op, Recording, RunError, RunShape};

/// For the little work of the check.
const VERIFY_MAX: Duration = Duration::from_secs(5);
const NUMBERS: usize = 100;
const WIDTH: usize = 10;

/// A device cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the messages say what the fields are
pub enum VerifyError {
    #[error("no memory to check it with")]
    Alloc(#[from] AllocError),
    #[error("it did not compute the sum of the check")]
    Run(#[from] RunError),
    #[error("it computed a wrong sum")]
    Wrong,
}

/// Allocates, copies, computes and compares.
pub fn verify(device: &dyn Device) -> Result<(), VerifyError> {
    let (x, y) = (device.buffer(Element::F32, NUMBERS)?, device.buffer(Element::F32, NUMBERS)?);
    let numbers: Vec<f32> = (0..NUMBERS).map(|i| i as f32).collect();
    let mut stream = device.stream()?;
    stream.upload_f32(&x, 0, &numbers)?;
    stream.upload_f32(&y, 0, &numbers)?;
    let program = device.compile(Recording { ops: vec![Op::Add { x: x.clone(), y, width: WIDTH }] })?;
    let shape = RunShape { tokens: NUMBERS / WIDTH, selected: 0 };
    stream.run(&*program, shape, &Alone, &CancelToken::default())?;
    let mut sums = vec![0.0; NUMBERS];
    stream.download_f32(&x, 0, &mut sums, VERIFY_MAX)?;
    let is_right = numbers.iter().zip(&sums).all(|(number, sum)| number + number == *sum);
    if is_right { Ok(()) } else { Err(VerifyError::Wrong) }
}
