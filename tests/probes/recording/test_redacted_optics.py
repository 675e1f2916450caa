"""What a redacted recording keeps of optical modules."""

import pytest

from probes.facts.kernel.log import recognize
from probes.recording.redaction.tokens import Tokens
from tests.support.module_errors import HEAT_AND_POWER, OF_MODULES, PREFIX


@pytest.mark.parametrize("error", [*HEAT_AND_POWER, *OF_MODULES])
def test_errors_of_modules_are_recognized_after_redaction(error: str) -> None:
    line = f"{PREFIX}Port module event[error]: module 0, Cable error, {error}"
    before, after = recognize(line, 1.0), recognize(Tokens().text(line), 1.0)
    assert before is not None
    assert after == before


@pytest.mark.parametrize("text", ["asic", "Module0", "sensor64", "62125", "temp2_highest"])
def test_the_values_of_sensors_are_kept(text: str) -> None:
    assert Tokens().text(f"{text}\n") == f"{text}\n"
