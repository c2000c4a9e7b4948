#!/usr/bin/env python3
"""compare.py BASELINE.tsv NEW.tsv: what the oracle passes and NEW does not.
Exit code 1 when there is such a test. Fails of the baseline itself are not counted."""
import sys
def load(p):
    d = {}
    for l in open(p, errors="replace"):
        c = l.rstrip("\n").split("\t")
        if len(c) >= 3: d[c[0]] = (c[1], c[2], c[3] if len(c) > 3 else "")
    return d
b, n = load(sys.argv[1]), load(sys.argv[2])
bad = [t for t, v in b.items() if v[0] == "pass" and n.get(t, ("missing",))[0] != "pass"]
for t in bad: v = n.get(t, ("missing", "", "")); print(f"REGRESSED\t{t}\t{v[0]}\t{v[2]}")
for t, v in b.items():
    if v[0] in ("fail", "timeout") and n.get(t, ("",))[0] == "pass": print(f"BETTER\t{t}\t(oracle: {v[0]})")
same = sum(1 for t, v in b.items() if v[0] == "pass") - len(bad)
print(f"{same} passed, {len(bad)} failed")
sys.exit(bool(bad))
