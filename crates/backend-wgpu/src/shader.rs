//! The text of each kernel variant: WGSL files put together, with lines that only some variants have.
//!
//! A kernel file may hold `#if NAME`, `#if !NAME`, `#else` and `#endif` lines, and use constants that are written in
//! front of it. Nothing more: what a variant computes can be read in its file.

use std::fmt::Write as _;

use exo_types::DType;

/// What a binding after the first three is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Access {
    Read,
    Write,
}

use Access::{Read, Write};

/// A kernel file and how its bindings are accessed, from the fourth on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub(crate) enum Kernel {
    Add,
    SwiGlu,
    SelectRows,
    RmsNorm,
    Rope,
    KvWrite,
    Attention,
    Embed,
    MatMulVec,
    MatMulTile,
}

/// One variant of a kernel.
#[derive(Clone, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub(crate) struct Variant {
    pub(crate) kernel: Kernel,
    /// The type of the weight, where there is one.
    pub(crate) dtype: Option<DType>,
    /// Names that hold.
    pub(crate) flags: Vec<&'static str>,
    /// Constants.
    pub(crate) numbers: Vec<(&'static str, u32)>,
}

/// What went wrong with an input, as the kernels tell it.
pub(crate) const FAULTS: [(&str, exo_backend::OpKind, &str); 5] = [
    ("FAULT_TOKEN", exo_backend::OpKind::Embed, "token"),
    ("FAULT_ROW", exo_backend::OpKind::SelectRows, "row"),
    ("FAULT_SEQUENCE", exo_backend::OpKind::Attention, "sequence"),
    ("FAULT_POSITION", exo_backend::OpKind::Attention, "position"),
    ("FAULT_PAGE", exo_backend::OpKind::Attention, "page"),
];

/// Added to a fault's number by the kernel that writes the cache.
pub(crate) const FAULT_OF_KV_WRITE: u32 = 16;

/// Largest head that attention has room for.
pub(crate) const HEAD_DIM_MAX: u32 = 256;

impl Variant {
    pub(crate) fn plain(kernel: Kernel) -> Self {
        Self { kernel, dtype: None, flags: Vec::new(), numbers: Vec::new() }
    }

    pub(crate) fn of(kernel: Kernel, dtype: DType) -> Self {
        Self { dtype: Some(dtype), ..Self::plain(kernel) }
    }

    pub(crate) fn flag(mut self, name: &'static str, holds: bool) -> Self {
        self.flags.extend(holds.then_some(name));
        self
    }

    pub(crate) fn number(mut self, name: &'static str, value: u32) -> Self {
        self.numbers.push((name, value));
        self
    }

    /// How the bindings after the first three are accessed.
    pub(crate) fn accesses(&self) -> &'static [Access] {
        let has = |name| self.flags.contains(&name);
        match self.kernel {
            Kernel::Add if has("SELF") => &[Write],
            Kernel::Add => &[Write, Read],
            Kernel::SwiGlu | Kernel::RmsNorm if has("IN_PLACE") => &[Read, Write],
            Kernel::SwiGlu | Kernel::RmsNorm => &[Read, Write, Read],
            Kernel::SelectRows => &[Read, Read, Write],
            Kernel::Rope => &[Write, Read, Read],
            Kernel::KvWrite => &[Read, Read, Read, Read, Read, Write, Write],
            Kernel::Attention => &[Read, Read, Read, Read, Read, Read, Write],
            Kernel::Embed => &[Read, Write, Read],
            Kernel::MatMulVec | Kernel::MatMulTile => &[Read, Read, Write, Read],
        }
    }

    fn files(&self) -> Vec<&'static str> {
        let pages = include_str!("shaders/pages.wgsl");
        let mut files = match self.kernel {
            Kernel::Add => vec![include_str!("shaders/add.wgsl")],
            Kernel::SwiGlu => vec![include_str!("shaders/swiglu.wgsl")],
            Kernel::SelectRows => vec![include_str!("shaders/select_rows.wgsl")],
            Kernel::RmsNorm => vec![include_str!("shaders/rms_norm.wgsl")],
            Kernel::Rope => vec![include_str!("shaders/turn.wgsl"), include_str!("shaders/rope.wgsl")],
            Kernel::KvWrite => {
                vec![pages, include_str!("shaders/half.wgsl"), include_str!("shaders/kv_write.wgsl")]
            }
            Kernel::Attention => vec![pages, include_str!("shaders/attention.wgsl")],
            Kernel::Embed => vec![include_str!("shaders/embed.wgsl")],
            Kernel::MatMulVec => {
                vec![include_str!("shaders/matmul.wgsl"), include_str!("shaders/matmul_vec.wgsl")]
            }
            Kernel::MatMulTile => {
                vec![include_str!("shaders/matmul.wgsl"), include_str!("shaders/matmul_tile.wgsl")]
            }
        };
        files.extend(self.dtype.map(crate::layout::decoder));
        files
    }

    /// The whole text.
    pub(crate) fn source(&self) -> String {
        let mut flags = self.flags.clone();
        let mut text = String::new();
        for (number, (name, _, _)) in (1u32..).zip(FAULTS) {
            let of_write = if self.kernel == Kernel::KvWrite { FAULT_OF_KV_WRITE } else { 0 };
            constant(&mut text, name, number + of_write);
        }
        for (name, value) in &self.numbers {
            constant(&mut text, name, *value);
        }
        if let Some(dtype) = self.dtype {
            let traits = crate::layout::traits(dtype);
            flags.extend(traits.flags);
            for (name, value) in traits.numbers {
                let _ = writeln!(text, "const {name}: u32 = {value}u;");
            }
        }
        for file in std::iter::once(include_str!("shaders/prelude.wgsl")).chain(self.files()) {
            keep_lines(file, &flags, &mut text);
        }
        text
    }
}

