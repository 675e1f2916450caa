"""tee, cp, mv, install, rm, mkdir, mknod, chmod, ln, sync, with the messages of coreutils."""

from __future__ import annotations

import posixpath
from dataclasses import replace

from probes.base.unknown import Unknown
from probes.simulation.commands.command_result import CommandResult, Invocation, done, failed, split_options
from probes.simulation.node.model.tree import Content, Tree

_NO_SUCH = "No such file or directory"
_DEVICES = "/dev/"
_KERNEL_DIRECTORIES = ("/sys/", "/proc/")


def resolve_parent(tree: Tree, path: str) -> str:
    """Resolve the links in a path's directories; the last part may be a link or missing."""
    plain = path.rstrip("/") or "/"
    parent, _, name = plain.rpartition("/")
    real = tree.real(parent or "/")
    if name in ("", ".", "..") or isinstance(real, Unknown):
        return posixpath.normpath(f"/{plain.lstrip('/')}")
    return f"{real.rstrip('/')}/{name}"


def _missing_parent(tree: Tree, path: str) -> bool:
    if not path.startswith("/") or path.rstrip("/") == "":
        return True
    real = tree.real(path.rstrip("/").rpartition("/")[0] or "/")
    return isinstance(real, Unknown) or real not in tree.directories


def write(tree: Tree, path: str, text: str) -> str:
    """Write a file; return the error message, or "" on success."""
    real = tree.real(path)
    resolved = resolve_parent(tree, path) if isinstance(real, Unknown) else real
    if resolved in tree.directories:
        return "Is a directory"
    if resolved not in tree.files and resolved.startswith(_KERNEL_DIRECTORIES):
        return "Permission denied" if not _missing_parent(tree, path) else _NO_SUCH
    if _missing_parent(tree, resolved) or resolved in tree.links:
        return _NO_SUCH
    tree.add(resolved, text)
    return ""


def _tee(call: Invocation) -> CommandResult:
    options, words = split_options(call.args)
    lines = call.stdin.splitlines()
    errors = []
    for path in words:
        before = call.tree.text(path) if options.keys() & {"-a", "--append"} else ""
        error = write(call.tree, path, before + call.stdin)
        errors += [f"tee: {path}: {error}"] if error else []
    return CommandResult((*errors, *lines), 1 if errors else 0, 0.1)


def _rm(call: Invocation) -> CommandResult:
    options, words = split_options(call.args)
    forced = bool(options.keys() & {"-f", "--force"})
    deep = bool(options.keys() & {"-r", "-R", "--recursive"})
    if not words:
        return done() if forced else failed("rm: missing operand", "Try 'rm --help' for more information.")
    errors = []
    for path in words:
        resolved = resolve_parent(call.tree, path)
        is_directory = resolved in call.tree.directories and resolved not in call.tree.links
        if resolved == "/":
            errors.append("rm: it is dangerous to operate recursively on '/'")
        elif not call.tree.is_there(resolved):
            errors += [] if forced else [f"rm: cannot remove '{path}': {_NO_SUCH}"]
        elif resolved.startswith(_KERNEL_DIRECTORIES):
            errors.append(f"rm: cannot remove '{path}': Operation not permitted")
        elif is_directory and not deep:
            errors.append(f"rm: cannot remove '{path}': Is a directory")
        else:
            call.tree.remove(resolved)
            call.tree.denied.discard(resolved)
    return failed(*errors) if errors else done()


def _copy_or_move(call: Invocation) -> CommandResult:
    """`cp [-p] A B`, `mv [-T] A B`, `install [-D] [-m MODE] A B`; a directory B gets a file named like A."""
    options, words = split_options(call.args, valued="mt")
    name, tree = call.name, call.tree
    if name == "install" and "-d" in options:
        return _mkdir(replace(call, args=("-p", "--", *words)))
    if len(words) != 2:
        missing = f"destination file operand after '{words[0]}'" if words else "file operand"
        more = f"Try '{name} --help' for more information."
        return failed(f"{name}: {'extra operand' if len(words) > 2 else f'missing {missing}'}", more)
    source, target = words
    content: Content | None = call.stdin
    if source != "/dev/stdin":
        real = tree.real(source)
        if isinstance(real, Unknown):
            return failed(f"{name}: cannot stat '{source}': {_NO_SUCH}")
        content = tree.files.get(real)
    if content is None:
        return failed(f"{name}: '{source}' is a directory; a simulated node copies only files")
    resolved = resolve_parent(tree, target)
    if resolved in tree.directories and not options.keys() & {"-T", "--no-target-directory"}:
        resolved = f"{resolved.rstrip('/')}/{source.rstrip('/').rpartition('/')[2]}"
    is_reserved = resolved.startswith(_KERNEL_DIRECTORIES) or not target.startswith("/")
    if name == "install" and "-D" in options and not is_reserved and not _has_file_as_parent(tree, resolved):
        tree.directory(resolved.rpartition("/")[0] or "/")
    to_there = (
        f"cannot move '{source}' to '{target}'" if name == "mv" else f"cannot create regular file '{target}'"
    )
    if _missing_parent(tree, resolved) or resolved.startswith(_KERNEL_DIRECTORIES):
        return failed(f"{name}: {to_there}: {_NO_SUCH}")
    if resolved in tree.directories:
        return failed(f"{name}: cannot overwrite directory '{target}' with non-directory")
    if name == "mv":
        return _move(tree, source, target, resolved)
    real = tree.real(resolved)
    now = content(call.seconds) if callable(content) else content
    tree.add(resolved if isinstance(real, Unknown) else real, now)
    return done()


