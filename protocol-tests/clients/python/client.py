"""Produces and consumes in a group through a restart of the broker; see ../README.md."""
import os
import sys
import threading
import time
import uuid

from kafka import KafkaConsumer, KafkaProducer
from kafka.admin import KafkaAdminClient, NewTopic

BOOTSTRAP, RESTARTED = sys.argv[1:3]
TOPIC = f"python-{uuid.uuid4()}"
DEADLINE = time.monotonic() + 150


def check(condition, what):
    if not condition:
        print(what, file=sys.stderr, flush=True)
        os._exit(1)


def producer():
    return KafkaProducer(bootstrap_servers=BOOTSTRAP, acks="all", enable_idempotence=True,
                         delivery_timeout_ms=120_000)


def consumer():
    return KafkaConsumer(TOPIC, bootstrap_servers=BOOTSTRAP, group_id=f"{TOPIC}-group",
                         auto_offset_reset="earliest", enable_auto_commit=False)


def produce():
    """Sends records until 500 after the restart and returns how many there are."""
    acknowledged = []
    sender, number, left, halfway = producer(), 0, 500, False
    while left > 0:
        future = sender.send(TOPIC, key=f"key{number % 50}".encode(), value=f"value{number}".encode())
        future.add_callback(acknowledged.append)
        future.add_errback(lambda error: check(False, f"produce: {error!r}"))
        number += 1
        if not halfway and len(acknowledged) >= 500:
            halfway = True
            print("halfway", flush=True)
        if os.path.exists(RESTARTED):
            left -= 1
        check(time.monotonic() < DEADLINE, "the restart does not come")
        time.sleep(0.001)
    sender.flush(timeout=100)
    sender.close()
    return number


def read(seen, enough):
    places = set()
    reader = consumer()
    while not enough.is_set():
        for records in reader.poll(timeout_ms=200).values():
            for record in records:
                place = (record.partition, record.offset)
                again = place in places
                places.add(place)
                check(again or record.value not in seen, f"{record.value} is in the log twice")
                seen.add(record.value)
    reader.commit()
    reader.close()


def resume():
    """A new consumer of the group sees what came after the last one's commit, and nothing else."""
    sender = producer()
    for i in range(10):
        sender.send(TOPIC, value=f"tail{i}".encode()).get(timeout=60)
    sender.close()
    reader, tail = consumer(), set()
    while len(tail) < 10:
        for records in reader.poll(timeout_ms=200).values():
            for record in records:
                check(record.value.startswith(b"tail"), f"saw {record.value} again")
                tail.add(record.value)
        check(time.monotonic() < DEADLINE, f"the second consumer saw only {tail}")
    reader.close()


admin = KafkaAdminClient(bootstrap_servers=BOOTSTRAP)
admin.create_topics([NewTopic(name=TOPIC, num_partitions=6, replication_factor=1)])
admin.close()
seen, enough = set(), threading.Event()
thread = threading.Thread(target=read, args=(seen, enough), daemon=True)
thread.start()
produced = produce()
while len(seen) < produced:
    check(time.monotonic() < DEADLINE, f"the consumer saw only {len(seen)} of {produced}")
    time.sleep(0.05)
enough.set()
thread.join()
resume()
print(f"{produced} records: ok")
