"""Addresses that show something."""

from __future__ import annotations

import json
import re
from urllib.parse import parse_qs, urlsplit

from hypothesis import given
from hypothesis import strategies as st

from hpsearch.observers.tensorboard.address import curves_address, pattern_of, studies_address

RUNS = ["digits-1/016", "digits-1/study", "a/digits (1+2).x/003", "a/digits (1+2).x/study"]
FOLDERS = [["digits-1"], ["a/digits (1+2).x"]]


@given(st.sets(st.tuples(st.text(min_size=1), st.from_regex(r"[0-9]{3}|study", fullmatch=True)), min_size=1))
def test_a_pattern_fits_its_runs_and_no_other(parts):
    runs = [f"{folder}/{name}" for folder, name in parts]
    pattern = re.compile(pattern_of(runs))
    assert all(pattern.search(run) for run in runs)
    assert not any(pattern.search(other) for run in runs for other in (f"{run}0", f"x{run}", f"{run}/x"))


def test_the_address_of_curves_holds_what_the_page_reads():
    address = curves_address("http://localhost:6006/", RUNS, RUNS[1::2], ["accuracy", "best/by trial"], FOLDERS)
    assert re.fullmatch(r"[\x21-\x7e]+", address)  # it can be pasted
    assert not set(address) & set("\"'<>\\^`{|}()$ ")
    parts = urlsplit(address)
    query = {key: value for key, (value,) in parse_qs(parts.query).items()}
    assert query.pop("smoothing") == "0"
    assert [bool(re.search(query["runFilter"], run)) for run in [*RUNS, "digits-1/017"]] == [*[True] * 4, False]
    kind, _, colours = query["runColorGroup"].partition(":")
    assert kind == "regex"
    assert [re.match(colours, run)[1] for run in RUNS] == ["digits-1"] * 2 + ["a/digits (1+2).x"] * 2  # type: ignore[index]
    assert [(card["plugin"], card["tag"]) for card in json.loads(query["pinnedCards"])] == [
        ("scalars", "accuracy"),
        ("scalars", "best/by trial"),
    ]
    page, _, settings = parts.fragment.partition("&")
    assert page == "timeseries"  # and the older pages' settings, which stay from one to the next
    assert parse_qs(settings) == {"regexInput": [query["runFilter"]], "_smoothingWeight": ["0"]}


def test_folders_may_share_a_colour():
    alike = [["digits-1", "digits-2", "digits, 2 seeds"], ["a/digits (1+2).x", "ünï/x"]]
    address = curves_address("http://localhost:6006/", None, (), (), alike)
    (asked,) = parse_qs(urlsplit(address).query)["runColorGroup"]
    pattern = re.compile(asked.removeprefix("regex:"))
    colours = [{found.groups() for one in folders if (found := pattern.match(f"{one}/003"))} for folders in alike]
    assert [len(own) for own in colours] == [1, 1]
    assert colours[0] != colours[1]
    assert pattern.match("digits-11/003") is None


def test_all_runs_need_no_filter_and_the_older_pages_tick_those_of_the_studies():
    address = curves_address("http://localhost:6006/", None, RUNS[1::2], ())
    parts = urlsplit(address)
    assert parse_qs(parts.query) == {"smoothing": ["0"]}
    (ticked,) = parse_qs(parts.fragment)["regexInput"]
    assert [bool(re.search(ticked, run)) for run in RUNS] == [False, True, False, True]
    many = [f"s/{number:03d}" for number in range(60)]
    (ticked,) = parse_qs(urlsplit(curves_address("h/", many, ["s/study"], ())).fragment)["regexInput"]
    assert not re.search(ticked, "s/001")  # of more than 40 they would tick none


def test_the_address_of_the_studies_shows_their_runs():
    parts = urlsplit(studies_address("http://localhost:6006/", RUNS[1::2]))
    assert parts.query == ""
    page, _, settings = parts.fragment.partition("&")
    assert page == "custom_scalars"
    (ticked,) = parse_qs(settings)["regexInput"]
    assert [bool(re.search(ticked, run)) for run in RUNS] == [False, True, False, True]
