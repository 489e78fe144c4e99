//! The text of each kernel variant: WGSL files put together, with lines that only some variants have.
//!
//! A kernel file may hold `#if NAME`, `#if !NAME`, `#else` and `#endif` lines, and use constants that are written in
//! front of it. `@slot` is the next binding. A file that is there once for each weight of a product has the weight's number where it
//! says `$`. Nothing more: what a variant computes can be read in its files.

use std::fmt::Write as _;

use exo_backend::{FAULT_OF_KV_WRITE, FAULTS};
use exo_types::DType;

/// What a binding after the first three is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Access {
    Read,
    Write,
}

/// A kernel file.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub(crate) enum Kernel {
    Add,
    SwiGlu,
    SelectRows,
    ArgMax,
    RmsNorm,
    Rope,
    KvWrite,
    Heads,
    Attention,
    Embed,
    MatMulVec,
    MatMulGated,
    MatMulTile,
}

/// A weight as a kernel's text sees it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub(crate) struct Stored {
    pub(crate) dtype: DType,
    pub(crate) has_bias: bool,
}

/// One variant of a kernel.
#[derive(Clone, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub(crate) struct Variant {
    pub(crate) kernel: Kernel,
    /// The weights, where there are some.
    pub(crate) weights: Vec<Stored>,
    /// Names that hold.
    pub(crate) flags: Vec<&'static str>,
    /// Constants.
    pub(crate) numbers: Vec<(&'static str, u32)>,
}

/// A variant written out.
pub(crate) struct Text {
    pub(crate) source: String,
    /// How the bindings after the first three are accessed.
    pub(crate) accesses: Vec<Access>,
}

/// Largest head that attention has room for.
pub(crate) const HEAD_DIM_MAX: u32 = 256;

/// Workgroups along the second dimension of a dispatch; more rows go along the third.
pub(crate) const ROWS_MAX: u32 = 32768;

impl Variant {
    pub(crate) fn plain(kernel: Kernel) -> Self {
        Self { kernel, weights: Vec::new(), flags: Vec::new(), numbers: Vec::new() }
    }

    pub(crate) fn of(kernel: Kernel, weights: impl IntoIterator<Item = Stored>) -> Self {
        Self { weights: weights.into_iter().collect(), ..Self::plain(kernel) }
    }

    pub(crate) fn flag(mut self, name: &'static str, holds: bool) -> Self {
        self.flags.extend(holds.then_some(name));
        self
    }

    pub(crate) fn number(mut self, name: &'static str, value: u32) -> Self {
        self.numbers.push((name, value));
        self
    }

