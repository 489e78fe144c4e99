//! The text of each kernel variant: WGSL files put together, with lines that only some variants have.
//!
//! A kernel file may hold `#if NAME`, `#if !NAME`, `#else` and `#endif` lines, and use constants that are
//! written in front of it. `@slot` is the next binding. A file that is there once for each weight of a
//! product has the weight's number where it says `$`. Nothing more: what a variant computes can be read in
//! its files.

use std::fmt::Write as _;
use std::ops::RangeInclusive;

use exo_backend::{FAULT_OF_KV_WRITE, FAULTS};
use exo_types::DType;

/// What a binding after the first three is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Access {
    Read,
    Write,
}

exo_types::enum_with_all! {
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
}

/// Flags that say how many weights a kernel has: one for each after the first.
const PARTS: [&str; 2] = ["SECOND", "THIRD"];

impl Kernel {
    /// Flags that it may be asked for: of each group none or one.
    fn flags(self) -> &'static [&'static [&'static str]] {
        match self {
            Self::Add => &[&["SELF"]],
            Self::SwiGlu => &[&["IN_PLACE"]],
            Self::SelectRows | Self::ArgMax => &[&["SELECTED"]],
            Self::RmsNorm => &[&["SELECTED"], &["IN_PLACE", "SUM"]],
            Self::Rope => &[&["INTERLEAVED"]],
            Self::KvWrite | Self::Attention => &[&["F16", "Q8"]],
            Self::Heads => &[&["F16", "Q8"], &["NORM"], &["INTERLEAVED"]],
            Self::Embed => &[],
            Self::MatMulTile => &[&["SELECTED"], &["RAGGED"]],
            Self::MatMulVec | Self::MatMulGated => &[&["SELECTED"], &["RAGGED"], &["SUBGROUPS"]],
        }
    }

    /// How many weights it may have.
    fn weights(self) -> RangeInclusive<usize> {
        match self {
            Self::Embed | Self::MatMulTile => 1..=1,
            Self::MatMulVec => 1..=3,
            Self::MatMulGated => 2..=2,
            _ => 0..=0,
        }
    }

    /// Its constants and their values.
    fn numbers(self) -> &'static [(&'static str, &'static [u32])] {
        match self {
            Self::Heads | Self::Attention => &[("HEAD_DIM_MAX", &[HEAD_DIM_MAX])],
            Self::MatMulVec => &[("ROWS_EACH", &[2]), ("TOKENS_EACH", &[1, 4]), ("SHARED", &[1])],
            Self::MatMulGated => &[("ROWS_EACH", &[2]), ("TOKENS_EACH", &[1, 4]), ("SHARED", &[2])],
            _ => &[],
        }
    }
}

/// A weight as a kernel's text sees it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub(crate) struct WeightFormat {
    pub(crate) dtype: DType,
    pub(crate) has_bias: bool,
}

