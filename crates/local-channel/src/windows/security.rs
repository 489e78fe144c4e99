//! Owners and access lists, as Windows tells and takes them.
#![allow(unsafe_code)]

use std::fmt;
use std::io;
use std::os::windows::io::AsRawHandle;
use std::path::Path;
use std::ptr;

use tokio::net::windows::named_pipe::{NamedPipeServer, ServerOptions};
use windows::Win32::Foundation::{CloseHandle, HANDLE, HLOCAL, LocalFree};
use windows::Win32::Security::Authorization::{
    ConvertSidToStringSidW, ConvertStringSecurityDescriptorToSecurityDescriptorW, GetSecurityInfo,
    SDDL_REVISION_1, SE_KERNEL_OBJECT,
};
use windows::Win32::Security::{
    GetTokenInformation, OWNER_SECURITY_INFORMATION, PSECURITY_DESCRIPTOR, PSID, SECURITY_ATTRIBUTES,
    TOKEN_QUERY, TOKEN_USER, TokenUser,
};
use windows::Win32::System::Threading::{GetCurrentProcess, OpenProcessToken};
use windows::core::{HSTRING, PWSTR};

/// Room for a user with the longest SID there is: 68 bytes behind the structure that points at it.
const TOKEN_USER_WORDS: usize = 32;

/// A user or group, as text (`S-1-5-…`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sid(String);

impl fmt::Display for Sid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Sid {
    /// Whose process this is.
    pub fn of_this_process() -> io::Result<Self> {
        let mut token = HANDLE::default();
        // SAFETY: the pseudo handle of this process is always valid, and `token` is written before it is
        // read.
        unsafe { OpenProcessToken(GetCurrentProcess(), TOKEN_QUERY, &raw mut token)? };
        let mut user = [0_u64; TOKEN_USER_WORDS];
        let bytes = u32::try_from(size_of_val(&user)).unwrap_or(u32::MAX);
        let mut written = 0;
        // SAFETY: `token` is open, and `user` has the size that is told and the alignment of `TOKEN_USER`.
        let told = unsafe {
            let told = GetTokenInformation(
                token,
                TokenUser,
                Some(user.as_mut_ptr().cast()),
                bytes,
                &raw mut written,
            );
            let _ = CloseHandle(token);
            told
        };
        told?;
        // SAFETY: Windows wrote a `TOKEN_USER` whose SID lies in the same buffer.
        unsafe { Self::read((*user.as_ptr().cast::<TOKEN_USER>()).User.Sid) }
    }

    /// # Safety
    /// `sid` is valid while this runs.
    unsafe fn read(sid: PSID) -> io::Result<Self> {
        let mut text = PWSTR::null();
        // SAFETY: `sid` is valid by contract; Windows allocates the text, which is freed here once.
        unsafe {
            ConvertSidToStringSidW(sid, &raw mut text)?;
            let copied = text.to_string();
            LocalFree(Some(HLOCAL(text.as_ptr().cast())));
            copied.map(Self).map_err(io::Error::other)
        }
    }
}

/// Who made this pipe: no one can name another user than themselves as the owner, but for the system's own
/// services.
pub fn owner_of(pipe: &impl AsRawHandle) -> io::Result<Sid> {
    let mut owner = PSID::default();
    let mut descriptor = PSECURITY_DESCRIPTOR::default();
    let handle = HANDLE(pipe.as_raw_handle());
    // SAFETY: the handle is open as long as `pipe` is borrowed. `owner` points into the descriptor, which is
    // freed after it was read.
    unsafe {
        GetSecurityInfo(
            handle,
            SE_KERNEL_OBJECT,
            OWNER_SECURITY_INFORMATION,
            Some(&raw mut owner),
            None,
            None,
            None,
            Some(&raw mut descriptor),
        )
        .ok()?;
        let sid = Sid::read(owner);
        LocalFree(Some(HLOCAL(descriptor.0)));
        sid
    }
}

/// An owner and an access list.
#[derive(Debug)]
pub struct Descriptor(PSECURITY_DESCRIPTOR);

// SAFETY: the memory behind it is owned by this value and not written after it was made.
unsafe impl Send for Descriptor {}
// SAFETY: as above.
unsafe impl Sync for Descriptor {}

impl Descriptor {
    /// The user owns it and may do all; so may the system; no one else anything.
    pub fn for_user(user: &Sid) -> io::Result<Self> {
        Self::from_text(&format!("O:{user}D:P(A;;GA;;;{user})(A;;GA;;;SY)"))
    }

    /// In the language that Windows has for these.
    pub fn from_text(text: &str) -> io::Result<Self> {
        let mut descriptor = PSECURITY_DESCRIPTOR::default();
        // SAFETY: the text ends with a zero, and Windows allocates the descriptor, which `drop` frees.
        unsafe {
            ConvertStringSecurityDescriptorToSecurityDescriptorW(
                &HSTRING::from(text),
                SDDL_REVISION_1,
                &raw mut descriptor,
                None,
            )?;
        }
        Ok(Self(descriptor))
    }

    /// Makes one instance of a pipe.
    pub fn make_pipe(&self, options: &ServerOptions, path: &Path) -> io::Result<NamedPipeServer> {
        let mut attributes = SECURITY_ATTRIBUTES {
            nLength: u32::try_from(size_of::<SECURITY_ATTRIBUTES>()).unwrap_or(u32::MAX),
            lpSecurityDescriptor: self.0.0,
            bInheritHandle: false.into(),
        };
        // SAFETY: the attributes and the descriptor that they point at are valid during the call.
        unsafe { options.create_with_security_attributes_raw(path, ptr::from_mut(&mut attributes).cast()) }
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: Windows allocated it for `from_text`, and nothing points at it any more.
        unsafe { LocalFree(Some(HLOCAL(self.0.0))) };
    }
}
