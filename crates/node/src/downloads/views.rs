//! What a hub said and what lies on the disk, in the types of the API. Commands without a node use them too.

use exo_api::{FoundModelView, FoundRepoView, RepoFileView, RepoView, VariantView};
use exo_hub::{FoundRepo, RepoFile, Snapshot, Variant};
use exo_store::CachedModel;

/// A repository with its models.
pub fn repo_view(snapshot: &Snapshot) -> RepoView {
    RepoView {
        repo: snapshot.repo.clone(),
        commit: snapshot.commit.clone(),
        gated: snapshot.is_gated,
        licence: snapshot.licence.label().to_owned(),
        terms: snapshot.licence.notable_terms(),
        models: exo_hub::variants(snapshot).iter().map(variant_view).collect(),
    }
}

fn variant_view(variant: &Variant) -> VariantView {
    let file = |f: &RepoFile| RepoFileView { path: f.path.clone(), size: f.size, sha256: f.sha256.clone() };
    VariantView {
        label: variant.label.clone(),
        bytes: variant.bytes(),
        memory_bytes: variant.memory_bytes(),
        supported: variant.is_supported,
        problem: variant.problem.clone(),
        files: variant.files.iter().map(file).collect(),
    }
}

/// A repository that a search found.
pub fn found_repo_view(found: &FoundRepo) -> FoundRepoView {
    FoundRepoView {
        repo: found.repo.clone(),
        downloads: found.downloads,
        likes: found.likes,
        gated: found.is_gated,
        format: found.format.map(str::to_owned),
    }
}

/// A model of another program.
pub fn found_model_view(model: &CachedModel) -> FoundModelView {
    FoundModelView {
        name: model.name.clone(),
        program: model.cache.to_owned(),
        path: model.path.display().to_string(),
        bytes: model.bytes,
        sha256: model.sha256.clone(),
        problem: model.problem.clone(),
    }
}
