//! Files as a tar stream, in and out of directories that the other side may be changing meanwhile.
//!
//! `sbx cp` has two ends: one on the host, and one inside that is executed in the sandbox by init. Both are made of this:
//! [`pack`] reads a tree and writes a stream, [`unpack`] reads a stream and writes a tree. Neither trusts the other, nor the
//! names in its own tree: a stream is bounded in what it can make a reader allocate, a name in it leads nowhere but below the
//! directory that was opened for it (`openat2` with `RESOLVE_BENEATH` and `RESOLVE_NO_SYMLINKS`), and a tree is walked by
//! descriptors.

mod below;
mod error;
mod name;
pub mod pack;
mod pipe;
mod reader;
pub mod unpack;
mod writer;

pub use error::CopyError;
pub use name::{Base, Name};
pub use pipe::{Buffered, Input, Output, Pipe, widen};
pub use reader::{Entry, Kind, Reader};
pub use writer::{Attributes, Segment, Writer};
