"""Read the configuration: the site's files, the user's file, the environment; what comes later counts.

A node without any of them pays for a few system calls only.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from probes.base.text import printable
from tui.files.xdg import CONFIG, own_directory
from tui.settings import PREFIX

if TYPE_CHECKING:
    from tui.settings.configuration import Configuration

WHAT = "a configuration"
SITE_DIRECTORY = "/etc/gdrtop"
TOP = "/"  # as root, the directories of a file are checked up to this one
FILE = "config.toml"
FOLDER = "config.d"  # of the site; its *.toml are read sorted by name
MOST_BYTES = 1 << 18
_MOST_FILES = 100
_ABSENT = "not there"


def user_file() -> str:
    """Return the path of the user's file, which need not exist; "" without a home directory."""
    directory = own_directory(CONFIG)
    return os.path.join(directory, FILE) if directory else ""


def is_any() -> bool:
    """Return whether there is anything to read, or to report because it cannot be read."""
    paths = (os.path.join(SITE_DIRECTORY, FILE), os.path.join(SITE_DIRECTORY, FOLDER), user_file())
    return any(map(_exists, paths)) or any(name.startswith(PREFIX) for name in os.environ)


def _exists(path: str) -> bool:
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    except OSError:
        return True
    return True


def load(environment: Mapping[str, str] | None = None) -> Configuration:
    """Return the configuration of this machine and user, with all its errors.

    `environment`: by default that of the process.
    """
    from probes.host.trusted_path import NotTrusted, is_root
    from tui.files.read_file import read_trusted
    from tui.settings.configuration import ConfigFile
    from tui.settings.merge import merge

    environment = os.environ if environment is None else environment
    variables = {name: text for name, text in environment.items() if name.startswith(PREFIX)}
    errors: list[str] = []
    notes: list[str] = []
    files: list[ConfigFile] = []
    texts: list[tuple[str, bool, bytes]] = []  # path, whether it is the site's, content
    site = [os.path.join(SITE_DIRECTORY, FILE), *_folder(os.path.join(SITE_DIRECTORY, FOLDER), errors)]
    own = user_file()
    for path in dict.fromkeys((*site, own) if own else site):
        is_site = path in site  # also if a user says that their own file is in the site's directory
        try:
            texts.append((path, is_site, read_trusted(path, MOST_BYTES, WHAT, TOP)))
            state = "read"
        except (FileNotFoundError, NotADirectoryError):
            state = _ABSENT
        except (OSError, ValueError) as error:
            state = f"not read: {_why(error)}"
            # Without a site's file, which may forbid something, nothing runs. Sudo may keep a user's HOME.
            is_left_out = isinstance(error, NotTrusted) and not is_site
            (notes if is_left_out else errors).append(f"{printable(path)} is {state}")
        files.append(ConfigFile(printable(path), state))
    return merge(texts, variables, tuple(files), errors, notes, is_root=is_root())


def _folder(path: str, errors: list[str]) -> list[str]:
    try:
        names = sorted(name for name in os.listdir(path) if name.endswith(".toml") and name[0] != ".")
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        errors.append(f"{printable(path)} is not read: {_why(error)}")
        return []
    if len(names) > _MOST_FILES:
        errors.append(f"{printable(path)} has {len(names)} files; gdrtop reads at most {_MOST_FILES}")
    return [os.path.join(path, name) for name in names[:_MOST_FILES]]


def _why(error: OSError | ValueError) -> str:
    from tui.files.new_file import why

    return why(error)
