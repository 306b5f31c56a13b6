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
    cargo run --release --features full --example quickstart

# Run all tests.
test:
    cargo test --workspace --features full

# Test only the core, which takes seconds instead of minutes.
core:
    cargo test -p safetensors-core

# Measure everything, and put the table into BENCHMARKS.md. Takes ten minutes on an idle machine.
bench:
    cargo bench --bench table -- --into BENCHMARKS.md

# Format, and lint with warnings denied.
lint:
    cargo fmt --all
    cargo clippy --workspace --all-targets --features full -- -D warnings

# Build the documentation, and open it in a browser.
doc:
    cargo doc --workspace --no-deps --features full --open

# The documentation as docs.rs makes it, which says what needs a feature. Needs a nightly toolchain.
docs-rs:
    RUSTDOCFLAGS="--cfg docsrs -D warnings" cargo +nightly doc --workspace --no-deps --features full

# Build every package from the files that the registry would get.
package:
    cargo package --workspace
