"""What is wrong in a file is said with its line, the nearest name and the known keys; no bytes crash it."""

from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tui.settings.merge import lines_of, merge
from tui.settings.table import SETTINGS, checked, template

SILENCE = '[[silence]]\nid = "acs-redirect-enabled"\nreason = "ticket 4711"\nuntil = 2026-12-31\n'


def errors(text: str) -> tuple[str, ...]:
    return merge([("c.toml", False, text.encode())], {}).errors


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "\nintervall = 1",
            'c.toml:2: unknown key "intervall"; did you mean interval? The keys here are interval,',
        ),
        ("readonly = true", 'c.toml:1: unknown key "readonly"; did you mean read_only?'),
        ("fanout = 3", 'c.toml:1: unknown key "fanout"; did you mean fleet.fanout?'),
        (
            "[fleet]\nfan_out = 3",
            'c.toml:2: unknown key "fan_out" in [fleet]; did you mean fanout? The keys here are fanout,',
        ),
        ("fleet.xyz = 3", 'c.toml:1: unknown key "xyz" in [fleet]. The keys here are fanout,'),
        ("[fleet]\n[fleet.more]\na = 1", 'c.toml:2: unknown key "more" in [fleet]'),
        ("interval = 0", "c.toml:1: interval must be a number from 0.1 to 60, not 0"),
        ("interval = nan", "c.toml:1: interval must be a number from 0.1 to 60, not nan"),
        ("interval = true", "c.toml:1: interval must be a number from 0.1 to 60, not true"),
        ("[fleet]\nfanout = 1.5", "c.toml:2: fleet.fanout must be a whole number from 1 to 1000, not 1.5"),
        ("read_only = 1", "c.toml:1: read_only must be true or false, not 1"),
        ("[read_only]", "c.toml:1: read_only must be true or false, not a table"),
        ("theme = ''", 'c.toml:1: theme must be the name of a theme, not ""'),
        ("fleet = 1", "c.toml:1: fleet must be a table: [fleet]"),
        ("[fleet]\nover = 'srun'", 'c.toml:2: fleet.over must be a command with {host} in it, not "srun"'),
        ("keys = 1", "c.toml:1: keys must be a table: [keys]"),
        ("[keys]\nfix = 1", 'c.toml:2: keys.fix must be keys such as "f,f5"'),
        ("silence = 1", "c.toml:1: silence must be a list of tables: [[silence]]"),
        ("silence = [1]", "c.toml:1: each of silence must be a table: [[silence]]"),
        ("a = 1\na = 2", "c.toml is not valid TOML: Cannot overwrite a value"),
        ("a = ", "c.toml is not valid TOML: Invalid value (at end of document)"),
        ("a = " + "[" * 5000, "c.toml is not valid TOML: "),
    ],
)
def test_an_error_names_the_line_and_what_is_right(text: str, message: str) -> None:
    assert errors(text)[0].startswith(message)


def test_all_errors_are_found_at_once() -> None:
    assert len(errors("interval = 0\nthem = 1\n[fleet]\nsudo = 3\n")) == 3


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('reason = "ticket 4711"\n', "", "c.toml:1: a silence needs reason"),
        ("until = 2026-12-31", "", "c.toml:1: a silence needs until, a date without quotes"),
        ("2026-12-31", '"2026-12-31"', "c.toml:4: a silence needs until, a date without quotes"),
        ("2026-12-31", "2026-12-31T10:00:00", "c.toml:4: a silence needs until, a date without quotes"),
        ("reason =", "why =", 'c.toml:3: unknown key "why" in [[silence]]. The keys here are id,'),
        ("ticket 4711", "a\\nb", "c.toml:3: reason must be a text on one line"),
    ],
)
def test_a_silence_needs_id_reason_and_date(before: str, after: str, message: str) -> None:
    found = errors(SILENCE.replace(before, after))
    assert any(error.startswith(message) for error in found), found


ROW = '[[combination]]\nfirmware = "before 28.43"\nsymptom = "Slow."\ncure = "Update it"\n'


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('symptom = "Slow."\n', "", "c.toml:1: a combination needs symptom"),
        ('firmware = "before 28.43"\n', "", "c.toml:1: a combination needs board or a version: firmware,"),
        (
            "before 28.43",
            "<28.43",
            'c.toml:2: firmware must be versions such as "28.39.1002", "before 28.43"',
        ),
        ('"before 28.43"', "28.4", "c.toml:2: firmware must be versions such as"),
        ("before 28.43", "28.43 to 28.39", "c.toml:2: firmware must be versions such as"),
        ("cure", 'board = " "\ncure', "c.toml:4: board must not be empty"),
        ("cure", 'source = ""\ncure', "c.toml:4: source must not be empty"),
        ("cure", "curse", 'c.toml:4: unknown key "curse" in [[combination]]; did you mean cure?'),
    ],
)
def test_a_combination_needs_versions_symptom_and_cure(before: str, after: str, message: str) -> None:
    found = errors(ROW.replace(before, after))
    assert any(error.startswith(message) for error in found), found


