//! Small files that name a text, a list or a tensor any number of times: their cost is in
//! proportion to their length.

use std::path::Path;

use safetensors_core::ReadAt;
use safetensors_core::checkpoint::store::{FileKind, MemoryFile, MemoryStore, Store, StoreEntry};
use safetensors_formats::{ErrorKind, Options, TensorFile, open_files};
use zip::CompressionMethod;

use super::pytorch::{DATA, KEYS, STORAGE, legacy};
use super::rebuilt::{archive, dictionary, tensor, text};
use super::settings::doubled;
use crate::support::zip;

/// Keeps a value under a number, by which `h` refers to it.
fn put(value: &[u8], number: u8) -> Vec<u8> {
    [value, &[b'q', number, b'0']].concat()
}

/// A list of this many times the same opcodes.
fn list(items: &[u8], times: usize) -> Vec<u8> {
    [b"](", &items.repeat(times)[..], b"e"].concat()
}

/// A dictionary of this many keys, which all have this value.
fn keys(count: usize, value: &[u8]) -> Vec<u8> {
    let items = (0..count).flat_map(|i| [text(&format!("z{i}")), value.to_vec()].concat());
    [b"}(", &items.collect::<Vec<u8>>()[..], b"u"].concat()
}

/// An object of a class that is made without arguments, with this state.
fn object(class: &str, state: &[u8]) -> Vec<u8> {
    [b"c", class.as_bytes(), b"\n)\x81", state, b"b"].concat()
}

/// A value that fails because it takes too much.
#[track_caller]
fn assert_refused<T>(opened: safetensors_core::Result<T>, case: &str) {
    let error = opened.err().unwrap_or_else(|| panic!("{case}"));
    let is_it = matches!(error.other(), Some(ErrorKind::OutOfProportion { .. }));
    assert!(is_it, "{case}: {error}");
}

#[test]
fn repeated_items_of_a_pickle_count_each_time() {
    let long = put(&text(&"k".repeat(20_000)), 0);
    let tensor = put(&tensor("_rebuild_tensor_v2", b""), 1);
    let aliases = [&long, &tensor, &b"}(h\0h\x01"[..], &keys(4000, b"h\x01")[2..]].concat();

    let state = put(&dictionary(&[("state", b"}"), ("param_groups", b"]")]), 1);
    let settings = [&long, &state, &b"}h\0"[..], &list(b"h\x01", 4000), b"s"].concat();

    let id = [b"(", &text("storage")[..], b"ctorch\nFloatStorage\nh\0", &text("cpu"), b"K\x02t"];
    let id = put(&id.concat(), 1);
    let storages = [&long, &id, &b"h\x01Q0".repeat(20_000), &b"}"[..]].concat();

    let objects = put(&list(&text("t"), 10_000), 0);
    let dtype = [b"cnumpy\ndtype\n(", &text("O8")[..], b"\x89\x88tR"].concat();
    let state = put(&[b"(K\x01)", &dtype[..], b"\x89h\0t"].concat(), 1);
    let array = b"cnumpy.core.multiarray\n_reconstruct\n";
    let made = b"cnumpy\nndarray\nK\0\x85U\x01b\x87";
    let arrays = [put(array, 2), put(made, 3), b"h\x02h\x03Rh\x01b0".repeat(10_000)].concat();
    let arrays = [&objects, &state, &arrays, &b"}"[..]].concat();

    let shape = put(&[b"(", &b"K\x01".repeat(64)[..], b"t"].concat(), 0);
    let given = put(&[b"(", STORAGE, b"K\0h\0h\0t"].concat(), 1);
    let rebuild = put(b"ctorch._utils\n_rebuild_tensor\n", 2);
    let shapes = [shape, given, rebuild, list(b"h\x02h\x01R", 100_000)].concat();

    let table = |name: &str| [&text(name)[..], b"}s"].concat();
    let tables = ["_parameters", "_buffers", "_modules"].map(table).concat();
    let hidden = [&text("_non_persistent_buffers_set"), &list(b"h\0", 10_000)[..], b"s"].concat();
    let module = object("__main__\nNet", &[b"}", &tables[..], &hidden].concat());
    let modules = [&long[..], &module].concat();

    let unnamed = [&tensor[..], &list(b"h\x01", 200_000)].concat();
    for (case, pickle) in [
        ("other names of a tensor", aliases),
        ("names of settings", settings),
        ("keys of storages", storages),
        ("arrays of objects", arrays),
        ("shapes", shapes),
        ("names of hidden buffers", modules),
        ("positions in a list", unnamed),
    ] {
        let file = TensorFile::from_source(archive(&pickle), "a file", &Options::new());
        assert_refused(file, case);
    }
}