fn constant(text: &mut String, name: &str, value: u32) {
    let _ = writeln!(text, "const {name}: u32 = {value}u;"); // writing to a string cannot fail
}

/// Copies the lines that the flags leave. Panics on unbalanced conditions: the files are ours.
fn keep_lines(file: &str, flags: &[&str], text: &mut String) {
    let mut kept = vec![true];
    for line in file.lines() {
        if let Some(name) = line.strip_prefix("#if ") {
            let (name, wanted) = name.strip_prefix('!').map_or((name, true), |name| (name, false));
            kept.push(flags.contains(&name) == wanted);
        } else if line == "#else" {
            let last = kept.last_mut().expect("an else stands within a condition");
            *last = !*last;
        } else if line == "#endif" {
            kept.pop().expect("an endif ends a condition");
        } else if kept.iter().all(|kept| *kept) {
            text.push_str(line);
            text.push('\n');
        }
    }
    assert!(kept.len() == 1, "a condition is not ended");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every variant that an op can ask for.
    fn variants() -> Vec<Variant> {
        let plain = |kernel, flag| [false, true].map(|holds| Variant::plain(kernel).flag(flag, holds));
        let mut all: Vec<Variant> = Vec::new();
        all.extend(plain(Kernel::Add, "SELF"));
        all.extend(plain(Kernel::SwiGlu, "IN_PLACE"));
        all.extend(plain(Kernel::RmsNorm, "IN_PLACE"));
        all.extend(plain(Kernel::Rope, "INTERLEAVED"));
        all.push(Variant::plain(Kernel::SelectRows));
        for flag in ["F32", "F16", "Q8"] {
            all.push(Variant::plain(Kernel::KvWrite).flag(flag, true));
            all.push(Variant::plain(Kernel::Attention).flag(flag, true).number("HEAD_DIM_MAX", HEAD_DIM_MAX));
        }
        for dtype in DType::ALL.into_iter().filter(|dtype| crate::layout::is_supported(*dtype)) {
            all.push(Variant::of(Kernel::Embed, dtype));
            for bits in 0..8 {
                let product = |kernel| {
                    let variant = Variant::of(kernel, dtype).flag("SELECTED", bits & 1 > 0);
                    variant.flag("RAGGED", bits & 2 > 0 && !dtype.is_quantised())
                };
                all.push(product(Kernel::MatMulTile));
                let few = product(Kernel::MatMulVec).flag("SUBGROUPS", bits & 4 > 0);
                all.extend([1, 4].map(|each| few.clone().number("ROWS_EACH", 2).number("TOKENS_EACH", each)));
            }
        }
        all.sort();
        all.dedup();
        all
    }

    fn translate(source: &str) -> Result<(), String> {
        let told = |step: &str, error: &dyn std::fmt::Debug| format!("{step}: {error:?}");
        let module = naga::front::wgsl::parse_str(source).map_err(|error| error.emit_to_string(source))?;
        let needed =
            naga::valid::Capabilities::SUBGROUP | naga::valid::Capabilities::SHADER_FLOAT16_IN_FLOAT32;
        let mut validator = naga::valid::Validator::new(naga::valid::ValidationFlags::all(), needed);
        validator.subgroup_stages(naga::valid::ShaderStages::COMPUTE);
        validator.subgroup_operations(naga::valid::SubgroupOperationSet::all());
        let info = validator.validate(&module).map_err(|error| told("validation", &error))?;
        let spirv = naga::back::spv::Options { lang_version: (1, 3), ..Default::default() };
        naga::back::spv::write_vec(&module, &info, &spirv, None).map_err(|error| told("SPIR-V", &error))?;
        let hlsl = naga::back::hlsl::Options {
            shader_model: naga::back::hlsl::ShaderModel::V6_0,
            fake_missing_bindings: true,
            ..Default::default()
        };
        naga::back::hlsl::Writer::new(&mut String::new(), &hlsl, &Default::default())
            .write(&module, &info, None)
            .map_err(|error| told("HLSL", &error))?;
        let msl = naga::back::msl::Options {
            lang_version: (2, 4),
            fake_missing_bindings: true,
            ..Default::default()
        };
        let written = naga::back::msl::write_string(&module, &info, &msl, &Default::default());
        written.map(drop).map_err(|error| told("MSL", &error))
    }

    /// A kernel that would fail on Windows or a Mac fails here.
    #[test]
    fn every_kernel_translates_to_spir_v_hlsl_and_msl() {
        let failures: Vec<_> = variants()
            .into_iter()
            .filter_map(|variant| {
                translate(&variant.source()).err().map(|error| format!("{variant:?}: {error}"))
            })
            .collect();
        assert!(failures.is_empty(), "{} kernels:\n{}", failures.len(), failures.join("\n"));
        assert!(translate("fn main() { nonsense }").is_err());
    }

    #[test]
    fn conditions_keep_their_own_lines() {
        let file = "a\n#if X\nb\n#if !Y\nc\n#else\nd\n#endif\n#endif\ne";
        let kept = |flags: &[&str]| {
            let mut text = String::new();
            keep_lines(file, flags, &mut text);
            text.replace('\n', "")
        };
        assert_eq!((kept(&[]), kept(&["X"]), kept(&["X", "Y"])), ("ae".into(), "abce".into(), "abde".into()));
    }
}