FLOOR = '[[floor]]\nfirmware = ["28.43.8002"]\nreason = "Slow."\n'


def test_a_floor_may_be_about_the_driver() -> None:
    assert not errors(FLOOR.replace('firmware = ["28.43.8002"]', 'driver = ["570.211.01", "580.159.03"]'))
    (error,) = errors(FLOOR.replace('firmware = ["28.43.8002"]', 'driver = ["570.211.01", "570.9.1"]'))
    assert error.startswith("c.toml:2: a floor needs driver, a list")


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('reason = "Slow."\n', "", "c.toml:1: a floor needs reason"),
        ('firmware = ["28.43.8002"]\n', "", "c.toml:1: a floor needs firmware, a list"),
        ('["28.43.8002"]', '"28.43.8002"', "c.toml:2: a floor needs firmware, a list"),
        ('["28.43.8002"]', "[]", "c.toml:2: a floor needs firmware, a list"),
        ('["28.43.8002"]', "[28.43]", "c.toml:2: a floor needs firmware, a list"),
        ("28.43.8002", "28.43", "c.toml:2: a floor needs firmware, a list"),
        ("28.43.8002", "before 28.43.8002", "c.toml:2: a floor needs firmware, a list"),
        ('"28.43.8002"', '"28.43.1", "28.43.2"', "c.toml:2: a floor needs firmware, a list"),
        ("reason", 'board = ""\nreason', "c.toml:3: board must not be empty"),
        ("reason", "reasons", 'c.toml:3: unknown key "reasons" in [[floor]]; did you mean reason?'),
    ],
)
def test_a_floor_needs_versions_and_a_reason(before: str, after: str, message: str) -> None:
    found = errors(FLOOR.replace(before, after))
    assert any(error.startswith(message) for error in found), found


def test_silences_of_all_files_add_up() -> None:
    second = SILENCE.replace("2026-12-31", "2027-01-31\ndevice = 'mlx5_3'")
    found = merge([("a", True, SILENCE.encode()), ("b", False, (SILENCE + second).encode())], {})
    assert [(silence.origin, silence.device, silence.until) for silence in found.silences] == [
        ("a:1", "", date(2026, 12, 31)),
        ("b:1", "", date(2026, 12, 31)),
        ("b:5", "mlx5_3", date(2027, 1, 31)),
    ]


def test_the_template_is_valid_with_and_without_its_marks() -> None:
    """Removing the # before every value sets every setting to its default."""
    text = template()
    assert not errors(text)
    lines = [line.removeprefix("# ") if "=" in line or "# [" in line else line for line in text.split("\n")]
    found = merge([("c.toml", True, "\n".join(lines).encode())], {})
    assert not found.errors
    assert {name: value.value for name, value in found.values.items()} == {
        name: setting.default for name, setting in SETTINGS.items()
    }
    assert found.silences[0].id == "acs-redirect-enabled"
    assert found.combinations[0].board == "MT_0000000838"
    assert found.floors[0].firmware == ("28.43.8002", "28.46.3048")


def test_every_default_is_valid() -> None:
    assert [checked(setting, setting.default) for setting in SETTINGS.values()]


def test_quoted_and_dotted_keys_have_lines() -> None:
    text = "'interval' = 1\n[ fleet ]\n\"fanout\"=2\n[[silence]]\n[[silence]]\nid='x'\n"
    lines = lines_of(text)
    assert lines["interval",] == 1
    assert lines["fleet", "fanout"] == 3
    assert lines["silence", "1", "id"] == 6


words = st.sampled_from(
    [
        "[fleet]",
        "[[silence]]",
        "[keys]",
        "interval",
        "fanout",
        "until",
        "=",
        "2026-12-31",
        '"',
        "'''",
        "\n",
        "\x1b",
    ]
)


@pytest.mark.slow
@given(st.lists(words | st.text(max_size=5), max_size=40).map(" ".join) | st.text(max_size=300))
def test_no_text_crashes_it(text: str) -> None:
    content = text.encode("utf-8", "surrogatepass")
    found = merge([("c.toml", True, content)], {"GDRTOP_INTERVAL": text.replace("\0", "")})
    assert all("\x1b" not in error for error in found.errors)


@given(st.binary(max_size=300))
def test_no_bytes_crash_it(content: bytes) -> None:
    merge([("c.toml", False, content)], {})
