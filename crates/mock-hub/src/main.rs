//! The mock hub by hand: serves the files of a folder as `org/repo`.
//!
//!     cargo run -p exo-mock-hub -- FOLDER [--port N] [--bytes-per-s N] [--break-every N] [--stall-every N] [--signature-uses N]

#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "it says where it is")]

use std::path::Path;
use std::process::ExitCode;

use exo_mock_hub::{Faults, MockHub, Repository};

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
    let number = |flag: &str| -> Result<Option<u64>, String> {
        let Some(at) = args.iter().position(|a| a == flag) else { return Ok(None) };
        let text = args.get(at + 1).ok_or_else(|| format!("{flag} needs a number"))?;
        text.parse().map(Some).map_err(|_| format!("{flag} is `{text}`, expected a number"))
    };
    let port = u16::try_from(number("--port")?.unwrap_or(0)).map_err(|_| "--port is above 65535")?;
    let hub = MockHub::start_on(port).map_err(|e| format!("cannot listen on port {port}: {e}"))?;
    hub.put("org/repo", Repository::new(&read(Path::new(folder))?));
    hub.set_faults(Faults {
        bytes_per_s: number("--bytes-per-s")?,
        break_every: number("--break-every")?.unwrap_or(0),
        stall_every: number("--stall-every")?.unwrap_or(0),
        signature_uses: number("--signature-uses")?,
        ..Faults::default()
    });
    println!("HF_ENDPOINT={} exo pull hf.co/org/repo", hub.endpoint());
    loop {
        std::thread::park();
    }
}

fn read(folder: &Path) -> Result<Vec<(&'static str, Vec<u8>)>, String> {
    let failed = |e: std::io::Error| format!("cannot read {}: {e}", folder.display());
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let Some(name) = path.file_name().and_then(|n| n.to_str()).filter(|_| path.is_file()) else {
            continue;
        };
        // A handful of names for the life of the process.
        files.push((&*name.to_owned().leak(), std::fs::read(&path).map_err(failed)?));
    }
    Ok(files)
}
