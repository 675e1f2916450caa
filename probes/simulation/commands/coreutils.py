"""Commands that change files: tee, cp, mv, rm, mkdir, mknod, chmod, ln, sync; the words are coreutils'."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from probes.base.unknown import Unknown
from probes.simulation.commands.command_result import Obeyed, Order, Performed, done, failed, split_options
from probes.simulation.node.tree import Content, Tree

_NO_SUCH = "No such file or directory"
_DEVICES = "/dev/"
_OF_KERNEL = ("/sys/", "/proc/")


def place_of(tree: Tree, path: str) -> str:
    """Where a path leads with the links of its directories resolved; it itself may be a link or not there."""
    plain = path.rstrip("/") or "/"
    parent, _, name = plain.rpartition("/")
    real = tree.real(parent or "/")
    if name in ("", ".", "..") or isinstance(real, Unknown):
        return _without_dots(plain)
    return f"{real.rstrip('/')}/{name}"


def _without_dots(path: str) -> str:
    done: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del done[-1:]
        elif part not in ("", "."):
            done.append(part)
    return "/" + "/".join(done)


def _missing_parent(tree: Tree, path: str) -> bool:
    if not path.startswith("/") or path.rstrip("/") == "":
        return True
    real = tree.real(path.rstrip("/").rpartition("/")[0] or "/")
    return isinstance(real, Unknown) or real not in tree.directories


def write(tree: Tree, path: str, text: str) -> str:
    """Writes a file; why not, where it could not."""
    real = tree.real(path)
    place = place_of(tree, path) if isinstance(real, Unknown) else real
    if place in tree.directories:
        return "Is a directory"
    if place not in tree.files and place.startswith(_OF_KERNEL):
        return "Permission denied" if not _missing_parent(tree, path) else _NO_SUCH
    if _missing_parent(tree, place) or place in tree.links:
        return _NO_SUCH
    tree.add(place, text)
    return ""


def _tee(order: Order) -> Performed:
    options, words = split_options(order.words)
    lines = order.given.splitlines()
    bad = []
    for path in words:
        before = order.tree.text(path) if options.keys() & {"-a", "--append"} else ""
        wrong = write(order.tree, path, before + order.given)
        bad += [f"tee: {path}: {wrong}"] if wrong else []
    return Performed((*bad, *lines), 1 if bad else 0, 0.1)


def _rm(order: Order) -> Performed:
    options, words = split_options(order.words)
    forced = bool(options.keys() & {"-f", "--force"})
    deep = bool(options.keys() & {"-r", "-R", "--recursive"})
    if not words:
        return done() if forced else failed("rm: missing operand", "Try 'rm --help' for more information.")
    bad = []
    for path in words:
        place = place_of(order.tree, path)
        is_directory = place in order.tree.directories and place not in order.tree.links
        if place == "/":
            bad.append("rm: it is dangerous to operate recursively on '/'")
        elif not order.tree.is_there(place):
            bad += [] if forced else [f"rm: cannot remove '{path}': {_NO_SUCH}"]
        elif place.startswith(_OF_KERNEL):
            bad.append(f"rm: cannot remove '{path}': Operation not permitted")
        elif is_directory and not deep:
            bad.append(f"rm: cannot remove '{path}': Is a directory")
        else:
            order.tree.remove(place)
            order.tree.denied.discard(place)
    return Performed(tuple(bad), 1 if bad else 0, 0.1)


def _copy_or_move(order: Order) -> Performed:
    """`cp [-p] A B`, `mv [-T] A B`, `install [-D] [-m MODE] A B`; a directory as B takes the name of A."""
    options, words = split_options(order.words, valued="mt")
    name, tree = order.name, order.tree
    if name == "install" and "-d" in options:
        return _mkdir(replace(order, words=("-p", "--", *words)))
    if len(words) != 2:
        missing = f"destination file operand after '{words[0]}'" if words else "file operand"
        more = f"Try '{name} --help' for more information."
        return failed(f"{name}: {'extra operand' if len(words) > 2 else f'missing {missing}'}", more)
    source, target = words
    content = order.given if source == "/dev/stdin" else _content(order, source)
    if content is None:
        return failed(f"{name}: cannot stat '{source}': {_NO_SUCH}")
    if isinstance(content, _Directory):
        return failed(f"{name}: '{source}' is a directory: on a simulated node, files alone")
    place = place_of(tree, target)
    if place in tree.directories and not options.keys() & {"-T", "--no-target-directory"}:
        place = f"{place.rstrip('/')}/{source.rstrip('/').rpartition('/')[2]}"
    may_make = (
        target.startswith("/") and not place.startswith(_OF_KERNEL) and not _through_a_file(tree, place)
    )
    if name == "install" and "-D" in options and may_make:
        tree.directory(place.rpartition("/")[0] or "/")
    to_there = (
        f"cannot move '{source}' to '{target}'" if name == "mv" else f"cannot create regular file '{target}'"
    )
    if _missing_parent(tree, place) or place.startswith(_OF_KERNEL):
        return failed(f"{name}: {to_there}: {_NO_SUCH}")
    if place in tree.directories:
        return failed(f"{name}: cannot overwrite directory '{target}' with non-directory")
    if name == "mv":
        return _move(tree, source, target, place)
    real = tree.real(place)
    tree.add(place if isinstance(real, Unknown) else real, content)
    return done()


class _Directory:
    """What is at a path is a directory."""


def _content(order: Order, path: str) -> Content | _Directory | None:
    """A file's content as it is now."""
    real = order.tree.real(path)
    if isinstance(real, Unknown):
        return None
    content = order.tree.files.get(real)
    if content is None:
        return _Directory()
    return content(order.seconds) if callable(content) else content


