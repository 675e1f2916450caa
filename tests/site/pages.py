"""The pages of the documentation site as Markdown, by their path below its sources.

They are made from the manual, the checks and the catalogue of messages, so that nothing is said twice.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from probes.base.frozen import frozen
from probes.base.site import finding_page, page_of
from probes.checks.registry import CHECKS
from probes.messages.catalogue import catalogue, codes, explain
from probes.messages.form import literal_length, placeholders_of
from probes.messages.message import NODE_WORDS, OTHER_CODE, Case, Found, Meaning, Message, Proof
from probes.queries.finding import Check
from probes.simulation.faults.catalogue import FAULTS
from probes.simulation.faults.fault import Fault
from tui.manual import GROUPS, SUBJECTS, page

ROOT = Path(__file__).parents[2]
_OWN = Path(__file__).parent
_MARKUP = re.compile(r"""[!-/:-@\[-`{-~]""")  # Markdown takes any ASCII punctuation literally after a "\"
_ADDRESS = re.compile(r"https?://[\w./?=&%#~+:-]*[\w/]")
_PLACEHOLDER = re.compile(r"\\(.)|\{(\w+)(?::([^{}]+))?\}|\*")
_OPEN_KINDS = ("text", "number", "hex")
_MOST_TITLE = 110
_MOST_DESCRIPTION = 300
PROVES = {
    Proof.GDR: "The line proves GPUDirect RDMA.",
    Proof.NO_GDR: "The line proves that GPUDirect RDMA is not used.",
    Proof.HOST: "The line proves that data goes through host memory or TCP.",
    Proof.NVLINK: "The line proves that data between nodes goes through NVLink.",
    Proof.NOTHING: "",
}


@frozen
class Shown:
    """What `gdrtop check` prints of a finding on a simulated node."""

    impact: str
    cause: str
    evidence: str
    fix: str


def prose(text: str) -> str:
    """Return a text as Markdown, in which nothing of it is markup; addresses become links."""
    parts, end = [], 0
    for found in _ADDRESS.finditer(text):
        parts += [_MARKUP.sub(r"\\\g<0>", text[end : found.start()]), f"<{found[0]}>"]
        end = found.end()
    return " ".join("".join([*parts, _MARKUP.sub(r"\\\g<0>", text[end:])]).split())


def literal(text: str) -> str:
    """Return a block of text that is shown as it is."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{fence}text\n{text.rstrip()}\n{fence}"


def link(text: str, to: str) -> str:
    """Return a link to a page of the site."""
    return f"[{prose(text)}](/{to}index.md)"


def _described(description: str, *parts: str) -> str:
    """Return a page with what search engines show of it, which no list of the sidebar names."""
    short = " ".join(description.split())[:_MOST_DESCRIPTION]
    meta = json.dumps({"orphan": True, "myst": {"html_meta": {"description": short}}})
    return "\n\n".join((f"---\n{meta}\n---", *filter(None, parts))) + "\n"


def _section(title: str, text: str) -> str:
    return f"## {title}\n\n{text}" if text.strip() else ""


# Findings


def shown_by() -> dict[str, Fault]:
    """Return the fault that shows each check: the one of its name, or else the first one."""
    found = {
        id_: fault for fault in reversed(FAULTS.values()) for id_ in sorted({*fault.finds, *fault.shows})
    }
    return found | {id_: FAULTS[id_] for id_ in found if id_ in FAULTS and id_ in FAULTS[id_].finds}


def finding_pages(shown: Mapping[str, Shown]) -> Iterator[tuple[str, str]]:
    """Yield the page of each check, and their index; `shown`: by id, what a simulated node has."""
    faults = shown_by()
    for check in CHECKS:
        yield f"{finding_page(check.id)}index", _finding(check, shown.get(check.id), faults.get(check.id))
    parts = [
        "# Findings",
        "What `gdrtop check` reports, by area. The name of each is its `ID` in all outputs, and in JSON.",
    ]
    for area, checks in groupby(sorted(CHECKS, key=lambda check: check.area), lambda check: check.area):
        rows = (
            f"- {link(check.texts().title, finding_page(check.id))}  \n  `{check.id}`, {check.severity.value}"
            for check in checks
        )
        parts.append(_section(area, "\n".join(rows)))
    yield "findings/index", "\n\n".join(parts) + "\n"


def _finding(check: Check, shown: Shown | None, fault: Fault | None) -> str:
    texts = check.texts()
    words = f"`{check.id}` · {check.severity.value} · {prose(check.area)}"
    words += " · costs bandwidth or latency between NIC and GPU" if check.data_path else ""
    impact = texts.impact or (shown.impact if shown is not None else "")
    return _described(
        f"{texts.title}. {impact}",
        f"# {prose(texts.title)}",
        words,
        _section("Impact", prose(impact)),
        _example(check, shown, fault) if fault is not None else "",
        _section(
            "Passed", f"On a node without the problem, gdrtop says: {prose(texts.ok)}." * bool(texts.ok)
        ),
        _section("Source", prose(texts.source)),
        f"{link('All findings', 'findings/')} · {link('How checks work', page_of('manual', 'doctor'))}",
    )


def _example(check: Check, shown: Shown | None, fault: Fault) -> str:
    """Return what a simulated node shows of the finding, or how to watch it there."""
    command = f"gdrtop --demo {fault.on}+{fault.name}"
    if check.id in fault.finds:
        command = f"gdrtop check --demo {fault.on}+{fault.name} {check.id}"
        says = "This command prints the following, about the devices of that node."
    else:
        says = "It shows after some minutes."
    parts = [f"{prose(fault.summary)}. {says}", literal(command)]
    if shown is not None:
        parts += ["### Cause", prose(shown.cause), "### Evidence", literal(shown.evidence)]
        parts += ["### Fix", literal(shown.fix)]
    return _section("On a simulated node", "\n\n".join(parts))


# Messages


def page_of_message(message: Message) -> str:
    """Return where the page of an entry of the catalogue is."""
    return page_of("messages", message.program, message.id)


def exact_words(form: str) -> str:
    """Return the words of a form, with "…" for what differs."""

    def word(found: re.Match[str]) -> str:
        is_given = found[3] and found[3] not in _OPEN_KINDS and found[3].count("|") < 2
        return found[1] or (found[3] if is_given else "…")

    return " ".join(re.sub(r"…(?:\s*…)+", "…", _PLACEHOLDER.sub(word, form)).split())


def title_of(message: Message) -> str:
    """Return the exact words of a message, cut to a title."""
    first, *_ = message.forms
    words = exact_words(first if first[0] not in "*{" else max(message.forms, key=literal_length))
    words = re.sub(r"^(?:…[^\w…]*\s)+", "", words)
    return words if len(words) <= _MOST_TITLE else f"{words[:_MOST_TITLE].rpartition(' ')[0]} …"


def message_pages() -> Iterator[tuple[str, str]]:
    """Yield the page of each entry of the catalogue, of each program, and their index."""
    by_program: dict[str, list[Message]] = {}
    for message in sorted(catalogue().messages, key=lambda message: message.program.casefold()):
        by_program.setdefault(message.program, []).append(message)
        yield f"{page_of_message(message)}index", _message(message)
    for program, messages in by_program.items():
        rows = (
            f"- {link(title_of(message), page_of_message(message))}  \n  {prose(_meaning(message).title)}"
            for message in messages
        )
        about = f"What messages of {program} mean for GPUDirect RDMA, NCCL and RDMA, by their exact words."
        yield (
            f"{page_of('messages', program)}index",
            _described(about, f"# Messages of {prose(program)}", "\n".join(rows)),
        )
    programs = (
        f"- {link(program, page_of('messages', program))} ({len(messages)})"
        for program, messages in by_program.items()
    )
    text = (
        "Errors, warnings and other lines of programs and of the kernel, each with what it proves about "
        "GPUDirect RDMA, its causes and what to do. The search finds a page by the exact words of a message. "
        "`gdrtop read FILE` looks up a whole log."
    )
    yield "messages/index", "\n\n".join(("# Messages", text, "\n".join(programs))) + "\n"


def _meaning(message: Message, case: Case | None = None) -> Meaning:
    """Return what a message means where no case is known to hold, or in one of its cases."""
    words = {name: f"<{name}>" for form in message.forms for name in placeholders_of(form)}
    if case is not None:
        words |= {name: value for name, value in case.values.items() if re.fullmatch(r"[\w.-]*", value)}
        case = replace(case, version="", values={}, settings={}, node="", beside="")
    return explain(Found(replace(message, cases=(case,) if case else ()), words))


def _meaning_of_number(message: Message, name: str, number: str) -> Meaning:
    """Return what a message means with this number, if nothing else is known that decides."""
    asked = {each for case in message.cases for each in case.values}
    names = {each for form in message.forms for each in placeholders_of(form)}
    return explain(Found(message, {each: f"<{each}>" for each in names - asked} | {name: number}))


def _message(message: Message) -> str:
    meaning = _meaning(message)
    versions = re.sub(r"-(,|$)", r" and newer\1", message.versions)
    versions = f" · versions {prose(versions)}" if versions else ""
    return _described(
        f"{message.program}: {title_of(message)}: {meaning.title}. {meaning.cause}",
        f"# {prose(title_of(message))}",
        f"{link(message.program, page_of('messages', message.program))} · {meaning.weight.value}{versions}",
        f"**{prose(meaning.title)}**",
        prose(meaning.cause),
        PROVES[meaning.proves],
        _section("What to do", prose(meaning.fix)),
        _section("What decides", "\n".join(_cases(message, meaning))),
        *_numbers(message, meaning),
        _section("Exact words", literal("\n".join(map(exact_words, message.forms)))),
        _section("Seen in logs", literal("\n".join(" ".join(line.split()) for line in message.samples))),
        _section("Source", prose(message.source)),
        f"`gdrtop read FILE` explains a whole log: {link('What a text means', page_of('manual', 'read'))}.",
    )


def _cases(message: Message, usual: Meaning) -> Iterator[str]:
    """Yield each case of which more is known than a number that has a section of its own."""
    for case in message.cases:
        if case.version or case.settings or case.node or case.beside or {*case.values} - {*message.codes}:
            meaning = _meaning(message, case)
            fix = "" if meaning.fix == usual.fix else meaning.fix
            texts = [f"**{prose(meaning.title)}.**", prose(meaning.cause), prose(fix), PROVES[meaning.proves]]
            yield f"- If {', and '.join(_conditions(message, case))}: {' '.join(filter(None, texts))}"


def _conditions(message: Message, case: Case) -> Iterator[str]:
    """Yield each condition of a case, in words."""
    if case.version:
        yield f"the version of {prose(message.program)} is {prose(case.version)}"
    for name, choices in case.values.items():
        if choices.startswith(">"):
            yield f"{prose(name)} is greater than {prose(choices[1:])}"
        else:
            yield f"{prose(name)} is {_choices(choices, 'given', 'not given')}"
    for name, choices in case.settings.items():
        yield f"`{name}` is {_choices(choices, 'set', 'not set')}"
    if case.node:
        yield f"the node has or is {' or '.join(prose(NODE_WORDS[word]) for word in case.node.split('|'))}"
    if case.beside:
        known = {other.id: other for other in catalogue().messages}
        named = (known[id_] for id_ in case.beside.split("|") if id_ in known)
        others = [link(title_of(other), page_of_message(other)) for other in named]
        yield f"the same text has {' or '.join(others) or prose(case.beside)}"


def _choices(choices: str, any_: str, none: str) -> str:
    return {"*": any_, "": none}.get(choices) or " or ".join(map(prose, choices.split("|")))


def _numbers(message: Message, usual: Meaning) -> Iterator[str]:
    """Yield what each number of the message means, if that differs, under a title that people search for."""
    for name, table in list(message.codes.items())[:1]:  # of several, the first number decides
        rows: list[str] = []
        known = {
            id(code): code for code in codes()[table].values() if code.number != OTHER_CODE and code.name
        }
        for code in sorted(known.values(), key=lambda code: (len(code.number), code.number)):
            meaning = _meaning_of_number(message, name, code.number)
            if (meaning.cause, meaning.fix) != (usual.cause, usual.fix):
                said = re.search(rf"\b[A-Z]\w+ {re.escape(code.number)}\b", meaning.title)  # "Xid 79"
                head = said[0] if said else f"{code.number}: {code.name}"
                also = f"Also printed as: {prose(', '.join(code.also))}." if code.also else ""
                texts = (f"**{prose(meaning.title)}**", prose(meaning.cause), prose(meaning.fix), also)
                rows.append(f"### {prose(head)}\n\n" + "\n\n".join(filter(None, texts)))
        yield _section(f"Each {prose(name)}", "\n\n".join(rows))


# The manual and the first page


def manual_pages() -> Iterator[tuple[str, str]]:
    """Yield the pages of the manual, with links to the pages and findings that they name."""
    ids = {check.id for check in CHECKS}

    def linked(span: re.Match[str]) -> str:
        subject = span[1].removeprefix("gdrtop help ")
        if subject != span[1] and subject in SUBJECTS:
            return f"[{span[0]}](/{page_of('manual', subject)}index.md)"
        return f"[{span[0]}](/{finding_page(span[1])}index.md)" if span[1] in ids else span[0]

    for subject in SUBJECTS:
        lines = page(subject).splitlines(keepends=True)
        yield (
            f"{page_of('manual', subject)}index",
            "".join(
                line if line.startswith("    ") else re.sub(r"(?<!`)`([^`]+)`(?!`)", linked, line)
                for line in lines
            ),
        )


