//! Well-known models in numbers, for `exo fits`: the rows of `catalogue.txt`. Shapes are those of the models'
//! published `config.json`; licences and uses are what their model cards say. A shape is checked by the
//! number of parameters that it makes, which the cards state too.

use exo_formats::Architecture;

use super::model_shape::ModelNumbers;

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

/// The models, in the order of the table. That each of its rows is one, a test sees.
pub fn catalogue() -> impl Iterator<Item = CatalogueModel> {
    include_str!("catalogue.txt").lines().filter(|row| !row.starts_with('#')).filter_map(CatalogueModel::of)
}

impl CatalogueModel {
    fn of(row: &'static str) -> Option<Self> {
        let cells: Vec<&'static str> = row.split('|').map(str::trim).collect();
        let [name, title, repo, licence, good_for, architecture, shape, tables, context, experts, not_yet] =
            <[&'static str; 11]>::try_from(cells).ok()?;
        let shape: Option<Vec<u32>> = shape.split(' ').map(|number| number.parse().ok()).collect();
        let tied = match tables {
            "tied" => true,
            "untied" => false,
            _ => return None,
        };
        let experts = match experts {
            "" => None,
            count => Some(count.parse().ok()?),
        };
        let numbers = ModelNumbers {
            architecture: Architecture::from_key(architecture)?,
            rope_theta: 1_000_000.0,
            context_tokens_max: context.parse().ok()?,
            experts,
            ..ModelNumbers::llama(shape?.try_into().ok()?, tied)
        };
        let not_yet = Some(not_yet).filter(|text| !text.is_empty());
        Some(Self { name, title, repo, good_for, licence, numbers, not_yet })
    }
}

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
            let model = catalogue().find(|m| m.name == *name).unwrap();
            let ours = model.numbers.parameters() as f64 / 1e6;
            let off = (ours / *millions as f64 - 1.0).abs();
            assert!(off < 0.01, "{name}: {ours:.0} M from the shape, {millions} M stated");
        }
    }

    #[test]
    fn every_row_is_a_model_with_a_name_of_its_own_and_a_reference() {
        let names: BTreeSet<&str> = catalogue().map(|m| m.name).collect();
        let rows = include_str!("catalogue.txt").lines().filter(|row| !row.starts_with('#')).count();
        assert!(rows >= 40 && names.len() == rows, "{rows} {names:?}");
        for model in catalogue() {
            let reference: exo_hub::Reference = format!("hf.co/{}", model.repo).parse().unwrap();
            assert_eq!(reference.to_string(), format!("hf.co/{}", model.repo));
            assert!(!model.good_for.is_empty() && !model.licence.is_empty());
        }
    }

    #[test]
    fn a_row_with_a_cell_that_says_nothing_is_no_model() {
        let is_model = |row| CatalogueModel::of(row).is_some();
        assert!(is_model("m | M | a/b | mit | texts | llama | 1 2 3 4 5 6 7 | tied | 8 | |"));
        assert!(!is_model("m | M | a/b | mit | texts | llama | 1 2 3 4 5 6 7 | teid | 8 | |"));
        assert!(!is_model("m | M | a/b | mit | texts | llama | 1 2 3 4 5 6 7 | tied | 8 | many |"));
        assert!(!is_model("m | M | a/b | mit | texts | llama | 1 2 3 4 5 6 7 8, | tied | 8 | |"));
    }
}
