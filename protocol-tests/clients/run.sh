#!/usr/bin/env bash
# run.sh SERVER|HOST:PORT [client...] - clients in java, go, python and javascript; see README.md.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
[ $# -ge 1 ] || { sed -n '2p' "$0"; exit 2; }
TARGET=$1; shift
CLIENTS=("$@"); [ ${#CLIENTS[@]} -gt 0 ] || CLIENTS=(java go python javascript)
WORK=${CARGO_TARGET_DIR:-$HERE/../../target}/clients
mkdir -p "$WORK"; WORK=$(cd "$WORK" && pwd)
LIMIT=180   # seconds for one program

need() { command -v "$1" > /dev/null || { echo "$1 is missing: apt-get install $2" >&2; exit 3; }; }

# prepare_X installs what program X needs and sets COMMAND
prepare_java() {
  need java default-jdk-headless; need mvn maven
  local libs=$WORK/java
  if ! ls "$libs"/kafka-clients-*.jar > /dev/null 2>&1; then
    mvn -q -B -Dstyle.color=never -f "$HERE/java/pom.xml" dependency:copy-dependencies -DoutputDirectory="$libs" -DincludeScope=runtime
  fi
  COMMAND=(java -Xmx192m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Dorg.slf4j.simpleLogger.defaultLogLevel=error
    -cp "$libs/*" "$HERE/java/Client.java")
}
prepare_go() {
  need go golang
  (cd "$HERE/go" && go build -o "$WORK/go-client" .)
  COMMAND=("$WORK/go-client")
}
prepare_python() {
  need python3 python3-venv
  [ -x "$WORK/python/bin/pip" ] || python3 -m venv "$WORK/python"
  "$WORK/python/bin/pip" install -q --disable-pip-version-check -r "$HERE/python/requirements.txt"
  COMMAND=("$WORK/python/bin/python" -u "$HERE/python/client.py")
}
prepare_javascript() {
  need node nodejs; need npm npm
  mkdir -p "$WORK/javascript"
  cp "$HERE"/javascript/{package.json,package-lock.json,client.js} "$WORK/javascript/"
  (cd "$WORK/javascript" && npm ci --silent --no-audit --no-fund)
  COMMAND=(node "$WORK/javascript/client.js")
}

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

start_server() {   # start_server DIR PORT
  "$TARGET" --set "listeners=PLAINTEXT://127.0.0.1:$2" --set "log.dirs=$1/data" --set admin.port=0 >> "$1/server.log" 2>&1 &
  SERVER_PID=$!
  for _ in $(seq 300); do
    (exec 3<> "/dev/tcp/127.0.0.1/$2") 2> /dev/null && return
    kill -0 "$SERVER_PID" 2> /dev/null || break
    sleep 0.1
  done
  echo "the server does not serve:" >&2; tail -n 30 "$1/server.log" >&2; return 1
}
end_server() {
  [ -n "${SERVER_PID:-}" ] || return 0
  kill -9 "$SERVER_PID" 2> /dev/null || true
  wait "$SERVER_PID" 2> /dev/null || true
  SERVER_PID=
}
SERVER_PID=; trap end_server EXIT

run_client() {   # run_client NAME: 0 when the program said ok
  local name=$1 dir port boot pid halfway=0 from=$SECONDS
  COMMAND=(); "prepare_$name" || return 1
  dir=$(mktemp -d); port=
  if [ -x "$TARGET" ]; then
    port=$(free_port); boot=127.0.0.1:$port
    start_server "$dir" "$port" || return 1
  else
    boot=$TARGET
  fi
  : > "$dir/out"
  timeout "$LIMIT" "${COMMAND[@]}" "$boot" "$dir/restarted" > "$dir/out" 2> "$dir/err" &
  pid=$!
  while kill -0 "$pid" 2> /dev/null; do
    if [ $halfway = 0 ] && grep -q '^halfway' "$dir/out"; then
      halfway=1
      if [ -n "$port" ]; then end_server; start_server "$dir" "$port" || return 1; fi
      touch "$dir/restarted"
    fi
    sleep 0.05
  done
  local code=0; wait "$pid" || code=$?
  end_server
  if [ $code != 0 ] || [ $halfway = 0 ] || ! tail -n 1 "$dir/out" | grep -q ': ok$'; then
    echo "$name: failed (exit code $code); it printed:" >&2
    tail -n 5 "$dir/out" >&2; tail -n 30 "$dir/err" >&2
    [ -z "$port" ] || { echo "the server printed:" >&2; tail -n 30 "$dir/server.log" >&2; }
    return 1
  fi
  echo "$name: $(tail -n 1 "$dir/out"), $((SECONDS - from)) s"
  rm -rf "$dir"
}

passed=0 failed=0
for client in "${CLIENTS[@]}"; do
  if run_client "$client"; then passed=$((passed + 1)); else failed=$((failed + 1)); end_server; fi
done
printf 'clients: %d passed, %d failed\n' "$passed" "$failed"
[ "$failed" = 0 ]