def _move(tree: Tree, source: str, target: str, resolved: str) -> CommandResult:
    resolved_source = resolve_parent(tree, source)
    if resolved_source.startswith(_KERNEL_DIRECTORIES):
        return failed(f"mv: cannot remove '{source}': Operation not permitted")
    if resolved_source == resolved:
        return failed(f"mv: '{source}' and '{target}' are the same file")
    link, content = tree.links.get(resolved_source), tree.files.get(resolved_source)
    if link is None and content is None:
        return failed(f"mv: cannot stat '{source}': {_NO_SUCH}")
    tree.remove(resolved_source)
    tree.remove(resolved)
    if link is not None:
        tree.link(resolved, link)
    elif content is not None:
        tree.add(resolved, content)
    return done()


def _mkdir(call: Invocation) -> CommandResult:
    options, words = split_options(call.args, valued="m")
    whole = bool(options.keys() & {"-p", "--parents"})
    errors = []
    for path in words:
        resolved = resolve_parent(call.tree, path)
        if call.tree.is_there(resolved):
            if resolved in call.tree.files or not whole:
                errors.append(f"mkdir: cannot create directory '{path}': File exists")
        elif resolved.startswith(_KERNEL_DIRECTORIES):
            errors.append(f"mkdir: cannot create directory '{path}': Operation not permitted")
        elif not path.startswith("/") or (not whole and _missing_parent(call.tree, path)):
            errors.append(f"mkdir: cannot create directory '{path}': {_NO_SUCH}")
        elif _has_file_as_parent(call.tree, resolved):
            errors.append(f"mkdir: cannot create directory '{path}': Not a directory")
        else:
            call.tree.directory(resolved)
    return CommandResult(tuple(errors), 1 if errors or not words else 0, 0.1)


def _mknod(call: Invocation) -> CommandResult:
    """`mknod [-m MODE] FILE c MAJOR MINOR`: create a file in /dev; of the mode, only write access is kept."""
    options, words = split_options(call.args, valued="m")
    if len(words) != 4 or words[1] not in ("c", "u", "b"):
        return failed("mknod: missing operand", "Try 'mknod --help' for more information.")
    path, _, *numbers = words
    if not all(number.isascii() and number.isdecimal() for number in numbers):
        return failed(f"mknod: invalid device number '{' '.join(numbers)}'")
    tree, resolved = call.tree, resolve_parent(call.tree, path)
    if tree.is_there(resolved):
        return failed(f"mknod: {path}: File exists")
    if _missing_parent(tree, resolved):
        return failed(f"mknod: {path}: {_NO_SUCH}")
    if not resolved.startswith(_DEVICES):
        return failed(f"mknod: {path}: Permission denied")
    tree.add(resolved, "")
    mode = options.get("-m", "644")
    if mode[-1:] not in ("2", "3", "6", "7"):  # others cannot write
        tree.denied.add(resolved)
    return done()


def _has_file_as_parent(tree: Tree, path: str) -> bool:
    parts = path.split("/")
    above = ("/".join(parts[:count]) for count in range(2, len(parts)))
    return any(resolved in tree.files for resolved in above)


def _chmod(call: Invocation) -> CommandResult:
    """Keep only whether others can write to a device file."""
    _, words = split_options(word for word in call.args if word not in ("-w", "-x", "-r"))
    if len(words) < 2:
        return failed("chmod: missing operand", "Try 'chmod --help' for more information.")
    mode, *paths = words
    octal = all(letter in "01234567" for letter in mode) and 0 < len(mode) <= 5
    if not octal and not all(letter in "ugoarwxXst+-=," for letter in mode):
        return failed(f"chmod: invalid mode: '{mode}'", "Try 'chmod --help' for more information.")
    opens = int(mode, 8) & 0o2 if octal else "+" in mode and "w" in mode and mode[0] in "oa+"
    errors = []
    for path in paths:
        real = call.tree.real(path)
        if isinstance(real, Unknown):
            errors.append(f"chmod: cannot access '{path}': {_NO_SUCH}")
        elif real.startswith(_DEVICES):
            if opens:
                call.tree.denied.discard(real)
            elif octal:
                call.tree.denied.add(real)
    return failed(*errors) if errors else done()


def _ln(call: Invocation) -> CommandResult:
    options, words = split_options(call.args)
    if len(words) != 2:
        return failed("ln: missing file operand", "Try 'ln --help' for more information.")
    target, path = words
    if not options.keys() & {"-s", "--symbolic"}:
        return failed("ln: a simulated node creates only symbolic links")
    tree, resolved = call.tree, resolve_parent(call.tree, path)
    if resolved in tree.directories and resolved not in tree.links:
        resolved = f"{resolved.rstrip('/')}/{target.rpartition('/')[2]}"
    forced = options.keys() & {"-f", "--force"} and resolved not in tree.directories
    if tree.is_there(resolved) and not forced:
        return failed(f"ln: failed to create symbolic link '{path}': File exists")
    if resolved.startswith(_KERNEL_DIRECTORIES):
        return failed(f"ln: failed to create symbolic link '{path}': Operation not permitted")
    if _missing_parent(tree, resolved):
        return failed(f"ln: failed to create symbolic link '{path}': {_NO_SUCH}")
    tree.remove(resolved)
    tree.link(resolved, target)
    return done()


def _sync(call: Invocation) -> CommandResult:
    gone = [path for path in split_options(call.args)[1] if isinstance(call.tree.real(path), Unknown)]
    return failed(*(f"sync: error opening '{path}': {_NO_SUCH}" for path in gone)) if gone else done()


COMMANDS = {
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
