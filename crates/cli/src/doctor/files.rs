//! Memory files, and the directories that a session uses.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;

use beeline_codegen::named_directory;
use beeline_inject::with_remedy;
use beeline_runtime::sealed;
use beeline_supervisor::Scratch;
use beeline_trusted_dir::{Distrust, TrustedDir};
use beeline_uapi::linux::PAGE_SIZE;
use rustix::fs::{Access, AtFlags, accessat};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::filters::WITHOUT_FILTER;
use super::finding::Finding;

/// The names of scratch directories begin with it.
const PREFIX: &str = "beeline-doctor-";

/// The bytes of a page.
const PAGE: usize = PAGE_SIZE as usize;

/// Makes a sealed memory file of a page, or says why there is none.
pub fn memory_file() -> Result<File, Finding> {
    sealed("doctor", &[0; PAGE]).map_err(|error| {
        Finding::no(format!("no memory file can be made: {}", with_remedy(&error))).fix(format!(
            "let the sandbox allow memfd_create and sealing, and keep vm.memfd_noexec below 2; or {WITHOUT_FILTER}"
        ))
    })
}

/// Checks that memory files can be made and sealed.
pub fn memory_files() -> Finding {
    match memory_file() {
        Ok(_) => Finding::ok("a memory file was made and sealed"),
        Err(none) => none,
    }
}

/// Checks that a memory file can be mapped to be executed.
pub fn executable_memory() -> Finding {
    let file = match memory_file() {
        Ok(file) => file,
        Err(none) => return none,
    };
    let protection = ProtFlags::READ | ProtFlags::EXEC;
    // SAFETY: the kernel chooses the address, and nothing refers to the memory.
    let mapped = unsafe {
        mmap(
            std::ptr::null_mut(),
            PAGE,
            protection,
            MapFlags::SHARED,
            file.as_fd(),
            0,
        )
    };
    match mapped {
        Ok(address) => {
            // SAFETY: the mapping was just made, and nothing refers to it.
            let _ = unsafe { munmap(address, PAGE) };
            Finding::ok("a memory file was mapped executable")
        }
        Err(error) => Finding::no(format!("a memory file cannot be mapped executable: {error}")).fix(
            "let the security module allow it (SELinux: execmem and execmod; systemd: no MemoryDenyWriteExecute=)",
        ),
    }
}

/// Checks that there is a place for the files that the tool sees in place of the machine's.
pub fn scratch() -> Finding {
    let places = Scratch::survey(PREFIX);
    let mut reasons = Vec::new();
    for (path, usable) in &places {
        match usable {
            Ok(()) if reasons.is_empty() => return Finding::ok(path.display().to_string()),
            Ok(()) => {
                return Finding::ok(format!("{} ({})", path.display(), reasons.join("; ")));
            }
            Err(why) => reasons.push(why.as_str()),
        }
    }
    Finding::warn(format!(
        "tools see no BPF file system and no tracefs: {}",
        reasons.join("; ")
    ))
    .fix("name a directory of your own in XDG_RUNTIME_DIR, or mount /dev/shm (`docker run --tmpfs /dev/shm`)")
}

/// Checks that compiled code can be kept.
pub fn cache() -> Finding {
    let Some(place) = named_directory() else {
        return Finding::warn("no directory is named, so programs are compiled at each start")
            .fix("set BEELINE_CACHE or HOME");
    };
    match check_cache(&place) {
        Ok(()) => Finding::ok(place.display().to_string()),
        Err(why) => Finding::warn(format!("compiled code is not kept: {why}"))
            .fix("name a directory of your own in BEELINE_CACHE"),
    }
}

fn check_cache(place: &Path) -> Result<(), String> {
    let named = |error: std::io::Error| match Distrust::of(&error) {
        Some(distrust) => distrust.to_string(),
        None => format!("{}: {error}", place.display()),
    };
    let directory = TrustedDir::create(place).map_err(named)?;
    let writable = accessat(
        &directory,
        ".",
        Access::WRITE_OK | Access::EXEC_OK,
        AtFlags::EACCESS,
    );
    writable.map_err(|error| named(error.into()))
}