/// One variant of a kernel.
#[derive(Clone, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub(crate) struct Variant {
    pub(crate) kernel: Kernel,
    /// The weights, where there are some.
    pub(crate) weights: Vec<WeightFormat>,
    /// Names that hold.
    pub(crate) flags: Vec<&'static str>,
    /// Constants by name.
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

    pub(crate) fn of(kernel: Kernel, weights: impl IntoIterator<Item = WeightFormat>) -> Self {
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

    /// Whether it is of the kernels that the tests translate for every interface. Asked of each kernel that a
    /// debug build compiles, so that no test can use one that they forgot.
    pub(crate) fn is_known(&self) -> bool {
        let groups = self.kernel.flags();
        let of_group = |group: &[&str]| self.flags.iter().filter(|flag| group.contains(flag)).count();
        let is_flag = |flag: &&&str| groups.iter().any(|group| group.contains(flag)) || PARTS.contains(flag);
        let parts = self.weights.len();
        let is_ragged_block =
            self.flags.contains(&"RAGGED") && self.weights.iter().any(|w| w.dtype.is_quantised());
        Kernel::ALL.contains(&self.kernel)
            && self.flags.iter().filter(is_flag).count() == self.flags.len()
            && groups.iter().all(|group| of_group(group) <= 1)
            && self.kernel.weights().contains(&parts)
            && of_group(&PARTS) == parts.saturating_sub(1)
            && !is_ragged_block
            && self.numbers.iter().map(|(name, _)| *name).eq(self.kernel.numbers().iter().map(|(n, _)| *n))
            && self.numbers.iter().zip(self.kernel.numbers()).all(|((_, v), (_, some))| some.contains(v))
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
    use std::collections::BTreeSet;

    use super::*;

    /// The weights that a kernel may have, `count` of them: of every type in every place and beside every
    /// other; with bias and without. A third one's text is that of the second with another number.
    fn weights(count: usize) -> Vec<Vec<WeightFormat>> {
        let of = |dtype, has_bias| WeightFormat { dtype, has_bias };
        let types: Vec<_> = DType::ALL.into_iter().filter(|d| crate::layout::is_supported(*d)).collect();
        let mut all = Vec::new();
        for (first, second) in
            types.iter().flat_map(|first| types.iter().map(move |second| (*first, *second)))
        {
            for bias in [false, true] {
                let three = [of(first, bias), of(second, false), of(second, bias)];
                all.push(three[..count].to_vec());
            }
        }
        all.sort();
        all.dedup();
        all
    }

    impl Variant {
        /// With what has nothing to do with types: translated with weights of one type.
        fn is_elsewhere(&self) -> bool {
            let has_bias = self.weights.iter().any(|weight| weight.has_bias);
            has_bias || self.flags.contains(&"SELECTED") || self.numbers.contains(&("TOKENS_EACH", 1))
        }
    }

    /// Every variant that is known, but for weights as [`weights`] has them.
    fn variants() -> Vec<Variant> {
        let mut all = Vec::new();
        for kernel in Kernel::ALL {
            for weights in kernel.weights().flat_map(weights) {
                let mut some = vec![Variant::of(kernel, weights.iter().copied())];
                for group in kernel.flags() {
                    let with = |v: &Variant| group.iter().map(|flag| v.clone().flag(flag, true)).collect();
                    let more: Vec<Vec<Variant>> = some.iter().map(with).collect();
                    some.extend(more.into_iter().flatten());
                }
                for variant in &mut some {
                    variant.flags.extend(&PARTS[..weights.len().saturating_sub(1)]);
                }
                for (name, values) in kernel.numbers() {
                    let with = |v: &Variant| values.iter().map(|n| v.clone().number(name, *n)).collect();
                    let more: Vec<Vec<Variant>> = some.iter().map(with).collect();
                    some = more.into_iter().flatten().collect();
                }
                let is_mixed = weights.iter().any(|weight| weight.dtype != weights[0].dtype);
                some.retain(|variant| variant.is_known() && !(is_mixed && variant.is_elsewhere()));
                all.extend(some);
            }
        }
        all
    }

    /// What stands behind `#if` in its files.
    fn conditions(variant: &Variant) -> BTreeSet<&'static str> {
        let decoders = variant.weights.iter().map(|weight| crate::layout::decoder(weight.dtype));
        let shared = [include_str!("shaders/prelude.wgsl")];
        let files = variant.files().iter().chain(variant.files_of_weight()).copied().chain(decoders);
        let lines = files.chain(shared).flat_map(str::lines);
        lines.filter_map(|line| Some(line.strip_prefix("#if ")?.trim_start_matches('!'))).collect()
    }

    #[test]
    fn every_condition_in_a_file_is_one_that_is_translated_both_ways() {
        let of_types: BTreeSet<&str> =
            DType::ALL.into_iter().flat_map(|d| crate::layout::traits(d).flags).copied().collect();
        for kernel in Kernel::ALL {
            for weights in kernel.weights().flat_map(weights) {
                let known = kernel.flags().iter().copied().flatten().chain(&PARTS).copied();
                let known: BTreeSet<&str> = known.chain(of_types.iter().copied()).chain(["BIAS"]).collect();
                // Files of several kernels: SELECTED stands in the prelude, which has no other.
                let mut asked = conditions(&Variant::of(kernel, weights));
                asked.remove("SELECTED");
                assert!(asked.is_subset(&known), "{kernel:?}: {asked:?}");
            }
        }
    }

    #[test]
    fn the_variants_of_the_models_are_among_those_translated() {
        let all: BTreeSet<Variant> = variants().into_iter().collect();
        let final_norm = Variant::plain(Kernel::RmsNorm).flag("SELECTED", true).flag("IN_PLACE", true);
        let heads_of_llama = Variant::plain(Kernel::Heads)
            .flag("F16", true)
            .flag("INTERLEAVED", true)
            .number("HEAD_DIM_MAX", HEAD_DIM_MAX);
        for variant in [final_norm, heads_of_llama] {
            assert!(all.contains(&variant), "{variant:?}");
        }
        let both = Variant::plain(Kernel::RmsNorm).flag("IN_PLACE", true).flag("SUM", true);
        assert!(!both.is_known() && !Variant::plain(Kernel::Rope).flag("NORM", true).is_known());
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
        // Direct3D's older compiler stops at shader model 5.1, which has no subgroups: it is asked for the
        // other variant.
        let models = [naga::back::hlsl::ShaderModel::V6_0, naga::back::hlsl::ShaderModel::V5_1];
        let usable = if source.contains("subgroup") { &models[..1] } else { &models[..] };
        for shader_model in usable.iter().copied() {
            let hlsl =
                naga::back::hlsl::Options { shader_model, fake_missing_bindings: true, ..Default::default() };
            naga::back::hlsl::Writer::new(&mut String::new(), &hlsl, &Default::default())
                .write(&module, &info, None)
                .map_err(|error| told(&format!("HLSL {shader_model:?}"), &error))?;
        }
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
