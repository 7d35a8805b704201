//! What went wrong, with the library's sentence.

use std::cell::RefCell;
use std::ffi::CStr;
use std::fmt;

use fulmen_sys as sys;

/// What the functions of this crate return.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a call did nothing. Each variant carries the library's sentence: the argument, its value and
/// what is accepted.
///
/// Nothing is written on an error, with two exceptions: [`Error::VerificationFailed`], and a pool or
/// a backend of the user's that fails while it runs.
///
/// ```
/// use fulmen::{Error, Tensor};
///
/// let data = [0f32; 6];
/// let error = Tensor::bshd(&data, [1, 2, 1, 4]).unwrap_err();
/// assert!(matches!(error, Error::InvalidArgument(_)));
/// assert!(error.to_string().contains("has 6 elements"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// A shape, stride, dtype, option or name is malformed.
    InvalidArgument(String),
    /// The forced kernel, or every kernel, refuses the problem.
    Unsupported(String),
    /// The device is not there, or cannot be used.
    Unavailable(String),
    /// An allocation failed.
    OutOfMemory(String),
    /// `verify` found the result wrong, or the first use of a kernel on a GPU did and no other
    /// kernel is left.
    VerificationFailed(String),
    /// A defect in Fulmen, or in a backend or a pool of the user's.
    Internal(String),
}

impl Error {
    /// The sentence.
    ///
    /// ```
    /// let error = fulmen::Error::Unavailable("no such device".into());
    /// assert_eq!(error.message(), "no such device");
    /// ```
    pub fn message(&self) -> &str {
        match self {
            Self::InvalidArgument(message)
            | Self::Unsupported(message)
            | Self::Unavailable(message)
            | Self::OutOfMemory(message)
            | Self::VerificationFailed(message)
            | Self::Internal(message) => message,
        }
    }

    fn new(status: i32, message: String) -> Self {
        match status as sys::fulmen_status {
            sys::FULMEN_INVALID_ARGUMENT => Self::InvalidArgument(message),
            sys::FULMEN_UNSUPPORTED => Self::Unsupported(message),
            sys::FULMEN_UNAVAILABLE => Self::Unavailable(message),
            sys::FULMEN_OUT_OF_MEMORY => Self::OutOfMemory(message),
            sys::FULMEN_VERIFICATION_FAILED => Self::VerificationFailed(message),
            _ => Self::Internal(message),
        }
    }

    /// The library's number for it.
    pub(crate) fn status(&self) -> i32 {
        (match self {
            Self::InvalidArgument(_) => sys::FULMEN_INVALID_ARGUMENT,
            Self::Unsupported(_) => sys::FULMEN_UNSUPPORTED,
            Self::Unavailable(_) => sys::FULMEN_UNAVAILABLE,
            Self::OutOfMemory(_) => sys::FULMEN_OUT_OF_MEMORY,
            Self::VerificationFailed(_) => sys::FULMEN_VERIFICATION_FAILED,
            Self::Internal(_) => sys::FULMEN_INTERNAL,
        }) as i32
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message())
    }
}

impl std::error::Error for Error {}

thread_local! {
    /// What a callback of this thread's current call had to say; the C ABI carries its number only.
    static CALLBACK: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Keeps a callback's message for the error of the call that it belongs to.
pub(crate) fn remember(message: String) {
    CALLBACK.with_borrow_mut(|kept| *kept = Some(message));
}

/// The words of a panic.
pub(crate) fn panic_message(panic: &(dyn std::any::Any + Send)) -> &str {
    match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(message), _) => message,
        (_, Some(message)) => message,
        _ => "no message",
    }
}

/// The status of a C call of this thread's. A success allocates nothing.
pub(crate) fn check(status: i32) -> Result<()> {
    let callback = CALLBACK.with_borrow_mut(Option::take);
    if status == sys::FULMEN_OK as i32 {
        return match callback {
            None => Ok(()),
            Some(message) => Err(Error::Internal(message)),
        };
    }
    // SAFETY: the sentence is NUL-terminated and lives until this thread's next call.
    let sentence = unsafe { CStr::from_ptr(sys::fulmen_last_error()) };
    let mut message = sentence.to_string_lossy().into_owned();
    if let Some(callback) = callback {
        message = format!("{message}: {callback}");
    }
    Err(Error::new(status, message))
}
