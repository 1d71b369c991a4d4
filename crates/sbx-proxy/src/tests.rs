//! The whole way out, over real sockets: a fake resolver, a dialler that leads every checked address to a local
//! origin and writes down which it was, and clients at every entrance.

mod bodies;
mod changes;
mod denials;
mod entrances;
mod http;
mod limits;
mod oddities;
mod origin;
mod property;
mod questions;
mod rebinding;
mod resolving;
mod silence;
mod smuggling;
mod transports;
mod unwritable;
mod upgrades;
mod world;
