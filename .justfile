# The commands of daily work. `just ci` must pass before a change lands.

export CARGO_INCREMENTAL := "0"

# List the commands.
default:
    @just --list

# Run everything that CI checks.
ci:
    .ci/run

# Write, load, compare and save a checkpoint in all three frameworks.
quickstart:
    cargo run --example quickstart --features full

# Run all tests.
test:
    cargo test --workspace --features full

# Test only the core, which takes seconds instead of minutes.
core:
    cargo test -p safetensors-core

# Measure everything, and write docs/benchmarks.csv. Takes 40 minutes on an idle machine with 24 GiB of memory and 20 GiB of disk.
bench:
    cargo bench -p benches -- --csv docs/benchmarks.csv
    dev/scripts/speed_picture.py

# Format, and lint with warnings denied.
lint:
    cargo fmt --all
    cargo clippy --workspace --all-targets --features full -- -D warnings

# Build the documentation, and open it in a browser.
doc:
    cargo doc --workspace --no-deps --features full --open

# List the subject of each file of a folder: its first `//!` line.
map folder="safetensors-core/src":
    @git grep -m 1 -e '^//! ' -- '{{folder}}/*.rs'

# Fuzz one target, or all, for some seconds each. Needs a nightly toolchain and cargo-fuzz.
fuzz target="all" seconds="60":
    dev/fuzz/run {{target}} {{seconds}}

# Without the test of the peak of memory, which the sanitizer raises. Optimised, because it is slow.
# Run the core's tests under the address sanitizer (nightly).
asan:
    RUSTFLAGS="-Zsanitizer=address" CARGO_PROFILE_DEV_OPT_LEVEL=1 \
        ASAN_OPTIONS=allocator_may_return_null=1 cargo +nightly test -p safetensors-core \
        --lib --tests --target "$(rustc -vV | sed -n 's/^host: //p')" --target-dir target/asan \
        -- --skip loading_takes_the_tensors_bytes

# Run the core's tests under the thread sanitizer (nightly with rust-src).
tsan:
    dev/scripts/tsan

# Minutes the first time. The compiler comes from PyPI, unless CUDA_HOME is set or nvcc is in PATH.
# Type-check and lint the candle adapter with CUDA. Needs no GPU.
check-cuda:
    dev/scripts/check_cuda

# Minutes for each step, and gigabytes. Debian 12: `sudo dev/scripts/check_platforms setup` first.
# Build for other platforms, and run tests there: all steps, or some.
check-platforms *steps:
    dev/scripts/check_platforms {{steps}}

# Run fleet.py on two Ray nodes, and kill one of them. Needs `pip install ray`; for the checkpoints
# in buckets also s3fs and moto[server].
test-fleet:
    python3 examples/distributed/ray/test_places.py
    cargo build -p safetensors-bridge-cli --features remote
    python3 examples/distributed/ray/test_fleet.py target/debug/safetensors

# Run a model on the ranks of MPI. Debian: libopenmpi-dev, openmpi-bin and libclang-dev.
test-mpi:
    dev/scripts/check_mpi

# Run a model in a headless browser. dev/scripts/check_browser lists its tools.
check-browser:
    dev/scripts/check_browser

# Check licences, sources and vulnerabilities of all dependencies (cargo-deny, network).
deny:
    cargo deny --workspace check

# Build the documentation as docs.rs does, with the features of items. Needs a nightly toolchain.
docs-rs:
    RUSTDOCFLAGS="--cfg docsrs -D warnings" cargo +nightly doc --workspace --no-deps --features full

# Build every package from the files that the registry would get.
package:
    cargo package --workspace --exclude safetensors-fuzz

# Check versions, changelog, order and packages before a release. `--publish`: placeholders too.
release-check *args:
    dev/scripts/release_check.py {{args}}

# Make the archive of the command for a release: program, manual pages, completions, licences.
package-command *args:
    dev/scripts/package_command {{args}}

# Make a wheel that holds the command, in target/package. Needs `pip install maturin`.
wheel *args:
    maturin build --manifest-path safetensors-cli/Cargo.toml --out target/package {{args}}
