//! Well-known models in numbers, for `exo fits`. Shapes are those of the models' published `config.json`;
//! licences and uses are what their model cards say. A shape is checked by the number of parameters that it
//! makes, which the cards state too.

use exo_formats::Architecture;

use super::model_shape::{Experts, ModelNumbers};

/// A model that people have heard of.
#[derive(Clone, Copy, Debug)]
pub struct CatalogueModel {
    /// What `exo fits NAME` takes.
    pub name: &'static str,
    /// To be displayed.
    pub title: &'static str,
    /// A repository with GGUF files of it.
    pub repo: &'static str,
    /// What it is good for.
    pub good_for: &'static str,
    /// The hub's name of its licence.
    pub licence: &'static str,
    /// Its shape.
    pub numbers: ModelNumbers,
    /// Why exo does not run it, if it does not.
    pub not_yet: Option<&'static str>,
}

const fn dense(
    numbers: [u32; 7],
    tied: bool,
    context_tokens_max: u32,
    architecture: Architecture,
) -> ModelNumbers {
    let [layers, hidden, ffn, heads, kv_heads, head_dim, vocab] = numbers;
    ModelNumbers {
        architecture,
        layers,
        hidden,
        ffn,
        heads,
        kv_heads,
        head_dim,
        vocab,
        tied,
        rope_theta: 1_000_000.0,
        context_tokens_max,
        experts: None,
    }
}

const fn llama(numbers: [u32; 7], tied: bool, context_tokens_max: u32) -> ModelNumbers {
    dense(numbers, tied, context_tokens_max, Architecture::Llama)
}

const fn qwen2(numbers: [u32; 7], tied: bool, context_tokens_max: u32) -> ModelNumbers {
    dense(numbers, tied, context_tokens_max, Architecture::Qwen2)
}

const fn qwen3(numbers: [u32; 7], tied: bool) -> ModelNumbers {
    dense(numbers, tied, 40_960, Architecture::Qwen3)
}

/// A mixture of experts: `ffn` is the width of one expert.
const fn mixture(numbers: [u32; 7], context_tokens_max: u32, count: u32) -> ModelNumbers {
    let dense = dense(numbers, false, context_tokens_max, Architecture::Qwen3);
    ModelNumbers { experts: Some(Experts { count }), ..dense }
}

const fn entry(
    name: &'static str,
    title: &'static str,
    repo: &'static str,
    licence: &'static str,
    good_for: &'static str,
    numbers: ModelNumbers,
) -> CatalogueModel {
    CatalogueModel { name, title, repo, good_for, licence, numbers, not_yet: None }
}

const fn waiting(model: CatalogueModel, not_yet: &'static str) -> CatalogueModel {
    CatalogueModel { not_yet: Some(not_yet), ..model }
}

const EXPERTS: &str = "exo does not run mixtures of experts yet";
const GEMMA: &str = "exo does not run Gemma's architecture yet";
const PHI: &str = "exo does not run Phi's architecture yet";

const QWEN25_7B: ModelNumbers = qwen2([28, 3584, 18_944, 28, 4, 128, 152_064], false, 32_768);
const QWEN25_14B: ModelNumbers = qwen2([48, 5120, 13_824, 40, 8, 128, 152_064], false, 32_768);
const QWEN25_32B: ModelNumbers = qwen2([64, 5120, 27_648, 40, 8, 128, 152_064], false, 32_768);
const LLAMA_8B: ModelNumbers = llama([32, 4096, 14_336, 32, 8, 128, 128_256], false, 131_072);
const LLAMA_70B: ModelNumbers = llama([80, 8192, 28_672, 64, 8, 128, 128_256], false, 131_072);
const MISTRAL_24B: ModelNumbers = llama([40, 5120, 32_768, 32, 8, 128, 131_072], false, 32_768);

