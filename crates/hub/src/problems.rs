//! What is wrong with an answer, with a list of a repository's models, or with a record on the disk.

/// Layers of a manifest.
pub(crate) const LAYERS_MAX: usize = 1000;
pub(crate) const LAYER_BYTES_MAX: u64 = 8 << 40;
/// No file of a model is larger: 8 TiB.
pub(crate) const FILE_BYTES_MAX: u64 = 8 << 40;
/// Shards that an index names.
pub(crate) const INDEX_SHARDS_MAX: usize = 2000;

/// Why an answer cannot be right. What a hub wrote is quoted and cut short already.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AnswerProblem {
    #[error("it is not JSON ({0})")]
    Json(serde_json::Error),
    #[error("it is not JSON ({error}); it begins with `{start}`")]
    JsonFrom { error: serde_json::Error, start: String },
    #[error("it is not a list of {0}")]
    NoList(&'static str),
    #[error("it has no `{0}`")]
    NoKey(&'static str),
    #[error("it has neither `token` nor `access_token`")]
    NoToken,
    #[error("its token is malformed")]
    BadToken,
    #[error("its `sha` is `{0}`, expected 40 hexadecimal digits")]
    Sha(String),
    #[error("a file has no `path`")]
    NoPath,
    #[error("`{0}` has no `size`")]
    NoSize(String),
    #[error("`{path}` has {size} bytes, at most {FILE_BYTES_MAX} are accepted")]
    FileTooLarge { path: String, size: u64 },
    #[error("the digest of `{path}` is `{digest}`, expected 64 hexadecimal digits")]
    FileDigest { path: String, digest: String },
    #[error("the shard of `{0}` is not a string")]
    NoShard(String),
    #[error("`{tensor}` is in `{shard}`, which is not the name of a shard file")]
    ShardName { tensor: String, shard: String },
    #[error("it names more than {INDEX_SHARDS_MAX} shards")]
    TooManyShards,
    #[error("its `weight_map` is empty")]
    NoShards,
    #[error("it names the shard `{0}`, which is not in the repository")]
    ShardMissing(String),
    #[error("it is an index of manifests for several machines, which no model has")]
    IndexOfManifests,
    #[error("it has {0} layers, at most {LAYERS_MAX} are accepted")]
    TooManyLayers(usize),
    #[error("a layer has no `digest`")]
    NoDigest,
    #[error("the digest of a layer is `{0}`, expected sha256")]
    LayerDigest(String),
    #[error("the layer {0} has no `size`")]
    NoLayerSize(String),
    #[error("the layer {sha256} has {size} bytes, at most {LAYER_BYTES_MAX} are accepted")]
    LayerTooLarge { sha256: String, size: u64 },
    #[error("its SHA-256 is {found}, and {expected} was asked for")]
    ManifestDigest { found: String, expected: String },
}

/// Why an answer is not the range that was asked for.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RangeProblem {
    #[error("it is compressed, which was not asked for")]
    Compressed,
    #[error("its Content-Range is `{0}`")]
    ContentRange(String),
    #[error("bytes {start} to {stop} of {size} were asked for, it has {from} to {to} of {whole}")]
    OtherRange { start: u64, stop: u64, size: u64, from: u64, to: u64, whole: u64 },
    #[error("bytes {start} to {stop} were asked for, and it is the whole file: this host knows no ranges")]
    WholeFile { start: u64, stop: u64 },
    #[error("it has {length} bytes, {asked} were asked for")]
    Length { length: u64, asked: u64 },
    #[error("its ETag is `{found}`, that of the ranges before was `{before}`")]
    ETag { found: String, before: String },
    /// By what the hub and the host of the bytes say.
    #[error("{0}")]
    OtherFile(String),
}

/// Why none of a repository's models is the one that is meant.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChoiceProblem {
    #[error("nothing in it is `{wanted}`; it has {labels}")]
    NoSuchLabel { wanted: String, labels: String },
    #[error("`{wanted}` may be any of {files}; give the address of the file")]
    Ambiguous { wanted: String, files: String },
    #[error("exo does not compute with its types yet: {labels}")]
    NoKernels { labels: String },
    /// Of the first of its models that has something wrong.
    #[error("{0}")]
    Variant(String),
}

/// Why a record of where files came from is none.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OriginProblem {
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error("version {version} with {files} files")]
    Other { version: u32, files: usize },
}
