"""The files that count when gdrtop runs as root: those that root alone can write (as sshd's StrictModes).

Sudo may keep HOME and other variables of a user. A configuration found by them may name programs, so gdrtop,
the libraries that it uses and the programs that it starts get only what passes here.
"""

from __future__ import annotations

import errno
import os
import pwd
import stat
import sys

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_MOST_LINKS = 40  # MAXSYMLINKS of the kernel
_PLACES = (
    *("XDG_CONFIG_HOME", "XDG_CONFIG_DIRS", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"),
    *("KUBECONFIG", "SLURM_CONF", "NCCL_CONF_FILE", "UCX_CONFIG_DIR"),
)
"""Variables that name files or directories which programs read, with colons between them."""


class NotTrusted(OSError):
    """As root, gdrtop does not read this file; `strerror` says why."""


def is_root() -> bool:
    """Return whether gdrtop runs as root."""
    return os.geteuid() == 0


def require_owner(status: os.stat_result, name: str, also: str = "") -> None:
    """Raise NotTrusted if another user owns a file or can write to it, other than the user `also`."""
    if status.st_uid not in (0, os.geteuid()) and not (also and user_name(status.st_uid) == also):
        raise NotTrusted(0, f"{name} belongs to uid {status.st_uid}, and gdrtop runs as root")
    if status.st_mode & _OTHERS_WRITE:
        mode = f"mode {stat.S_IMODE(status.st_mode):04o}"
        raise NotTrusted(0, f"other users can write to {name} ({mode}), and gdrtop runs as root")


def user_name(user: int) -> str:
    """Return the name of a uid; "" if it has none."""
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return ""


def require_path(path: str, top: str = "/", also: str = "") -> str:
    """Return the real path of a file that root alone can write; use it by this name only.

    The same must hold for each directory on the way, also for that of each link: else another user could turn
    the link after this. `top`: directories above this one are not checked. `also`: a user who may write, too.

    Raises:
        NotTrusted: another user can write to it, or to a directory on the way.
        OSError: it does not exist, or is not reached.
    """
    waiting, real, links = ["/", *path.split("/")] if path[:1] == "/" else [], "/", 0
    if not waiting:
        raise NotTrusted(0, f"{path} is not an absolute path, and gdrtop runs as root")
    while waiting:
        part = waiting.pop(0)
        if part == "..":
            real = os.path.dirname(real)
        if part in ("", ".", ".."):
            continue
        entry = os.path.join(real, part)
        status = os.lstat(entry)
        if stat.S_ISLNK(status.st_mode):
            links += 1
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            target = os.readlink(entry)
            real = "/" if target[:1] == "/" else real
            waiting[:0] = target.split("/")
            continue
        real = entry
        if real == top or not top.startswith(real.rstrip("/") + "/"):
            require_owner(status, real, also)
    return real


def is_trusted(path: str) -> bool:
    """Return whether a file exists that root alone can write."""
    try:
        require_path(path)
    except (OSError, ValueError):
        return False
    return True


def trusted_environment() -> dict[str, str]:
    """Return the variables of gdrtop for a program that it starts.

    As root, HOME is that of root and lists of files are shortened where another user can write.
    """
    found = dict(os.environ)
    if not is_root():
        return found
    if "HOME" in found and not is_trusted(found["HOME"]):
        found["HOME"] = pwd.getpwuid(os.geteuid()).pw_dir
    for name in _PLACES:
        if name in found:
            kept = os.pathsep.join(filter(is_trusted, found.pop(name).split(os.pathsep)))
            if kept:
                found[name] = kept
    return found


# The same for a node over a connection, and for programs of the site: this file runs alone, also there.

_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS, _SIGKILL = 1, 38, 9  # include/uapi/linux/prctl.h
NOT_STARTED = "not started"
_STATUS = 126  # as a shell; no plugin exits so


def main(arguments: list[str]) -> None:
    """Print the real path of a trusted file (`"" PATH`), or become a program (`USER PATH ARGUMENT …`).

    As root, it becomes this user first. Otherwise gdrtop's user stays, who is trusted with all that they run.
    """
    user, path, *rest = arguments
    try:
        path = require_path(path) if is_root() else path
        if not user:
            print(path, end="")
            return
        if is_root() and user != "root":
            _become(user)
        os.execv(path, [path, *rest])
    except (OSError, KeyError, ValueError) as error:
        detail = f"no user {user}" if isinstance(error, KeyError) else getattr(error, "strerror", "") or error
        print(f"{NOT_STARTED}: {detail}", file=sys.stderr)
        sys.exit(_STATUS)


def _become(user: str) -> None:
    """Become a user for good; not even a setuid program gives rights back."""
    import ctypes

    entry = pwd.getpwnam(user)
    os.initgroups(user, entry.pw_gid)
    os.setresgid(entry.pw_gid, entry.pw_gid, entry.pw_gid)
    os.setresuid(entry.pw_uid, entry.pw_uid, entry.pw_uid)
    prctl = ctypes.CDLL(None).prctl
    for option, value in ((_PR_SET_NO_NEW_PRIVS, 1), (_PR_SET_PDEATHSIG, _SIGKILL)):
        prctl(*map(ctypes.c_ulong, (option, value, 0, 0, 0)))


if __name__ == "__main__":
    main(sys.argv[1:])
