"""Start gdrtop from the folder or the .pyz that this file is in, as __main__.py.

It parses with Python 3.6, to refuse that with a sentence. packages.py fills in ARCHITECTURE and BUILD.
"""

import os
import sys

ARCHITECTURE = BUILD = ""
HERE = os.path.dirname(os.path.abspath(__file__))


def refuse(why):
    sys.stderr.write(f"gdrtop: {why}\n")
    sys.exit(3)


def is_replaceable(path):
    """Whether others than root can put another folder in place of this one; asked for root only."""
    found = os.stat(path)
    if found.st_uid != 0 or (found.st_mode & 0o022 and not found.st_mode & 0o1000):  # 0o1000: sticky, as /tmp
        return True
    return path != "/" and is_replaceable(os.path.dirname(path))


def unpack(base, folder):
    """Unpack the .pyz; if several starts do it at once, the first one wins."""
    if not sys.flags.isolated:  # what PYTHONPATH names may have modules of these names
        os.execv(sys.executable, [sys.executable, "-I", HERE, *sys.argv[1:]])
    import shutil
    import tempfile
    import zipfile

    unfinished = tempfile.mkdtemp(dir=base)
    try:
        with zipfile.ZipFile(HERE) as archive:
            archive.extractall(unfinished)
        os.rename(unfinished, folder)
    except OSError:
        if not os.path.isdir(folder):
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def checked(base):
    """Return the unpacked folder in this one, which only this user can change; raise OSError else."""
    os.makedirs(base, 0o700, exist_ok=True)
    base = os.path.realpath(base)  # a link could be turned after the check
    folder = os.path.join(base, BUILD)
    if os.geteuid() == 0 and is_replaceable(base):
        raise PermissionError(0, "other users can write there")
    if os.statvfs(base).f_flag & os.ST_NOEXEC:
        raise PermissionError(0, "mounted noexec")
    if not os.path.lexists(folder):
        unpack(base, folder)
    found = os.lstat(folder)
    if found.st_uid != os.geteuid() or found.st_mode & 0o170022 != 0o040000:  # no link, and 0o022 is clear
        raise PermissionError(0, f"others than user {os.geteuid()} can change {BUILD}")
    return folder


def unpacked():
    named = os.environ.get("SHIV_ROOT")
    memory = (
        "/run" if os.geteuid() == 0 else os.environ.get("XDG_RUNTIME_DIR")
    )  # a full disk is not in the way
    bases = [named] if named else [os.path.expanduser("~/.shiv"), *([f"{memory}/gdrtop"] if memory else [])]
    failed = []
    for base in map(os.path.abspath, bases):
        try:
            return checked(base)
        except Exception as error:
            failed.append(f"{base}: {getattr(error, 'strerror', None) or ascii(str(error))}")
    refuse(f"cannot unpack itself ({'; '.join(failed)}); set SHIV_ROOT to a directory with 60 MB free")


def start():
    if sys.version_info < (3, 10):  # noqa: UP036
        version = ".".join(map(str, sys.version_info[:3]))
        refuse(f"needs Python 3.10 or newer, and {sys.executable} is {version}; run: python3.11 {HERE}")
    if os.uname()[4] != ARCHITECTURE:
        refuse(f"this file is for {ARCHITECTURE}, and this node is {os.uname()[4]}")
    if not os.path.isdir(HERE):
        # Isolated, this folder comes first and no PYTHONPATH after it.
        os.execv(sys.executable, [sys.executable, "-I", unpacked(), HERE, *sys.argv[1:]])
    try:
        from gdrtop import main
    except Exception as error:
        refuse(f"{sys.executable} cannot start what is in {HERE} ({str(error)!a}); install gdrtop again")
    del sys.argv[0]  # the folder; what the user has started follows
    sys.exit(main())


if __name__ == "__main__":
    start()
