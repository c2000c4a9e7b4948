#!/usr/bin/env bash
# run-librdkafka.sh [--ci] [--jobs N] [--multiplier X] - librdkafka's own test suite against this server.
#
# Builds the server (release) and librdkafka's test-runner, starts two servers with fresh data (one makes
# topics by itself, one does not), runs the tests in full mode and judges the run by librdkafka.expected:
# a test listed as passing that fails is an error, one that passes and is not listed so is printed as "add me", and at
# most 3 may pass only when run again. All of it takes 18 minutes, --ci (the
# rows marked ci) 5, the first build of the test-runner 3 more.
#
#   SERVER      a shardgate to run instead of building one
#   RESHAPER=1  splits and merges the shards of all topics all the time (see .ci/with-server)
#   ONLY        test numbers or names, blanks between: only these rows of the list
#   LAB         builds, logs and results (default: suites in the target folder)
# The tests that call Kafka's own scripts need java and Maven (or KAFKA_LIBS, see librdkafka.sh).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
. "$here/run_common.sh"
settings="num.partitions=4 group.initial.rebalance.delay.ms=3000"
"$here/librdkafka.sh" --build-only
dir=$(mktemp -d "$LAB/servers.XXXXXX")
trap 'rm -rf "$dir"/*/data; echo "logs of the servers: $dir"' EXIT
SETTINGS=$settings "$root/.ci/with-server" "$SERVER" "$dir/auto" \
  env SETTINGS="$settings auto.create.topics.enable=false" RESHAPES=0 "$root/.ci/with-server" "$SERVER" "$dir/noauto" \
  "$here/librdkafka.sh" --full --jobs 4 --retry "$@" --expect "$here/librdkafka.expected" --out "$LAB/librdkafka.tsv"
