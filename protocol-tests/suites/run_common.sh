# run_common.sh - sourced by run-librdkafka.sh and run-rust-rdkafka.sh: sets SERVER and LAB. Needs root.
# RESHAPER=1 (see .ci/with-server) builds the reshaper beside the server.
target=${CARGO_TARGET_DIR:-$root/target}
export LAB=${LAB:-$target/suites}
if [ -z "${SERVER:-}" ]; then
  (cd "$root" && cargo build --release --locked ${RESHAPER:+--workspace --bins})
  SERVER=$target/release/shardgate
fi
