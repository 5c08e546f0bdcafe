//! Puts between endpoints: the protocol under every kind of fault, and the proxy's thread with misbehaving peers.

mod commands;
mod emulated;
mod faults;
mod garbage;
mod pair;
mod processes;
mod proxy;
