//! Tests of puts between endpoints over emulated NICs: the protocol under every kind of fault, and proxies whose peers
//! misbehave.

mod commands;
mod emulated;
mod faults;
mod flushes;
mod garbage;
mod pair;
mod processes;
mod proxy;
