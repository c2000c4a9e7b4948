#!/usr/bin/env bash
# kcat.sh BOOTSTRAP [name ...] - what a person with kcat does with a Kafka, as asserted behaviours.
#
# Each check prints "pass|fail <TAB> name <TAB> seconds <TAB> why"; the last line is "N passed, N failed, N skipped".
# Names choose checks (substring). The broker must auto-create topics (auto.create.topics.enable=true).
# Environment: SKIP (words: leave out every check whose name holds one, e.g. SKIP=transaction),
#              KCAT (default kcat), OUT (TSV file as well as stdout), CHECK_TIMEOUT (seconds per kcat call, default 30),
#              ARGS (more kcat arguments for all calls, e.g. -X security.protocol=SASL_PLAINTEXT ...)
# Runs with kcat 1.7.1 / librdkafka 2.0.2 (Debian 12). Needs python3 for JSON.
set -u
[ $# -ge 1 ] || { sed -n '2,/^set -u/p' "$0" | sed '$d;s/^# \{0,1\}//'; exit 2; }
BOOT=$1; shift; WANT=("$@")
: "${KCAT:=kcat}" "${SKIP:=}" "${OUT:=}" "${CHECK_TIMEOUT:=30}" "${ARGS:=}"
command -v "$KCAT" >/dev/null || { echo "kcat is missing: apt-get install kcat" >&2; exit 3; }
RUN=kc$(date +%s)$$; W=$(mktemp -d); trap 'rm -rf "$W"' EXIT
N_PASS=0 N_FAIL=0 N_SKIP=0; [ -n "$OUT" ] && printf 'result\tcheck\tseconds\tdetail\n' > "$OUT"
k() { timeout "$CHECK_TIMEOUT" "$KCAT" -b "$BOOT" $ARGS "$@"; }
kq() { k -q "$@" 2>"$W/err"; }                               # quiet; stderr kept in $W/err
produce() { local t=$1; shift; k -P -t "$t" "$@" 2>"$W/perr"; }
why() { echo "$*" >> "$W/why"; }
eq() { [ "$1" = "$2" ] || { why "got '$(echo "$1" | head -c 200 | tr '\n\t' '| ')', expected '$(echo "$2" | head -c 200 | tr '\n\t' '| ')'"; return 1; }; }
has() { case $1 in *"$2"*) ;; *) why "'$2' is not in '$(echo "$1" | head -c 200 | tr '\n\t' '| ')'"; return 1;; esac; }
nok() { if "$@"; then why "expected a failure of: $*"; return 1; fi; }
js() { python3 -c "import json,sys; d=[json.loads(l) for l in sys.stdin if l.strip()]; print($1)"; }
now() { python3 -c 'import time; print(int(time.time()*1000))'; }
line_and_pad() {   # kcat reads stdin in blocks: 64 KiB of whole lines make it see the first one, with nothing left over
  python3 -c "import sys; a=sys.argv[1]; print(a); print('p'*(1022-len(a))); [print('p'*1023) for _ in range(63)]" "$1"; }