def _move(tree: Tree, source: str, target: str, place: str) -> Performed:
    moved = place_of(tree, source)
    if moved.startswith(_OF_KERNEL):
        return failed(f"mv: cannot remove '{source}': Operation not permitted")
    if moved == place:
        return failed(f"mv: '{source}' and '{target}' are the same file")
    link, content = tree.links.get(moved), tree.files.get(moved)
    if link is None and content is None:
        return failed(f"mv: cannot stat '{source}': {_NO_SUCH}")
    tree.remove(moved)
    tree.remove(place)
    if link is not None:
        tree.link(place, link)
    elif content is not None:
        tree.add(place, content)
    return done()


def _mkdir(order: Order) -> Performed:
    options, words = split_options(order.words, valued="m")
    whole = bool(options.keys() & {"-p", "--parents"})
    bad = []
    for path in words:
        place = place_of(order.tree, path)
        if order.tree.is_there(place):
            is_file = place in order.tree.files
            bad += [f"mkdir: cannot create directory '{path}': File exists"] if is_file or not whole else []
        elif place.startswith(_OF_KERNEL):
            bad.append(f"mkdir: cannot create directory '{path}': Operation not permitted")
        elif not path.startswith("/") or (not whole and _missing_parent(order.tree, path)):
            bad.append(f"mkdir: cannot create directory '{path}': {_NO_SUCH}")
        elif _through_a_file(order.tree, place):
            bad.append(f"mkdir: cannot create directory '{path}': Not a directory")
        else:
            order.tree.directory(place)
    return Performed(tuple(bad), 1 if bad or not words else 0, 0.1)


def _mknod(order: Order) -> Performed:
    """`mknod [-m MODE] FILE c MAJOR MINOR`: a file in /dev; whom its mode keeps out is kept."""
    options, words = split_options(order.words, valued="m")
    if len(words) != 4 or words[1] not in ("c", "u", "b"):
        return failed("mknod: missing operand", "Try 'mknod --help' for more information.")
    path, _, *numbers = words
    if not all(number.isascii() and number.isdecimal() for number in numbers):
        return failed(f"mknod: invalid device number '{' '.join(numbers)}'")
    tree, place = order.tree, place_of(order.tree, path)
    if tree.is_there(place):
        return failed(f"mknod: {path}: File exists")
    if _missing_parent(tree, place) or not place.startswith(_DEVICES):
        return failed(f"mknod: {path}: {_NO_SUCH if _missing_parent(tree, place) else 'Permission denied'}")
    tree.add(place, "")
    mode = options.get("-m", "644")
    if mode[-1:] not in ("2", "3", "6", "7"):  # others may not write
        tree.denied.add(place)
    return done()


def _through_a_file(tree: Tree, path: str) -> bool:
    parts = path.split("/")
    above = ("/".join(parts[:count]) for count in range(2, len(parts)))
    return any(place in tree.files for place in above)


def _chmod(order: Order) -> Performed:
    """Of device files only whether others may write them is kept."""
    _, words = split_options(word for word in order.words if word not in ("-w", "-x", "-r"))
    if len(words) < 2:
        return failed("chmod: missing operand", "Try 'chmod --help' for more information.")
    mode, *paths = words
    octal = all(letter in "01234567" for letter in mode) and 0 < len(mode) <= 5
    if not octal and not all(letter in "ugoarwxXst+-=," for letter in mode):
        return failed(f"chmod: invalid mode: '{mode}'", "Try 'chmod --help' for more information.")
    opens = int(mode, 8) & 0o2 if octal else "+" in mode and "w" in mode and mode[0] in "oa+"
    bad = []
    for path in paths:
        real = order.tree.real(path)
        if isinstance(real, Unknown):
            bad.append(f"chmod: cannot access '{path}': {_NO_SUCH}")
        elif real.startswith(_DEVICES):
            if opens:
                order.tree.denied.discard(real)
            elif octal:
                order.tree.denied.add(real)
    return Performed(tuple(bad), 1 if bad else 0, 0.1)


def _ln(order: Order) -> Performed:
    options, words = split_options(order.words)
    if len(words) != 2:
        return failed("ln: missing file operand", "Try 'ln --help' for more information.")
    target, path = words
    if not options.keys() & {"-s", "--symbolic"}:
        return failed("ln: a simulated node makes symbolic links only")
    tree, place = order.tree, place_of(order.tree, path)
    if place in tree.directories and place not in tree.links:
        place = f"{place.rstrip('/')}/{target.rpartition('/')[2]}"
    if tree.is_there(place) and not (options.keys() & {"-f", "--force"} and place not in tree.directories):
        return failed(f"ln: failed to create symbolic link '{path}': File exists")
    if place.startswith(_OF_KERNEL):
        return failed(f"ln: failed to create symbolic link '{path}': Operation not permitted")
    if _missing_parent(tree, place):
        return failed(f"ln: failed to create symbolic link '{path}': {_NO_SUCH}")
    tree.remove(place)
    tree.link(place, target)
    return done()


def _sync(order: Order) -> Performed:
    gone = [path for path in split_options(order.words)[1] if isinstance(order.tree.real(path), Unknown)]
    return failed(*(f"sync: error opening '{path}': {_NO_SUCH}" for path in gone)) if gone else done()


COMMANDS: Mapping[str, Obeyed] = {
    "tee": _tee,
    "rm": _rm,
    "cp": _copy_or_move,
    "mv": _copy_or_move,
    "install": _copy_or_move,
    "mkdir": _mkdir,
    "mknod": _mknod,
    "chmod": _chmod,
    "ln": _ln,
    "sync": _sync,
}
