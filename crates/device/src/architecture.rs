//! Makers' names for the generations of their chips, by the numbers that drivers tell.

/// Of NVIDIA's, by compute capability; `None` for one that was made after this was written.
pub fn nvidia_architecture(capability: (i32, i32)) -> Option<&'static str> {
    Some(match capability {
        (3, _) => "Kepler",
        (5, _) => "Maxwell",
        (6, _) => "Pascal",
        (7, 5) => "Turing",
        (7, _) => "Volta",
        (8, 9) => "Ada Lovelace",
        (8, _) => "Ampere",
        (9, _) => "Hopper",
        (10..=12, _) => "Blackwell",
        _ => return None,
    })
}

/// Of AMD's, by what compilers make code for: 9, 0, 10 is gfx90a. Without the last number two of them look
/// like others.
pub fn amd_architecture(major: u32, minor: u32, stepping: Option<u32>) -> Option<&'static str> {
    Some(match (major, minor, stepping) {
        (6, ..) => "GCN 1",
        (7, ..) => "GCN 2",
        (8, ..) => "GCN 3 or 4",
        (9, 0, Some(8)) => "CDNA",
        (9, 0, Some(10)) => "CDNA 2",
        (9, 0, Some(_)) => "GCN 5",
        (9, 0, None) => "GCN 5 or CDNA",
        (9, 4, _) => "CDNA 3",
        (9, 5, _) => "CDNA 4",
        (10, 1, _) => "RDNA",
        (10, 3, _) => "RDNA 2",
        (11, 0, _) => "RDNA 3",
        (11, 5, _) => "RDNA 3.5",
        (12, 0, _) => "RDNA 4",
        _ => return None,
    })
}
