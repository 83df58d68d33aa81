#!/usr/bin/env python3
"""Fails if a directory includes another that is not below it. ARCHITECTURE.md has the same list in words."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BELOW = {
    "base": [],
    "tensor": ["base"],
    "device": ["base"],
    "mem": ["base", "device"],
    "mapping": ["base", "mem"],
    "store": ["base", "tensor", "mem"],
    "ffn_ops": ["base", "tensor", "device"],
    "dense_ops": ["base", "tensor", "device"],
    "hybrid": ["base", "tensor", "device", "mem", "mapping", "store", "ffn_ops", "dense_ops"],
}
CORE = list(BELOW) + ["hybrid"]
BELOW |= {
    "runtime/gguf": CORE,
    "runtime/text": CORE + ["runtime/gguf"],
    "runtime/model": CORE + ["runtime/gguf", "runtime/text"],
    "runtime/engine": CORE + ["runtime/gguf", "runtime/text", "runtime/model"],
    "server": CORE + ["runtime/gguf", "runtime/text", "runtime/model", "runtime/engine"],
}
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"')


def directory(path):
    parts = pathlib.PurePosixPath(path).parts
    return "/".join(parts[:2]) if parts[0] == "runtime" else parts[0]


def main():
    wrong = []
    for top in BELOW:
        for source in sorted((ROOT / top).rglob("*")):
            if source.suffix not in {".h", ".cc", ".cu", ".cuh"}:
                continue
            for number, line in enumerate(source.read_text().splitlines(), 1):
                match = INCLUDE.match(line)
                if not match:
                    continue
                included = match.group(1)
                if not (ROOT / included).exists():
                    wrong.append(f"{source.relative_to(ROOT)}:{number}: {included} is not a path from the root")
                elif (target := directory(included)) != top and target not in BELOW[top]:
                    wrong.append(f"{source.relative_to(ROOT)}:{number}: {top} may not include {target}")
    print("\n".join(wrong), end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
