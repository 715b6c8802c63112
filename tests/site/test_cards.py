"""Model cards: every released name has one, with what its publisher says."""

import pathlib
import re
import sys

import pytest

from keras_vit.weights.released import RELEASED
from tests.site import links

pytestmark = pytest.mark.backends("torch")

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="module")
def cards():
    sys.path.insert(0, str(ROOT / "tools" / "site"))
    try:
        import cards
    finally:
        sys.path.pop(0)
    return cards


def test_every_released_name_has_a_card(cards):
    on_cards = [
        (model, tag)
        for page in cards.FACTS["pages"]
        for tag, models in cards.released_on(page).items()
        for model in models
    ]
    assert sorted(on_cards) == sorted(RELEASED)


def test_facts_are_of_released_weights(cards):
    for page in cards.FACTS["pages"]:
        for tag, facts in page["cards"].items():
            models = cards.released_on(page)[tag]
            assert set(facts.get("accuracy", ())) <= set(models), tag
            assert ("accuracy" in facts) == ("source" in facts), tag
            for model, accuracy in facts.get("accuracy", {}).items():
                assert 60 < accuracy < 90, (tag, model)
            assert set(facts) <= {
                "data",
                "source",
                "accuracy",
                "note",
                "paper",
                "url",
            }
    urls = [source["url"] for source in cards.FACTS["sources"].values()]
    urls += [page["url"] for page in cards.FACTS["pages"]]
    assert not [url for url in urls if links.problem_of_url(url)]


def test_a_card_has_every_fact(cards):
    pages = cards.pages()
    assert {model for model, _ in RELEASED} <= set(cards.PARAMETERS)
    code = 'ViTS14(weights="dinov2", include_top=False)'  # it has no head
    assert f"keras_vit.{code}\n" in pages["models/dinov2.md"]
    assert len(pages) == len(cards.FACTS["pages"]) + 1
    facts = ("Trained on", "License", "Pixels", "GELU", "Epsilon", "Run here")
    for page in cards.FACTS["pages"]:
        text = pages[f"models/{page['name']}.md"]
        sections = re.split(r"^## ", text, flags=re.M)[1:]
        assert len(sections) == len(page["cards"])
        for section in sections:
            for fact in facts:
                assert re.search(rf"^\| {fact} \| \S", section, re.M), section


def test_facts_of_a_card_are_those_of_the_table(cards):
    """Two cards, whose values are written out here."""
    mae = cards.pages()["models/mae.md"]
    assert 'preprocess_input(images, mode="torch")' in mae
    assert "| GELU | exact |" in mae
    assert "| License | CC-BY-NC-4.0 |" in mae
    assert re.search(r"`ViTB16`.* \| 224 \| 1,000 \| 83.7 % \|", mae)
    paper = cards.pages()["models/paper.md"]
    assert "| GELU | tanh approximation |" in paper
    assert "| 224 | 21,843 (zeros) | not stated |" in paper
    assert "| 384 | 1,000 | 84.2 % |" in paper
