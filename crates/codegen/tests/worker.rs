//! The protocol of a compiler in another process.

use beeline_codegen::Baseline;
use beeline_codegen::worker::serve;
use proptest::prelude::*;

fn answers(input: &[u8]) -> (std::io::Result<()>, Vec<u8>) {
    let mut output = Vec::new();
    (serve(&Baseline, input, &mut output), output)
}

#[test]
fn the_end_of_requests_is_no_error() {
    let (result, output) = answers(&[]);
    assert!(result.is_ok() && output.is_empty());
}

#[test]
fn a_frame_that_is_too_long_is_refused_before_it_is_read() {
    let (result, output) = answers(&[0xff; 8]);
    assert_eq!(
        result.expect_err("too long").kind(),
        std::io::ErrorKind::InvalidData
    );
    assert!(output.is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

    #[test]
    fn every_frame_has_an_answer(frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..64), 0..4)) {
        let input: Vec<u8> = frames
            .iter()
            .flat_map(|frame| [&(frame.len() as u32).to_le_bytes()[..], frame].concat())
            .collect();
        let (result, mut output) = answers(&input);
        prop_assert!(result.is_ok());
        for _ in &frames {
            let (length, rest) = output.split_first_chunk().expect("an answer");
            let length = u32::from_le_bytes(*length) as usize;
            output = rest[length..].to_vec();
        }
        prop_assert!(output.is_empty());
    }
}