def upstream_pages() -> dict[str, str]:
    """Return the pages about what gdrtop could offer to other projects."""
    texts = {path.stem: path.read_text(encoding="utf-8") for path in sorted((_OWN / "upstream").glob("*.md"))}
    own = (ROOT / "tui" / "terminal" / "UPSTREAM.md").read_text(encoding="utf-8")
    return {f"{page_of('upstream', name)}index": text for name, text in {**texts, "textual": own}.items()}


def first_page() -> str:
    """Return the begin of the README, what the site has, and the list of all pages of the sidebar."""
    begin = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n## ")[0]
    counts = f"{len(CHECKS)} findings and {len(catalogue().messages)} messages"
    own = (_OWN / "first_page.md").read_text(encoding="utf-8").replace("COUNTS", counts)
    lists = {"Look up": ("findings/index", "messages/index")}
    lists |= {
        group: tuple(f"{page_of('manual', name)}index" for name in named) for group, named in GROUPS.items()
    }
    lists["For other projects"] = tuple(upstream_pages())
    trees = (
        "\n".join(("```{toctree}", ":hidden:", f":caption: {caption}", "", *names, "```"))
        for caption, names in lists.items()
    )
    return "\n\n".join((begin.replace("](screenshots/", "](/screenshots/"), own, *trees)) + "\n"


def pages(shown: Mapping[str, Shown]) -> dict[str, str]:
    """Return all pages."""
    made = [("index", first_page()), *finding_pages(shown), *message_pages(), *manual_pages()]
    return dict([*made, *upstream_pages().items()])
