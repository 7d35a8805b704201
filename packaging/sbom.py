"""What each package of a release has in it, as CycloneDX 1.6 in JSON: Fulmen, and what is compiled
into its files (components.py). The same packages give the same bytes."""

import json
import pathlib

import components


def parts_of(name: str) -> list[str]:
    """In components.py's words; none for packages of sources, whose users compile them."""
    if name.endswith("win_amd64.whl"):
        return ["library", "program", "python", "windows"]
    if name.startswith("fulmen-") and name.endswith(".whl"):
        emulator = ["emulator"] if "x86_64" in name else []
        return ["library", "program", "python", "linux", *emulator]
    if name.endswith(".deb") or "-Linux-" in name:
        return ["library", "program", "emulator", "linux"]
    return []


def licence(name: str) -> dict:
    return {"expression": name} if " WITH " in name else {"license": {"id": name}}


def described(name: str, version: str) -> dict:
    listed = components.of(parts_of(name))
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "bom-ref": "fulmen",
                "name": "fulmen",
                "version": version,
                "licenses": [licence("MIT")],
                "properties": [{"name": "package", "value": name}],
            }
        },
        "components": [
            {
                "type": "library",
                "bom-ref": f"{one.name}@{one.version()}",
                "supplier": {"name": one.owner},
                "name": one.name,
                "version": one.version(),
                "licenses": [licence(one.license)],
                "externalReferences": [{"type": "website", "url": f"https://{one.project}"}],
            }
            for one in listed
        ],
        "dependencies": [
            {
                "ref": "fulmen",
                "dependsOn": [f"{one.name}@{one.version()}" for one in listed],
            }
        ],
    }


def check(text: str) -> None:
    """Ends the program where CycloneDX's own schema refuses the list."""
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    if error := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        raise SystemExit(f"CycloneDX refuses a list of parts: {error}")


def write_all(folder: pathlib.Path, version: str) -> None:
    """A NAME.cdx.json beside each package that has compiled files of others in it."""
    for path in sorted(folder.iterdir()):
        if parts_of(path.name):
            text = json.dumps(described(path.name, version), indent=2) + "\n"
            path.with_name(path.name + ".cdx.json").write_text(text)
