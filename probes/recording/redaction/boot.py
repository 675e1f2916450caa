"""Rules for what chooses the next kernel: GRUB's settings and environment, and EFI variables."""

from __future__ import annotations

import re

from probes.facts.kernel.boot_loader import parse_efi_text
from probes.recording.redaction.tokens import Tokens

_GRUB = re.compile(
    r"\s*((?:export\s+)?(?:GRUB_DEFAULT|GRUB_ENABLE_BLSCFG|GRUB_FLAVOUR_ORDER|GRUB_TOP_LEVEL|saved_entry"
    r"|next_entry))=(.{0,1024})"
)
_RELEASE_START = re.compile(r"[0-9]{1,3}\.[0-9]{1,4}(?:\.|-|$)")
_LOADER_NAME = re.compile(r"(?:systemd-boot|GRUB) [0-9][0-9.]{0,12}")
_WORD = re.compile(r"[0-9]{1,3}|[a-z]{1,12}")


def grub_settings(tokens: Tokens, text: str) -> str:
    """Keep the settings that choose a kernel, and of an entry only the kernel's release."""
    matches = (_GRUB.fullmatch(line) for line in text.split("\n"))
    return "".join(f"{match[1]}={_entry(tokens, match[2])}\n" for match in matches if match)


def boot_variable(tokens: Tokens, content: bytes) -> bytes:
    """Keep the boot loader's name and version, or the kernel's release in the name of an entry."""
    text = parse_efi_text(content)
    name = _LOADER_NAME.match(text)
    kept = name[0] if name else _entry(tokens, text)
    return content[:4] + kept.encode("utf-16-le") if len(content) >= 4 else b""


def _entry(tokens: Tokens, text: str) -> str:
    """Return the words of a setting, or the release in an entry's name, as far as all are known."""
    text = text.strip().strip("\"'").removesuffix(".conf")
    if _WORD.fullmatch(text):
        return tokens.text(text)
    parts = re.split(r"[- >/]", text)
    start = next((at for at, part in enumerate(parts) if _RELEASE_START.match(f"{part}-")), None)
    if start is None:
        return tokens.text(text)
    kept = []
    for part in parts[start:]:
        if not tokens.keeps(part):
            break
        kept.append(part)
    return "-".join(kept)
