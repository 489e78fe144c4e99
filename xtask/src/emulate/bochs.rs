//! A bootable disc with a kernel and test programs, run in Bochs.

use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use super::initramfs::Initramfs;
use crate::run;

/// The model with everything the kernels use.
const CPU_MODEL: &str = "sapphire_rapids";
/// What makes Linux 6.1 boot in Bochs 3.0: fast short string moves hang it, 5-level paging and
/// process-context identifiers fail a check when it leaves system management mode, and its monitor/mwait does
/// not wake.
const KERNEL_ARGS: &str = "initrd=initrd console=ttyS0 quiet clearcpuid=fsrm no5lvl nopcid idle=halt mitigations=off \
                           nokaslr lsm=none tsc=reliable lpj=1000000";
const MEMORY_MIB: u32 = 2048;
/// The last line of a run in which every program succeeded.
const ALL_PASSED: &str = "emulate: every test program passed";
const LOOK_EVERY: Duration = Duration::from_millis(300);

/// What to boot.
pub struct Boot {
    /// The emulator.
    pub bochs: PathBuf,
    /// A Linux kernel with a serial console.
    pub kernel: PathBuf,
    /// Static programs, each run once.
    pub programs: Vec<PathBuf>,
    /// Given to each program.
    pub filter: Option<String>,
    /// When to give up.
    pub minutes: u64,
}

impl Boot {
    /// Boots, prints what the tests print, and fails unless all passed.
    pub fn run(&self) -> anyhow::Result<()> {
        let folder = super::folder()?.join("bochs");
        let disc = folder.join("disc");
        std::fs::create_dir_all(&disc).with_context(|| format!("cannot make {}", disc.display()))?;
        self.write_disc(&disc)?;
        let image = folder.join("disc.iso");
        make_image(&disc, &image)?;
        let serial = folder.join("serial.txt");
        std::fs::write(&serial, "")?;
        std::fs::write(folder.join("bochsrc"), configuration(&image, &serial, &folder))?;
        let child = Command::new(&self.bochs)
            .args(["-q", "-f", "bochsrc"])
            .current_dir(&folder)
            .stdin(Stdio::null())
            .stdout(std::fs::File::create(folder.join("bochs.txt"))?)
            .stderr(Stdio::null())
            .spawn();
        let mut child = child.with_context(|| {
            format!("cannot start `{}`: name a Bochs with --bochs (docs/platforms.md)", self.bochs.display())
        })?;
        let text = follow(&mut child, &serial, Duration::from_secs(60 * self.minutes));
        // Whatever went wrong, no emulator stays behind; after a good end it is gone already.
        let _ = child.kill();
        child.wait().context("cannot wait for Bochs")?;
        let text = text?;
        if !text.contains(ALL_PASSED) {
            bail!("not every test passed; Bochs' own words are in {}", folder.join("log.txt").display());
        }
        Ok(())
    }

    fn write_disc(&self, disc: &Path) -> anyhow::Result<()> {
        let read =
            |path: &Path| std::fs::read(path).with_context(|| format!("cannot read {}", path.display()));
        std::fs::write(disc.join("vmlinuz"), read(&self.kernel)?)?;
        std::fs::write(disc.join("isolinux.bin"), read(Path::new("/usr/lib/ISOLINUX/isolinux.bin"))?)?;
        std::fs::write(
            disc.join("ldlinux.c32"),
            read(Path::new("/usr/lib/syslinux/modules/bios/ldlinux.c32"))?,
        )?;
        let menu = format!("default tests\nlabel tests\n kernel vmlinuz\n append {KERNEL_ARGS}\n");
        std::fs::write(disc.join("isolinux.cfg"), menu)?;

        let mut files = Initramfs::default();
        for folder in ["bin", "proc", "sys", "tmp", "tests"] {
            files.folder(folder);
        }
        files.program("bin/busybox", &read(Path::new("/bin/busybox"))?);
        files.program("init", self.script().as_bytes());
        for program in &self.programs {
            files.program(&format!("tests/{}", name(program)), &read(program)?);
        }
        files.write(&disc.join("initrd"))
    }

    /// The first process. The pauses let the serial port finish.
    fn script(&self) -> String {
        let filter = self.filter.as_deref().unwrap_or_default();
        format!(
            "#!/bin/busybox sh\n\
             /bin/busybox mount -t proc proc /proc\n\
             /bin/busybox mount -t sysfs sysfs /sys\n\
             passed=yes\n\
             for test in /tests/*; do\n\
               echo \"running $test\"\n\
               $test --nocapture --test-threads=1 '{filter}' || passed=no\n\
             done\n\
             [ $passed = yes ] && echo '{ALL_PASSED}'\n\
             /bin/busybox sleep 1\n\
             /bin/busybox poweroff -f\n"
        )
    }
}

/// The file's name, without the folder.
pub fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn make_image(disc: &Path, image: &Path) -> anyhow::Result<()> {
    let boot =
        ["-b", "isolinux.bin", "-c", "boot.cat", "-no-emul-boot", "-boot-load-size", "4", "-boot-info-table"];
    let (disc, image) = (disc.to_string_lossy(), image.to_string_lossy());
    let mut args = vec!["-as", "mkisofs", "-quiet", "-o", &image];
    args.extend(boot);
    args.push(&disc);
    run::command("xorriso", &args)
}

fn configuration(image: &Path, serial: &Path, folder: &Path) -> String {
    format!(
        "display_library: nogui\n\
         megs: {MEMORY_MIB}\n\
         cpu: model={CPU_MODEL}, count=1, ips=100000000, reset_on_triple_fault=0\n\
         romimage: file=/usr/share/bochs/BIOS-bochs-latest\n\
         vgaromimage: file=/usr/share/bochs/VGABIOS-lgpl-latest\n\
         ata0-master: type=cdrom, path={}, status=inserted\n\
         boot: cdrom\n\
         com1: enabled=1, mode=file, dev={}\n\
         log: {}\n\
         clock: sync=none\n\
         panic: action=fatal\nerror: action=ignore\ninfo: action=ignore\ndebug: action=ignore\n",
        image.display(),
        serial.display(),
        folder.join("log.txt").display(),
    )
}

/// Prints the serial console until the machine switches itself off; gives what it printed.
#[allow(clippy::disallowed_methods)] // no executor here whose thread the sleep could block
fn follow(bochs: &mut Child, serial: &Path, limit: Duration) -> anyhow::Result<String> {
    let start = Instant::now();
    let mut text = Vec::new();
    loop {
        let ended = bochs.try_wait().context("cannot wait for Bochs")?.is_some();
        let mut file =
            std::fs::File::open(serial).with_context(|| format!("cannot read {}", serial.display()))?;
        file.seek(SeekFrom::Start(text.len() as u64))?;
        let seen = text.len();
        file.read_to_end(&mut text)?;
        std::io::stdout().write_all(&text[seen..])?;
        std::io::stdout().flush()?;
        if ended {
            return Ok(String::from_utf8_lossy(&text).into_owned());
        }
        if start.elapsed() > limit {
            bail!("the tests took more than {} minutes: raise --minutes", limit.as_secs() / 60);
        }
        std::thread::sleep(LOOK_EVERY);
    }
}