/// Layers, hidden width, feed-forward width, heads, key-value heads, head size, vocabulary.
pub const CATALOGUE: &[CatalogueModel] = &[
    entry(
        "smollm2-135m",
        "SmolLM2 135M",
        "HuggingFaceTB/SmolLM2-135M-Instruct-GGUF",
        "apache-2.0",
        "trying things out; rewriting short English texts",
        llama([30, 576, 1536, 9, 3, 64, 49_152], true, 8192),
    ),
    entry(
        "smollm2-360m",
        "SmolLM2 360M",
        "HuggingFaceTB/SmolLM2-360M-Instruct-GGUF",
        "apache-2.0",
        "rewriting and summing up short English texts",
        llama([32, 960, 2560, 15, 5, 64, 49_152], true, 8192),
    ),
    entry(
        "smollm2-1.7b",
        "SmolLM2 1.7B",
        "HuggingFaceTB/SmolLM2-1.7B-Instruct-GGUF",
        "apache-2.0",
        "simple questions and texts in English on small machines",
        llama([24, 2048, 8192, 32, 32, 64, 49_152], true, 8192),
    ),
    entry(
        "tinyllama-1.1b",
        "TinyLlama 1.1B Chat",
        "TheBloke/TinyLlama-1.1B-Chat-v1.0-GGUF",
        "apache-2.0",
        "trying things out on very small machines",
        llama([22, 2048, 5632, 32, 4, 64, 32_000], false, 2048),
    ),
    entry(
        "llama-3.2-1b",
        "Llama 3.2 1B",
        "bartowski/Llama-3.2-1B-Instruct-GGUF",
        "llama3.2",
        "short answers and summaries on telephones and small machines",
        llama([16, 2048, 8192, 32, 8, 64, 128_256], true, 131_072),
    ),
    entry(
        "llama-3.2-3b",
        "Llama 3.2 3B",
        "bartowski/Llama-3.2-3B-Instruct-GGUF",
        "llama3.2",
        "everyday questions and long texts on small machines",
        llama([28, 3072, 8192, 24, 8, 128, 128_256], true, 131_072),
    ),
    entry(
        "llama-3.1-8b",
        "Llama 3.1 8B",
        "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF",
        "llama3.1",
        "everyday questions, texts, calls of tools",
        LLAMA_8B,
    ),
    entry(
        "llama-3.3-70b",
        "Llama 3.3 70B",
        "bartowski/Llama-3.3-70B-Instruct-GGUF",
        "llama3.3",
        "demanding questions, texts and programs",
        LLAMA_70B,
    ),
    entry(
        "llama-3.1-405b",
        "Llama 3.1 405B",
        "bartowski/Meta-Llama-3.1-405B-Instruct-GGUF",
        "llama3.1",
        "the most demanding questions, on several large machines",
        llama([126, 16_384, 53_248, 128, 8, 128, 128_256], false, 131_072),
    ),
    entry(
        "deepseek-r1-llama-8b",
        "DeepSeek R1 Distill Llama 8B",
        "bartowski/DeepSeek-R1-Distill-Llama-8B-GGUF",
        "mit",
        "puzzles and sums: it thinks before it answers",
        LLAMA_8B,
    ),
    entry(
        "deepseek-r1-llama-70b",
        "DeepSeek R1 Distill Llama 70B",
        "bartowski/DeepSeek-R1-Distill-Llama-70B-GGUF",
        "mit",
        "hard puzzles, mathematics and programs: it thinks before it answers",
        LLAMA_70B,
    ),
    entry(
        "mistral-7b",
        "Mistral 7B v0.3",
        "bartowski/Mistral-7B-Instruct-v0.3-GGUF",
        "apache-2.0",
        "everyday questions and texts",
        llama([32, 4096, 14_336, 32, 8, 128, 32_768], false, 32_768),
    ),
    entry(
        "mistral-nemo-12b",
        "Mistral Nemo 12B",
        "bartowski/Mistral-Nemo-Instruct-2407-GGUF",
        "apache-2.0",
        "texts in many languages, long documents",
        llama([40, 5120, 14_336, 32, 8, 128, 131_072], false, 131_072),
    ),
    entry(
        "mistral-small-24b",
        "Mistral Small 3 24B",
        "bartowski/Mistral-Small-24B-Instruct-2501-GGUF",
        "apache-2.0",
        "everyday work in many languages, calls of tools",
        MISTRAL_24B,
    ),
    entry(
        "devstral-24b",
        "Devstral Small 24B",
        "mistralai/Devstral-Small-2505_gguf",
        "apache-2.0",
        "programming with tools",
        ModelNumbers { context_tokens_max: 131_072, ..MISTRAL_24B },
    ),
    entry(
        "codestral-22b",
        "Codestral 22B",
        "bartowski/Codestral-22B-v0.1-GGUF",
        "mnpl",
        "writing and completing programs",
        llama([56, 6144, 16_384, 48, 8, 128, 32_768], false, 32_768),
    ),
    entry(
        "mistral-large-123b",
        "Mistral Large 2 123B",
        "bartowski/Mistral-Large-Instruct-2407-GGUF",
        "mrl",
        "demanding texts and programs in many languages",
        llama([88, 12_288, 28_672, 96, 8, 128, 32_768], false, 131_072),
    ),
    entry(
        "yi-1.5-9b",
        "Yi 1.5 9B",
        "bartowski/Yi-1.5-9B-Chat-GGUF",
        "apache-2.0",
        "questions and texts in English and Chinese",
        llama([48, 4096, 11_008, 32, 4, 128, 64_000], false, 4096),
    ),
    entry(
        "qwen2.5-0.5b",
        "Qwen 2.5 0.5B",
        "Qwen/Qwen2.5-0.5B-Instruct-GGUF",
        "apache-2.0",
        "very short answers on telephones and small machines",
        qwen2([24, 896, 4864, 14, 2, 64, 151_936], true, 32_768),
    ),
    entry(
        "qwen2.5-1.5b",
        "Qwen 2.5 1.5B",
        "Qwen/Qwen2.5-1.5B-Instruct-GGUF",
        "apache-2.0",
        "short answers in many languages on small machines",
        qwen2([28, 1536, 8960, 12, 2, 128, 151_936], true, 32_768),
    ),
    entry(
        "qwen2.5-3b",
        "Qwen 2.5 3B",
        "Qwen/Qwen2.5-3B-Instruct-GGUF",
        "qwen-research",
        "everyday questions in many languages on small machines",
        qwen2([36, 2048, 11_008, 16, 2, 128, 151_936], true, 32_768),
    ),
    entry(
        "qwen2.5-7b",
        "Qwen 2.5 7B",
        "bartowski/Qwen2.5-7B-Instruct-GGUF",
        "apache-2.0",
        "everyday questions and texts in many languages, calls of tools",
        QWEN25_7B,
    ),
    entry(
        "qwen2.5-14b",
        "Qwen 2.5 14B",
        "bartowski/Qwen2.5-14B-Instruct-GGUF",
        "apache-2.0",
        "demanding texts in many languages",
        QWEN25_14B,
    ),
    entry(
        "qwen2.5-32b",
        "Qwen 2.5 32B",
        "bartowski/Qwen2.5-32B-Instruct-GGUF",
        "apache-2.0",
        "demanding texts and mathematics in many languages",
        QWEN25_32B,
    ),
    entry(
        "qwen2.5-72b",
        "Qwen 2.5 72B",
        "bartowski/Qwen2.5-72B-Instruct-GGUF",
        "qwen",
        "the most demanding texts and programs",
        qwen2([80, 8192, 29_568, 64, 8, 128, 152_064], false, 32_768),
    ),
    entry(
        "qwen2.5-coder-7b",
        "Qwen 2.5 Coder 7B",
        "bartowski/Qwen2.5-Coder-7B-Instruct-GGUF",
        "apache-2.0",
        "writing and completing programs",
        QWEN25_7B,
    ),
    entry(
        "qwen2.5-coder-32b",
        "Qwen 2.5 Coder 32B",
        "bartowski/Qwen2.5-Coder-32B-Instruct-GGUF",
        "apache-2.0",
        "writing and changing large programs",
        QWEN25_32B,
    ),
    entry(
        "qwq-32b",
        "QwQ 32B",
        "Qwen/QwQ-32B-GGUF",
        "apache-2.0",
        "hard puzzles and mathematics: it thinks long before it answers",
        ModelNumbers { context_tokens_max: 40_960, ..QWEN25_32B },
    ),
    entry(
        "deepseek-r1-qwen-1.5b",
        "DeepSeek R1 Distill Qwen 1.5B",
        "bartowski/DeepSeek-R1-Distill-Qwen-1.5B-GGUF",
        "mit",
        "simple sums and puzzles: it thinks before it answers",
        qwen2([28, 1536, 8960, 12, 2, 128, 151_936], false, 131_072),
    ),
    entry(
        "deepseek-r1-qwen-7b",
        "DeepSeek R1 Distill Qwen 7B",
        "bartowski/DeepSeek-R1-Distill-Qwen-7B-GGUF",
        "mit",
        "puzzles and mathematics: it thinks before it answers",
        ModelNumbers { context_tokens_max: 131_072, ..QWEN25_7B },
    ),
    entry(
        "deepseek-r1-qwen-14b",
        "DeepSeek R1 Distill Qwen 14B",
        "bartowski/DeepSeek-R1-Distill-Qwen-14B-GGUF",
        "mit",
        "hard puzzles and mathematics: it thinks before it answers",
        ModelNumbers { context_tokens_max: 131_072, ..QWEN25_14B },
    ),
    entry(
        "deepseek-r1-qwen-32b",
        "DeepSeek R1 Distill Qwen 32B",
        "bartowski/DeepSeek-R1-Distill-Qwen-32B-GGUF",
        "mit",
        "hard puzzles, mathematics and programs: it thinks before it answers",
        ModelNumbers { context_tokens_max: 131_072, ..QWEN25_32B },
    ),
    entry(
        "qwen3-0.6b",
        "Qwen 3 0.6B",
        "Qwen/Qwen3-0.6B-GGUF",
        "apache-2.0",
        "short answers on telephones and small machines",
        qwen3([28, 1024, 3072, 16, 8, 128, 151_936], true),
    ),
    entry(
        "qwen3-1.7b",
        "Qwen 3 1.7B",
        "Qwen/Qwen3-1.7B-GGUF",
        "apache-2.0",
        "short answers and simple calls of tools on small machines",
        qwen3([28, 2048, 6144, 16, 8, 128, 151_936], true),
    ),
    entry(
        "qwen3-4b",
        "Qwen 3 4B",
        "Qwen/Qwen3-4B-GGUF",
        "apache-2.0",
        "everyday questions, calls of tools; thinks if asked",
        qwen3([36, 2560, 9728, 32, 8, 128, 151_936], true),
    ),
    entry(
        "qwen3-8b",
        "Qwen 3 8B",
        "Qwen/Qwen3-8B-GGUF",
        "apache-2.0",
        "everyday questions, texts in many languages, calls of tools; thinks if asked",
        qwen3([36, 4096, 12_288, 32, 8, 128, 151_936], false),
    ),
    entry(
        "qwen3-14b",
        "Qwen 3 14B",
        "Qwen/Qwen3-14B-GGUF",
        "apache-2.0",
        "demanding questions, programs, calls of tools; thinks if asked",
        qwen3([40, 5120, 17_408, 40, 8, 128, 151_936], false),
    ),
    entry(
        "qwen3-32b",
        "Qwen 3 32B",
        "Qwen/Qwen3-32B-GGUF",
        "apache-2.0",
        "demanding questions, programs and mathematics; thinks if asked",
        qwen3([64, 5120, 25_600, 64, 8, 128, 151_936], false),
    ),
    waiting(
        entry(
            "qwen3-30b-a3b",
            "Qwen 3 30B-A3B",
            "Qwen/Qwen3-30B-A3B-GGUF",
            "apache-2.0",
            "demanding questions, answered fast",
            mixture([48, 2048, 768, 32, 4, 128, 151_936], 40_960, 128),
        ),
        EXPERTS,
    ),
    waiting(
        entry(
            "qwen3-235b-a22b",
            "Qwen 3 235B-A22B",
            "Qwen/Qwen3-235B-A22B-GGUF",
            "apache-2.0",
            "the most demanding questions and programs",
            mixture([94, 4096, 1536, 64, 4, 128, 151_936], 40_960, 128),
        ),
        EXPERTS,
    ),
    waiting(
        entry(
            "mixtral-8x7b",
            "Mixtral 8x7B",
            "TheBloke/Mixtral-8x7B-Instruct-v0.1-GGUF",
            "apache-2.0",
            "texts in many languages",
            mixture([32, 4096, 14_336, 32, 8, 128, 32_000], 32_768, 8),
        ),
        EXPERTS,
    ),
    waiting(
        entry(
            "gpt-oss-20b",
            "gpt-oss 20B",
            "ggml-org/gpt-oss-20b-GGUF",
            "apache-2.0",
            "demanding questions and calls of tools; thinks before it answers",
            mixture([24, 2880, 2880, 64, 8, 64, 201_088], 131_072, 32),
        ),
        EXPERTS,
    ),
    waiting(
        entry(
            "gpt-oss-120b",
            "gpt-oss 120B",
            "ggml-org/gpt-oss-120b-GGUF",
            "apache-2.0",
            "the most demanding questions and calls of tools",
            mixture([36, 2880, 2880, 64, 8, 64, 201_088], 131_072, 128),
        ),
        EXPERTS,
    ),
    waiting(
        entry(
            "gemma-2-9b",
            "Gemma 2 9B",
            "bartowski/gemma-2-9b-it-GGUF",
            "gemma",
            "everyday questions and texts",
            llama([42, 3584, 14_336, 16, 8, 256, 256_000], true, 8192),
        ),
        GEMMA,
    ),
    waiting(
        entry(
            "gemma-3-4b",
            "Gemma 3 4B",
            "ggml-org/gemma-3-4b-it-GGUF",
            "gemma",
            "everyday questions in many languages on small machines",
            llama([34, 2560, 10_240, 8, 4, 256, 262_208], true, 131_072),
        ),
        GEMMA,
    ),
    waiting(
        entry(
            "gemma-3-27b",
            "Gemma 3 27B",
            "ggml-org/gemma-3-27b-it-GGUF",
            "gemma",
            "demanding questions in many languages",
            llama([62, 5376, 21_504, 32, 16, 128, 262_208], true, 131_072),
        ),
        GEMMA,
    ),
    waiting(
        entry(
            "phi-4",
            "Phi 4 14B",
            "microsoft/phi-4-gguf",
            "mit",
            "mathematics and questions of knowledge, in English",
            llama([40, 5120, 17_920, 40, 10, 128, 100_352], false, 16_384),
        ),
        PHI,
    ),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// What the model cards say, in millions of parameters.
    const STATED: &[(&str, u64)] = &[
        ("smollm2-135m", 135),
        ("smollm2-360m", 362),
        ("smollm2-1.7b", 1711),
        ("tinyllama-1.1b", 1100),
        ("llama-3.2-1b", 1236),
        ("llama-3.2-3b", 3213),
        ("llama-3.1-8b", 8030),
        ("llama-3.3-70b", 70_554),
        ("llama-3.1-405b", 405_853),
        ("mistral-7b", 7248),
        ("mistral-nemo-12b", 12_248),
        ("mistral-small-24b", 23_572),
        ("codestral-22b", 22_247),
        ("mistral-large-123b", 122_610),
        ("yi-1.5-9b", 8829),
        ("qwen2.5-0.5b", 494),
        ("qwen2.5-1.5b", 1544),
        ("qwen2.5-3b", 3086),
        ("qwen2.5-7b", 7616),
        ("qwen2.5-14b", 14_770),
        ("qwen2.5-32b", 32_764),
        ("qwen2.5-72b", 72_706),
        ("deepseek-r1-qwen-1.5b", 1777),
        ("qwen3-0.6b", 596),
        ("qwen3-1.7b", 1721),
        ("qwen3-4b", 4022),
        ("qwen3-8b", 8191),
        ("qwen3-14b", 14_768),
        ("qwen3-32b", 32_762),
        ("qwen3-30b-a3b", 30_532),
        ("qwen3-235b-a22b", 235_094),
        ("mixtral-8x7b", 46_703),
        ("gpt-oss-20b", 20_910),
        ("gpt-oss-120b", 116_800),
        ("gemma-2-9b", 9242),
        ("phi-4", 14_660),
    ];

    #[test]
    fn shapes_make_as_many_parameters_as_the_model_cards_say() {
        for (name, millions) in STATED {
            let model = CATALOGUE.iter().find(|m| m.name == *name).unwrap();
            let ours = model.numbers.parameters() as f64 / 1e6;
            let off = (ours / *millions as f64 - 1.0).abs();
            assert!(off < 0.01, "{name}: {ours:.0} M from the shape, {millions} M stated");
        }
        assert!(CATALOGUE.len() >= 40, "{}", CATALOGUE.len());
    }

    #[test]
    fn names_are_unique_and_every_reference_is_one() {
        let names: BTreeSet<&str> = CATALOGUE.iter().map(|m| m.name).collect();
        assert_eq!(names.len(), CATALOGUE.len());
        for model in CATALOGUE {
            let reference: exo_hub::Reference = format!("hf.co/{}", model.repo).parse().unwrap();
            assert_eq!(reference.to_string(), format!("hf.co/{}", model.repo));
            assert!(!model.good_for.is_empty() && !model.licence.is_empty());
        }
    }
}
