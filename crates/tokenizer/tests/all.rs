//! All tests of the tokenizer in one program, which is linked once; that of memory is a process of its own.

mod any_output;
mod calls;
mod channels;
mod chat;
mod hostile;
mod reference;
mod tagged_calls;
mod templates;
