#!/usr/bin/env python3
"""Licences and bans of every crate in Cargo.lock, by the lists in deny.toml.

A stand-in for cargo-deny where it is not installed: each licence expression must be satisfiable
with allowed licences, every crate must come from crates.io, and no banned crate may be there.
"""
import json
import pathlib
import re
import subprocess
import tomllib

RULES = tomllib.loads(pathlib.Path("deny.toml").read_text())
ALLOWED = set(RULES["licenses"]["allow"])
BANNED = {entry["crate"] for entry in RULES["bans"]["deny"]}


def satisfiable(expression):
    """Whether an SPDX expression can be met with allowed licences alone."""
    expression = expression.replace("/", " OR ")
    expression = re.sub(r"(\S+) WITH (\S+)", r"\1-WITH-\2", expression)
    words = re.findall(r"\(|\)|[^\s()]+", expression)
    allowed = {name.replace(" WITH ", "-WITH-") for name in ALLOWED}
    known = {"OR": "or", "AND": "and", "(": "(", ")": ")"}
    return eval(" ".join(known.get(word, str(word in allowed)) for word in words))


command = ["cargo", "metadata", "--format-version", "1", "--locked"]
packages = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)["packages"]
faults = []
for package in packages:
    name = f"{package['name']} {package['version']}"
    if not package["license"] or not satisfiable(package["license"]):
        faults.append(f"{name}: licence {package['license']} is not in deny.toml's list")
    if package["source"] and "crates.io-index" not in package["source"]:
        faults.append(f"{name}: comes from {package['source']}, not from crates.io")
    if package["name"] in BANNED:
        faults.append(f"{name}: banned in deny.toml")
print("\n".join(faults) or f"{len(packages)} packages: licences, sources and bans are in order")
raise SystemExit(bool(faults))