#[test]
fn a_deflated_pickle_is_counted_against_the_file() {
    for (case, pickle) in [
        ("objects", [&list(b")", 1 << 20)[..], b"."].concat()),
        ("a text", [text(&"k".repeat(20 << 20)), b".".to_vec()].concat()),
        ("opcodes", [&b"N0".repeat(3 << 20)[..], b"}."].concat()),
    ] {
        let file = zip(CompressionMethod::Deflated, &[("a/data.pkl", &pickle)]);
        assert!(file.len() < 100_000, "{case}: {}", file.len());
        assert_refused(TensorFile::from_source(file, "a file", &Options::new()), case);
    }
}

/// A list of lists that has one tensor in 8,192 places.
fn places() -> Vec<u8> {
    doubled(&tensor("_rebuild_tensor_v2", b""), 13)
}

/// A distributed checkpoint with these values, and with tensors of these fields.
fn distributed(values: &[Vec<u8>], tensors: &[(&str, Vec<u8>)]) -> MemoryStore {
    const METADATA: &str = "torch.distributed.checkpoint.metadata";
    let of_metadata = |name: &str, state: &[u8]| object(&format!("{METADATA}\n{name}"), state);
    let number = |number: usize| [&b"J"[..], &(number as u32).to_le_bytes()].concat();
    let (mut entries, mut places, mut file) = (Vec::new(), Vec::new(), Vec::new());
    for (position, value) in values.iter().enumerate() {
        let (name, archive) = (text(&format!("v{position}")), archive(value));
        entries.extend([&name[..], &of_metadata("BytesStorageMetadata", b"}")].concat());
        places.extend(of_metadata("MetadataIndex", &dictionary(&[("fqn", &name)])));
        let place = dictionary(&[
            ("relative_path", &text("__0_0.distcp")),
            ("offset", &number(file.len())),
            ("length", &number(archive.len())),
        ]);
        places.extend(object("torch.distributed.checkpoint.filesystem\n_StorageInfo", &place));
        file.extend(archive);
    }
    for (name, fields) in tensors {
        entries.extend([&text(name)[..], &of_metadata("TensorStorageMetadata", fields)].concat());
    }
    let fields = dictionary(&[
        ("state_dict_metadata", &[b"}(", &entries[..], b"u"].concat()),
        ("storage_data", &[b"}(", &places[..], b"u"].concat()),
    ]);
    let mut store = MemoryStore::default();
    store.insert(".metadata", [&of_metadata("Metadata", &fields)[..], b"."].concat());
    store.insert("__0_0.distcp", file);
    store
}

