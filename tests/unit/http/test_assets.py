"""The files of others that the console bundles: listed with version, licence and hash, unchanged, and nothing more."""

import hashlib
import re
import tomllib

from latermq.http.console.assets import FOLDER, Assets

VENDOR = FOLDER / "vendor"
LIST = VENDOR / "assets.toml"
ASSETS = tomllib.loads(LIST.read_text())["asset"]


def test_every_file_of_others_is_listed_once_and_nothing_else() -> None:
    licences = {asset["licence_file"] for asset in ASSETS}
    files = [asset["file"] for asset in ASSETS]
    assert sorted([*files, *licences, LIST.name]) == sorted(path.name for path in VENDOR.iterdir())
    served = {name.removeprefix("vendor/") for name in Assets().names if name.startswith("vendor/")}
    assert served == set(files), "what is served is listed, and the list and the licences are not served"


def test_each_file_is_as_it_was_released() -> None:
    for asset in ASSETS:
        content = (VENDOR / asset["file"]).read_bytes()
        assert hashlib.sha256(content).hexdigest() == asset["sha256"], asset["file"]
        assert asset["version"] in asset["source"]
        if asset["file"].endswith(".js"):  # scripts name their version
            assert asset["version"].encode() in content, asset["file"]


def test_each_licence_is_bundled_and_permits_it() -> None:
    marks = {"MIT": "The MIT License", "0BSD": "Zero-Clause BSD"}
    for asset in ASSETS:
        assert (VENDOR / asset["licence_file"]).read_text().startswith(marks[asset["licence"]])


def test_own_files_load_nothing_from_other_sites() -> None:
    for name in Assets().names:
        if not name.startswith("vendor/"):
            text = (FOLDER / name).read_text()
            assert re.findall(r"https?://(?!www\.w3\.org/)[^\s\"']+", text) == [], name
