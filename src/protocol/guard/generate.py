#!/usr/bin/env python3
"""Prints guard/table.rs: the request layouts of every API that ../api.rs has a row for.

    generate.py kafka-clients-X.Y.Z.jar > table.rs

The jar (org.apache.kafka:kafka-clients on Maven Central) holds the message schemas under
common/message/. With --shapes FILE the layouts come from a JSON list of
{k, name, flex, f: [{n, t, a, v, null, tag, tv, f}]} instead.
"""

import json
import re
import sys
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
MAX = 32767
NONE = [1, 0]
KINDS = {
    "bool": "Fixed(1)", "int8": "Fixed(1)", "int16": "Fixed(2)", "uint16": "Fixed(2)",
    "int32": "Fixed(4)", "uint32": "Fixed(4)", "int64": "Fixed(8)", "float64": "Fixed(8)",
    "uuid": "Fixed(16)", "string": "Str", "bytes": "Blob", "records": "Blob",
}


def versions(text):
    """A range as Kafka's schemas write it: "3", "0-2", "1+" or "none"."""
    if text in (None, "none"):
        return NONE
    if text.endswith("+"):
        return [int(text[:-1]), MAX]
    first, _, last = text.partition("-")
    return [int(first), int(last or first)]


def convert(field, structs):
    kind = field["type"]
    array = kind.startswith("[]")
    kind = kind.removeprefix("[]")
    nested = field.get("fields") or structs.get(kind)
    return {
        "n": field["name"],
        "t": kind if kind in KINDS else "struct",
        "a": array,
        "v": versions(field.get("versions") or field.get("taggedVersions")),
        "null": versions(field.get("nullableVersions")),
        "tag": field.get("tag"),
        "tv": versions(field.get("taggedVersions")),
        "f": [convert(f, structs) for f in nested] if nested else None,
    }


def from_jar(path):
    shapes = []
    with zipfile.ZipFile(path) as jar:
        for name in sorted(jar.namelist()):
            if not re.fullmatch(r"common/message/\w+Request\.json", name):
                continue
            text = re.sub(r"(?m)^\s*//.*$", "", jar.read(name).decode())
            message = json.loads(text)
            if "apiKey" not in message or "fields" not in message:
                continue
            structs = {s["name"]: s["fields"] for s in message.get("commonStructs", [])}
            shapes.append({
                "k": message["apiKey"],
                "name": message["name"],
                "flex": versions(message.get("flexibleVersions")),
                "f": [convert(f, structs) for f in message["fields"]],
            })
    return shapes


def last(version):
    return "LAST" if version == MAX else str(version)


def emit(field, depth, out):
    pad = "    " * depth
    kind = KINDS.get(field["t"])
    tail = ""
    if field["a"]:
        tail += ".array()"
    if field["null"] != NONE:
        tail += f".nullable({field['null'][0]}, {last(field['null'][1])})"
    if field["tag"] is not None:
        tail += f".tagged({field['tag']}, {field['tv'][0]}, {last(field['tv'][1])})"
    start = f"{pad}field(\"{field['n']}\", "
    end = f", {field['v'][0]}, {last(field['v'][1])}){tail},"
    if kind:
        out.append(f"{start}{kind}{end}")
        return
    out.append(f"{start}Struct(&[")
    for nested in field["f"]:
        emit(nested, depth + 1, out)
    out.append(f"{pad}]){end}")


def main():
    if sys.argv[1] == "--shapes":
        shapes = json.loads(Path(sys.argv[2]).read_text())
    else:
        shapes = from_jar(sys.argv[1])
    by_name = {shape["name"]: shape for shape in shapes}
    rows = re.findall(r"\brow\(\s*ApiKey::(\w+)", (HERE / "../api.rs").read_text())
    out = [
        "//! Request layouts, one per API. Printed by generate.py: change that, not this.",
        "",
        "use super::shape::Kind::{Blob, Fixed, Str, Struct};",
        "use super::shape::{LAST, Shape, field};",
        "",
        "/// All layouts, by key.",
        "#[rustfmt::skip]",
        "pub(super) static SHAPES: &[Shape] = &[",
    ]
    for name in rows:
        shape = by_name[f"{name}Request"]
        out.append(f"    // {name}")
        out.append(f"    Shape {{ key: {shape['k']}, flexible: {shape['flex'][0]}, fields: &[")
        for field in shape["f"]:
            emit(field, 2, out)
        out.append("    ] },")
    out.append("];")
    print("\n".join(out))


main()
