//! Makes the messages' types from their description.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto/guest.proto");
    let described = protox::compile(["proto/guest.proto"], ["proto"])?;
    prost_build::Config::new().compile_fds(described)?;
    Ok(())
}
