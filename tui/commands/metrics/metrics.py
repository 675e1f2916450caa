"""`gdrtop metrics`: the verdict, findings, paths and counters of a node for Prometheus."""

from __future__ import annotations

import argparse
import ipaddress
from typing import TextIO

from probes.base.origin import Source
from tui.command_line.arguments import UsageError, add_arguments, duration, whole_number
from tui.runtime.open_host import open_host

_LOOPBACK = "127.0.0.1"


def add_options(parser: argparse.ArgumentParser) -> None:
    add_arguments(
        parser,
        {
            "--textfile FILE": "replace this file, for node_exporter's textfile collector; its name ends "
            "in .prom",
            "--listen [ADDR:]PORT": "answer Prometheus at http://ADDR:PORT/metrics (default ADDR: 127.0.0.1)",
            "--interval TIME": "with --listen: the time between two checks (default: 60)",
            "--with-counters": "also the bytes of each port, where node_exporter does not export them",
        },
        listen={"type": address},
        interval={"dest": "every", "type": duration(10, 3600)},
    )


def address(text: str) -> tuple[str, int]:
    """Return the address and port of "9477", "0.0.0.0:9477" or "[::1]:9477"; a name is not looked up."""
    host, colon, port = text.rpartition(":")
    if colon and not host:
        raise argparse.ArgumentTypeError(f"{text!r} has no address; write 0.0.0.0{text} for all addresses")
    try:
        number = whole_number(0, 65535)(port)
        is_bracketed = host.startswith("[") and host.endswith("]")
        found = ipaddress.ip_address(host[1:-1] if is_bracketed else host or _LOOPBACK)
        if is_bracketed is not (found.version == 6):
            raise ValueError
    except (ValueError, argparse.ArgumentTypeError):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a port, ADDRESS:PORT or [IPv6 address]:PORT"
        ) from None
    return str(found), number


def run(options: argparse.Namespace, out: TextIO) -> int:
    """Print, write or serve the metrics of the node that the options name."""
    if options.textfile is not None and options.listen is not None:
        raise UsageError("--textfile and --listen exclude each other")
    if options.every is not None and options.listen is None:
        raise UsageError(
            "--interval needs --listen; a timer runs gdrtop metrics --textfile (gdrtop manifest metrics)"
        )
    if options.textfile is not None and not options.textfile.endswith(".prom"):
        raise UsageError(f"--textfile {options.textfile!r}: node_exporter reads only files that end in .prom")
    host = open_host(options)
    if options.listen is not None:
        if host.origin.source is Source.RECORDED:
            raise UsageError("--listen cannot be used with --replay")
        from tui.commands.metrics.server import serve

        return serve(host, options.listen, float(options.every or 60), options.with_counters)
    from tui.commands.metrics.reading import MetricsReader, encode

    content = encode(MetricsReader(host, options.with_counters).read())
    if options.textfile is None:
        out.write(content.decode())
        return 0
    from tui.files.new_file import replace_public

    replace_public(options.textfile, content)
    return 0
