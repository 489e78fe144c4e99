//! The mock hub by hand: serves the files of a folder as `org/repo`. `/mock/counts` says what it has sent.
//!
//!     cargo run -p exo-mock-hub -- FOLDER [--address IP] [--port N] [--bytes-per-s N]
//!         [--break-every N] [--stall-every N] [--signature-uses N] [--until-stdin-ends]

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "it says where it is")]

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::process::ExitCode;
use std::str::FromStr;

use exo_mock_hub::{Faults, File, MockHub, Repository};

fn main() -> ExitCode {
    match serve(&std::env::args().skip(1).collect::<Vec<_>>()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(args: &[String]) -> Result<(), String> {
    let folder =
        args.first().filter(|a| !a.starts_with("--")).ok_or("name the folder whose files to serve")?;
    let number = |flag: &str| value_of::<u64>(args, flag);
    let address = value_of(args, "--address")?.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let port = value_of(args, "--port")?.unwrap_or(0);
    let repository = Repository { files: read(Path::new(folder))?, ..Repository::new(&[]) };
    let hub =
        MockHub::start_at(address, port).map_err(|e| format!("cannot listen on {address}:{port}: {e}"))?;
    hub.put("org/repo", repository);
    hub.set_faults(Faults {
        bytes_per_s: number("--bytes-per-s")?,
        break_every: number("--break-every")?.unwrap_or(0),
        stall_every: number("--stall-every")?.unwrap_or(0),
        signature_uses: number("--signature-uses")?,
        ..Faults::default()
    });
    println!("HF_ENDPOINT={} exo pull hf.co/org/repo", hub.endpoint());
    if args.iter().any(|a| a == "--until-stdin-ends") {
        return io::copy(&mut io::stdin(), &mut io::sink()).map(drop).map_err(|e| e.to_string());
    }
    loop {
        std::thread::park();
    }
}

/// What stands behind a flag.
fn value_of<T: FromStr>(args: &[String], flag: &str) -> Result<Option<T>, String> {
    let Some(at) = args.iter().position(|a| a == flag) else { return Ok(None) };
    let text = args.get(at + 1).ok_or_else(|| format!("{flag} needs a value"))?;
    text.parse().map(Some).map_err(|_| format!("{flag} cannot be `{text}`"))
}

fn read(folder: &Path) -> Result<BTreeMap<String, File>, String> {
    let failed = |e: io::Error| format!("cannot read {}: {e}", folder.display());
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let Some(name) = path.file_name().and_then(|n| n.to_str()).filter(|_| path.is_file()) else {
            continue;
        };
        files.insert(name.to_owned(), File::new(name, std::fs::read(&path).map_err(failed)?));
    }
    Ok(files)
}
