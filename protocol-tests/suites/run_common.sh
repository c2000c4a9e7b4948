# run_common.sh - sourced by run-librdkafka.sh and run-rust-rdkafka.sh: sets SERVER and LAB. Needs root.
target=${CARGO_TARGET_DIR:-$root/target}
export LAB=${LAB:-$target/suites}
if [ -z "${SERVER:-}" ]; then
  (cd "$root" && cargo build --release --locked)
  SERVER=$target/release/shardgate
fi
