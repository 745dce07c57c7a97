"""Writes what the image says of itself, from what is really installed.

    describe.py DIRECTORY PROFILE

DIRECTORY/environment is one paragraph that the model reads in the tool's
description: what it may count on, with versions. DIRECTORY/sbom.cdx.json is the
bill of materials, CycloneDX 1.6, without times and random numbers, so that the
same packages give the same file.
"""

import hashlib
import importlib.metadata
import json
import pathlib
import re
import subprocess
import sys

# What models ask about, in the order in which they read it. What is not
# installed is left out. Names as they are imported or called.
PYTHON = """numpy scipy pandas matplotlib sympy scikit-learn statsmodels networkx seaborn pillow lxml beautifulsoup4
    openpyxl xlsxwriter python-docx pypdf reportlab requests pyyaml pydantic cryptography pytest
    faster-whisper""".split()
TOOLS = """coreutils findutils grep sed gawk mawk jq bc git sqlite3 curl ffmpeg zip unzip xz-utils zstd file perl-base""".split()
FONTS = {"fonts-dejavu-core": "DejaVu", "fonts-liberation": "Liberation", "fonts-wqy-microhei": "WenQuanYi Micro Hei (CJK)"}
# The room that is left in the description, whose end clients cut at 2 KB.
MAX_BYTES = 760


def debian_packages():
    """Every installed package: name, version and architecture."""
    fields = "${db:Status-Abbrev}\t${Package}\t${Version}\t${Architecture}\t${source:Package}\n"
    lines = subprocess.run(["dpkg-query", "-W", "-f", fields], check=True, capture_output=True, text=True).stdout
    rows = (line.split("\t") for line in lines.splitlines())
    return {name: (version, arch, source) for status, name, version, arch, source in rows if status.startswith("ii")}


def upstream(version):
    """The version as its authors write it: 7:7.1.5-0+deb13u1 is 7.1.5."""
    return re.match(r"(?:\d+:)?(\d+(?:\.\d+){0,2})", version).group(1)


def canonical(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def distributions():
    """Every Python distribution that can be imported, by its canonical name."""
    found = {}
    for dist in importlib.metadata.distributions():
        # The first on the path is the one that is imported.
        found.setdefault(canonical(dist.metadata["Name"]), dist)
    return found


def environment(packages, dists):
    release = dict(line.split("=", 1) for line in open("/etc/os-release", encoding="utf-8").read().splitlines() if "=" in line)
    bash = upstream(packages["bash"][0])
    python = ".".join(map(str, sys.version_info[:3]))
    text = f"{release['PRETTY_NAME'].strip(chr(34))}. Bash {bash}. Python {python} with "
    libraries = [f"{name} {upstream(dists[name].version)}" for name in PYTHON if name in dists]
    text += ", ".join(libraries) if libraries else "its standard library only"
    tools = [f"{name.removesuffix('-utils').removesuffix('-base')} {upstream(packages[name][0])}" for name in TOOLS if name in packages]
    text += f". Tools: {', '.join(tools)}, tar, gzip."
    fonts = [label for name, label in FONTS.items() if name in packages]
    if fonts:
        text += f" Fonts: {', '.join(fonts)}."
    models = [model["name"] for model in whisper_models()]
    if "faster-whisper" in dists and models:
        text += f" WhisperModel(\"{models[0].rsplit('-', 1)[1]}\", compute_type=\"int8\") is there."
    text += " No pip, compiler or node."
    if len(text.encode()) > MAX_BYTES:
        sys.exit(f"image: the environment has {len(text.encode())} bytes, more than the {MAX_BYTES} that a model gets to read: name fewer packages in describe.py")
    return text


def whisper_models():
    """Models of the hub that lie in the image, with the hash of each file."""
    for ref in sorted(pathlib.Path("/usr/share/huggingface/hub").glob("models--*/refs/main")):
        revision = ref.read_text()
        snapshot = ref.parent.parent / "snapshots" / revision
        name = ref.parent.parent.name.removeprefix("models--").replace("--", "/")
        files = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(snapshot.iterdir())}
        yield {"name": name, "revision": revision, "files": files}


def sbom(packages, dists, profile):
    components = []
    for name, (version, arch, source) in packages.items():
        components.append({
            "type": "library", "name": name, "version": version,
            "purl": f"pkg:deb/debian/{name}@{version.replace(':', '%3A').replace('+', '%2B')}?arch={arch}",
            "properties": [{"name": "source", "value": source}],
        })
    for name, dist in dists.items():
        # The others belong to packages of Debian.
        if str(dist.locate_file("")).startswith("/usr/local/"):
            components.append({"type": "library", "name": name, "version": dist.version, "purl": f"pkg:pypi/{name}@{dist.version}"})
    for model in whisper_models():
        components.append({
            "type": "machine-learning-model", "name": model["name"], "version": model["revision"],
            "purl": f"pkg:huggingface/{model['name']}@{model['revision']}",
            "components": [{"type": "file", "name": file, "hashes": [{"alg": "SHA-256", "content": digest}]} for file, digest in model["files"].items()],
        })
    components.append({"type": "application", "name": "code-execution-sandbox-launcher"})
    components.sort(key=lambda c: (c["type"], c["name"]))
    for component in components:
        component["bom-ref"] = component.get("purl", component["name"])
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json", "bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1,
        "metadata": {"component": {
            "type": "container", "bom-ref": "code-execution-sandbox-runtime", "name": "code-execution-sandbox-runtime", "version": profile,
        }},
        "components": components,
    }


def main():
    directory, profile = pathlib.Path(sys.argv[1]), sys.argv[2]
    packages, dists = debian_packages(), distributions()
    text = environment(packages, dists)
    (directory / "environment").write_text(text + "\n", encoding="utf-8")
    (directory / "sbom.cdx.json").write_text(json.dumps(sbom(packages, dists, profile), indent=1) + "\n", encoding="utf-8")
    print(text)


main()
