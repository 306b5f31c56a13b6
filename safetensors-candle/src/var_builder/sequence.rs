//! [`Sequence`]: whether a model asks for its tensors in sequence.

use safetensors_core::Checkpoint;

use super::order::ModelOrder;

/// The groups of tensors that a model has asked for so far.
// A model asks in sequence if it asks for a second tensor of a group, or for the first of a group
// after at least half of the group before. The last request does not count, because several threads
// may build parts of a model at once.
#[derive(Debug)]
pub(super) struct Sequence {
    order: ModelOrder,
    groups: Vec<Group>,
}

/// Bytes in the file.
#[derive(Clone, Debug, Default)]
struct Group {
    bytes: u64,
    asked_bytes: u64,
    asked_tensors: usize,
}

impl Sequence {
    /// Takes a model that has already asked for some tensors.
    pub(super) fn new<S>(checkpoint: &Checkpoint<S>, asked: &[bool]) -> Self {
        let order = ModelOrder::new(checkpoint.tensors().map(|tensor| tensor.name()));
        let groups = vec![Group::default(); order.groups()];
        let mut sequence = Self { order, groups };
        for (position, tensor) in checkpoint.tensors().enumerate() {
            let bytes = tensor.byte_len();
            let group = sequence.order.group(position);
            sequence.groups[group].bytes += bytes;
            if asked.get(position).is_some_and(|&asked| asked) {
                sequence.groups[group].ask(bytes);
            }
        }
        sequence
    }

    /// Returns `true` if the first request for a tensor continues a sequence.
    pub(super) fn ask(&mut self, position: usize, bytes: u64) -> bool {
        let group = self.order.group(position);
        let before = group.checked_sub(1).map(|before| &self.groups[before]);
        let continues =
            self.groups[group].asked_tensors > 0 || before.is_some_and(Group::is_mostly_asked);
        self.groups[group].ask(bytes);
        continues
    }

    /// Returns the positions of the expected tensors.
    pub(super) fn after(&self, position: usize) -> impl Iterator<Item = usize> {
        self.order.after(position)
    }

    pub(super) fn group_bytes(&self, position: usize) -> u64 {
        self.groups[self.order.group(position)].bytes
    }
}

impl Group {
    fn ask(&mut self, bytes: u64) {
        self.asked_bytes += bytes;
        self.asked_tensors += 1;
    }

    fn is_mostly_asked(&self) -> bool {
        self.asked_tensors > 0 && self.asked_bytes >= self.bytes / 2
    }
}

#[cfg(test)]
mod tests {
    use safetensors_core::{SaveOptions, TensorView, serialize};

    use super::*;

    fn checkpoint(names: &[&str]) -> Checkpoint<Vec<u8>> {
        let tensors = names
            .iter()
            .map(|name| (*name, TensorView::from_slice(&[4], &[1_u8, 2, 3, 4]).unwrap()));
        let options = SaveOptions::new();
        Checkpoint::from_source(serialize(tensors, &options).unwrap(), "bytes").unwrap()
    }

    fn asks(checkpoint: &Checkpoint<Vec<u8>>, names: &[&str]) -> Vec<bool> {
        let mut sequence = Sequence::new(checkpoint, &vec![false; checkpoint.len()]);
        let position = |name: &&str| checkpoint.position(name).unwrap();
        names.iter().map(|name| sequence.ask(position(name), 4)).collect()
    }

    #[test]
    fn layer_after_layer_is_a_sequence_and_one_tensor_of_each_is_none() {
        let names = ["h.0.a", "h.0.b", "h.0.c", "h.1.a", "h.1.b", "h.1.c", "h.2.a", "h.2.b"];
        let checkpoint = checkpoint(&names);
        let asked = asks(&checkpoint, &["h.0.c", "h.0.a", "h.1.b", "h.1.a", "h.2.b"]);
        assert_eq!(asked, [false, true, true, true, true]);
        assert_eq!(asks(&checkpoint, &["h.0.a", "h.1.a", "h.2.a"]), [false; 3]);
        assert_eq!(asks(&checkpoint, &["h.2.a", "h.0.a", "h.1.a"]), [false; 3]);

        // Earlier requests count.
        let before: Vec<bool> = names.iter().map(|name| name.starts_with("h.0")).collect();
        let mut sequence = Sequence::new(&checkpoint, &before);
        assert!(sequence.ask(checkpoint.position("h.1.a").unwrap(), 4));
        assert_eq!(sequence.group_bytes(0), 12);
    }

    #[test]
    fn two_threads_each_have_a_sequence() {
        let names: Vec<String> = (0..8).map(|i| format!("h.{i}.weight")).collect();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        let checkpoint = checkpoint(&names);
        let turns: Vec<_> = (0..4).flat_map(|i| [names[i], names[i + 4]]).collect();
        let mut expected = [true; 8];
        (expected[0], expected[1]) = (false, false);
        assert_eq!(asks(&checkpoint, &turns), expected);
    }
}