/// A distributed checkpoint of tensors that ranks divide, written as PyTorch does by protocol 4:
/// every object is kept, and every name is a separate text. No chunk is read for its type.
fn divided(tensors: usize, ranks: usize) -> MemoryStore {
    const METADATA: &str = "torch.distributed.checkpoint.metadata";
    const ARCHIVE: usize = 640;
    let class = |module: &str, name: &str| format!("c{module}\n{name}\n").into_bytes();
    let known = [
        class(METADATA, "ChunkStorageMetadata"),
        text("offsets"),
        text("sizes"),
        class("torch", "Size"),
        class(METADATA, "MetadataIndex"),
        text("fqn"),
        text("offset"),
        text("index"),
        class("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
        text("relative_path"),
        text("length"),
    ];
    let known = known.iter().zip(0..).flat_map(|(value, number)| put(value, number));
    let of = |class: u8, fields: &[&[u8]]| {
        [b"h", &[class][..], b")\x81\x94}\x94(", &fields.concat(), b"ub"].concat()
    };
    let number = |number: usize| [&b"J"[..], &(number as u32).to_le_bytes()].concat();
    let short = |text: &str| [b"\x8c", &[text.len() as u8][..], text.as_bytes(), b"\x94"].concat();
    let size = |rank: usize| [b"h\x03K", &[rank as u8][..], b"K\x01\x86\x94\x85\x94R\x94"].concat();
    let kind = object(&format!("{METADATA}\nTensorProperties"), b"(ctorch\ncomplex128\nt");
    let (mut entries, mut places) = (Vec::new(), Vec::new());
    for tensor in 0..tensors {
        let name = short(&format!("model.decoder.layers.{tensor}.attention.weight"));
        let mut chunks = Vec::new();
        for rank in 0..ranks {
            let offset = size(rank);
            chunks.extend(of(0, &[b"h\x01", &offset, b"h\x02", &size(1)]));
            let index = [b"h\x05", &name[..], b"h\x06", &offset, b"h\x07", &number(rank)];
            places.extend(of(4, &index));
            let file = short(&format!("__{rank}_0.distcp"));
            let (at, len) = (number(tensor * ARCHIVE), number(ARCHIVE));
            places.extend(of(8, &[b"h\x09", &file, b"h\x06", &at, b"h\x0a", &len]));
        }
        let chunks = [b"](", &chunks[..], b"e"].concat();
        let fields = [("size", &*size(ranks)), ("properties", &kind), ("chunks", &chunks)];
        let entry = object(&format!("{METADATA}\nTensorStorageMetadata"), &dictionary(&fields));
        entries.extend([name, entry].concat());
    }
    let fields = dictionary(&[
        ("state_dict_metadata", &[b"}(", &entries[..], b"u"].concat()),
        ("storage_data", &[b"}(", &places[..], b"u"].concat()),
    ]);
    let root = object(&format!("{METADATA}\nMetadata"), &fields);
    let mut store = MemoryStore::default();
    store.insert(".metadata", [&b"\x80\x04"[..], &known.collect::<Vec<_>>(), &root, b"."].concat());
    for rank in 0..ranks {
        store.insert(format!("__{rank}_0.distcp"), vec![0; tensors * ARCHIVE]);
    }
    store
}

#[test]
fn a_hundred_thousand_chunks_with_a_name_each_open() {
    let files = open_files(divided(2000, 50), "", &Options::new()).unwrap();
    assert_eq!(files[0].1.all_stored().len(), 2000);
}

/// Files with times that do not show a change.
struct Young(MemoryStore);

struct YoungFile(MemoryFile);

impl Store for Young {
    type File = YoungFile;

    fn open(&self, path: &Path) -> safetensors_core::Result<YoungFile> {
        self.0.open(path).map(YoungFile)
    }

    fn kind(&self, path: &Path) -> safetensors_core::Result<Option<FileKind>> {
        self.0.kind(path)
    }

    fn list(&self, directory: &Path) -> safetensors_core::Result<Vec<StoreEntry>> {
        self.0.list(directory)
    }
}

impl ReadAt for YoungFile {
    fn byte_len(&self) -> u64 {
        self.0.byte_len()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> std::io::Result<()> {
        self.0.read_exact_at(buf, offset)
    }

    fn may_change_unseen(&self) -> bool {
        true
    }
}

#[test]
fn files_that_are_opened_twice_are_counted_once() {
    let long = put(&text(&"k".repeat(20_000)), 0);
    let tensor = put(&tensor("_rebuild_tensor_v2", b""), 1);
    let aliases = |count: usize| {
        let names = [&b"}(h\0h\x01"[..], &keys(count, b"h\x01")[2..]].concat();
        let values = [[&long[..], &tensor, &names].concat(), text(&"t".repeat(1 << 20))];
        distributed(&values, &[])
    };
    open_files(Young(aliases(100)), "", &Options::new()).unwrap();
    let open = |store| open_files(store, "", &Options::new()).map(drop);
    assert_refused(open(aliases(600)), "settled files");
    assert_refused(open_files(Young(aliases(600)), "", &Options::new()).map(drop), "young files");
}

/// A file of DeepSpeed with these entries, and one without any.
fn deepspeed(model: &[(&str, &[u8])], optimizer: &[(&str, &[u8])]) -> MemoryStore {
    let mut store = MemoryStore::default();
    let model = dictionary(&[model, &[("module", b"}")]].concat());
    store.insert("mp_rank_00_model_states.pt", archive(&model));
    let optimizer = dictionary(&[("optimizer_state_dict", &dictionary(optimizer))]);
    store.insert("zero_pp_rank_0_mp_rank_00_optim_states.pt", archive(&optimizer));
    store
}

#[test]
fn items_shared_by_the_files_of_a_directory_count_in_each() {
    let open =
        |store: MemoryStore| open_files(store, "", &Options::new().optimizer_state(true)).map(drop);
    open(distributed(&vec![places(); 2], &[])).unwrap();
    assert_refused(open(distributed(&vec![places(); 20], &[])), "values");

    // A chunk without elements has no place, so it can be there any number of times.
    let numbers = [b"(", &b"K\0".repeat(64)[..], b"t"].concat();
    let sizes = dictionary(&[("offsets", &numbers), ("sizes", &numbers)]);
    let chunk = object("torch.distributed.checkpoint.metadata\nChunkStorageMetadata", &sizes);
    let chunks = [&put(&chunk, 0)[..], b"](", &b"h\0".repeat(50_000), b"e"].concat();
    let properties =
        object("torch.distributed.checkpoint.metadata\nTensorProperties", b"(ctorch\nfloat32\nt");
    let fields = |chunks: &[u8]| {
        dictionary(&[("size", &numbers), ("properties", &properties), ("chunks", chunks)])
    };
    open(distributed(&[], &[("w", fields(&list(&chunk, 3)))])).unwrap();
    assert_refused(open(distributed(&[], &[("w", fields(&chunks))])), "chunks");
}

#[test]
fn repeated_items_of_deepspeed_files_count_each_time() {
    let open =
        |store: MemoryStore| open_files(store, "", &Options::new().optimizer_state(true)).map(drop);
    let long = [text(&"k".repeat(20_000)), b"q\x00".to_vec()].concat();
    let names = |times: usize| [b"](", &long[..], &b"h\0".repeat(times), b"e"].concat();
    let shapes = [b"}", &long[..], b")s"].concat();
    let shapes = [b"](", &shapes[..], b"q\x01", &b"h\x01".repeat(4000), b"e"].concat();
    let dims = put(&list(b"K\x01", 5000), 0);
    let dims = [&dims[..], b"](", &keys(500, b"h\0"), b"e"].concat();
    let shared = [&put(&long, 0)[..], &keys(4000, b"h\0")].concat();
    for (case, key, value) in [
        ("lists of shapes", "param_shapes", shapes),
        ("dimensions", "param_shapes", dims),
        ("other names", "shared_params", shared),
        ("buffers", "buffer_names", names(4000)),
    ] {
        assert_refused(open(deepspeed(&[(key, &value)], &[])), case);
    }

    // Every parameter has the long name of its state in its own.
    let parameters = list(&keys(2000, b")"), 1);
    let storage = [&text("storage")[..], b"ctorch\nFloatStorage\n", &text("0"), &text("cpu")];
    let fields = b"M\xd0\x07tQK\0M\xd0\x07\x85K\x01\x85\x89ccollections\nOrderedDict\n)R";
    let flat = [b"ctorch._utils\n_rebuild_tensor_v2\n((", &storage.concat()[..], fields, b"tR"];
    let flat = flat.concat();
    let state = [b"](}", &text(&"m".repeat(20_000))[..], &flat, b"se"].concat();
    let optimizer = dictionary(&[
        ("zero_stage", b"K\x01"),
        ("partition_count", b"K\x01"),
        ("single_partition_of_fp32_groups", &list(&flat, 1)),
        ("base_optimizer_state", &state),
    ]);
    let optimizer = dictionary(&[("optimizer_state_dict", &optimizer)]);
    let mut store = deepspeed(&[("param_shapes", &parameters)], &[]);
    let pickle = [&optimizer[..], b"."].concat();
    let members: [(&str, &[u8]); 2] = [("a/data.pkl", &pickle), ("a/data/0", &[0; 8000])];
    let file = zip(CompressionMethod::Stored, &members);
    store.insert("zero_pp_rank_0_mp_rank_00_optim_states.pt", file);
    open_files(store.clone(), "", &Options::new()).unwrap();
    assert_refused(open(store.clone()), "names of the state");

    // A parameter that is not trained has a long name, and thousands of others.
    let frozen = |value: &[u8]| {
        [&dictionary(&[(&"k".repeat(20_000), value)])[..], b"(", &keys(4000, value)[2..]].concat()
    };
    let fragments = [put(&tensor("_rebuild_tensor_v2", b""), 0), frozen(b"h\0")].concat();
    let model = dictionary(&[
        ("module", b"}"),
        ("param_shapes", &parameters),
        ("frozen_param_shapes", &frozen(b"K\x02\x85")),
        ("frozen_param_fragments", &fragments),
    ]);
    store.insert("mp_rank_00_model_states.pt", archive(&model));
    let opened = open_files(store, "", &Options::new()).map(drop);
    assert_refused(opened, "names of a frozen parameter");
}

#[test]
fn the_shards_of_an_index_are_counted_together() {
    let index = |shards: usize| {
        let mut store = MemoryStore::default();
        let name = ["0"; 13].join(".");
        let mut map = Vec::new();
        for shard in 0..shards {
            // A shard has the one tensor that the index places in it, and thousands of others.
            let pickle = dictionary(&[(&format!("s{shard}"), &places())]);
            store.insert(format!("{shard}.bin"), archive(&pickle));
            map.push(format!("\"s{shard}.{name}\":\"{shard}.bin\""));
        }
        let index = format!("{{\"weight_map\":{{{}}}}}", map.join(","));
        store.insert("model.bin.index.json", index.into_bytes());
        open_files(store, "model.bin.index.json", &Options::new()).map(drop)
    };
    index(2).unwrap();
    assert_refused(index(40), "shards");
}

/// Only `total_size` is kept from an index's metadata.
#[test]
fn the_metadata_of_an_index_may_be_anything() {
    for (metadata, is_wrong) in [
        ("{\"total_size\":8,\"other\":[{\"a\":[1,null]},true]}", false),
        ("{\"total_size\":8.0}", false),
        ("{\"total_size\":9}", true),
        ("{\"total_size\":-1}", true),
        ("{\"total_size\":\"8\"}", false),
        ("{}", false),
        ("null", false),
        ("[1,{}]", false),
        ("\"text\"", false),
        ("true", false),
    ] {
        let mut store = MemoryStore::default();
        store.insert("0.bin", archive(&dictionary(&[("w", &tensor("_rebuild_tensor_v2", b""))])));
        let index = format!("{{\"metadata\":{metadata},\"weight_map\":{{\"w\":\"0.bin\"}}}}");
        store.insert("model.bin.index.json", index.into_bytes());
        let files = open_files(store, "model.bin.index.json", &Options::new()).unwrap();
        assert_eq!(files[0].1.findings().len(), usize::from(is_wrong), "{metadata}");
    }
}

#[test]
fn a_state_dict_with_other_names_for_every_tensor_opens() {
    let name = |i: usize| format!("model.layers.{i}.self_attention.query_projection.weight");
    let tensor = tensor("_rebuild_tensor_v2", b"");
    let put = |at: usize| [&b"r"[..], &(at as u32).to_le_bytes()].concat();
    let get = |at: usize| [&b"j"[..], &(at as u32).to_le_bytes()].concat();
    let (mut model, mut average) = (Vec::new(), Vec::new());
    for i in 0..20_000 {
        model.extend([text(&name(i)), put(2 * i), tensor.clone(), put(2 * i + 1)].concat());
        average.extend([get(2 * i), get(2 * i + 1)].concat());
    }
    let both =
        [&b"}("[..], &text("model"), b"}(", &model, b"u", &text("ema"), b"}(", &average, b"uu."];
    let file = legacy(&both.concat(), KEYS, DATA);
    let file = TensorFile::from_source(file, "a file", &Options::new()).unwrap();
    assert!(file.has(&format!("ema.{}", name(19_999))));
}
