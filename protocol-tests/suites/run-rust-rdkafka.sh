#!/usr/bin/env bash
# run-rust-rdkafka.sh [--jobs N] - rust-rdkafka's own tests against this server, judged by rust-rdkafka.expected
# (as run-librdkafka.sh does, with the same variables SERVER, RESHAPER and LAB). A minute; the first build takes 2 more.
#
# The tests want a broker with id 0 at localhost:9092 whose topics get 3 partitions. A network namespace gives them that
# port whatever else runs on the machine; where none may be made, port 9092 itself has to be free.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
if [ "${1:-}" != --inside ]; then
  . "$here/run_common.sh"
  export SERVER
  "$here/rust-rdkafka.sh" --build-only
  for unshare in "unshare -rn" "unshare -n"; do
    if $unshare true 2> /dev/null; then exec $unshare "${BASH_SOURCE[0]}" --inside "$@"; fi
  done
  if (exec 3<> /dev/tcp/127.0.0.1/9092) 2> /dev/null; then
    echo "port 9092 is taken and this user may not make a network namespace: stop what listens there" >&2
    exit 2
  fi
else
  shift
  python3 - << 'PY'
"""Brings up lo, which in a new network namespace is down (netdevice(7): SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP)."""
import fcntl, socket, struct
with socket.socket() as s:
    name, flags = struct.unpack('16sh', fcntl.ioctl(s, 0x8913, struct.pack('16sh', b'lo', 0)))
    fcntl.ioctl(s, 0x8914, struct.pack('16sh', name, flags | 1))
PY
  export CARGO_NET_OFFLINE=true
fi
dir=$(mktemp -d "$LAB/servers.XXXXXX")
trap 'rm -rf "$dir"/*/data; echo "logs of the servers: $dir"' EXIT
settings="node.id=0 num.partitions=3"
PORT=9092 SETTINGS=$settings "$root/.ci/with-server" "$SERVER" "$dir/auto" \
  env -u PORT SETTINGS="$settings auto.create.topics.enable=false" RESHAPES=0 "$root/.ci/with-server" "$SERVER" "$dir/noauto" \
  "$here/rust-rdkafka.sh" --retry "$@" --expect "$here/rust-rdkafka.expected" --out "$LAB/rust-rdkafka.tsv"
