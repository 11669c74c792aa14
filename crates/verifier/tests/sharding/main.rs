//! The ways in which maps may be split: hand-written programs, and those of real tools.

mod assembly;
mod judge;
mod keys;
mod model;
mod objects;
mod pointers;
mod rules;
mod tools;
