//! Targets that distrust each other, and targets that attack: what one user's process does with the
//! memory that Beeline has given it harms nobody else. And hosts that do more in a guest than its
//! owner allows.

mod apart;
mod guest;
mod mappings;
mod maps;
mod moves;
mod paths;
mod scribbles;
mod tool;
mod upcalls;
mod world;
