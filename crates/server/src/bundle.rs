//! The files of the page, as `cargo xtask web` has made them.

use std::borrow::Cow;

use rust_embed::RustEmbed;

/// A file of the page by its name, as `index.html` or `assets/main-1a2b.js.gz`.
pub type Dashboard = fn(&str) -> Option<Cow<'static, [u8]>>;

/// Read from the folder in debug builds, in the program in others. The folder is there without files too.
#[derive(RustEmbed)]
#[folder = "dashboard/"]
struct Bundle;

/// Whether this program has the page.
pub fn has_page() -> bool {
    bundled("index.html").is_some() || bundled("index.html.gz").is_some()
}

/// What `cargo xtask web` has put into the folder of this crate.
pub fn bundled(name: &str) -> Option<Cow<'static, [u8]>> {
    Bundle::get(name).map(|file| file.data)
}
