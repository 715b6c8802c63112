"""What a release consists of, as far as it can be checked without network.
`python -m tests.wheel` builds it, and runs the quick start from the wheel."""

import pathlib
import re
import runpy
import shutil
import tomllib

import pytest
import yaml

import keras_vit
from tests import nightly, versions
from tests.recipes import programs

pytestmark = pytest.mark.backends("torch")

ROOT = pathlib.Path(__file__).parent.parent
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = SETTINGS["project"]
WORKFLOWS = {
    path.stem: yaml.safe_load(path.read_text())
    for path in (ROOT / ".github" / "workflows").glob("*.yml")
}


def steps(workflow):
    """Yields the shell commands of a workflow."""
    for job in WORKFLOWS[workflow]["jobs"].values():
        for step in job["steps"]:
            yield from step.get("run", "").splitlines()


def test_the_changelog_has_this_version():
    text = (ROOT / "CHANGELOG.md").read_text()
    headings = re.findall(r"^## \[(.*)\]", text, re.MULTILINE)
    assert headings[0] in ("Unreleased", keras_vit.__version__)
    assert keras_vit.__version__ in headings
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["version"] == keras_vit.__version__
    kinds = set(re.findall(r"^### (.*)", text, re.MULTILINE))
    assert kinds <= {
        "Added",
        "Changed",
        "Deprecated",
        "Removed",
        "Fixed",
        "Security",
        "Known limitations",
    }


def test_data_files_are_installed():
    package = ROOT / "keras_vit"
    found = [
        str(path.relative_to(package))
        for path in package.rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc", ".md")
    ]
    data = SETTINGS["tool"]["setuptools"]["package-data"]["keras_vit"]
    assert sorted(found) == sorted(data)


def test_workflows_test_every_backend_and_every_row():
    jobs = WORKFLOWS["tests"]["jobs"]
    matrix = jobs["backend"]["strategy"]["matrix"]
    assert sorted(matrix["backend"]) == ["jax", "tensorflow", "torch"]
    jobs = WORKFLOWS["versions"]["jobs"]
    rows = jobs["row"]["strategy"]["matrix"]["row"]
    assert sorted(rows) == sorted(versions.ROWS)
    parts = jobs["nightly"]["strategy"]["matrix"]["part"]
    assert set(parts) == set(nightly.PARTS) - {"versions"}


def test_releases_are_published_without_a_password():
    release = WORKFLOWS["release"]
    assert release[True] == {"push": {"tags": ["v*"]}}  # `on` is true in YAML
    assert release["jobs"]["publish"]["permissions"] == {"id-token": "write"}
    assert (
        "secrets." not in (ROOT / ".github" / "workflows" / "release.yml").read_text()
    )
    assert "python -m tests.wheel --output dist" in "\n".join(steps("release"))


@pytest.fixture
def program(tmp_path, monkeypatch):
    """tools/set_repository.py, for a copy of the files that it changes."""
    spec_root = programs.RECIPES.parent
    monkeypatch.syspath_prepend(str(spec_root / "tools"))
    import set_repository

    for name in set_repository.FILES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    monkeypatch.setattr(set_repository, "ROOT", tmp_path)
    return set_repository


def test_the_repositorys_address_is_in_known_files_only(program):
    """One command changes the address everywhere."""
    address = program.current()
    patterns = ("*.md", "*.toml", "*.yml", "*.cff", "docs/*.md", "recipes/*")
    found = {
        path.relative_to(ROOT).as_posix()
        for pattern in patterns
        for path in ROOT.glob(pattern)
        if path.is_file() and address in path.read_text()
    }
    assert found == set(program.FILES)


def test_setting_the_repositorys_address(program, tmp_path, capsys):
    new = "someone/keras.vit-2"
    if program.current() == "OWNER/REPOSITORY":
        readme = re.sub(r"(?s)<!--.*?-->", "", (ROOT / "README.md").read_text())
        assert "OWNER" not in readme
    assert program.main([new]) == 0
    assert program.current() == new
    for name in program.FILES:
        assert new in (tmp_path / name).read_text()
    for name in ("README.md", "docs/start.md"):  # hidden until now
        text = (tmp_path / name).read_text()
        assert "\n[![Open in Colab]" in text and "<!--set" not in text
    assert program.main(["no address"]) == 2


def test_links_of_the_readme_on_pypi():
    """The metadata has the README with absolute links to existing files."""
    setup = runpy.run_path(str(ROOT / "setup.py"))
    text, address = setup["readme"](), PROJECT["urls"]["Repository"]
    tag = f"v{keras_vit.__version__}"
    raw = address.replace("github.com", "raw.githubusercontent.com")
    targets = re.findall(r"\]\(([^)]+)\)", text)
    relative = [x for x in targets if not x.startswith("https://")]
    assert not relative
    pages = [x for x in targets if x.startswith(f"{address}/blob/{tag}/")]
    images = [x for x in targets if x.startswith(f"{raw}/{tag}/")]
    assert f"{address}/blob/{tag}/docs/start.md" in pages
    assert f"{raw}/{tag}/docs/images/encoder.jpg" in images
    for target in pages + images:
        assert (ROOT / target.partition(f"/{tag}/")[2]).exists()
    # Only links differ.
    source = re.sub(r"\]\([^)]+\)", "", (ROOT / "README.md").read_text())
    assert re.sub(r"\]\([^)]+\)", "", text) == source