    /// Files that are there once.
    fn files(&self) -> &'static [&'static str] {
        match self.kernel {
            Kernel::Add => &[include_str!("shaders/elements.wgsl"), include_str!("shaders/add.wgsl")],
            Kernel::SwiGlu => &[
                include_str!("shaders/elements.wgsl"),
                include_str!("shaders/gated.wgsl"),
                include_str!("shaders/swiglu.wgsl"),
            ],
            Kernel::SelectRows => {
                &[include_str!("shaders/elements.wgsl"), include_str!("shaders/select_rows.wgsl")]
            }
            Kernel::ArgMax => &[include_str!("shaders/arg_max.wgsl")],
            Kernel::RmsNorm => &[include_str!("shaders/rms.wgsl"), include_str!("shaders/rms_norm.wgsl")],
            Kernel::Rope => &[
                include_str!("shaders/turn.wgsl"),
                include_str!("shaders/pairs.wgsl"),
                include_str!("shaders/rope.wgsl"),
            ],
            Kernel::KvWrite => &[
                include_str!("shaders/pages.wgsl"),
                include_str!("shaders/half.wgsl"),
                include_str!("shaders/kv_write.wgsl"),
                include_str!("shaders/kv_store.wgsl"),
            ],
            Kernel::Heads => &[
                include_str!("shaders/pages.wgsl"),
                include_str!("shaders/half.wgsl"),
                include_str!("shaders/turn.wgsl"),
                include_str!("shaders/pairs.wgsl"),
                include_str!("shaders/rms.wgsl"),
                include_str!("shaders/heads.wgsl"),
                include_str!("shaders/kv_store.wgsl"),
            ],
            Kernel::Attention => {
                &[include_str!("shaders/pages.wgsl"), include_str!("shaders/attention.wgsl")]
            }
            Kernel::Embed => &[],
            Kernel::MatMulTile => &[include_str!("shaders/matmul.wgsl")],
            Kernel::MatMulVec => &[
                include_str!("shaders/matmul.wgsl"),
                include_str!("shaders/matmul_sums.wgsl"),
                include_str!("shaders/matmul_vec.wgsl"),
            ],
            Kernel::MatMulGated => &[
                include_str!("shaders/matmul.wgsl"),
                include_str!("shaders/matmul_sums.wgsl"),
                include_str!("shaders/gated.wgsl"),
                include_str!("shaders/matmul_gated.wgsl"),
            ],
        }
    }

    /// Files that are there once for each weight; its decoder comes besides.
    fn files_of_weight(&self) -> &'static [&'static str] {
        const OPERAND: &str = include_str!("shaders/matmul_operand.wgsl");
        match self.kernel {
            Kernel::Embed => &[include_str!("shaders/embed.wgsl")],
            Kernel::MatMulTile => &[OPERAND, include_str!("shaders/matmul_tile.wgsl")],
            Kernel::MatMulVec => &[
                OPERAND,
                include_str!("shaders/matmul_slices.wgsl"),
                include_str!("shaders/matmul_product.wgsl"),
            ],
            Kernel::MatMulGated => &[OPERAND, include_str!("shaders/matmul_slices.wgsl")],
            _ => &[],
        }
    }

    /// The whole text.
    pub(crate) fn text(&self) -> Text {
        let mut text = Text { source: String::new(), accesses: Vec::new() };
        let is_write = matches!(self.kernel, Kernel::KvWrite | Kernel::Heads);
        for (number, (_, what)) in (1u32..).zip(FAULTS) {
            let number = number + if is_write { FAULT_OF_KV_WRITE } else { 0 };
            text.constant(&format!("FAULT_{}", what.to_uppercase()), number);
        }
        text.constant("ROWS_MAX", ROWS_MAX);
        for (name, value) in &self.numbers {
            text.constant(name, *value);
        }
        for file in std::iter::once(&include_str!("shaders/prelude.wgsl")).chain(self.files()) {
            text.add(file, &self.flags);
        }
        for (i, weight) in self.weights.iter().enumerate() {
            let traits = crate::layout::traits(weight.dtype);
            for (name, value) in traits.numbers {
                text.constant(&format!("{name}{i}"), *value);
            }
            let bias = weight.has_bias.then_some("BIAS");
            let flags: Vec<_> = self.flags.iter().chain(traits.flags).copied().chain(bias).collect();
            let decoder = crate::layout::decoder(weight.dtype);
            for file in self.files_of_weight().iter().chain([&decoder]) {
                text.add(&file.replace('$', &i.to_string()), &flags);
            }
        }
        text
    }
}

impl Text {
    fn constant(&mut self, name: &str, value: u32) {
        let _ = writeln!(self.source, "const {name}: u32 = {value}u;"); // writing to a string cannot fail
    }

    /// Adds the lines that the flags leave and numbers the bindings.
    fn add(&mut self, file: &str, flags: &[&str]) {
        for line in kept_lines(file, flags) {
            if let Some(binding) = line.strip_prefix("@slot ") {
                let number = 3 + self.accesses.len();
                let is_written = binding.contains("read_write");
                self.accesses.push(if is_written { Access::Write } else { Access::Read });
                let _ = write!(self.source, "@group(0) @binding({number}) {binding}");
            } else {
                self.source.push_str(line);
            }
            self.source.push('\n');
        }
    }
}

