//! Targets that distrust each other, and targets that attack: what one user's process does with the
//! memory that Beeline has given it harms nobody else.

mod apart;
mod maps;
mod moves;
mod paths;
mod scribbles;
mod world;
