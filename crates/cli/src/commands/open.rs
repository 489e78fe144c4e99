//! `exo open`: a link into the node's page that is good once, and the browser on it.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail};
use exo_api::CodeView;

use super::running;
use crate::args::Open;
use crate::config::Config;
use crate::ui;

/// For the program that opens browsers to say whether it could.
const OPENER_MAX: Duration = Duration::from_secs(5);

/// Prints the link and opens it, unless only one of both is asked for.
pub async fn run(config: &Config, args: &Open) -> anyhow::Result<()> {
    let client = running(config).await?;
    if args.sign_out {
        client.delete("/exo/v1/sessions").await?;
        ui::line("all browsers are signed out");
        return Ok(());
    }
    if !exo_server::has_page() {
        bail!(
            "this program was built without its page: `cargo xtask web` in its sources makes it (Node 20 and npm), then build again"
        );
    }
    let address = client.address();
    if !address.ip().is_loopback() {
        bail!(
            "the API listens on {address} only, and administration answers on this machine: start exo with --api-listen 0.0.0.0:{}",
            address.port()
        );
    }
    let code: CodeView = client.post("/exo/v1/codes", &serde_json::json!({})).await?;
    // The address as it is bound: what `localhost` is, another program on [::1] may decide.
    let link = format!("http://{address}/#code={}", code.code);
    ui::line(&link);
    if args.print {
        return Ok(());
    }
    ui::line(format!("good once, for {} s", code.expires_in_s));
    let opened = match has_screen() {
        true => open(&config.data_dir(), &link).await,
        false => Err(anyhow::anyhow!("this session has no screen")),
    };
    if let Err(error) = opened {
        tracing::debug!(%error, "no browser was opened");
        ui::line(format!(
            "no browser opens here; on the machine that has one, run this and open the link there:\n  {}",
            tunnel(address.port())
        ));
    }
    Ok(())
}

/// Whether somebody sits at this session: macOS and Windows always have a screen.
fn has_screen() -> bool {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    matches!(std::env::consts::OS, "macos" | "windows") || is_set("DISPLAY") || is_set("WAYLAND_DISPLAY")
}

/// Opens the browser on a file of the owner's that leads to the link: the arguments of a program are
/// anybody's to read.
async fn open(data_dir: &Path, link: &str) -> anyhow::Result<()> {
    let page = write_page(data_dir, link)?;
    let (program, first) = match std::env::consts::OS {
        "macos" => ("open", None),
        "windows" => ("rundll32", Some("url.dll,FileProtocolHandler")),
        _ => ("xdg-open", None),
    };
    let mut command = tokio::process::Command::new(program);
    command.args(first).arg(&page).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().with_context(|| format!("cannot start `{program}`"))?;
    // One that goes on running is the browser itself.
    if let Ok(status) = tokio::time::timeout(OPENER_MAX, child.wait()).await {
        let status = status.with_context(|| format!("cannot wait for `{program}`"))?;
        if !status.success() {
            bail!("`{program}` ended with {status}");
        }
    }
    Ok(())
}

/// The same file each time; the code in it is good for a minute.
fn write_page(data_dir: &Path, link: &str) -> anyhow::Result<PathBuf> {
    let path = data_dir.join("open.html");
    let write = || -> std::io::Result<()> {
        let mut options = OpenOptions::new();
        options.create(true).truncate(true).write(true);
        let mut file = exo_stdx::for_owner_only(&mut options).open(&path)?;
        exo_stdx::restrict_to_owner(&path)?;
        // An address and hexadecimal digits: nothing in it is markup.
        write!(
            file,
            "<!doctype html>\n<meta charset=\"utf-8\">\n<meta name=\"referrer\" content=\"no-referrer\">\n\
             <meta http-equiv=\"refresh\" content=\"0; url={link}\">\n<title>exo</title>\n<a href=\"{link}\">exo</a>\n"
        )
    };
    write().with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

/// How to reach this port from the machine that this session comes from.
fn tunnel(port: u16) -> String {
    let variable = |name: &str| std::env::var(name).ok().filter(|text| !text.is_empty());
    let user = variable("USER").or_else(|| variable("LOGNAME")).unwrap_or_else(|| "USER".to_owned());
    let host = variable("SSH_CONNECTION")
        .as_deref()
        .and_then(server_of)
        .or_else(|| sysinfo::System::host_name().ok());
    tunnel_line(port, &user, host.as_deref().unwrap_or("HOST"))
}

/// The address that an ssh client has connected to, as its server tells: client's address and port, then
/// ours.
fn server_of(connection: &str) -> Option<String> {
    connection.split_whitespace().nth(2).map(str::to_owned)
}

fn tunnel_line(port: u16, user: &str, host: &str) -> String {
    format!("ssh -L {port}:127.0.0.1:{port} {user}@{host}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tunnel_leads_to_where_the_ssh_client_came() {
        let host = server_of("203.0.113.5 50000 192.0.2.7 22").unwrap();
        assert_eq!(tunnel_line(52415, "ann", &host), "ssh -L 52415:127.0.0.1:52415 ann@192.0.2.7");
        assert_eq!(server_of("nonsense"), None);
    }

    #[test]
    fn the_page_that_leads_to_the_link_is_its_owners_alone() {
        let folder = tempfile::tempdir().unwrap();
        let link = "http://127.0.0.1:1/#code=ab";
        std::fs::write(folder.path().join("open.html"), "a longer one than the new one".repeat(50)).unwrap();
        let path = write_page(folder.path(), link).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains(&format!("0; url={link}\"")) && text.ends_with("</a>\n"), "{text}");
        assert_eq!(exo_stdx::mode_open_to_others(&std::fs::metadata(&path).unwrap()), None);
    }
}