/// The lines that the flags leave. Panics on unbalanced conditions: the files are ours.
fn kept_lines<'a>(file: &'a str, flags: &[&str]) -> Vec<&'a str> {
    let (mut kept, mut lines) = (vec![true], Vec::new());
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
            lines.push(line);
        }
    }
    assert!(kept.len() == 1, "a condition is not ended");
    lines
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
        all.extend(plain(Kernel::RmsNorm, "SUM"));
        all.extend(plain(Kernel::Rope, "INTERLEAVED"));
        all.extend([Kernel::SelectRows, Kernel::ArgMax].map(|k| Variant::plain(k).flag("SELECTED", true)));
        for flag in ["F32", "F16", "Q8"] {
            let room = |kernel| Variant::plain(kernel).flag(flag, true).number("HEAD_DIM_MAX", HEAD_DIM_MAX);
            all.push(Variant::plain(Kernel::KvWrite).flag(flag, true));
            all.push(room(Kernel::Attention));
            all.extend([false, true].map(|holds| room(Kernel::Heads).flag("NORM", holds)));
            all.push(room(Kernel::Heads).flag("NORM", true).flag("INTERLEAVED", true));
        }
        for dtype in DType::ALL.into_iter().filter(|dtype| crate::layout::is_supported(*dtype)) {
            for bits in 0..16 {
                let weight = Stored { dtype, has_bias: bits & 8 > 0 };
                let product = |kernel, weights: &[Stored]| {
                    let variant = Variant::of(kernel, weights.iter().copied());
                    let variant = variant.flag("SELECTED", bits & 1 > 0);
                    variant.flag("RAGGED", bits & 2 > 0 && !dtype.is_quantised())
                };
                all.push(Variant::of(Kernel::Embed, [weight]));
                all.push(product(Kernel::MatMulTile, &[weight]));
                let other = Stored { dtype: DType::Q6_K, has_bias: false };
                let sets = [&[weight][..], &[weight, other], &[weight, other, weight]];
                let few = |kernel, weights: &[Stored]| {
                    let variant = product(kernel, weights).flag("SUBGROUPS", bits & 4 > 0);
                    let variant = variant.flag("SECOND", weights.len() > 1).flag("THIRD", weights.len() > 2);
                    variant.number("ROWS_EACH", 2)
                };
                for tokens in [1, 4] {
                    let sized = |variant: Variant, shared| {
                        variant.number("TOKENS_EACH", tokens).number("SHARED", shared)
                    };
                    all.extend(sets.map(|weights| sized(few(Kernel::MatMulVec, weights), 1)));
                    all.push(sized(few(Kernel::MatMulGated, &[weight, other]), 2));
                }
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
        written.map(drop).map_err(|error| told("MSL", &error))?;
        // OpenGL ES has no subgroups: a device opened through it takes the other variant.
        if source.contains("subgroup") { Ok(()) } else { translate_to_glsl(&module, &info) }
    }

    fn translate_to_glsl(module: &naga::Module, info: &naga::valid::ModuleInfo) -> Result<(), String> {
        let entry = naga::back::glsl::PipelineOptions {
            shader_stage: naga::ShaderStage::Compute,
            entry_point: "main".to_owned(),
            multiview: None,
        };
        let (mut text, options) = (String::new(), naga::back::glsl::Options::default());
        let policies = naga::proc::BoundsCheckPolicies::default();
        naga::back::glsl::Writer::new(&mut text, module, info, &options, &entry, policies)
            .and_then(|mut writer| writer.write().map(drop))
            .map_err(|error| format!("GLSL: {error:?}"))
    }

    /// A kernel that would fail on Windows or a Mac fails here.
    #[test]
    fn every_kernel_translates_to_spir_v_hlsl_msl_and_glsl() {
        let failures: Vec<_> = variants()
            .into_iter()
            .filter_map(|variant| {
                translate(&variant.text().source).err().map(|error| format!("{variant:?}: {error}"))
            })
            .collect();
        assert!(failures.is_empty(), "{} kernels:\n{}", failures.len(), failures.join("\n"));
        assert!(translate("fn main() { nonsense }").is_err());
    }

    #[test]
    fn conditions_keep_their_own_lines() {
        let file = "a\n#if X\nb\n#if !Y\nc\n#else\nd\n#endif\n#endif\ne";
        let kept = |flags: &[&str]| kept_lines(file, flags).concat();
        assert_eq!((kept(&[]), kept(&["X"]), kept(&["X", "Y"])), ("ae".into(), "abce".into(), "abde".into()));
    }
}