nopad() { grep -v '^p' || true; }
check() {                                                     # check NAME FUNCTION
  local name=$1 fn=$2 w; if [ ${#WANT[@]} -gt 0 ]; then local hit=0; for w in "${WANT[@]}"; do case $name in *$w*) hit=1;; esac; done; [ $hit = 1 ] || return 0; fi
  for w in $SKIP; do case $name in *$w*) N_SKIP=$((N_SKIP+1)); return 0;; esac; done
  : > "$W/why"; : > "$W/err"; local t0=$(now) r=fail d; T=$RUN-$name
  ( set -e; "$fn" ); if [ $? = 0 ]; then r=pass; N_PASS=$((N_PASS+1)); else N_FAIL=$((N_FAIL+1)); fi
  [ $r = pass ] && d= || d="$(tr '\n\t' '; ' < "$W/why") $(tail -1 "$W/err" | head -c 200)"
  local s; s=$(python3 -c "print('%.1f' % (($(now)-$t0)/1000))")
  printf '%s\t%s\t%s\t%s\n' "$r" "$name" "$s" "$d"; [ -n "$OUT" ] && printf '%s\t%s\t%s\t%s\n' "$r" "$name" "$s" "$d" >> "$OUT"
}
# functions run in a subshell under set -e: any failing line fails the check

metadata_brokers() { o=$(k -L); has "$o" "brokers:"; has "$o" "broker "; has "$o" "(controller)"; }
metadata_json() { k -L -J > "$W/j"; eq "$(js 'len(d[0]["brokers"])>0 and "topics" in d[0] and d[0]["controllerid"]>=0' < "$W/j")" True; }
metadata_topic() { echo x | produce "$T"; o=$(k -L -t "$T" -J | js '[(len(t["partitions"])>0, all(p["leader"]>=0 and p["replicas"] and p["isrs"] for p in t["partitions"])) for t in d[0]["topics"]]'); eq "$o" "[(True, True)]"; }
metadata_all_lists_new_topic() { echo x | produce "$T"; has "$(k -L)" "topic \"$T\""; }
auto_create_on_produce() { echo hello | produce "$T"; eq "$(kq -C -t "$T" -o beginning -e)" hello; }
unknown_topic_consume() { nok k -C -t "$T-none" -p 0 -o beginning -e -X allow.auto.create.topics=false > "$W/o" 2>&1; has "$(cat "$W/o")" "Unknown topic or partition"; }
unknown_partition_produce() { echo x | produce "$T"; echo x > "$W/x"; nok k -P -t "$T" -p 999 -l "$W/x" > "$W/o" 2>&1; has "$(cat "$W/o")" "Unknown partition"; }
order_in_partition() { seq 500 | produce "$T" -p 0; eq "$(kq -C -t "$T" -p 0 -o beginning -e | md5sum)" "$(seq 500 | md5sum)"; }
count_limit() { seq 50 | produce "$T" -p 0; eq "$(kq -C -t "$T" -p 0 -o beginning -c 7 | wc -l)" 7; }
offset_absolute() { seq 0 49 | produce "$T" -p 0; eq "$(kq -C -t "$T" -p 0 -o 47 -e | tr '\n' ' ')" "47 48 49 "; }
offset_from_end() { seq 0 49 | produce "$T" -p 0; eq "$(kq -C -t "$T" -p 0 -o -2 -e | tr '\n' ' ')" "48 49 "; }
offset_end() { seq 5 | produce "$T" -p 0; eq "$(kq -C -t "$T" -p 0 -o end -e)" ""; }
offset_out_of_range_error() { seq 5 | produce "$T" -p 0; nok k -C -t "$T" -p 0 -o 1000 -e -X topic.auto.offset.reset=error > "$W/o" 2>&1; has "$(cat "$W/o")" "ffset out of range"; }
offset_out_of_range_reset() { seq 5 | produce "$T" -p 0; eq "$(kq -C -t "$T" -p 0 -o 1000 -e -X topic.auto.offset.reset=earliest | wc -l)" 5; }
timestamps() {          # start at, stop at, and query by time
  seq 0 9 | produce "$T" -p 0; sleep 1.2; t=$(now); sleep 0.3; seq 10 19 | produce "$T" -p 0
  eq "$(kq -C -t "$T" -p 0 -o "s@$t" -e | head -1)" 10
  eq "$(kq -C -t "$T" -p 0 -o beginning -o "e@$t" -e | tail -1)" 9
  eq "$(k -Q -t "$T:0:$t")" "$T [0] offset 10"; }
query_ends() { seq 0 9 | produce "$T" -p 0; eq "$(k -Q -t "$T:0:-2")" "$T [0] offset 0"; eq "$(k -Q -t "$T:0:-1")" "$T [0] offset 10"; }
query_future() { seq 3 | produce "$T" -p 0; eq "$(k -Q -t "$T:0:$(( $(now) + 3600000 ))")" "$T [0] offset -1"; }
keys() { printf 'a:1\nb:2\na:3\n' | produce "$T" -K: ; eq "$(kq -C -t "$T" -o beginning -e -f '%k=%s\n' | sort | tr '\n' ' ')" "a=1 a=3 b=2 "; }
same_key_same_partition() { for i in $(seq 60); do echo "k$((i%6)):$i"; done | produce "$T" -K:; eq "$(kq -C -t "$T" -o beginning -e -f '%k %p\n' | sort -u | wc -l)" 6; }
headers() { echo v | produce "$T" -H a=1 -H b= -H a=2; eq "$(kq -C -t "$T" -o beginning -e -f '%h\n')" "a=1,b=,a=2"; }
json_envelope() { t=$(now); echo 'k:v' | produce "$T" -p 0 -K: -H h=1
  eq "$(kq -C -t "$T" -p 0 -o beginning -e -J | js "[(m['topic']=='$T', m['partition'], m['offset'], m['tstype'], abs(m['ts']-$t)<30000, m['key'], m['payload'], m['headers']) for m in d]")" "[(True, 0, 0, 'create', True, 'k', 'v', ['h', '1'])]"; }
null_value() { printf 'k:\n' | produce "$T" -p 0 -K: -Z; eq "$(kq -C -t "$T" -p 0 -o beginning -e -f '%k %S\n')" "k -1"; }
empty_value() { printf 'k:\n' | produce "$T" -p 0 -K: ; eq "$(kq -C -t "$T" -p 0 -o beginning -e -f '%k %S\n')" "k 0"; }
compression() { for z in gzip snappy lz4 zstd; do seq 2000 | produce "$T" -p 0 -z $z; done; eq "$(kq -C -t "$T" -p 0 -o beginning -e | sort -n | uniq -c | awk '{print $1}' | sort -u)" 4; }
acks_levels() { for a in 0 1 all; do echo "m$a" | produce "$T" -p 0 -X acks=$a; done; eq "$(kq -C -t "$T" -p 0 -o beginning -e | sort | tr '\n' ' ')" "m0 m1 mall "; }
large_message() { head -c 900000 /dev/zero | tr '\0' x > "$W/big"; produce "$T" -p 0 "$W/big"; eq "$(kq -C -t "$T" -p 0 -o beginning -e -f '%S\n')" 900000; }
too_large_message() { echo x | produce "$T"; head -c 3000000 /dev/zero | tr '\0' x > "$W/big"; nok k -P -t "$T" -p 0 -X message.max.bytes=9000000 "$W/big" > "$W/o" 2>&1; has "$(cat "$W/o")" "too large"; }
idempotent_producer() { seq 0 299 | produce "$T" -p 0 -X enable.idempotence=true; eq "$(kq -C -t "$T" -p 0 -o beginning -e -f '%o %s\n' | awk '$1!=$2' | wc -l)" 0; eq "$(k -Q -t "$T:0:-1")" "$T [0] offset 300"; }
transaction_commit() { seq 5 | produce "$T" -p 0 -X transactional.id="$T"; eq "$(kq -C -t "$T" -p 0 -o beginning -e -X isolation.level=read_committed | wc -l)" 5; eq "$(k -Q -t "$T:0:-1")" "$T [0] offset 6"; }
transaction_open_then_abort() {   # an open transaction hides what follows it from read_committed; a signal makes kcat abort
  echo before | produce "$T" -p 0; mkfifo "$W/f"
  timeout "$CHECK_TIMEOUT" "$KCAT" -b "$BOOT" $ARGS -P -t "$T" -p 0 -X transactional.id="$T" -X linger.ms=1 < "$W/f" 2>"$W/tx" & p=$!
  exec 9> "$W/f"; line_and_pad inside >&9; all="kq -C -t $T -p 0 -o beginning -e -X isolation.level"
  for _ in $(seq 50); do [ "$($all=read_uncommitted | nopad | wc -l)" = 2 ] && break; sleep 0.2; done
  echo after | produce "$T" -p 0
  eq "$($all=read_uncommitted | nopad | tr '\n' ' ')" "before inside after "
  eq "$($all=read_committed | nopad | tr '\n' ' ')" "before "
  kill -TERM "$p"; sleep 0.2; exec 9>&-; wait "$p" || true; has "$(cat "$W/tx")" "Aborting transaction"
  eq "$($all=read_committed | nopad | tr '\n' ' ')" "before after "; }
transaction_fences_older_producer() {   # the same transactional.id again: the newer producer aborts the older one's and fences it
  mkfifo "$W/g"; timeout "$CHECK_TIMEOUT" "$KCAT" -b "$BOOT" $ARGS -P -t "$T" -p 0 -X transactional.id="$T" -X linger.ms=1 < "$W/g" 2>"$W/tx" & p=$!
  exec 8> "$W/g"; line_and_pad old >&8; all="kq -C -t $T -p 0 -o beginning -e -X isolation.level"
  for _ in $(seq 50); do [ "$($all=read_uncommitted | nopad | wc -l)" = 1 ] && break; sleep 0.2; done
  eq "$($all=read_uncommitted | nopad)" old
  echo new | produce "$T" -p 0 -X transactional.id="$T"
  exec 8>&-; r=0; wait "$p" || r=$?
  [ $r != 0 ] || { why "the fenced producer ended with success"; false; }
  eq "$($all=read_committed | nopad)" new; }
group_commits_offsets() {
  seq 40 | produce "$T"; g="kq -G $T -X auto.offset.reset=earliest -e $T"
  eq "$($g | sort -n | md5sum)" "$(seq 40 | md5sum)"; eq "$($g | wc -l)" 0
  seq 41 45 | produce "$T"; eq "$($g | sort -n | tr '\n' ' ')" "41 42 43 44 45 "; }
group_splits_partitions() {   # two members: no message twice, all messages once, both get partitions
  seq 10 | produce "$T"; n=$(k -L -t "$T" -J | js 'len(d[0]["topics"][0]["partitions"])')
  [ "$n" -ge 2 ] || { why "needs num.partitions of 2 or more"; false; }
  for m in 1 2; do timeout 20 "$KCAT" -b "$BOOT" $ARGS -u -G "$T" -X auto.offset.reset=earliest "$T" > "$W/m$m" 2> "$W/e$m" & eval p$m=$!; done
  for _ in $(seq 60); do tail -1 "$W/e1" | grep -q 'assigned: .*\[' && tail -1 "$W/e2" | grep -q 'assigned: .*\[' && break; sleep 0.2; done
  sleep 1; seq 11 200 | produce "$T"; for _ in $(seq 50); do [ "$(cat "$W/m1" "$W/m2" | wc -l)" -ge 200 ] && break; sleep 0.2; done
  kill -TERM $p1 $p2; wait $p1 $p2 2>/dev/null || true
  has "$(cat "$W/e1")" "assigned: $T ["; has "$(cat "$W/e2")" "assigned: $T ["
  eq "$(cat "$W/m1" "$W/m2" | sort -n | uniq | md5sum)" "$(seq 200 | md5sum)"; }
group_regex() { echo one | produce "$T-a"; echo two | produce "$T-b"; eq "$(kq -G "$T" -X auto.offset.reset=earliest -X topic.metadata.refresh.interval.ms=1000 -e "^$T-.*" | sort | tr '\n' ' ')" "one two "; }
group_cooperative() { seq 20 | produce "$T"; eq "$(kq -G "$T" -X auto.offset.reset=earliest -X partition.assignment.strategy=cooperative-sticky -e "$T" | sort -n | md5sum)" "$(seq 20 | md5sum)"; }
group_static_member() { seq 20 | produce "$T"; g="kq -G $T -X group.instance.id=one -X auto.offset.reset=earliest -e $T"; eq "$($g | wc -l)" 20; seq 3 | produce "$T"; eq "$($g | wc -l)" 3; }
stored_offset() { seq 30 | produce "$T" -p 0; kq -G "$T" -X auto.offset.reset=earliest -X enable.auto.offset.store=true -e "$T" >/dev/null; seq 31 33 | produce "$T" -p 0; eq "$(kq -C -t "$T" -p 0 -o stored -e -X group.id="$T" | tr '\n' ' ')" "31 32 33 "; }
all_partitions_eof() { seq 400 | awk '{print $1":"$1}' | produce "$T" -K:; k -C -t "$T" -o beginning -e > "$W/o" 2> "$W/e"; eq "$(sort -n "$W/o" | md5sum)" "$(seq 400 | md5sum)"; n=$(k -L -t "$T" -J | js 'len(d[0]["topics"][0]["partitions"])'); eq "$(grep -c 'Reached end of topic' "$W/e")" "$n"; }
bulk_round_trip() { seq 100000 > "$W/bulk"; produce "$T" -p 0 -z lz4 -l "$W/bulk"; eq "$(kq -C -t "$T" -p 0 -o beginning -e | md5sum)" "$(md5sum < "$W/bulk")"; }
binary_payload() { head -c 100000 /dev/urandom > "$W/bin"; produce "$T" -p 0 "$W/bin"; eq "$(kq -C -t "$T" -p 0 -o beginning -e -D '' | md5sum)" "$(md5sum < "$W/bin")"; }
follow_new_messages() { echo 1 | produce "$T" -p 0; ( timeout 15 "$KCAT" -b "$BOOT" $ARGS -q -u -C -t "$T" -p 0 -o end -c 1 > "$W/o" ) & p=$!; sleep 1.5; echo 2 | produce "$T" -p 0; wait $p; eq "$(cat "$W/o")" 2; }
api_versions_seen() { echo x | k -P -t "$T" -d feature,protocol > "$W/o" 2>&1; has "$(cat "$W/o")" "ApiKey ApiVersion (18)"; has "$(cat "$W/o")" "Feature MsgVer2: "; nok grep -q 'Disabling feature IdempotentProducer' "$W/o"; }

for f in metadata_brokers metadata_json metadata_topic metadata_all_lists_new_topic auto_create_on_produce unknown_topic_consume \
  unknown_partition_produce order_in_partition count_limit offset_absolute offset_from_end offset_end offset_out_of_range_error \
  offset_out_of_range_reset timestamps query_ends query_future keys same_key_same_partition headers json_envelope null_value \
  empty_value compression acks_levels large_message too_large_message binary_payload bulk_round_trip follow_new_messages \
  all_partitions_eof idempotent_producer transaction_commit transaction_open_then_abort transaction_fences_older_producer \
  group_commits_offsets group_splits_partitions group_regex group_cooperative group_static_member stored_offset api_versions_seen
do check "$f" "$f"; done
printf '%d passed, %d failed, %d skipped\n' "$N_PASS" "$N_FAIL" "$N_SKIP"
[ "$N_FAIL" = 0 ]
