#!/bin/bash
# The answers come from behaviour, not from a recording: records the edges cases anew from a live Apache Kafka 4.4.0
# with other settings (jars from Maven, see kafka_oracle.sh) and compares SERVER with the same settings.
#   edges_settings.sh SERVER [name...]     names: see below; by default all
# Environment: PORT=24100 (first port of the real broker), KAFKA_LIBS, LAB
set -eu
HERE=$(cd "$(dirname "$0")" && pwd)
[ $# -ge 1 ] || { sed -n '2,6p' "$0" | sed 's/^# \{0,1\}//'; exit 2; }
SERVER=$(readlink -f "$1"); shift
declare -A SETTINGS=(
  [plain]="num.partitions=4 group.initial.rebalance.delay.ms=0"
  [limits]="num.partitions=7 message.max.bytes=200000 auto.create.topics.enable=false group.initial.rebalance.delay.ms=0"
  [groups]="num.partitions=4 group.max.size=2 group.min.session.timeout.ms=1000 group.max.session.timeout.ms=20000 group.initial.rebalance.delay.ms=700"
  [times]="num.partitions=1 log.message.timestamp.type=LogAppendTime offset.metadata.max.bytes=100 compression.type=uncompressed log.retention.ms=86400000 group.initial.rebalance.delay.ms=0"
  [gzip]="num.partitions=4 compression.type=gzip group.initial.rebalance.delay.ms=0"
)
# No two libraries compress to the same number of bytes, which DescribeLogDirs shows.
declare -A ONLY=([gzip]='^(produce|fetch|list-offsets|delete-records)')
[ $# -gt 0 ] || set -- limits groups times gzip
export LAB=${LAB:-${TMPDIR:-/tmp}/kafka-suites} HEAP=${HEAP:-320m} AUTHORIZER=0 RACKS=0 PORT=${PORT:-24100}
failed=0
for name; do
  echo "== $name: ${SETTINGS[$name]}"
  export EDGES_RUN=${ONLY[$name]:-}
  dir=$(mktemp -d)
  trap '"$HERE/kafka_oracle.sh" stop "$dir/kafka" || true; rm -rf "$dir"' EXIT
  boot=$(EXTRA=$(tr ' ' '\n' <<< "${SETTINGS[$name]}") "$HERE/kafka_oracle.sh" start "$dir/kafka")
  EDGES_RECORD=$dir/recorded.json "$HERE/edges.sh" "$boot"
  "$HERE/kafka_oracle.sh" stop "$dir/kafka"
  env -u PORT SETTINGS="${SETTINGS[$name]}" EDGES_ORACLE="$dir/recorded.json" \
    "$HERE/../../.ci/with-server" "$SERVER" "$dir" "$HERE/edges.sh" || failed=1
  rm -rf "$dir"
done
exit $failed
